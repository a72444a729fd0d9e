"""Decisions that are carried out: with reports on disk, and a double of Slurm that can be killed at any point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpucluster.controller.health.policy import PolicySettings, RecordKind
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.health.control_site import BAD, GOOD, Site
from tests.controller.health.doubles import KilledError, nodes


def test_from_failure_to_repair(site: Site) -> None:
    assert site.control.is_quiet()
    site.send(BAD)
    assert site.node == (True, "gpucluster: check failed: gpu: gpu is fail")
    assert site.kinds() == [RecordKind.DRAIN, RecordKind.DONE]
    assert not site.control.is_quiet()
    site.send(BAD)
    assert len(site.slurm.changes) == 1
    site.send(GOOD)
    assert site.node == (False, "")
    assert site.control.is_quiet()
    # The same node again: an operator decides, whatever it reports.
    site.send(BAD)
    assert site.node[1].startswith("gpucluster: check failed again, a person decides: gpu")
    site.send(GOOD)
    assert site.node[0]


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_drain_that_is_interrupted_converges(site: Site, killed: str) -> None:
    site.slurm.killed = killed
    with pytest.raises(KilledError):
        site.send(BAD)
    site.restart()
    site.control.run()
    site.control.run()
    assert site.node[0]
    assert site.kinds() == [RecordKind.DRAIN, RecordKind.DONE]
    assert len(site.slurm.changes) == 1
    site.send(GOOD)
    assert not site.node[0]


@pytest.mark.parametrize("killed", ["before", "after"])
def test_an_undrain_that_is_interrupted_converges(site: Site, killed: str) -> None:
    site.send(BAD)
    site.slurm.killed = killed
    with pytest.raises(KilledError):
        site.send(GOOD)
    site.restart()
    site.control.run()
    site.control.run()
    assert not site.node[0]
    assert site.kinds()[-1] is RecordKind.ENDED
    assert site.control.is_quiet()


def test_a_drain_that_was_interrupted_and_is_no_longer_due_is_forgotten(site: Site) -> None:
    site.slurm.killed = "before"
    with pytest.raises(KilledError):
        site.send(BAD)
    site.restart()
    site.send(GOOD)
    site.clock.pass_(700)
    site.send(GOOD)
    assert not site.node[0]
    assert site.kinds() == [RecordKind.DRAIN, RecordKind.ENDED]


def test_an_operator_is_faster(site: Site) -> None:
    """Drained by an operator after the node was read: their reason stays."""
    theirs = nodes(10, flags=frozenset({"IDLE", "DRAIN"}))["compute-1"]
    read: Callable[..., object] = site.slurm.nodes

    def nodes_then_person(*names: str) -> object:
        if names:
            site.slurm.state["compute-1"] = theirs
        return read(*names)

    site.slurm.nodes = nodes_then_person  # type: ignore[assignment,method-assign]
    outlook = site.send(BAD)
    assert [each.succeeded for each in outlook.carried] == [False]
    assert site.slurm.changes == []


def test_without_an_answer_of_slurm_nothing_is_written(site: Site) -> None:
    site.slurm.down = True
    with pytest.raises(Failed):
        site.send(BAD)
    assert site.kinds() == []


def test_shadow_mode_writes_once_and_does_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, PolicySettings(shadow=True))
    for _ in range(3):
        site.send(BAD)
    assert site.kinds() == [RecordKind.SHADOW]
    assert site.slurm.changes == []
    assert len(site.said) == 1


def _fail(node: str, check: str = "nccl_pair", status: Status = Status.FAIL) -> Finding:
    return Finding(check, node, status, "31 of 350 GB/s")


def test_findings_of_verify_drain_and_undrain(site: Site) -> None:
    outlook = site.control.react([_fail("compute-1"), _fail("compute-2", status=Status.PASS)], shadow=False)
    assert [each.to_dict() for each in outlook.carried] == [
        {
            "node": "compute-1",
            "action": "drain",
            "done": True,
            "reason": "gpucluster: check failed: nccl_pair: 31 of 350 GB/s",
            "checks": ["nccl_pair"],
        }
    ]
    # The node's own report has no result of this check.
    site.send(GOOD)
    assert site.node[0]
    site.restart()
    outlook = site.control.react([_fail("compute-1", status=Status.PASS)], shadow=False)
    assert [each.decision.action.value for each in outlook.carried] == ["undrain"]
    assert not site.node[0]


def test_verify_in_shadow_leaves_no_trace(site: Site) -> None:
    outlook = site.control.react([_fail("compute-1"), _fail("compute-2", status=Status.PASS)], shadow=True)
    assert [each.decision.action.value for each in outlook.carried] == ["shadow"]
    assert site.kinds() == []
    assert not (site.folder / "findings.json").exists()


def test_one_breaker_for_both(site: Site) -> None:
    site.send(BAD)
    outlook = site.control.react(
        [*(_fail(f"compute-{number}", f"check_{number}") for number in range(2, 6))], shadow=False
    )
    assert [each.decision.action.value for each in outlook.carried] == ["drain", "none", "none", "none"]
    assert "the breaker is open" in outlook.carried[1].decision.reason


@pytest.mark.parametrize("status", [Status.UNKNOWN, Status.WARN, Status.SKIP])
def test_a_finding_that_is_neither_good_nor_bad_is_refused(site: Site, status: Status) -> None:
    with pytest.raises(Refused):
        site.control.react([_fail("compute-1", status=status)], shadow=False)
