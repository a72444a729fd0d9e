"""Runs of nccl-tests: their limits, their units, an expectation of the user, and NCCL over Ethernet."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpucluster import shapes
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import HEADER, Job, JobResult
from gpucluster.jobs.render import render
from gpucluster.node_agent.checks.model import Status
from tests.jobs import seed_outputs
from tests.jobs.templates.test_rdma_perftest import GPU4, files, judge, programs
from tests.jobs.templates.test_rdma_perftest import job as seed_job
from tests.node_agent.nccl.outputs import ALONE, MISTUNED, TUNED, output


def job(name: str, shape: str = "", nodes: int = 2, settings: dict[str, str] | None = None) -> Job:
    template = registry.template(name)
    by = registry.launcher(template)
    return choose.describe(template, by, settings or {}, nodes=nodes, shape=shapes.get(shape) if shape else None)


def judged(of: Job, text: str) -> JobResult:
    return of.template.judge(text, of)


def messages(result: JobResult) -> str:
    return "; ".join(finding.message for finding in result.findings)


# --- nccl_tests -----


@pytest.mark.parametrize(
    ("rows", "ranks", "nodes", "status", "said"),
    [
        (TUNED, 16, 2, Status.PASS, "reaches 185"),
        (ALONE, 8, 1, Status.PASS, "reaches 225"),
        (MISTUNED, 16, 2, Status.FAIL, "below 185"),
        (TUNED, 1, 2, Status.FAIL, "1 ranks name their GPU"),
        ("", 16, 2, Status.UNKNOWN, "no row"),
    ],
)
def test_nccl_is_judged_by_the_limits_of_the_shape(
    rows: str, ranks: int, nodes: int, status: Status, said: str
) -> None:
    text = f"{HEADER}{{}}\n" + "".join(output(rows, ranks=ranks))
    result = judged(job("nccl_tests", "BM.GPU4.8", nodes), text)
    assert result.status is status
    assert said in messages(result)


def test_nccl_gives_values_and_steps_in_their_units() -> None:
    result = judged(job("nccl_tests", "BM.GPU4.8"), "".join(output(TUNED)))
    assert result.values == {"busbw": pytest.approx(224.72)}
    assert result.units["busbw"] == "GB/s"
    assert result.steps == ({"bytes": 10737418240.0, "busbw": 224.57},)
    assert json.loads(json.dumps(result.to_dict()))["status"] == "pass"


def test_an_expectation_of_your_own_replaces_that_of_the_shape() -> None:
    text = "".join(output(TUNED))
    assert judged(job("nccl_tests", "BM.GPU4.8", settings={"expect": "230"}), text).status is Status.FAIL
    assert judged(job("nccl_tests", "BM.GPU4.8", settings={"expect": "200"}), text).status is Status.PASS


def test_the_expectation_has_the_figures_of_the_seeds_and_of_the_shape() -> None:
    pair = job("nccl_tests", "BM.GPU4.8")
    figures = {(each.bound, each.value, each.source) for each in pair.template.expectation(pair)}
    assert {("at least", 185, "shapes.toml"), ("about", 224.7, "seed 002"), ("about", 71.56, "seed 000")} <= figures
    anywhere = job("nccl_tests")
    assert 2.81 in {each.value for each in anywhere.template.expectation(anywhere)}


# --- mpi_allreduce -----


def rows(*busbw: float, wrong: int = 0, ranks: int = 2, hosts: int = 2, end: bool = True) -> str:
    lines = [
        {"bytes": 8 << number, "seconds": 1e-5, "algbw": each, "busbw": each, "wrong": wrong}
        for number, each in enumerate(busbw)
    ]
    last = [{"ranks": ranks, "wanted": 2, "hosts": hosts, "wrong": wrong}] if end else []
    return "".join(json.dumps(line) + "\n" for line in [*lines, *last])


# --- nccl-tests over a named interface -----


def test_nccl_over_ethernet_is_97_percent_of_ib_write_bw() -> None:
    result = judge(seed_outputs.NCCL_OVER_ETHERNET, seed_job("nccl_tests", gpus=1, smallest="10G"))
    assert result.values["busbw"] == pytest.approx(2.81)
    assert result.values["busbw"] * 8 / 23.14 == pytest.approx(0.97, abs=0.005)
    assert result.status is Status.UNKNOWN, "no figure is published for it"
    assert judge(seed_outputs.NCCL_OVER_ETHERNET, seed_job("nccl_tests", gpus=1, expect="2.8")).status is Status.PASS


def _in_a_batch_job(of: Job, folder: Path, **scripts: str) -> int:
    """The exit status of the rendered script, where no other programs are there than these and the system's."""
    rendered = files(of, folder / "job")
    programs(folder, scontrol="printf '%s\\n' gpu-1 gpu-2", **scripts)
    variables = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(folder / "job"), "SLURM_JOB_NODELIST": "gpu-[1-2]"}
    # A gpucluster-agent elsewhere on the PATH of this machine would judge the output.
    environment = {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    script = folder / "job" / rendered.script
    return subprocess.run(["bash", str(script)], env=environment, check=False, capture_output=True).returncode


def test_nccl_uses_the_interface_and_the_device_that_are_named(tmp_path: Path) -> None:
    of = seed_job("nccl_tests", "mpirun", gpus=1, interface="ens192", device="irdma0", program="/bin/true")
    assert not choose.refusal(of)
    # The check of the nodes comes before, and has the name of the program in it.
    write = f'env | grep ^NCCL_ | sort > {tmp_path}/given; echo "$*" > {tmp_path}/words'
    show = f'case "$*" in *" /bin/true -b "*) {write} ;; esac'
    assert _in_a_batch_job(of, tmp_path, mpirun=show) == 0
    assert (tmp_path / "given").read_text() == "NCCL_IB_HCA==irdma0\nNCCL_SOCKET_IFNAME==ens192\n"
    words = (tmp_path / "words").read_text()
    assert "-x NCCL_SOCKET_IFNAME" in words and "-x NCCL_IB_HCA" in words  # noqa: PT018
    # Without them, the settings are those of the node.
    plain = render(seed_job("nccl_tests", "srun", shape=GPU4))
    assert "interface=''" in plain.files[plain.script].text


@pytest.mark.parametrize("status", [0, 2, 3])
def test_the_job_ends_as_the_agent_judges_its_output(tmp_path: Path, status: int) -> None:
    of = seed_job("nccl_tests", "mpirun", gpus=1, program="/bin/true")
    agent = f'printf "%s\\n" "$@" > {tmp_path}/judge; exit {status}'
    printed = 'case "$*" in *" /bin/true -b "*) echo "# Avg bus bandwidth" ;; esac'
    programs(tmp_path, **{"gpucluster-agent": agent})
    assert _in_a_batch_job(of, tmp_path, mpirun=printed) == status
    words = (tmp_path / "judge").read_text().splitlines()
    result = tmp_path / "job" / "nccl_tests-7.result"
    assert words[:5] == ["nccl", "judge", str(result), "--nodes=2", "--gpus=1"]
    assert result.read_text() == "# Avg bus bandwidth\n"
