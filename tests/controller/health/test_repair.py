"""What follows for a node that waits for a reboot: each step, its limits, and when it is given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpucluster.controller.health import policy, repair
from gpucluster.controller.health.policy import (
    KILL_TASK,
    Action,
    Decision,
    Evidence,
    JournalRecord,
    PolicySettings,
    RecordKind,
    SchedulerNode,
)
from gpucluster.node_agent.checks.model import BEYOND_REBOOT, Finding, HostReport, Profile, Status
from gpucluster.node_agent.rules import reasons
from tests.controller.health.control_site import BAD, GOOD, Site
from tests.controller.health.doubles import DRAINS, NOW, KilledError, ago, nodes

REBOOTS = PolicySettings(reboots=True)
FIRST = reasons.of_checks([("gpu", "7 of 8 GPUs")], again=False, reboot_first=True)
DRAINED = frozenset({"IDLE", "DRAIN"})


def seen(
    status: Status = Status.FAIL,
    at: float = 5,
    *,
    boot: str = "old",
    reboot: bool = True,
    current: bool = True,
) -> Evidence:
    return Evidence("compute-1", "gpu", status, "7 of 8 GPUs", ago(at), True, current, reboot=reboot, boot=boot)


def drained(at: float = 300) -> list[JournalRecord]:
    record = JournalRecord(RecordKind.DRAIN, "compute-1", ago(at), "compute", ("gpu",), FIRST)
    return [record, JournalRecord(RecordKind.DONE, "compute-1", ago(at))]


def rebooted(at: float = 100, *, asked: bool = True) -> list[JournalRecord]:
    record = JournalRecord(RecordKind.REBOOT, "compute-1", ago(at), "compute", ("gpu",), FIRST, boot="old")
    return [*drained(at + 100), record, *([JournalRecord(RecordKind.ASKED, "compute-1", ago(at))] if asked else [])]


@dataclass(frozen=True)
class Case:
    """A node with its journal, and what follows.

    Args:
        outcome: words that the reason of a node that is given up ends with.
    """

    journal: list[JournalRecord]
    evidence: list[Evidence]
    action: Action | None
    outcome: str = ""
    flags: frozenset[str] = DRAINED
    reason: str = FIRST
    settings: PolicySettings = REBOOTS


ISSUED = f"{FIRST} : reboot issued"
WAITS = DRAINED - {"IDLE"} | {"DOWN", "REBOOT_ISSUED"}
CASES = {
    # --- before a reboot
    "it is idle": Case(drained(), [seen()], Action.REBOOT),
    "a job runs": Case(drained(), [seen()], None, flags=frozenset({"MIXED", "DRAIN"})),
    "all of it has a job": Case(drained(), [seen()], None, flags=frozenset({"ALLOCATED", "DRAIN"})),
    "Slurm cleans up after a job": Case(drained(), [seen()], None, flags=DRAINED | {"COMPLETING"}),
    "an administrator has asked for a reboot": Case(drained(), [seen()], None, flags=DRAINED | {"REBOOT_REQUESTED"}),
    "no reboot fixes it": Case(drained(), [seen(reboot=False)], Action.GIVE_UP, "no reboot fixes gpu"),
    "slurmd is silent for a moment": Case(drained(), [seen()], None, flags=DRAINED | {"NOT_RESPONDING"}),
    "slurmd is silent for long": Case(
        drained(),
        [seen(current=False)],
        Action.GIVE_UP,
        "its slurmd does not answer",
        flags=frozenset({"DOWN", "DRAIN"}),
    ),
    "its boot is not known": Case(drained(), [seen(boot="")], None),
    "reboots were switched off": Case(
        drained(), [seen()], Action.GIVE_UP, "checks.repair is none", settings=PolicySettings()
    ),
    "shadow mode": Case(drained(), [seen()], Action.SHADOW, settings=replace(REBOOTS, shadow=True)),
    "a person decides": Case(drained(), [seen()], None, reason=f"{reasons.FOR_A_PERSON} gpu: 7 of 8 GPUs"),
    "it is only drained": Case(drained(), [seen()], None, reason=f"{reasons.FAILED_CHECKS} gpu: 7 of 8 GPUs"),
    "an administrator has drained it": Case(drained(), [seen()], None, reason="broken fan"),
    "the journal does not have the drain": Case([], [seen()], None),
    # --- after it
    "it reboots": Case(rebooted(), [seen(at=150)], None, flags=WAITS, reason=ISSUED),
    "the old boot has reported once more": Case(rebooted(), [seen()], None, flags=WAITS, reason=ISSUED),
    "it passes": Case(rebooted(), [seen(Status.PASS, boot="new")], None, reason=ISSUED),
    "it still fails": Case(
        rebooted(), [seen(boot="new")], Action.GIVE_UP, "still so after a reboot", flags=WAITS, reason=ISSUED
    ),
    "Slurm gave it up": Case(
        rebooted(),
        [],
        Action.GIVE_UP,
        "it did not come back from a reboot",
        flags=frozenset({"DOWN"}),
        reason=f"{ISSUED} : reboot timed out",
    ),
    "Slurm of 26.05 gave it up": Case(
        rebooted(),
        [],
        Action.GIVE_UP,
        "it did not come back from a reboot",
        flags=frozenset({"DOWN", "DRAIN"}),
        reason=f"{ISSUED} : reboot timed out",
    ),
    "no report for an hour": Case(
        rebooted(repair.WITHIN + 1), [], Action.GIVE_UP, "no report since a reboot", flags=WAITS, reason=ISSUED
    ),
    "unknown for an hour": Case(
        rebooted(repair.WITHIN + 1),
        [seen(Status.UNKNOWN, boot="new")],
        Action.GIVE_UP,
        "its checks have not passed since a reboot",
        reason=ISSUED,
    ),
    "it was given up": Case(
        [*rebooted(), JournalRecord(RecordKind.GIVEN_UP, "compute-1", ago(1), reason="its reason")],
        [],
        Action.GIVE_UP,
        "its reason",
    ),
    "Slurm was not asked": Case(rebooted(asked=False), [seen(at=150)], Action.REBOOT),
    "Slurm was asked, and the journal lacks it": Case(
        rebooted(asked=False), [seen(at=150)], None, flags=WAITS, reason=ISSUED
    ),
}


def decided(case: Case) -> list[Decision]:
    present = nodes(10)
    present["compute-1"] = replace(present["compute-1"], flags=case.flags, reason=case.reason)
    return repair.decide(NOW, case.evidence, present, case.journal, case.settings)


@pytest.mark.parametrize("name", CASES)
def test_each_state_has_one_next_step(name: str) -> None:
    case = CASES[name]
    found = decided(case)
    assert [each.action for each in found] == ([] if case.action is None else [case.action])
    if case.action is Action.GIVE_UP and not found[0].repeats:
        reason = found[0].reason
        assert reason.startswith(f"{reasons.FAILED_CHECKS} gpu: 7 of 8 GPUs (")
        assert reason.endswith(f"{case.outcome})")
        # The autoscaler replaces it, and nothing waits for a reboot any more.
        assert reasons.from_gpucluster(reason)
        assert not reasons.reboot_first(reason)


@pytest.mark.parametrize("name", CASES)
def test_a_reboot_is_never_asked_for_while_a_job_is_there(name: str) -> None:
    for busy in ("ALLOCATED", "MIXED", "COMPLETING"):
        case = CASES[name]
        found = decided(replace(case, flags=case.flags | {busy}))
        assert Action.REBOOT not in [each.action for each in found]


def test_reboots_of_a_pool_are_limited_like_its_drains() -> None:
    present, journal, evidence = nodes(10), [], []
    for number in range(1, 6):
        name = f"compute-{number}"
        present[name] = replace(present[name], flags=DRAINED, reason=FIRST)
        # Drained on different days, because jobs ran; they are free at the same time.
        journal += [replace(record, node=name) for record in drained(number * 7200)]
        evidence.append(replace(seen(), node=name))
    found = repair.decide(NOW, evidence, present, journal, REBOOTS)
    assert [each.action for each in found] == [Action.REBOOT, Action.REBOOT, Action.NONE, Action.NONE, Action.NONE]
    assert {each.holds for each in found[2:]} == {"breaker"}
    begun = [replace(rebooted(60)[2], node=f"compute-{number}") for number in (1, 2)]
    asked = [JournalRecord(RecordKind.ASKED, each.node, each.at) for each in begun]
    found = repair.decide(NOW, evidence, present, [*journal, *begun, *asked], REBOOTS)
    assert Action.REBOOT not in [each.action for each in found]
    later = replace(NOW, wall=NOW.wall + 3600, up=NOW.up + 3600)
    found = repair.decide(later, evidence, present, [*journal, *begun, *asked], REBOOTS)
    assert [each.node for each in found if each.action is Action.REBOOT] == ["compute-3", "compute-4"]


# --- the drain before it -----


@pytest.mark.parametrize(
    ("reboots", "fixes", "beginning"),
    [
        (True, True, reasons.REBOOT_FIRST),
        (True, False, reasons.FAILED_CHECKS),
        (False, True, reasons.FAILED_CHECKS),
    ],
)
def test_the_reason_of_the_drain_states_that_a_reboot_comes_first(reboots: bool, fixes: bool, beginning: str) -> None:
    present = nodes(10)
    others = [replace(seen(Status.PASS), node=name) for name in present if name != "compute-1"]
    settings = PolicySettings(reboots=reboots)
    (found,) = policy.decide(NOW, [*others, seen(reboot=fixes)], present, [], settings)
    assert (found.action, found.reason) == (Action.DRAIN, f"{beginning} gpu: 7 of 8 GPUs")


def test_one_failure_that_no_reboot_fixes_is_enough() -> None:
    present = nodes(10)
    others = [replace(seen(Status.PASS), node=name) for name in present if name != "compute-1"]
    disk = replace(seen(reboot=False), check="disk")
    (found,) = policy.decide(NOW, [*others, seen(), disk], present, [], REBOOTS)
    assert found.reason.startswith(reasons.FAILED_CHECKS)


def test_the_second_time_within_a_week_a_person_decides() -> None:
    journal = [*rebooted(3 * 86400), JournalRecord(RecordKind.ENDED, "compute-1", ago(2 * 86400))]
    present = nodes(10)
    others = [replace(seen(Status.PASS), node=name) for name in present if name != "compute-1"]
    (found,) = policy.decide(NOW, [*others, seen(boot="new")], present, journal, REBOOTS)
    assert (found.action, reasons.reboot_first(found.reason)) == (Action.PERSON, False)


# --- "Kill task failed" -----


def kill_task(
    journal: list[JournalRecord],
    settings: PolicySettings = REBOOTS,
    reason: str = "Kill task failed",
    taken: int = 0,
) -> list[Decision]:
    present = nodes(10)
    present["compute-1"] = replace(present["compute-1"], flags=DRAINED, reason=reason)
    records = [replace(drained(60)[0], node=f"compute-{number}") for number in range(2, 2 + taken)]
    return policy.decide(NOW, [seen(Status.PASS)], present, [*journal, *records], settings)


def test_what_slurmd_drained_is_taken_over() -> None:
    (found,) = kill_task([])
    assert (found.action, found.checks) == (Action.DRAIN, (KILL_TASK,))
    assert reasons.reboot_first(found.reason)
    assert "Kill task failed" in found.reason
    # slurmctld keeps what an administrator wrote before.
    assert kill_task([], reason="loud fan : Kill task failed")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (PolicySettings(), "Kill task failed"),
        (REBOOTS, "ticket 7: Kill task failed on it"),
        (REBOOTS, "Prolog error"),
        (REBOOTS, "gpucluster: changed by apply : Kill task failed"),
    ],
)
def test_other_drains_are_not(settings: PolicySettings, reason: str) -> None:
    assert kill_task([], settings, reason) == []


def test_the_second_time_it_is_replaced_without_a_reboot() -> None:
    former = [replace(record, checks=(KILL_TASK,)) for record in rebooted(3 * 86400)]
    (found,) = kill_task([*former, JournalRecord(RecordKind.ENDED, "compute-1", ago(2 * 86400))])
    assert (found.action, found.reason.partition(" kill_task")[0]) == (Action.DRAIN, reasons.FAILED_CHECKS)
    assert "again" in found.reason


def test_the_breaker_holds_it_as_well() -> None:
    (found,) = kill_task([], taken=2)
    assert (found.action, found.holds) == (Action.NONE, "breaker")


def test_shadow_mode_only_reports_it() -> None:
    (found,) = kill_task([], replace(REBOOTS, shadow=True))
    assert found.action is Action.SHADOW


# --- carried out, with reports on disk -----


@pytest.fixture
def rebooting(tmp_path: Path) -> Site:
    return Site(tmp_path, REBOOTS)


def registers(site: Site) -> None:
    """What slurmctld does when the node's slurmd registers: the drain stays."""
    node = site.slurm.state["compute-1"]
    site.slurm.state["compute-1"] = replace(node, flags=DRAINED)


def test_from_the_fault_over_a_reboot_into_service(rebooting: Site) -> None:
    site = rebooting
    site.send(BAD)
    assert site.node == (True, "gpucluster: check failed, reboot first: gpu: gpu is fail")
    site.control.run()
    assert [change[0] for change in site.slurm.changes] == ["drain", "reboot"]
    # The checks of its boot pass before slurmd has registered: it stays drained until then.
    site.send(GOOD, boot="second", profile=Profile.BOOT)
    assert site.node[0]
    registers(site)
    site.control.run()
    assert site.node[0] is False
    assert site.kinds() == [
        RecordKind.DRAIN,
        RecordKind.DONE,
        RecordKind.REBOOT,
        RecordKind.ASKED,
        RecordKind.UNDRAIN,
        RecordKind.ENDED,
    ]
    assert site.store.journal.read()[2].boot == "node-boot"


def test_a_fault_that_stays_is_given_up_once(rebooting: Site) -> None:
    site = rebooting
    for _ in range(2):
        site.send(BAD)
    for _ in range(3):
        site.send(BAD, boot="second")
    assert site.node == (True, "gpucluster: check failed: gpu: gpu is fail (still so after a reboot)")
    assert [change[0] for change in site.slurm.changes] == ["drain", "reboot", "drain"]
    assert site.kinds()[-2:] == [RecordKind.GIVEN_UP, RecordKind.DONE]
    # It passes later after all, such as after a repair by hand.
    registers(site)
    site.send(GOOD, boot="third")
    assert site.node[0] is False


def test_a_process_that_did_not_end_is_gone_with_the_boot(rebooting: Site) -> None:
    site = rebooting
    site.send(GOOD)
    node = site.slurm.state["compute-1"]
    site.slurm.state["compute-1"] = replace(node, flags=DRAINED, reason="Kill task failed")
    site.control.run()
    site.control.run()
    assert [change[0] for change in site.slurm.changes] == ["drain", "reboot"]
    registers(site)
    site.control.run()
    assert site.node[0], "nothing has come from its new boot"
    site.send(GOOD, boot="second")
    assert site.node[0] is False


@pytest.mark.parametrize("killed", ["before", "after"])
@pytest.mark.parametrize("step", ["reboot", "give up"])
def test_a_step_that_is_interrupted_converges(rebooting: Site, step: str, killed: str) -> None:
    site = rebooting
    site.send(BAD)
    if step == "give up":
        site.send(BAD)
    site.slurm.killed = killed
    with pytest.raises(KilledError):
        site.send(BAD, boot="node-boot" if step == "reboot" else "second")
    site.restart()
    for _ in range(3):
        site.control.run()
    expected = ["drain", "reboot"] if step == "reboot" else ["drain", "reboot", "drain"]
    assert [change[0] for change in site.slurm.changes] == expected


def test_a_node_that_slurm_gave_up_stays_drained_for_it(rebooting: Site) -> None:
    """Slurm before 26.05 ends the drain with the time-out: when the node comes back late, it would take jobs."""
    site = rebooting
    for _ in range(2):
        site.send(BAD)
    node = site.slurm.state["compute-1"]
    site.slurm.state["compute-1"] = replace(node, flags=frozenset({"DOWN"}), reason=f"{node.reason} : reboot timed out")
    site.control.run()
    assert site.node[0]
    assert site.node[1].endswith("(it did not come back from a reboot)")


def test_a_job_that_came_meanwhile_keeps_its_node(rebooting: Site) -> None:
    """An administrator undrained it, a job started, and it was drained again, after the node was read."""
    site = rebooting
    site.send(BAD)
    read: Callable[..., dict[str, SchedulerNode]] = site.slurm.nodes

    def with_a_job(*names: str) -> dict[str, SchedulerNode]:
        found = read(*names)
        return {name: replace(node, flags=node.flags | {"MIXED"}) for name, node in found.items()} if names else found

    site.slurm.nodes = with_a_job  # type: ignore[method-assign]
    (carried,) = [each for each in site.control.run().carried if each.decision.action is Action.REBOOT]
    assert not carried.succeeded
    assert [change[0] for change in site.slurm.changes] == ["drain"]
    assert RecordKind.REBOOT not in site.kinds()


def test_who_asks_about_findings_starts_no_reboot(rebooting: Site) -> None:
    site = rebooting
    site.send(BAD)
    site.control.react([Finding("nccl_pair", "compute-2", Status.PASS, "350 GB/s")], shadow=False)
    assert [change[0] for change in site.slurm.changes] == ["drain"]


def test_a_finding_can_state_that_no_reboot_fixes_it(rebooting: Site) -> None:
    site = rebooting
    site.clock.pass_(1)
    found = Finding("gpu", "compute-1", Status.FAIL, "Xid 54", {BEYOND_REBOOT: True})
    site.store.keep("compute-1", HostReport("compute-1", Profile.PERIODIC, 5.0, 0.1, "b", (found,)), site.clock())
    (evidence,) = site.store.evidence(site.clock(), DRAINS, "compute-1", reboots={"gpu"})
    assert (evidence.accuses, evidence.reboot, evidence.boot) == (True, False, "b")
    site.control.run()
    assert site.node[1] == "gpucluster: check failed: gpu: Xid 54"
