"""`gpucluster-agent check` as a program: what it prints, its exit status, and that nothing can hold it up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.__main__ import text
from gpucluster.node_agent.checks.collect.place import MeasuredHost
from gpucluster.node_agent.checks.model import EXIT_CODES, Finding, HostReport, Profile, Status
from gpucluster.node_agent.checks.run import run
from tests.node_agent.checks.collect.measured_tree import write
from tests.node_agent.checks.command import check
from tests.node_agent.checks.measured import NODE, XML
from tests.waiting import PATIENCE_S

#: Of a real node, but without what only a whole system has.
PLAIN = replace(NODE, gpus=0, gpu_device_files=(), rdma_devices=(), drives=0, memory_mib=0, local_disk="", mounts=())


def programs_of(folder: Path, **scripts: str) -> None:
    for name, script in {"dmesg": "echo '[    0.000000] Linux'", **scripts}.items():
        write(folder / "bin" / name, f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)


def report(done: subprocess.CompletedProcess[str]) -> HostReport:
    assert done.stdout, done.stderr
    found = HostReport.from_dict(json.loads(done.stdout))
    assert done.returncode == EXIT_CODES[found.status]
    return found


def by_name(found: HostReport) -> dict[str, Finding]:
    return {finding.check: finding for finding in found.findings}


@pytest.mark.parametrize("profile", list(Profile))
def test_every_check_of_a_profile_is_in_the_report(profile: Profile, folder: Path) -> None:
    done = check(folder, PLAIN, "--profile", profile.value, "--output", "json", "--name", "compute-1")
    found = report(done)
    assert [each.check for each in found.findings] == [each.name for each in registry.of_profile(profile)]
    assert {each.subject for each in found.findings} == {"compute-1"}
    assert (found.host, found.profile, found.boot_id[:8]) == ("compute-1", profile, "11111111")
    assert HostReport.from_dict(found.to_dict()) == found


def test_an_eight_gpu_node(folder: Path) -> None:
    write(folder / "smi.xml", XML)
    programs_of(folder, **{"nvidia-smi": f'[ "$1" = nvlink ] || exec cat {folder}/smi.xml; exit 9'})
    found = by_name(report(check(folder, NODE, "--profile", "prolog", "--output", "json")))
    wanted = {
        "gpu_count": "pass",
        "gpu_ecc": "pass",
        "gpu_nvlink": "fail",  # status 9: the driver is not loaded
        "gpu_bus": "fail",  # the tree has two
        "gpu_xid": "pass",
    }
    assert {name: found[name].status.value for name in wanted} == wanted


def test_a_tool_that_hangs_costs_its_own_checks_and_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_of(folder, **{"nvidia-smi": "sleep 600", "systemctl": "echo active"})
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    limits = registry.limits(registry.of_profile(Profile.PROLOG), 1e6)
    short = {name: 0.5 if name in ("nvidia_smi", "nvlink", "mig") else PATIENCE_S for name in limits}
    monkeypatch.setattr(registry, "limits", lambda _checks, _total: short)
    host = MeasuredHost(replace(NODE, mounts=()), folder / "root", folder / "state", time.monotonic, time.time)
    found = by_name(run(host, Profile.PROLOG))
    assert found["gpu_count"].status is Status.UNKNOWN
    # The thread that notices it first reports it: the one that asks the tool, or the one that waits for that process.
    assert re.search(r"no answer within 0\.5 s|ended without an answer", found["gpu_count"].message)
    assert found["gpu_xid"].status is Status.PASS, found["gpu_xid"].message
    assert found["rdma_devices"].status is Status.FAIL


def test_two_at_once(folder: Path) -> None:
    node = replace(PLAIN, rdma_devices=("mlx5_0", "mlx5_3"), rdma_link_gbps=400)
    write(folder / "checks.json", json.dumps(node.to_dict()))
    done: list[HostReport] = []
    threads = [
        threading.Thread(target=lambda: done.append(report(check(folder, None, "--profile=periodic", "--output=json"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [by_name(each)["rdma_errors"].status for each in done] == [Status.PASS] * 4
    assert isinstance(json.loads((folder / "state/rdma.json").read_text()), list)
    assert [file.name for file in (folder / "state").iterdir() if file.name.startswith(".")] == []


def test_checks_are_switched_off(folder: Path) -> None:
    words = ("--profile", "epilog", "--output", "json")
    node = replace(PLAIN, off=("root_file_system",))
    found = report(check(folder, node, *words, "--off", "leftover_processes"))
    off = {name: found.message for name, found in by_name(found).items() if "cluster.yml" in found.message}
    assert sorted(off) == ["leftover_processes", "root_file_system"]
    assert found.status is Status.SKIP
    assert report(check(folder, PLAIN, *words)).status is not Status.SKIP


def test_a_check_that_a_newer_release_has_is_not_a_fault_in_the_file(folder: Path) -> None:
    found = report(check(folder, replace(PLAIN, off=("of_the_future",)), "--profile", "epilog", "--output", "json"))
    assert len(found.findings) == len(registry.of_profile(Profile.EPILOG))


@pytest.mark.parametrize(
    "words",
    [("--profile", "nope"), (), ("--profile", "prolog", "--off", "nope"), ("--profile", "prolog", "--output", "yaml")],
)
def test_bad_arguments_are_unknown_and_never_bad(words: tuple[str, ...], folder: Path) -> None:
    done = check(folder, PLAIN, *words)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_what_users_read() -> None:
    findings = (
        Finding("gpu_count", "compute-1", Status.FAIL, "7 of 8 GPUs"),
        Finding("root_file_system", "compute-1", Status.PASS, "40 GiB free"),
        Finding("rdma_links", "compute-1", Status.SKIP, "no RDMA"),
        Finding("gpu_xid", "compute-1", Status.UNKNOWN, "dmesg is not installed"),
    )
    assert text(HostReport("compute-1", Profile.PROLOG, 0.0, 0.25, "b", findings)).splitlines() == [
        "fail    gpu_count         7 of 8 GPUs",
        "                          Restart the host; if it comes again, replace the node",
        "pass    root_file_system  40 GiB free",
        "unknown gpu_xid           dmesg is not installed",
        "skip    rdma_links",
        "compute-1: fail, profile prolog, 0.25 s",
    ]
