"""What hosts have answered, as findings."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.drift.hosts import read
from gpucluster.drift.model import APPLY, Area, DriftFinding, Unseen
from gpucluster.verdict.measurements import UNREACHABLE

FILE = {"kind": "file", "name": "/etc/slurm/slurm.conf", "expected": "as apply left it", "seen": "other content"}
GOOD: dict[str, Any] = {"host": {"recorded": 1.0, "findings": []}}


def found(answer: dict[str, Any]) -> list[DriftFinding | Unseen]:
    return list(read({"compute-1": answer}))


def test_a_host_without_drift_has_no_finding() -> None:
    assert found(GOOD) == []


def test_a_finding_of_a_host() -> None:
    (one,) = found({"host": {"findings": [FILE]}})
    assert one == DriftFinding(
        Area.HOSTS, "file", "compute-1", "/etc/slurm/slurm.conf", "as apply left it", "other content", APPLY
    )


@pytest.mark.parametrize(
    ("answer", "area", "words"),
    [
        ({UNREACHABLE: "no route to host"}, Area.HOSTS, "can't be reached: no route"),
        ({"host": {"error": "no complete apply"}}, Area.HOSTS, "no complete apply"),
        ({"host": None, "host_error": "OSError: x"}, Area.HOSTS, "OSError"),
        ({"host": "text"}, Area.HOSTS, "can't be read"),
        ({}, Area.HOSTS, "can't be read"),
        ({**GOOD, "cluster": None, "cluster_error": "its agent is older"}, Area.SLURM, "older"),
        ({**GOOD, "cluster": {"slurm": {"error": "Slurm does not answer"}}}, Area.SLURM, "does not answer"),
        ({**GOOD, "cluster": {"directory": {"error": "down"}}}, Area.DIRECTORY, "down"),
    ],
)
def test_what_could_not_be_compared_is_never_no_drift(answer: dict[str, Any], area: Area, words: str) -> None:
    (one,) = found(answer)
    assert isinstance(one, Unseen)
    assert one.area == area
    assert words in one.reason


@pytest.mark.parametrize(
    ("kind", "name", "seen", "fix"),
    [
        ("unmanaged file", "/etc/sudoers.d/x", "a file", "undo it by hand: gpucluster apply takes it as known"),
        ("file", "/etc/x", "a file", APPLY),
        ("unit", "slurmd.service", "failed", APPLY),
        ("package", "chrony", "not installed", APPLY),
        ("node", "compute-1", "drained by root", "scontrol update nodename=compute-1 state=resume"),
        ("node", "compute-1 Weight", "9", "scontrol reconfigure"),
        ("config", "SlurmctldDebug", "debug", "scontrol reconfigure"),
        ("partition", "compute state", "DOWN", "scontrol reconfigure"),
        ("reservation", "mine", "one by hand", "scontrol delete reservation=mine"),
        ("entry", "user mallory", "added, and not by `cluster`", "gpucluster user remove mallory"),
        ("entry", "group lab", "removed, and not by `cluster`", "gpucluster group add lab"),
        ("entry", "group lab", "member bob added", "gpucluster group remove-member lab bob"),
        ("entry", "group lab", "member bob removed, gid changed", "gpucluster group add-member lab bob"),
        ("entry", "user bob", "shell changed", "gpucluster user edit bob"),
        ("association", "mallory", "an association with a", "sacctmgr --immediate delete user mallory"),
        ("association", "alice", "none", "gpucluster user edit alice"),
    ],
)
def test_each_finding_names_what_puts_it_right(kind: str, name: str, seen: str, fix: str) -> None:
    each = {"kind": kind, "name": name, "expected": "x", "seen": seen}
    (one,) = found({**GOOD, "cluster": {"slurm": {"findings": [each]}}})
    assert isinstance(one, DriftFinding)
    assert fix in one.fix


def test_an_answer_of_any_length_is_cut() -> None:
    (one,) = found({"host": {"findings": [{**FILE, "name": "x" * 10_000}]}})
    assert isinstance(one, DriftFinding)
    assert len(one.name) == 300
