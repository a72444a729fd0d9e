"""States of nodes and jobs, reasons, and that their meaning has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpucluster
from gpucluster.agent.rules import reasons
from gpucluster.agent.rules.slurm_nodes import node_flags
from gpucluster.oci.states import LifecycleState
from gpucluster.slurm import states
from gpucluster.slurm.states import JobState, NodeState, sinfo_word

PACKAGE = Path(gpucluster.__file__).parent
OWNER = PACKAGE / "slurm"
# Two such words in one collection show that the code decides what states of Slurm mean.
FLAGS = frozenset(NodeState)
SINFO = states.SINFO_CLOSED | states.SINFO_BUSY
JOBS = frozenset(JobState) - set(LifecycleState)  # instances of OCI are RUNNING and STOPPED, too


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        ("IDLE", {"IDLE"}),
        ("IDLE+CLOUD+POWERED_DOWN", {"IDLE", "CLOUD", "POWERED_DOWN"}),
        ("DOWN*+CLOUD+NOT_RESPONDING", {"DOWN", "CLOUD", "NOT_RESPONDING"}),
        ("IDLE~", {"IDLE", "POWERED_DOWN"}),
        ("MIXED#", {"MIXED", "POWERING_UP"}),
        ("IDLE%", {"IDLE", "POWERING_DOWN"}),
        ("IDLE!*", {"IDLE", "POWER_DOWN", "NOT_RESPONDING"}),
        ("SOMETHING_NEW", {"SOMETHING_NEW"}),
    ],
)
def test_flags_of_scontrol(state: str, flags: set[str]) -> None:
    assert node_flags(state) == flags


def test_what_flags_mean() -> None:
    off, coming, up, leaving = (
        node_flags(state) for state in ("IDLE+POWERED_DOWN", "ALLOCATED+POWERING_UP", "MIXED", "IDLE+POWERING_DOWN")
    )
    assert [states.in_service(flags) for flags in (off, coming, up, leaving)] == [False, False, True, False]
    assert [states.powering_up(flags) for flags in (off, coming, up, leaving)] == [False, True, False, False]
    assert [states.powered_down(flags) for flags in (off, coming, up, leaving)] == [True, False, False, False]
    assert [states.wanted(flags) for flags in (off, coming, up, leaving)] == [False, True, True, False]
    # powered up again while it is still powering down
    assert not states.powering_up(node_flags("IDLE+POWERING_DOWN+POWERING_UP"))
    assert not states.in_service(node_flags("DOWN"))


def test_words_of_sinfo() -> None:
    assert [sinfo_word(word) for word in ("idle~", "MIXED#", "drained*", "allocated+")] == [
        "idle",
        "mixed",
        "drained",
        "allocated",
    ]
    assert not states.SINFO_HEALTHY & states.SINFO_CLOSED


@pytest.mark.parametrize(
    ("reason", "gpucluster_", "slurmctld", "person"),
    [
        ("", False, False, False),
        (reasons.REMOVED, True, False, False),
        ("loud fan", False, False, True),
        ("ResumeTimeout reached", False, True, False),
        ("loud fan : Not responding", False, True, False),
        ("gpucluster: given up : Not responding", False, True, False),
    ],
)
def test_who_gave_a_reason(reason: str, gpucluster_: bool, slurmctld: bool, person: bool) -> None:
    assert reasons.from_gpucluster(reason) == gpucluster_
    assert reasons.from_slurmctld(reason) == slurmctld
    assert reasons.from_administrator(reason) == person


# The agent can't use the owner.
OF_THE_AGENT = ("slurm_nodes.py", "slurm_jobs.py")


def collections_of(tree: ast.AST) -> Iterator[frozenset[str]]:
    """The string constants of each set, list and tuple."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            yield frozenset(
                one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )


def test_nobody_else_says_what_states_mean() -> None:
    """A second copy would be a collection with two words for states of nodes or jobs."""
    copies = [
        f"{file.relative_to(PACKAGE)}: {sorted(words & known)}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if OWNER not in file.parents and file.name not in OF_THE_AGENT and "_data" not in file.parts
        for words in collections_of(ast.parse(file.read_text()))
        for known in (FLAGS, SINFO, JOBS)
        if len(words & known) > 1
    ]
    assert not copies
