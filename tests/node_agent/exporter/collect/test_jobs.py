"""The folder of running jobs: whatever is in it, the page is whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.collect.jobs import JobCollector
from gpucluster.node_agent.exporter.exposition import page
from gpucluster.node_agent.gpu_numbers import Gpu, by_minor
from gpucluster.node_agent.record.node import begin
from tests.node_agent.exporter.trees import MLX5, port, write
from tests.node_agent.exposition import Series, having, of, series
from tests.node_agent.mig.divided import Divided
from tests.node_agent.mig.smi import uuid

RECORD: dict[str, Any] = {
    "version": 1,
    "job_id": "12",
    "user": "alice",
    "gpus": ["0", "1"],
    "started": 1,
    "counters": {},
}


def read(folder: Path, proc: Path = Path("/nowhere")) -> Series:
    jobs = JobCollector(Place(jobs=str(folder), proc=str(proc)))
    return series(page(line for subject in jobs.subjects() for line in jobs.samples(subject)))


def gpu(proc: Path, address: str, minor: int, uuid: str) -> None:
    text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
    write(proc / "driver/nvidia/gpus" / address / "information", text)


def test_a_running_job_and_its_gpus(tmp_path: Path) -> None:
    write(tmp_path / "12.json", json.dumps(RECORD))
    write(tmp_path / "13_4.json", json.dumps({**RECORD, "job_id": "13_4", "gpus": []}))
    found = read(tmp_path)
    assert having(found, "gpucluster_job_node") == {(("job_id", "12"),): 1, (("job_id", "13_4"),): 1}
    assert of(found, "gpucluster_job_gpu", job_id="12", gpu="1", uuid="") == 1
    assert len(having(found, "gpucluster_job_gpu")) == 2
    assert of(found, "gpucluster_job_files_unread") == 0


def test_slurm_counts_gpus_by_device_file_and_nvidia_s_tools_by_address(tmp_path: Path) -> None:
    for address, minor in (("0000:0f:00.0", 2), ("0000:2d:00.0", 0), ("0000:44:00.0", 1)):
        gpu(tmp_path / "proc", address, minor, f"GPU-{minor}")
    write(tmp_path / "jobs/12.json", json.dumps({**RECORD, "gpus": ["0", 2, "GPU-1"]}))
    found = having(read(tmp_path / "jobs", tmp_path / "proc"), "gpucluster_job_gpu")
    assert [(dict(each)["gpu"], dict(each)["uuid"]) for each in found] == [
        ("1", "GPU-0"),
        ("0", "GPU-2"),
        ("2", "GPU-1"),
    ]


def test_a_job_s_instances_are_not_the_gpus_with_their_numbers(tmp_path: Path) -> None:
    """Slurm's number 1 is an instance of GPU 0, and 11 the whole GPU 2: neither is GPU 1, which is of other jobs."""
    node = Divided(tmp_path / "root")
    write(tmp_path / "jobs/12.json", json.dumps({**RECORD, "gpus": ["1", "11", "55"]}))
    jobs = JobCollector(Place(jobs=str(tmp_path / "jobs"), proc=node.proc, mig=node.links))
    found = series(page(line for subject in jobs.subjects() for line in jobs.samples(subject)))
    assert {frozenset(labels) for labels in having(found, "gpucluster_job_gpu")} == {
        frozenset({"job_id": "12", "gpu": "0", "uuid": uuid(0, "1g.10gb", 1), "gpu_instance": "12"}.items()),
        frozenset({"job_id": "12", "gpu": "2", "uuid": "GPU-00000001"}.items()),
        frozenset({"job_id": "12", "gpu": "unknown-55", "uuid": "", "gpu_instance": "unknown"}.items()),
    }


def test_what_a_real_driver_reports_of_a_gpu(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "data" / "information.txt").read_text()
    write(tmp_path / "driver/nvidia/gpus/0000:00:06.0/information", "another\n")
    write(tmp_path / "driver/nvidia/gpus/0000:00:07.0/information", text)
    assert by_minor(str(tmp_path / "driver/nvidia/gpus")) == {"1": Gpu("1", "GPU-00000000-0000-0000-0000-000000000002")}


def test_a_driver_that_does_not_report_a_gpu_s_name(tmp_path: Path) -> None:
    gpu(tmp_path / "proc", "0000:0f:00.0", 0, "GPU-????????-????-????-????-????????????")
    write(tmp_path / "jobs/12.json", json.dumps(RECORD))
    assert of(read(tmp_path / "jobs", tmp_path / "proc"), "gpucluster_job_gpu", job_id="12", gpu="0", uuid="") == 1


BROKEN = {
    "empty": b"", "cut": b'{"job_id": "1', "list": b"[]", "number": b"7", "bytes": b"\xff\xfe\x00", "deep": b"[" * 9000,
    "no id": b'{"gpus": []}', "id": b'{"job_id": 12}', "gpus": b'{"job_id": "1", "gpus": 3}', "long": b" " * 1_100_000,
    "name": b'{"job_id": "1\\n2"}', "quotes": b'{"job_id": "1\\"} 5"}', "nan": b"NaN",
    "big": b'{"job_id": ' + b"9" * 5000 + b"}",
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_reports_nothing_of_a_job_is_counted(what: str, tmp_path: Path) -> None:
    write(tmp_path / "1.json", BROKEN[what])
    write(tmp_path / "2.json", json.dumps(RECORD))
    found = read(tmp_path)
    assert having(found, "gpucluster_job_node") == {(("job_id", "12"),): 1}
    assert of(found, "gpucluster_job_files_unread") == 1


def test_what_is_not_a_file_is_not_opened_as_one(tmp_path: Path) -> None:
    (tmp_path / "dir.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    (tmp_path / "nowhere.json").symlink_to("missing")
    for name in ("12.json.new", ".12.json", "README"):
        write(tmp_path / name, json.dumps(RECORD))
    found = read(tmp_path)
    assert having(found, "gpucluster_job_node") == {}
    assert of(found, "gpucluster_job_files_unread") == 4


def test_names_of_gpus_are_escaped_and_bounded(tmp_path: Path) -> None:
    gpus: list[Any] = ['a"b\n', "x" * 1000, "\ud800", None, {}, *map(str, range(200))]
    write(tmp_path / "1.json", json.dumps({**RECORD, "gpus": gpus}))
    assert len(having(read(tmp_path), "gpucluster_job_gpu")) == 64


def test_the_prolog_s_file_of_a_large_node_is_read(tmp_path: Path) -> None:
    write(tmp_path / "proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
    for device in range(16):
        port(tmp_path / "sys", f"mlx5_{device}", [f"counter_with_a_name_{each}" for each in range(200)], MLX5)
    begin({"SLURM_JOB_ID": "12", "SLURM_JOB_GPUS": "0,3"}, tmp_path / "jobs", str(tmp_path))
    # The counters are beside it: the exporter reads the file of each job with each scrape.
    assert (tmp_path / "jobs/12.json").stat().st_size < 4096
    found = having(read(tmp_path / "jobs"), "gpucluster_job_gpu")
    assert [(dict(each)["job_id"], dict(each)["gpu"]) for each in found] == [("12", "0"), ("12", "3")]


def test_a_file_that_is_replaced_is_read_again_and_one_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    jobs = JobCollector(Place(jobs=str(tmp_path), proc="/nowhere"))

    def seen() -> set[str]:
        found = series(page(line for subject in jobs.subjects() for line in jobs.samples(subject)))
        return {dict(each)["job_id"] for each in having(found, "gpucluster_job_node")}

    for number in ("12", "13", "12"):
        write(tmp_path / ".new", json.dumps({**RECORD, "job_id": number}))
        (tmp_path / ".new").replace(tmp_path / "1.json")
        assert seen() == seen() == {number}
    (tmp_path / "1.json").unlink()
    assert seen() == set()
    assert jobs._known == {}


def test_two_files_of_one_job_are_one_series(tmp_path: Path) -> None:
    for name in ("1.json", "2.json"):
        write(tmp_path / name, json.dumps(RECORD))
    assert len(having(read(tmp_path), "gpucluster_job_node")) == 1


def test_a_folder_of_thousands_is_bounded(tmp_path: Path) -> None:
    for number in range(1100):
        write(tmp_path / f"{number}.json", json.dumps({**RECORD, "job_id": str(number)}))
    found = read(tmp_path)
    assert len(having(found, "gpucluster_job_node")) == 1024
    assert of(found, "gpucluster_job_files_unread") == 76


def test_without_the_folder_nothing_runs(tmp_path: Path) -> None:
    assert read(tmp_path / "missing") == {("gpucluster_job_files_unread", frozenset()): 0}
