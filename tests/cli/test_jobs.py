"""`gpucluster job`: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from tests.node_agent.nccl.outputs import MISTUNED, TUNED, output

REPOSITORY = Path(__file__).parents[2]
LOCAL = str(REPOSITORY / "inventories" / "local" / "cluster.yml")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def job(*words: str, file: str = "") -> Result:
    return CliRunner().invoke(cli, [*(["--file", file] if file else []), "job", *words])


def data(result: Result) -> dict[str, Any]:
    last: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])["data"]
    return last


def test_list_and_show_need_no_cluster() -> None:
    listed = data(job("templates", "--output", "json"))["templates"]
    assert {"nccl_tests", "mpi_allreduce", "pytorch_ddp"} <= {each["name"] for each in listed}
    for each in listed:
        shown = job("show", each["name"])
        assert shown.exit_code == 0, shown.output
        assert "Options with the launcher" in shown.output
        assert data(job("show", each["name"], "--output", "json"))["requirements"]


def test_show_reports_how_to_get_what_is_needed_and_what_is_expected() -> None:
    shown = data(job("show", "nccl_tests", "--shape", "BM.GPU4.8", "--output", "json"))
    assert {"need": "gpus", "name": "8"}.items() <= shown["requirements"][1].items()
    assert all(each["get"] for each in shown["requirements"])
    assert {"value": 185, "source": "shapes.toml"}.items() <= shown["expectation"][0].items()
    refused = data(job("show", "nccl_tests", "--shape", "BM.GPU3.8", "--output", "json"))["refused"]
    assert "no RDMA network" in refused


def test_render_prints_the_script_or_writes_all_files(tmp_path: Path) -> None:
    printed = job("render", "mpi_allreduce", "--nodes", "3")
    assert printed.output.startswith("#!/bin/bash\n")
    assert "#SBATCH --nodes=3\n" in printed.output
    done = job("render", "mpi_allreduce", "--nodes", "3", "--directory", "out")
    assert done.exit_code == 0, done.output
    assert "sbatch mpi_allreduce.sbatch" in done.output
    script = tmp_path / "out" / "mpi_allreduce.sbatch"
    assert script.read_text() == printed.output
    assert script.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out" / "mpi_allreduce.c").stat().st_mode & 0o777 == 0o644


def test_render_never_overwrites_what_is_another_without_force(tmp_path: Path) -> None:
    words = ("render", "mpi_allreduce", "--directory", "out")
    assert job(*words).exit_code == 0
    assert job(*words).exit_code == 0
    mine = tmp_path / "out" / "mpi_allreduce.c"
    mine.write_text("mine")
    refused = job(*words, "--set", "iterations=3")
    assert refused.exit_code == 2
    assert "mpi_allreduce.c, mpi_allreduce.sbatch with another content" in refused.output
    assert mine.read_text() == "mine"
    assert "iterations=20" in (tmp_path / "out" / "mpi_allreduce.sbatch").read_text()
    assert job(*words, "--force").exit_code == 0
    assert mine.read_text() != "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("render", "mpi_allreduce", "--set", "iterations"), "not KEY=VALUE"),
        (("render", "mpi_allreduce", "--set", "iteration=3"), "Did you mean iterations"),
        (("render", "nccl_tests"), "it is not known which GPUs there are"),
        (("render", "nccl_tests", "--shape", "BM.GPU4"), "Did you mean"),
        (("render", "nccl_tests", "--shape", "BM.GPU4.8", "--pool", "a"), "exclude each other"),
        (("render", "nccl_tests", "--shape", "BM.GPU4.8", "--gpus", "9"), "has 8 GPUs, and not 9"),
        (("render", "nothing"), "unknown template"),
        (("render", "mpi_allreduce", "--directory", "file/below"), "file"),
        (("judge", "mpi_allreduce", "absent"), "can't read the output"),
        (("judge", "mpi_allreduce", "."), "can't read the output"),
    ],
)
def test_bad_input_ends_with_a_message(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for more in ((), ("--output", "json")):
        ended = job(*words, *more)
        assert ended.exit_code in (2, 5), ended.output
        assert said in ended.output
        assert "Traceback" not in ended.output


def test_a_pool_gives_the_shape_and_the_partition(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(
        "name: a\ncloud: {provider: oci, region: us-ashburn-1, tenancy_id: ocid1.tenancy.oc1..aaaa, "
        "compartment_id: ocid1.compartment.oc1..aaaa, availability_domain: Uocm:US-ASHBURN-AD-1}\n"
    )
    made = job("render", "mpi_allreduce", "--output", "json", file=LOCAL)
    assert data(made)["job"]["values"]["partition"] == "compute"
    emulated = job("render", "nccl_tests", file=LOCAL)
    assert emulated.exit_code == 2
    assert "emulated. These templates need none: mpi_allreduce" in emulated.output
    unknown = job("render", "mpi_allreduce", "--pool", "computer", file=LOCAL)
    assert "Did you mean compute?" in unknown.output


def test_gpus_of_this_machine_run_jobs_and_nothing_is_known_of_their_figures(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(Path(LOCAL).read_text().replace("  provider: local ", "  local: {gpus: real}\n  provider: local "))
    made = data(job("render", "nccl_tests", "--nodes", "1", "--output", "json", file=str(file)))["job"]
    assert (made["shape"], made["gpus"], made["rdma"]) == ("", 8, False)
    refused = job("render", "rdma_perftest", file=str(file))
    assert refused.exit_code == 2
    assert "its network is emulated. These templates need none: " in refused.output
    assert "nccl_tests" in refused.output


@pytest.mark.parametrize(("row", "status", "word"), [(TUNED, 0, "PASS"), (MISTUNED, 1, "FAIL")])
def test_judge_needs_nothing_but_the_output(tmp_path: Path, row: str, status: int, word: str) -> None:
    from gpucluster import shapes
    from gpucluster.jobs import choose, registry
    from gpucluster.jobs.model import HEADER

    template = registry.template("nccl_tests")
    of = choose.choose(template, registry.launcher(template), {}, nodes=2, shape=shapes.get("BM.GPU4.8"))
    text = "".join(output(row))
    (tmp_path / "out").write_text(f"{HEADER}{json.dumps(of.to_dict())}\n{text}")
    (tmp_path / "bare").write_text(text)
    for words in (("out",), ("bare", "--shape", "BM.GPU4.8")):
        judged = job("judge", "nccl_tests", *words)
        assert judged.exit_code == status, judged.output
        assert judged.output.startswith(word)
        told = data(job("judge", "nccl_tests", *words, "--output", "json"))
        assert told["verdict"] == word.lower()
        assert told["values"]["busbw"] > 0
    other = job("judge", "mpi_allreduce", "out")
    assert other.exit_code == 2
    assert "an output of nccl_tests" in other.output
    one = job("judge", "nccl_tests", "out", "--nodes", "1")
    assert one.exit_code == 1


def test_judge_runs_nothing_and_so_needs_no_real_hardware_here(tmp_path: Path) -> None:
    text = "".join(output(TUNED))
    (tmp_path / "bare").write_text(text)
    words = ("judge", "nccl_tests", "bare", "--output", "json")
    # The folder's pool proves nothing about an output of another machine, unless it is named.
    of_another = data(job(*words, file=LOCAL))
    assert of_another["job"] == data(job(*words))["job"]
    assert of_another["values"]["busbw"] > 0
    named = data(job(*words, "--pool", "compute", file=LOCAL))
    assert named["job"]["shape"]
    assert named["job"]["gpus"] > 0
    assert named["values"]["busbw"] == of_another["values"]["busbw"]


def test_judge_reads_standard_input() -> None:
    done = CliRunner().invoke(cli, ["job", "judge", "mpi_allreduce", "-"], input=b"\xff\n")
    assert done.exit_code == 1
    assert done.output.startswith("UNKNOWN")


def test_show_offers_what_the_cluster_of_the_file_can_run(tmp_path: Path) -> None:
    shown = job("show", "nccl_tests", file=LOCAL).stdout
    assert "launcher srun (default): " in shown
    assert "Options with the launcher srun " in shown
    assert "launcher sge" not in shown
    assert "not on this cluster: pyxis, sge, pbs, lsf, kubernetes-job, jobset, mpijob" in shown
    assert "launcher pyxis (default): " in job("show", "nccl_tests", "--shape", "BM.GPU4.8").stdout
    (tmp_path / "cluster.yml").write_text("name: [")
    assert "launcher pyxis (default): " in job("show", "nccl_tests", file=str(tmp_path / "cluster.yml")).stdout
