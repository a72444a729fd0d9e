"""States of nodes and jobs, reasons, and that their meaning has one owner."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpucluster
from gpucluster.controller.rules.slurm_nodes import node_flags
from gpucluster.node_agent.rules import reasons
from gpucluster.oci.states import LifecycleState
from gpucluster.slurm import states
from gpucluster.slurm.states import JobState, NodeState, node_health, sinfo_word

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
    assert [states.power_requested(flags) for flags in (off, coming, up, leaving)] == [False, True, True, False]
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
    ("health", "words"),
    [
        # A cluster in which jobs of several nodes wait (SckyzO/slurm_exporter#243), and one with a reservation
        ("good", "planned mixed- allocated- idle- mixed allocated completing mixed@ reserved maint idle$ MIXED+"),
        ("bad", "idle* mixed* down* drained draining idle~ idle# mixed^ fail inval unknown planned*"),
        ("unknown", "blocked hibernating idle?"),
    ],
)  # fmt: skip
def test_what_a_state_of_sinfo_means_for_a_node(health: str, words: str) -> None:
    assert {word: node_health(word).value for word in words.split()} == dict.fromkeys(words.split(), health)


@pytest.mark.parametrize(
    ("reason", "gpucluster_", "slurmctld", "person"),
    [
        ("", False, False, False),
        (reasons.REMOVED, True, False, False),
        ("loud fan", False, False, True),
        ("ResumeTimeout reached", False, True, False),
        ("loud fan : Not responding", False, True, False),
        ("gpucluster: given up : Not responding", False, True, False),
        # What slurmd writes as root, as an administrator with sudo does: aws-samples/awsome-distributed-ai#185, #195
        ("Kill task failed", False, True, False),
        ("gres/gpu count reported lower than configured (7 < 8)", False, True, False),
        ("Low RealMemory (reported:63622 < 100.00% of configured:64000)", False, True, False),
        ("Prolog error", False, True, False),
        ("Epilog error", False, True, False),
        ("batch job complete failure", False, True, False),
        ("reboot timed out", False, True, False),
        ("NHC: check_fs_mount: /scratch is not mounted", False, False, True),
    ],
)
def test_who_gave_a_reason(reason: str, gpucluster_: bool, slurmctld: bool, person: bool) -> None:
    assert reasons.from_gpucluster(reason) == gpucluster_
    assert reasons.from_slurm(reason) == slurmctld
    assert reasons.from_administrator(reason) == person


def test_who_wrote_a_reason_decides_where_slurm_has_a_user_of_its_own() -> None:
    # A reason of a release that is not known here.
    for reason in ("Node has too few moons", "loud fan : Node has too few moons"):
        assert reasons.from_slurm(reason, "slurm")
        assert not reasons.from_administrator(reason, "slurm")
        assert reasons.from_administrator(reason, "root")
        assert reasons.from_administrator(reason, "alice")
    # gpucluster runs as that user on the controller, and an operator may still have to decide.
    for own in (reasons.REMOVED, f"{reasons.FOR_A_PERSON} gpu_count: 7 of 8 GPUs"):
        assert not reasons.from_slurm(own, "slurm")
    assert reasons.from_administrator(f"{reasons.FOR_A_PERSON} gpu_count: 7 of 8 GPUs", "slurm")
    # An administrator's reboot: the node comes back by itself.
    for reboot in ("reboot requested", "reboot issued", "Reboot ASAP : reboot issued"):
        assert not reasons.from_slurm(reboot, "slurm")


# The agent can't use the owner.
OF_THE_AGENT = ("slurm_nodes.py", "slurm_jobs.py")


def collections_of(tree: ast.AST) -> Iterator[frozenset[str]]:
    """The string constants of each set, list and tuple."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            yield frozenset(
                one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )


def _collections_with_states(source: str) -> Iterator[frozenset[str]]:
    """Of a module that has two such words at all: the others need no syntax tree."""
    texts = set(re.findall(r"""["']([\w.*~#!%$@+^-]+)["']""", source))
    if any(len(texts & known) > 1 for known in (FLAGS, SINFO, JOBS)):
        yield from collections_of(ast.parse(source))


def test_no_other_module_states_what_states_mean() -> None:
    """A second copy would be a collection with two words for states of nodes or jobs."""
    copies = [
        f"{file.relative_to(PACKAGE)}: {sorted(words & known)}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if OWNER not in file.parents and file.name not in OF_THE_AGENT and "_data" not in file.parts
        for words in _collections_with_states(file.read_text())
        for known in (FLAGS, SINFO, JOBS)
        if len(words & known) > 1
    ]
    assert not copies
