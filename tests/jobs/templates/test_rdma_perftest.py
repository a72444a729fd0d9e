"""Measurements with perftest: its output, its pairs, and the limits of a link.

Nothing runs here but shells: there is no RDMA, no GPU and no TensorFlow. The rows of outputs are those of the seeds.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster import shapes
from gpucluster.cli import cli
from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Job, JobResult, Rendered
from gpucluster.jobs.render import render
from gpucluster.measuring import perftest
from gpucluster.node_agent.checks.model import Status
from tests.jobs import seed_outputs

GPU4 = "BM.GPU4.8"


def job(name: str, launcher: str = "", *, nodes: int = 2, shape: str = "", gpus: int = 0, **settings: str) -> Job:
    return job_with(settings, name, launcher, nodes=nodes, shape=shape, gpus=gpus)


def job_with(
    settings: Mapping[str, str], name: str, launcher: str = "", *, nodes: int = 2, shape: str = "", gpus: int = 0
) -> Job:
    template = registry.template(name)
    return choose.describe(
        template,
        registry.launcher(template, launcher),
        settings,
        nodes=nodes,
        shape=shapes.get(shape) if shape else None,
        gpus=None if shape and not gpus else gpus,
        rdma=True,
    )


def judge(text: str, of: Job) -> JobResult:
    return of.template.judge(text, of)


def statuses(result: JobResult) -> dict[str, Status]:
    return {finding.check: finding.status for finding in result.findings}


def message(result: JobResult, check: str) -> str:
    return next(finding.message for finding in result.findings if finding.check == check)


# --- perftest -----


def latency(device: str, mean: float) -> str:
    """As perftest's RESULT_FMT_LAT and REPORT_FMT_LAT have it."""
    return (
        f" Dual-port       : OFF\t\tDevice         : {device}\n"
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
        "   99% percentile[usec]   99.9% percentile[usec] \n"
        f" 2       1000          1.50           9.10         1.80\t       {mean:<7.2f}     \t0.12   \t\t2.01\t\t4.40\n"
    )


def device(name: str, gbps: float, *, us: float = 2.0, rate: str = "100", pings: int = 3) -> str:
    """What `rdma.sh` prints for one device."""
    return (
        f"gpucluster: device {name}\ngpucluster: rate {name} {rate}\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        f" 65536      10000            {gbps:.2f}             {gbps:.2f}\t\t   0.186\n"
        f"{latency(name, us)}gpucluster: rping {name} 0\n"
        + "".join(f"ping data: rdma-ping-{number}: ABC\n" for number in range(pings))
    )


def pair(first: str, second: str, text: str) -> str:
    return "".join(f"gpucluster: pair {first} {second}: {line}\n" for line in text.splitlines())


def all_devices(shape: str, gbps: float = 98.1, **slow: float) -> str:
    return "".join(device(name, slow.get(name, gbps)) for name in shapes.get(shape).rdma_devices)


def test_the_output_of_the_seed_is_92_6_percent_of_its_link() -> None:
    raw = f"gpucluster: rate irdma0 25\n{seed_outputs.IB_WRITE_BW}gpucluster: rping irdma0 0\n{seed_outputs.RPING}"
    result = judge(raw, job("rdma_perftest", latency="false", interface="ens192", rdma_cm="true", seconds="60"))
    assert result.values == {"bandwidth": 23.14, "link_share": 0.9256}
    assert statuses(result) == {"rdma_bandwidth": Status.PASS, "rdma_connection": Status.PASS}
    # Without the rate of the link nothing is reported about it.
    alone = judge(seed_outputs.IB_WRITE_BW, job("rdma_perftest", latency="false"))
    assert alone.values == {"bandwidth": 23.14}
    assert statuses(alone)["rdma_bandwidth"] is Status.UNKNOWN


@pytest.mark.parametrize(
    ("gbps", "rate", "status"),
    [(23.14, "25", Status.PASS), (20.0, "25", Status.UNKNOWN), (12.0, "25", Status.FAIL), (23.14, "", Status.UNKNOWN)],
)
def test_a_link_without_a_published_figure_is_judged_by_its_rate(gbps: float, rate: str, status: Status) -> None:
    result = judge(device("irdma0", gbps, rate=rate), job("rdma_perftest"))
    assert statuses(result)["rdma_bandwidth"] is status, result


def test_every_device_of_the_shape_must_reach_its_limit() -> None:
    of = job("rdma_perftest", shape=GPU4)
    good = judge(pair("gpu-1", "gpu-2", all_devices(GPU4)), of)
    assert good.status is Status.PASS, good
    assert good.values == {"bandwidth": 98.1, "latency": 2.0, "link_share": 0.981}
    slow = judge(pair("gpu-1", "gpu-2", all_devices(GPU4, mlx5_7=50.2)), of)
    assert slow.status is Status.FAIL
    assert (
        message(slow, "rdma_bandwidth")
        == "slow, in Gb/s: gpu-1-gpu-2 mlx5_7 50.20; the limit is 96, the published limit of BM.GPU4.8"
    )


def test_pairs_that_print_at_the_same_time_are_told_apart() -> None:
    of = job("rdma_perftest", shape=GPU4, nodes=5, devices="mlx5_0")
    texts = [
        pair("gpu-1", "gpu-2", device("mlx5_0", 98.0)).splitlines(),
        pair("gpu-3", "gpu-4", device("mlx5_0", 97.0)).splitlines(),
        pair("gpu-1", "gpu-5", device("mlx5_0", 40.0)).splitlines(),
    ]
    mixed = "\n".join(line for lines in zip(*texts, strict=True) for line in lines)
    result = judge(mixed, of)
    assert "gpu-1-gpu-5 mlx5_0 40.00" in message(result, "rdma_bandwidth")
    assert len(result.steps) == 3
    two_of_three = judge("\n".join(texts[0] + texts[1]), of)
    assert statuses(two_of_three)["rdma_bandwidth"] is Status.UNKNOWN
    assert "no result of pairs of nodes" in message(two_of_three, "rdma_bandwidth")


def test_a_slow_answer_is_a_warning_and_no_connection_a_fault() -> None:
    of = job("rdma_perftest", shape=GPU4, devices="mlx5_0")
    found = judge(pair("a", "b", device("mlx5_0", 98.0, us=7.5)), of)
    assert (found.status, message(found, "rdma_latency")) == (
        Status.WARN,
        "slow, in us: a-b mlx5_0 7.50; the limit is 5",
    )
    found = judge(pair("a", "b", device("mlx5_0", 98.0, pings=2)), of)
    assert (found.status, message(found, "rdma_connection")) == (Status.FAIL, "rping: no connection by a-b mlx5_0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it printed nothing"),
        ("gpucluster: no ib_write_bw on gpu-1\n", "install the package perftest"),
        ("gpucluster: no RDMA device on gpu-1\n", "a node has no RDMA device"),
        ("srun: error: gpu-2: task 1: Exited with exit code 1\n", "Exited with exit code 1"),
        (pair("a", "b", all_devices(GPU4))[:900], "no result of a-b"),
        (
            pair(
                "a",
                "b",
                "gpucluster: device mlx5_0\nCompletion with error at client\nFailed status 12: wr_id 0\nscnt=1\n",
            ),
            "ib_write_bw gave no result: the other side does not answer",
        ),
        (pair("a", "b", all_devices(GPU4)).replace("Gb/sec", "MiB/sec"), "ib_write_bw gave no result"),
        (pair("a", "b", device("mlx5_0", 98.0).replace("98.00", "9..8")), "ib_write_bw gave no result"),
    ],
    ids=["empty", "no perftest", "no device", "failed rank", "cut off", "no answer", "other unit", "no number"],
)
def test_what_is_missing_is_never_good(text: str, said: str) -> None:
    result = judge(text, job("rdma_perftest", shape=GPU4))
    assert result.status is Status.UNKNOWN, result
    assert said in message(result, "rdma_bandwidth")


def test_both_forms_of_a_latency_are_read() -> None:
    assert perftest.latencies(latency("mlx5_0", 2.25).splitlines()) == {"mlx5_0": 2.25}
    duration = " #bytes        #iterations       t_avg[usec]    tps average\n 2     2000000     1.31     381679.39\n"
    assert perftest.latencies(["gpucluster: device mlx5_1", *duration.splitlines()]) == {"mlx5_1": 1.31}
    assert perftest.latencies(duration.splitlines()) == {}, "of which device?"


@pytest.mark.parametrize("shape", ["BM.GPU3.8", "VM.Standard.E5.Flex"])
def test_a_shape_without_rdma_is_refused_with_what_to_do(shape: str) -> None:
    template = registry.template("rdma_perftest")
    with pytest.raises(InputError, match=f"{shape} has no RDMA network. Take a pool that has one"):
        choose.choose(template, registry.launcher(template), {}, nodes=2, shape=shapes.get(shape))
    with pytest.raises(InputError, match="one node has no partner"):
        choose.choose(template, registry.launcher(template), {}, nodes=1, shape=shapes.get(GPU4))


# --- the scripts of perftest, with doubles of the programs -----


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment whose programs of these names are shell scripts."""
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def files(of: Job, folder: Path) -> Rendered:
    """The rendered files in a folder."""
    rendered = render(of)
    folder.mkdir(exist_ok=True)
    for name, file in rendered.files.items():
        (folder / name).write_text(file.text)
        (folder / name).chmod(0o755 if file.executable else 0o644)
    return rendered


_BW = """printf '%s\\n' "ib_write_bw $*" >> "$LOG"
case $* in *gpu-1|*10.100.100.1) cat "$OUTPUT" ;; esac"""


def measure(folder: Path, node: str, devices: str, **variables: str) -> str:
    """What a node of the pair gpu-1, gpu-2 does with the devices; returns what it prints."""
    files(job("rdma_perftest"), folder / "job")
    output = folder / "output"
    output.write_text(seed_outputs.IB_WRITE_BW)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    log = 'printf "%s\\n" "${0##*/} $*" >> "$LOG"'
    environment = programs(tools, ib_write_bw=_BW, ib_write_lat=log, rping=log, sleep="exit 0")
    done = subprocess.run(
        ["bash", str(folder / "job" / "pairs.sh"), devices, "gpu-3", "gpu-4", "gpu-1", "gpu-2"],
        env={
            **environment, "SLURMD_NODENAME": node, "LOG": str(folder / f"{node}.log"), "OUTPUT": str(output),
            **variables,
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_two_nodes_of_a_pair_use_the_same_programs_and_ports(tmp_path: Path) -> None:
    settings = {"IB_WRITE_OPTIONS": "-q 1 -D 60", "GID_INDEX": "", "RDMA_CM": "1", "LATENCY": "1"}
    assert measure(tmp_path, "gpu-1", "irdma0", **settings) == ""
    said = measure(tmp_path, "gpu-2", "irdma0", **settings)
    served = (tmp_path / "gpu-1.log").read_text().splitlines()
    asked = (tmp_path / "gpu-2.log").read_text().splitlines()
    ports = [[re.findall(r"-p (\d+)", line)[0] for line in lines] for lines in (served, asked)]
    assert ports == [["18515", "18915", "18715", "19515"]] * 2
    # The address of the RDMA device was found in the first output: seed 003's commands follow.
    assert asked[1] == "ib_write_bw -F -q 1 -D 60 --report_gbits -R -d irdma0 -p 18915 10.100.100.1"
    assert asked[3] == "rping -c -v -C 3 -a 10.100.100.1 -p 19515"
    assert "gpucluster: pair gpu-1 gpu-2: gpucluster: device irdma0\n" in said
    assert judge(said, job("rdma_perftest")).values == {"bandwidth": 23.14}
    assert measure(tmp_path, "gpu-9", "irdma0") == "", "a node in no pair has nothing to do"


def test_without_options_the_commands_are_those_of_verify(tmp_path: Path) -> None:
    measure(tmp_path, "gpu-2", "mlx5_0,mlx5_1")
    lines = (tmp_path / "gpu-2.log").read_text().splitlines()
    assert lines[0] == "ib_write_bw -F -x 3 -q 2 --report_gbits -d mlx5_0 -p 18515 gpu-1"
    assert lines[2] == "ib_write_bw -F -x 3 -q 2 --report_gbits -d mlx5_1 -p 18516 gpu-1"


@pytest.mark.parametrize(
    ("settings", "devices"),
    [({}, "all"), ({"interface": "ens192"}, "@ens192"), ({"devices": "mlx5_1,mlx5_2"}, "mlx5_1,mlx5_2")],
)
def test_a_job_measures_each_pair_and_the_last_of_an_odd_number_too(
    tmp_path: Path, settings: dict[str, str], devices: str
) -> None:
    rendered = files(job_with(settings, "rdma_perftest", "srun", nodes=3), tmp_path / "job")
    srun = f'printf "%s\\n" "$*" >> {tmp_path}/srun.words'
    environment = programs(tmp_path, scontrol="printf '%s\\n' gpu-1 gpu-2 gpu-3", srun=srun)
    variables = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path / "job"), "SLURM_JOB_NODELIST": "gpu-[1-3]"}
    script = tmp_path / "job" / rendered.script
    subprocess.run(["bash", str(script)], env={**environment, **variables}, check=True, capture_output=True)
    pairs = re.findall(r"/job/pairs.sh (.*)", (tmp_path / "srun.words").read_text())
    # A node that lacks something reports it itself: srun must not end it because another one reported it first.
    checks = [line for line in (tmp_path / "srun.words").read_text().splitlines() if "--kill-on-bad-exit" in line]
    assert all("--kill-on-bad-exit=0" in line for line in checks)
    assert len(checks) == 3
    assert pairs == [f"{devices} gpu-1 gpu-2 gpu-3", f"{devices} gpu-1 gpu-3"]


@pytest.mark.parametrize("name", ["rdma_perftest", "horovod_resnet50", "tensorflow_mnist"])
@pytest.mark.parametrize(
    "line", ["1" * 2_000_000, "1 " * 500_000, "{" * 500_000, " " * 1_000_000, "\0" * 1_000_000, "Epoch 1/3\n" * 100_000]
)
def test_an_output_of_a_program_that_ran_wild_is_read_to_its_end(name: str, line: str) -> None:
    result = judge(f"{line}\n{line}", job(name, shape=GPU4))
    assert (result.status, result.values) == (Status.UNKNOWN, {})


# --- the command -----


@pytest.mark.parametrize(
    ("words", "text", "status"),
    [
        ("horovod_resnet50 FILE --shape BM.GPU4.8", seed_outputs.HOROVOD_ONE_NODE + seed_outputs.HOROVOD_TWO_NODES, 0),
        ("tensorflow_mnist FILE --shape BM.GPU4.8 --nodes 2", seed_outputs.MNIST, 0),
        ("nccl_tests FILE --nodes 2 --gpus 1 --set expect=2.8", seed_outputs.NCCL_OVER_ETHERNET, 0),
        ("rdma_perftest FILE --set latency=false", seed_outputs.IB_WRITE_BW, 1),
    ],
)
def test_an_output_of_others_is_judged_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, text: str, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "output"
    file.write_text(text)
    said = CliRunner().invoke(cli, ["job", "judge", *words.replace("FILE", str(file)).split()])
    assert said.exit_code == status, said.output
    assert ("PASS" if status == 0 else "UNKNOWN") in said.output


# --- expectations -----


@pytest.mark.parametrize(
    ("of", "figures"),
    [
        (job("rdma_perftest"), {23.14: "seed 003"}),
        (job("nccl_tests", gpus=1), {2.81: "seed 003", 71.56: "seed 000", 235.1: "seed 000", 224.7: "seed 002"}),
        (
            job("horovod_resnet50", gpus=8),
            {
                600.0: "seed 000", 4800.1: "seed 000", 573.2: "seed 000", 9170.8: "seed 000",
                174.9: "seed 004", 1399.1: "seed 004",
            },
        ),
        (job("pytorch_ddp", gpus=1), {0.8046: "seed 003", 0.856: "seed 003", 4.4: "seed 003"}),
        (job("tensorflow_mnist"), {2.0823: "seed 002", 0.4592: "seed 002", 4.5: "seed 002"}),
    ],
    ids=lambda value: value.template.name if isinstance(value, Job) else "",
)  # fmt: skip
def test_every_figure_of_the_seeds_is_in_an_expectation(of: Job, figures: dict[float, str]) -> None:
    found = {figure.value: figure.source for figure in of.template.expectation(of)}
    assert figures.items() <= found.items()
