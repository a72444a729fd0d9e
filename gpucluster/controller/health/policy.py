"""Which node is drained or undrained for its checks, and which is not. Pure.

The rules, in the order in which they apply:

1.  A node that an administrator or another program drained or took down is not touched, nor is one that is powered
down. 2.  Only a failed check whose reaction is to drain drains. What is unknown never does, and no warning.
3.  A check that at least two nodes of a pool fail, and that no node of the pool passes, is itself the suspect.
4.  The same machine a second time within `AGAIN`: it is drained, and a person decides on it.
5.  Per pool and `WINDOW` at most `max_drained_percent` of its nodes, and at least one.
6.  A node that we drained is undrained when each of the checks that led to it has passed since.
7.  Where a reboot may fix all that failed, the reason states that it comes first: `repair` decides on it. With it, a
node that slurmd drained because a process of a job did not end is drained by us, too.

Times are of the controller alone, with the clock that never jumps where one boot is concerned: see `Moment`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpucluster.controller.rules.slurm_nodes import BUSY, POWER, REBOOT, SILENT
from gpucluster.node_agent.checks.model import Status
from gpucluster.node_agent.rules import reasons

#: Seconds in which drains count for the breaker.
WINDOW = 3600.0
#: Seconds within which the second failure of a machine goes to a person.
AGAIN = 7 * 86400.0
#: Seconds after which a drain that Slurm has not done is given up.
_UNFINISHED = 600.0
_FEWEST_FOR_A_SUSPECT = 2
#: What stands for a check in the journal where slurmd could not end a process of a job.
KILL_TASK = "kill_task"


@dataclass(frozen=True)
class Moment:
    """A time on the controller.

    Args:
        wall: Unix time in seconds, which can jump.
        boot: the controller's boot id.
        up: seconds since that boot, which never jump.
    """

    wall: float
    boot: str
    up: float

    def since(self, earlier: Moment) -> float:
        """Seconds since an earlier moment, 0 if it is a later one by the clock: then it counts as recent."""
        return max(0.0, self.up - earlier.up if self.boot == earlier.boot else self.wall - earlier.wall)

    def is_after(self, other: Moment, now: Moment) -> bool:
        """Whether it is later than the other one. What was in the present boot is later than everything before it."""
        if self.boot == other.boot:
            return self.up > other.up
        if now.boot in (self.boot, other.boot):
            return now.boot == self.boot
        return self.wall > other.wall


@dataclass(frozen=True)
class Evidence:
    """The last result of a check on a node.

    Args:
        at: when the controller got it.
        drains: whether a failure drains the node (`Reaction.DRAIN`, by the controller's own registry).
        current: whether it may still accuse: the node has sent it since its last boot, and has been heard of lately.
        reboot: whether a reboot of the node may fix it.
        boot: the boot id of the node that sent it; empty where no node did.
    """

    node: str
    check: str
    status: Status
    message: str
    at: Moment
    drains: bool
    current: bool
    reboot: bool = False
    boot: str = ""

    @property
    def accuses(self) -> bool:
        """It is a reason to drain the node."""
        return self.status is Status.FAIL and self.drains and self.current


@dataclass(frozen=True)
class SchedulerNode:
    """A node as Slurm has it now.

    Args:
        pool: the pool that it belongs to; empty if it belongs to none.
        flags: the words of its State.
        instance: the cloud's id of the machine, where Slurm knows it.
    """

    name: str
    pool: str
    flags: frozenset[str]
    reason: str = ""
    instance: str = ""

    @property
    def away(self) -> bool:
        """It is powered down, or on the way there or back."""
        return bool(self.flags & POWER)

    @property
    def drained(self) -> bool:
        """It takes no new jobs."""
        return "DRAIN" in self.flags

    @property
    def ours(self) -> bool:
        """Failed checks drained it."""
        return self.drained and reasons.drained_by_checks(self.reason)

    @property
    def lost(self) -> bool:
        """It did not come back from our reboot. Slurm before 26.05 ends the drain when it notices that."""
        down = "DOWN" in self.flags and not self.drained
        return down and reasons.reboot_first(self.reason) and reasons.reboot_timed_out(self.reason)

    @property
    def unkillable(self) -> bool:
        """It was drained by slurmd, because a process of a job did not end."""
        return self.drained and not self.away and reasons.kill_task_failed(self.reason)

    @property
    def busy(self) -> bool:
        """A job has it, or Slurm cleans up after one."""
        return bool(self.flags & BUSY)

    @property
    def rebooting(self) -> bool:
        """Slurm will reboot it, or has told it to."""
        return bool(self.flags & REBOOT)

    @property
    def silent(self) -> bool:
        """Its slurmd does not answer, or slurmctld has given it up."""
        return bool(self.flags & SILENT)

    @property
    def free(self) -> bool:
        """No administrator and no other program has decided on it."""
        if self.drained or self.away or "FAIL" in self.flags:
            return False
        return "DOWN" not in self.flags or not self.reason or reasons.from_slurm(self.reason)


class RecordKind(str, Enum):
    """Kinds of records in the journal."""

    #: We are about to drain the node, and undrain it when the checks pass.
    DRAIN = "drain"
    #: The same, and a person decides what follows.
    PERSON = "person"
    #: Slurm has drained it.
    DONE = "done"
    #: We are about to undrain it.
    UNDRAIN = "undrain"
    #: The node is not drained by us any more, no matter who has ended it; or Slurm never drained it.
    ENDED = "ended"
    #: What would have been done, in shadow mode.
    SHADOW = "shadow"
    #: We are about to ask Slurm to reboot the node.
    REBOOT = "reboot"
    #: Slurm has taken that.
    ASKED = "asked"
    #: A reboot did not fix it, or can't: it is left to be replaced.
    GIVEN_UP = "given_up"


@dataclass(frozen=True)
class JournalRecord:
    """One line of the journal.

    Args:
        boot: of a reboot: the boot id that the node had.
    """

    kind: RecordKind
    node: str
    at: Moment
    pool: str = ""
    checks: tuple[str, ...] = ()
    reason: str = ""
    instance: str = ""
    boot: str = ""


@dataclass
class Episode:
    """What the journal has of one node: the drain that is in force with what followed, and the earlier ones."""

    drain: JournalRecord | None = None
    confirmed: bool = False
    earlier: list[JournalRecord] = field(default_factory=list)
    shadow: JournalRecord | None = None
    reboot: JournalRecord | None = None
    asked: bool = False
    given_up: JournalRecord | None = None

    def since_reboot(self, results: Iterable[Evidence], now: Moment) -> list[Evidence]:
        """What the node has sent from a later boot than the one that we have ended."""
        reboot = self.reboot
        if reboot is None:
            return []
        later = [each for each in results if each.boot and each.boot != reboot.boot]
        return [each for each in later if each.at.is_after(reboot.at, now)]


class Action(str, Enum):
    """What is to be done with a node."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    #: Drain it, and let a person decide what follows.
    PERSON = "person"
    #: Ask Slurm to reboot it.
    REBOOT = "reboot"
    #: No reboot fixes it: leave it to be replaced.
    GIVE_UP = "give_up"
    #: It would be drained, undrained or rebooted, but this is the shadow mode.
    SHADOW = "shadow"
    #: Nothing; `reason` has the cause.
    NONE = "none"


@dataclass(frozen=True)
class Decision:
    """What is to be done with a node, and why.

    Args:
        reason: of a drain, the one for Slurm; else for the operator.
        checks: those that led to it.
        repeats: the journal has it already, and Slurm has not done it yet.
        boot: of a reboot: the boot id that the node has.
        holds: why a node that failed is not drained: "breaker" or "suspect"; else empty.
    """

    node: str
    action: Action
    reason: str
    checks: tuple[str, ...]
    repeats: bool = False
    holds: str = ""
    boot: str = ""


@dataclass(frozen=True)
class PolicySettings:
    """Settings of the policy.

    Args:
        max_drained_percent: of the nodes of a pool, in an hour; it is at least one node.
        shadow: report what would be done, and do nothing.
        reboots: reboot nodes where that may fix them.
    """

    max_drained_percent: int = 20
    shadow: bool = False
    reboots: bool = False


@dataclass(frozen=True)
class Breaker:
    """How many nodes of a pool were drained in the last hour, and how many may be."""

    drained: int
    limit: int

    @property
    def open(self) -> bool:
        """No further node is drained without a person."""
        return self.drained >= self.limit


def breakers(
    now: Moment, nodes: Mapping[str, SchedulerNode], journal: Iterable[JournalRecord], settings: PolicySettings
) -> dict[str, Breaker]:
    """The breaker of each pool. A drain counts for an hour, also one that was undone."""
    sizes: dict[str, int] = {}
    for node in nodes.values():
        sizes[node.pool] = sizes.get(node.pool, 0) + (not node.away)
    recent: dict[str, int] = {}
    for record in journal:
        if record.kind in (RecordKind.DRAIN, RecordKind.PERSON) and now.since(record.at) < WINDOW:
            recent[record.pool] = recent.get(record.pool, 0) + 1
    return {
        pool: Breaker(recent.get(pool, 0), max(1, size * settings.max_drained_percent // 100))
        for pool, size in sizes.items()
    }


def suspects(nodes: Mapping[str, SchedulerNode], evidence: Iterable[Evidence]) -> dict[tuple[str, str], int]:
    """The checks that are suspects themselves, with their pools: on how many nodes they fail."""
    failing: dict[tuple[str, str], int] = {}
    passing = set()
    for each in evidence:
        node = nodes.get(each.node)
        if node is None or node.away:
            continue
        key = (node.pool, each.check)
        if each.accuses:
            failing[key] = failing.get(key, 0) + 1
        elif each.current and each.status in (Status.PASS, Status.WARN):
            passing.add(key)
    return {key: count for key, count in failing.items() if count >= _FEWEST_FOR_A_SUSPECT and key not in passing}


def open_drains(journal: Iterable[JournalRecord]) -> frozenset[str]:
    """The nodes with a drain of ours that has not ended, as far as the journal shows."""
    return frozenset(name for name, episode in episodes(journal).items() if episode.drain)


def settle(now: Moment, nodes: Mapping[str, SchedulerNode], journal: Iterable[JournalRecord]) -> list[JournalRecord]:
    """What the journal lacks: Slurm has done what was begun, or it was ended by other means. To be written first."""
    return list(_settled(now, nodes, episodes(journal)))


def _settled(now: Moment, nodes: Mapping[str, SchedulerNode], known: Mapping[str, Episode]) -> Iterator[JournalRecord]:
    for name, episode in known.items():
        node, drain = nodes.get(name), episode.drain
        if drain is None:
            continue
        if node is None or node.away or _replaced(node, drain):
            # An elastic node that was given up: its next machine is another one.
            yield JournalRecord(RecordKind.ENDED, name, now)
        elif node.ours and not episode.confirmed:
            yield JournalRecord(RecordKind.DONE, name, now)
        elif not node.ours and not node.lost and (episode.confirmed or now.since(drain.at) > _UNFINISHED):
            yield JournalRecord(RecordKind.ENDED, name, now)


def by_node(evidence: Iterable[Evidence]) -> dict[str, list[Evidence]]:
    """The evidence about each node."""
    grouped: dict[str, list[Evidence]] = {}
    for each in evidence:
        grouped.setdefault(each.node, []).append(each)
    return grouped


def decide(
    now: Moment,
    evidence: Sequence[Evidence],
    nodes: Mapping[str, SchedulerNode],
    journal: Sequence[JournalRecord],
    settings: PolicySettings,
) -> list[Decision]:
    """What is to be done now. The journal is settled (`settle`)."""
    known = episodes(journal)
    suspect = suspects(nodes, evidence)
    states = breakers(now, nodes, journal, settings)
    left = {pool: breaker.limit - breaker.drained for pool, breaker in states.items()}
    results_of = by_node(evidence)
    decisions = []
    for name in sorted(results_of):
        node, episode = nodes.get(name), known.get(name, Episode())
        results = sorted(results_of[name], key=lambda each: each.check)
        if node is None:
            failed = [each for each in results if each.accuses]
            if failed:
                decisions.append(_none(name, failed, "the scheduler does not know this node"))
            continue
        for decision in _of_node(now, node, episode, results, suspect, left, settings):
            if not node.ours and decision.action is not Action.NONE and not decision.repeats:
                left[node.pool] -= 1
            decisions.append(decision)
    return decisions


def _of_node(
    now: Moment,
    node: SchedulerNode,
    episode: Episode,
    results: Sequence[Evidence],
    suspect: Mapping[tuple[str, str], int],
    left: Mapping[str, int],
    settings: PolicySettings,
) -> Iterator[Decision]:
    failed = [each for each in results if each.accuses]
    if node.ours:
        yield from _undrain(now, node, episode, results, settings)
    elif node.lost and episode.drain is not None:
        return  # `repair` decides on it
    elif settings.reboots and node.unkillable:
        yield _adopt(now, node, episode, left, settings)
    elif failed:
        yield _drain(now, node, episode, failed, suspect, left, settings)


def _adopt(
    now: Moment, node: SchedulerNode, episode: Episode, left: Mapping[str, int], settings: PolicySettings
) -> Decision:
    """Drain for ourselves what slurmd has drained. The second time within `AGAIN` no reboot comes first."""
    drain, checks = episode.drain, (KILL_TASK,)
    if drain is not None and not settings.shadow and drain.checks == checks:
        return Decision(node.name, Action.DRAIN, drain.reason, checks, repeats=True)
    again = any(
        earlier.checks == checks and _same_machine(node, earlier) and now.since(earlier.at) < AGAIN
        for earlier in episode.earlier
    )
    seen = f"{reasons.KILL_TASK_FAILED}{' again' if again else ''}: a process of a job did not end"
    reason = reasons.of_checks([(KILL_TASK, seen)], again=False, reboot_first=not again)
    if left.get(node.pool, 0) < 1:
        words = f"the breaker is open: enough nodes of pool {node.pool} were drained within an hour"
        return Decision(node.name, Action.NONE, f"{words} ({reason})", checks, holds="breaker")
    if settings.shadow:
        known = episode.shadow is not None and episode.shadow.checks == checks
        return Decision(node.name, Action.SHADOW, f"would be taken over: {reason}", checks, repeats=known)
    return Decision(node.name, Action.DRAIN, reason, checks)


def _drain(
    now: Moment,
    node: SchedulerNode,
    episode: Episode,
    failed: Sequence[Evidence],
    suspect: Mapping[tuple[str, str], int],
    left: Mapping[str, int],
    settings: PolicySettings,
) -> Decision:
    if not node.free:
        state = "+".join(sorted(node.flags))
        return _none(node.name, failed, f"it is {state} already ({node.reason or 'without a reason'}): not changed")
    sound = [each for each in failed if (node.pool, each.check) not in suspect]
    if not sound:
        words = ", ".join(
            f"{each.check} fails on {suspect[node.pool, each.check]} nodes of pool {node.pool} and passes on none"
            for each in failed
        )
        return _none(node.name, failed, f"the check itself is the suspect: {words}. Nothing is drained", "suspect")
    checks = tuple(each.check for each in sound)
    drain = episode.drain
    if drain is not None and not settings.shadow and set(drain.checks) & set(checks):
        # The journal has it, and Slurm has not: we were interrupted between the two.
        again = drain.kind is RecordKind.PERSON
        return Decision(node.name, Action.PERSON if again else Action.DRAIN, drain.reason, drain.checks, repeats=True)
    again = any(_same_machine(node, earlier) and now.since(earlier.at) < AGAIN for earlier in episode.earlier)
    first = settings.reboots and not again and all(each.reboot for each in failed)
    reason = reasons.of_checks([(each.check, each.message) for each in sound], again=again, reboot_first=first)
    if left.get(node.pool, 0) < 1:
        words = f"the breaker is open: enough nodes of pool {node.pool} were drained within an hour; a person decides"
        return _none(node.name, sound, f"{words} ({reason})", "breaker")
    if settings.shadow:
        known = episode.shadow is not None and episode.shadow.checks == checks
        return Decision(node.name, Action.SHADOW, f"would be drained: {reason}", checks, repeats=known)
    return Decision(node.name, Action.PERSON if again else Action.DRAIN, reason, checks)


def _undrain(
    now: Moment, node: SchedulerNode, episode: Episode, results: Sequence[Evidence], settings: PolicySettings
) -> Iterator[Decision]:
    drain = episode.drain
    failed = [each for each in results if each.accuses]
    if drain is None:
        if failed:
            yield _none(node.name, failed, "it is drained, and the journal does not have it: a person undrains it")
        return
    if drain.kind is RecordKind.PERSON or node.reason.startswith(reasons.FOR_A_PERSON):
        if failed:
            yield _none(node.name, failed, "it has failed twice: a person decides on it")
        return
    passed = {each.check for each in results if each.status is Status.PASS and each.at.is_after(drain.at, now)}
    if any(each.status is Status.PASS for each in episode.since_reboot(results, now)):
        # The process that did not end is gone with the boot.
        passed.add(KILL_TASK)
    missing = [check for check in drain.checks if check not in passed]
    if failed or missing or not drain.checks:
        if failed:
            yield _none(node.name, failed, "it is drained already")
        return
    if "DOWN" in node.flags:
        return
    words = f"passed since: {', '.join(drain.checks)}"
    if settings.shadow:
        yield Decision(node.name, Action.SHADOW, f"would be undrained: {words}", drain.checks, repeats=True)
    else:
        yield Decision(node.name, Action.UNDRAIN, words, drain.checks)


def _none(name: str, failed: Sequence[Evidence], reason: str, holds: str = "") -> Decision:
    return Decision(name, Action.NONE, reason, tuple(each.check for each in failed), holds=holds)


def _same_machine(node: SchedulerNode, earlier: JournalRecord) -> bool:
    """A name can be given to another machine. Where the cloud's id is not known, it counts as the same."""
    return not node.instance or not earlier.instance or node.instance == earlier.instance


def _replaced(node: SchedulerNode, drain: JournalRecord) -> bool:
    return not node.drained and not _same_machine(node, drain)


def episodes(journal: Iterable[JournalRecord]) -> dict[str, Episode]:
    """What the journal has of each node."""
    known: dict[str, Episode] = {}
    for record in journal:
        episode = known.setdefault(record.node, Episode())
        if record.kind in (RecordKind.DRAIN, RecordKind.PERSON):
            episode.drain, episode.confirmed = record, False
            episode.reboot, episode.asked, episode.given_up = None, False, None
        elif record.kind is RecordKind.REBOOT:
            episode.reboot, episode.asked = record, False
        elif record.kind is RecordKind.ASKED:
            episode.asked = True
        elif record.kind is RecordKind.GIVEN_UP:
            episode.given_up = record
        elif record.kind is RecordKind.DONE:
            episode.confirmed = True
        elif record.kind is RecordKind.SHADOW:
            episode.shadow = record
        elif record.kind is RecordKind.ENDED and episode.drain is not None:
            if episode.confirmed:
                episode.earlier.append(episode.drain)
            episode.drain, episode.confirmed = None, False
            episode.reboot, episode.asked, episode.given_up = None, False, None
    return known
