"""Measurements of the host: its mounts, its clock, its units, and processes that a job has left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.checks.collect.place import MeasuredHost
from gpucluster.node_agent.checks.model import Missing
from gpucluster.node_agent.programs import ProgramAnswer, ask
from tests.node_agent.checks.collect.measured_tree import collect, process, said, write
from tests.node_agent.checks.measured import NODE


def test_a_read_only_root(host: MeasuredHost) -> None:
    write(host.root / "proc/self/mountinfo", "22 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n")
    assert collect("root", host)["read_only"] is True


def test_a_share_that_hangs_is_unknown_and_one_that_is_missing_a_fault(host: MeasuredHost) -> None:
    node = replace(NODE, mounts=("/home", "/data"))
    hangs = replace(
        host, expected=node, ask=said({"stat": ProgramAnswer(None, b"", b"", "stat gave no answer within 1 s")})
    )
    found = collect("mounts", hangs)
    assert found == {
        "/home": {"mounted": True, "fault": "stat gave no answer within 1 s"},
        "/data": {"mounted": False, "fault": ""},
    }
    stale = ProgramAnswer(1, b"", b"stat: cannot read: Stale file handle", "")
    assert "Stale" in collect("mounts", replace(hangs, ask=said({"stat": stale})))["/home"]["fault"]
    assert collect("mounts", replace(hangs, ask=ask))["/home"] == {"mounted": True, "fault": ""}


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"chronyc": "A9FEA9FE,169.254.169.254,3,1.5,-0.000012,0,0,0,0,0,0,0,0,Normal\n"}, (True, -0.000012)),
        ({"chronyc": "00000000,,0,0.0,0.000000,0,0,0,0,0,1,1,0,Not synchronised\n"}, (False, 0.0)),
        ({"chronyc": "506 Cannot talk to daemon\n", "timedatectl": "yes\n"}, (True, None)),
        ({"timedatectl": "no\n"}, (False, None)),
    ],
)
def test_the_clock(host: MeasuredHost, answers: Mapping[str, str], found: Any) -> None:
    measured = collect("clock", replace(host, ask=said(answers)))
    assert (measured["synchronised"], measured["offset_s"]) == found


def test_services(host: MeasuredHost) -> None:
    text = (
        "Id=munge.service\nLoadState=loaded\nActiveState=active\n\n"
        "Id=slurmd.service\nLoadState=not-found\nActiveState=inactive\n"
    )
    answers = {
        "systemctl show": text,
        "systemctl list-units": "a.service loaded failed failed A\nb.mount loaded failed\n",
    }
    assert collect("services", replace(host, ask=said(answers))) == {"munge": "active", "slurmd": "not installed"}
    assert collect("failed_units", replace(host, ask=said(answers))) == ["a.service", "b.mount"]
    assert isinstance(collect("failed_units", host), Missing)


def test_systemd_that_reads_its_units_again_is_asked_again(host: MeasuredHost) -> None:
    block = "Id={}.service\nLoadState=loaded\nActiveState=active\n"
    known = "\n".join(map(block.format, ("munge", "slurmd")))
    answers = iter(["\n", "\n", known])

    def systemd_double(_argv: list[str], _seconds: float, _most: int) -> ProgramAnswer:
        return ProgramAnswer(0, next(answers).encode(), b"", "")

    assert collect("services", replace(host, ask=systemd_double)) == {"munge": "active", "slurmd": "active"}


def test_processes_that_a_job_left_behind(host: MeasuredHost) -> None:
    process(host.root, 10, 0, "/system.slice/sshd.service")
    process(host.root, 11, 65534, "/system.slice/x.service")
    process(host.root, 12, 6001, "/system.slice/slurmstepd.scope/job_17/step_0/user/task_0")
    process(host.root, 13, 6001, "/user.slice/user-6001.slice/user@6001.service/init.scope")
    assert collect("leftovers", host)["processes"] == 0
    process(host.root, 14, 6002, "/user.slice/user-6002.slice/session-3.scope", os.sysconf("SC_CLK_TCK"))
    assert collect("leftovers", host) == {"processes": 1, "users": [6002], "cpu_s": 2.0}


def test_processes_of_a_job_that_runs_without_control_groups_are_not_left_behind(host: MeasuredHost) -> None:
    process(host.root, 20, 0, "/", name="slurmstepd")
    process(host.root, 21, 6001, "/", name="slurm_script", parent=20)
    process(host.root, 22, 6001, "/", name="sleep", parent=21)
    assert collect("leftovers", host)["processes"] == 0
    # A user may call a process slurmstepd; and one whose parents have ended is a child of systemd.
    process(host.root, 30, 6002, "/", name="slurmstepd")
    process(host.root, 31, 6002, "/", name="sleep", parent=30)
    process(host.root, 32, 6001, "/", name="miner")
    assert collect("leftovers", host)["processes"] == 3


@pytest.mark.parametrize("name", ["sshd", "sshd-session"])
def test_a_login_is_not_left_behind(host: MeasuredHost, name: str) -> None:
    process(host.root, 20, 0, "/", name=name)
    process(host.root, 21, 1000, "/", name=name, parent=20)
    process(host.root, 22, 1000, "/", name="bash", parent=21)
    assert collect("leftovers", host)["processes"] == 0


def test_a_circle_of_parents_ends(host: MeasuredHost) -> None:
    process(host.root, 40, 6001, "/", parent=41)
    process(host.root, 41, 6001, "/", parent=40)
    assert collect("leftovers", host)["processes"] == 2
