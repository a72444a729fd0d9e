"""Prolog and epilog on a node: the file of a job, and its record."""

from __future__ import annotations

import functools
import grp
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.exporter.collect import jobs as exporter
from gpucluster.node_agent.record import __main__ as command
from gpucluster.node_agent.record import node, snapshot
from tests.node_agent.mig.divided import Divided
from tests.node_agent.mig.smi import uuid
from tests.node_agent.record.node_tree import COUNTERS, JOB, TAKE
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is whole, however busy this machine is."""
    monkeypatch.setattr(snapshot, "take", functools.partial(TAKE, seconds=PATIENCE_S))


def test_only_the_exporter_sees_which_jobs_run(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users see their own jobs only. A folder of an earlier version was open to all users."""
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr("grp.getgrnam", lambda _: grp.getgrgid(os.getgid()))
    node.begin(JOB, folder, str(root))
    made = [folder, folder / "12.json"]
    assert [each.stat().st_mode & 0o777 for each in made] == [0o750, 0o640]
    assert {each.stat().st_gid for each in made} == {os.getgid()}


def test_the_group_is_the_one_of_the_role() -> None:
    file = Path(__file__).parents[3] / "ansible" / "roles" / "exporters" / "vars" / "main.yml"
    assert f"exporters_account: {node.READERS}\n" in file.read_text()


def test_a_job_begins_and_ends(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "jobs"
    node.begin(JOB, folder, str(root))
    file = folder / "12.json"
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    # As the exporter reads it.
    assert exporter.read(str(file)) == ("12", ["0", "2", "3"])
    content = json.loads(file.read_text())
    assert (content["user"], content["version"]) == ("ann", 1)
    counters = json.loads((folder / "12.counters").read_text())
    assert (folder / "12.counters").stat().st_mode & 0o777 == 0o600
    # The address of the file server is in no record.
    assert counters["files"] == {"/home": {"read_bytes": 500, "written_bytes": 600}}
    (root / f"{COUNTERS}/counters/port_rcv_data").write_text("4000")
    (root / f"{COUNTERS}/hw_counters/out_of_sequence").write_text("7")
    record = node.end(JOB, "compute-1", folder, str(root))
    assert record is not None
    assert {each["counter"]: each["change"] for each in record["changes"]} == {
        "out_of_sequence": 7, "port_rcv_data": 3000,
    }  # fmt: skip
    assert {each["name"] for each in record["devices"]} == {"mlx5_0/1", "eth0", "/home"}
    assert (record["job_id"], record["node"], record["gpus"]) == ("12", "compute-1", ["0", "2", "3"])
    assert "10.0.0.5" not in json.dumps(record)
    assert list(folder.iterdir()) == []


def test_the_exporter_reads_the_file_of_a_host_with_thousands_of_counters(tmp_path: Path, root: Path) -> None:
    for device in range(18):
        folder = root / f"sys/class/infiniband/mlx5_{device}/ports/1/hw_counters"
        folder.mkdir(parents=True, exist_ok=True)
        for counter in range(150):
            (folder / f"a_counter_with_a_long_name_{counter}").write_text(str(2**63))
    node.begin(JOB, tmp_path / "jobs", str(root))
    assert (tmp_path / "jobs" / "12.counters").stat().st_size > 64 * 1024
    assert exporter.read(str(tmp_path / "jobs" / "12.json")) == ("12", ["0", "2", "3"])


def test_a_job_without_a_beginning_has_no_record(tmp_path: Path, root: Path) -> None:
    assert node.end(JOB, "compute-1", tmp_path, str(root)) is None
    (tmp_path / "12.json").write_text("[" * 100_000)
    assert node.end(JOB, "compute-1", tmp_path, str(root)) is None
    assert not (tmp_path / "12.json").exists()


def test_files_of_jobs_that_lost_their_node_go_with_the_next_prolog(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "jobs"
    node.begin(JOB, folder, str(root))
    node.begin({**JOB, "SLURM_JOB_ID": "13"}, folder, str(root))
    assert {file.name for file in folder.iterdir()} == {"12.json", "13.json", "12.counters", "13.counters"}
    (folder / "7.counters").write_text("its job file was never written")
    os.utime(folder / "7.counters", (0, 0))
    (folder / "9.json").write_text("rubbish")
    (folder / "note.txt").write_text("of another user")
    (root / "proc/sys/kernel/random/boot_id").write_text("boot-2")
    node.begin({**JOB, "SLURM_JOB_ID": "14"}, folder, str(root))
    assert {file.name for file in folder.iterdir()} == {"14.json", "14.counters", "note.txt"}


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path, root: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "12.json").symlink_to(other)
    node.begin(JOB, folder, str(root))
    assert other.read_text() == "kept"
    assert not (folder / "12.json").is_symlink()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_JOB_GPUS": "0-1,7"}, ["0", "1", "7"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0a-b,1"}, ["GPU-0a-b", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"SLURM_JOB_GPUS": "0-999999,;rm"}, []),
        ({}, []),
    ],
)
def test_gpus_of_a_job(environment: dict[str, str], expected: list[str]) -> None:
    assert node.gpus(environment) == expected


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "12x", "0"])
def test_nothing_but_a_job_has_a_file(job: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a prolog"):
        node.begin({"SLURM_JOB_ID": job}, tmp_path)


def test_the_command_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(command, "_log", lambda _level, words: said.append(words))
    for name in {"SLURM_JOB_ID", *os.environ} - {"PATH"}:
        if name.startswith("SLURM"):
            monkeypatch.delenv(name, raising=False)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert command.main(["begin", "--folder", str(tmp_path)]) == 0
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert command.main(["begin", "--folder", str(blocked / "x")]) == 0
    assert command.main(["end", "--folder", str(blocked / "x")]) == 0
    assert len(said) == 3


def test_a_record_has_an_upper_size() -> None:
    before: dict[str, Any] = {
        "boot": "a",
        "up": 0,
        "complete": True,
        "rdma": {"x/1": {f"c{at}": 0 for at in range(3000)}},
    }
    before["rdma"]["x/1"]["out_of_sequence"] = 0
    after = {**before, "at": 2.0, "up": 9, "rdma": {"x/1": dict.fromkeys(before["rdma"]["x/1"], 1)}}
    found = node.record({"job_id": "1", "started": 1.0}, before, after, "compute-1")
    assert len(found["changes"]) == node.MOST_CHANGES
    # What shows why a job was slow is not left out.
    assert found["changes"][0]["counter"] == "out_of_sequence"
    assert found["notes"] == [f"{3001 - node.MOST_CHANGES} counters are left out"]


def test_what_the_numbers_of_divided_gpus_mean_is_written_down(tmp_path: Path, root: Path) -> None:
    """When the record is read, the instances may be others."""
    Divided(root)
    folder = tmp_path / "jobs"
    node.begin({**JOB, "SLURM_JOB_GPUS": "1,11"}, folder, str(root))
    found = node.end(JOB, "gpu-1", folder, str(root)) or {}
    assert found["gpus"] == ["1", "11"]
    assert found["divided"] == {
        "1": {"number": "0", "uuid": uuid(0, "1g.10gb", 1), "instance": "12"},
        "11": {"number": "2", "uuid": "GPU-00000001", "instance": ""},
    }


def test_a_job_of_whole_gpus_has_nothing_of_that(tmp_path: Path, root: Path) -> None:
    node.begin(JOB, tmp_path / "jobs", str(root))
    assert json.loads((tmp_path / "jobs/12.json").read_text())["divided"] == {}


def test_numbers_that_come_once_for_each_file_of_an_instance_are_all_there() -> None:
    """56 instances have three files each."""
    text = ",".join(str(number) for number in range(56) for _file in range(3))
    assert node.gpus({"SLURM_JOB_GPUS": text}) == [str(number) for number in range(56)]
