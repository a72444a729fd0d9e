"""The state of a cluster on one page: the facts, as plain values. `operations.overview` collects them.

Each part states why it is missing where its source could not be asked. Times are seconds since 1970, ages are seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from gpucluster.controller.rules.slurm_nodes import SIGNS
from gpucluster.node_agent.checks.model import Status
from gpucluster.pages.colours import Tone
from gpucluster.slurm.states import SINFO_BUSY, SINFO_CLOSED, SINFO_DRAINED, sinfo_word

T = TypeVar("T")
#: The version of `Overview.to_dict`.
VERSION = 1


@dataclass(frozen=True)
class SourcePart(Generic[T]):
    """What a source has answered.

    Args:
        value: None if there is no answer.
        why: why there is none, as a text for users.
    """

    value: T | None = None
    why: str = ""


class NodeKind(StrEnum):
    """What a state of a node means to its operator, the worst first. The values are shown."""

    DOWN = "down"
    DRAINED = "drained"
    OTHER = "other"
    STARTING = "powering up"
    MIXED = "mixed"
    ALLOCATED = "allocated"
    IDLE = "idle"
    OFF = "powered down"


TONES: Mapping[NodeKind, Tone] = {
    NodeKind.DOWN: Tone.BAD,
    NodeKind.DRAINED: Tone.WARN,
    NodeKind.OTHER: Tone.UNKNOWN,
    NodeKind.STARTING: Tone.BUSY,
    NodeKind.MIXED: Tone.BUSY,
    NodeKind.ALLOCATED: Tone.BUSY,
    NodeKind.IDLE: Tone.GOOD,
    NodeKind.OFF: Tone.OFF,
}
_BY_WORD = {
    **dict.fromkeys(SINFO_CLOSED, NodeKind.DOWN),
    **dict.fromkeys(SINFO_DRAINED, NodeKind.DRAINED),
    "idle": NodeKind.IDLE,
    "planned": NodeKind.IDLE,
    "reserved": NodeKind.IDLE,
    "allocated": NodeKind.ALLOCATED,
    "mixed": NodeKind.MIXED,
    "completing": NodeKind.ALLOCATED,
}
# What sinfo's signs behind a word mean.
_NOT_RESPONDING = "*"
_POWER = {"~": NodeKind.OFF, "#": NodeKind.STARTING, "%": NodeKind.OFF, "!": NodeKind.OFF}


def kind_of(state: str) -> NodeKind:
    """The meaning of a node's state as sinfo prints it."""
    word, signs = sinfo_word(state), state[len(state.rstrip(SIGNS + "+")) :]
    known = _BY_WORD.get(word, NodeKind.OTHER)
    if known in (NodeKind.DOWN, NodeKind.DRAINED):
        return known
    if _NOT_RESPONDING in signs:
        return NodeKind.DOWN
    return next((kind for sign, kind in _POWER.items() if sign in signs), known)


def state_words(state: str) -> str:
    """A node's state for users: what sinfo's sign means as words."""
    word, signs = sinfo_word(state), state[len(state.rstrip(SIGNS + "+")) :]
    words = {
        "*": "does not answer", "~": "powered down", "#": "powering up", "%": "powering down",
        "!": "to be powered down", "$": "maintenance", "@": "to be restarted", "^": "restarting", "-": "planned",
    }  # fmt: skip
    return ", ".join([word, *(words[sign] for sign in signs if sign in words)])


@dataclass(frozen=True)
class ClusterFacts:
    """What the cluster is.

    Args:
        state: what exists of it, as `gpucluster status` reports it.
        pending: what an interrupted run has left to do.
        resources: the number of resources of each kind in the cloud; None if it does not answer.
        running: the run that changes it now, in words; empty if none does.
    """

    name: str
    cloud: str
    region: str
    state: str
    slurm_release: str
    monitoring: bool
    controller_shape: str = ""
    pending: tuple[str, ...] = ()
    resources: Mapping[str, int] | None = None
    running: str = ""


@dataclass(frozen=True)
class PoolSummary:
    """One pool, as cluster.yml has it. `gpus`: of one node."""

    name: str
    shape: str
    partition: str
    count: int
    max_count: int
    gpus: int
    rdma_devices: int
    rdma_gbps: float | None = None


@dataclass(frozen=True)
class CheckLine:
    """The result of one check, as the last verdict has it."""

    check: str
    name: str
    subject: str
    status: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class VerdictSummary:
    """The result of the last check of the cluster.

    Args:
        problems: what did not pass: failures first.
        counts: how many results have each status.
        rails: results of the checks of RDMA devices, whatever they are.
    """

    run: str
    level: str
    status: str
    at: float
    counts: Mapping[str, int]
    problems: tuple[CheckLine, ...] = ()
    rails: tuple[CheckLine, ...] = ()


@dataclass(frozen=True)
class NodeSummary:
    """One node of Slurm.

    Args:
        state: as sinfo prints it.
        health: the worst status of its checks; empty if the health service knows none.
        failing: its failed checks, in words; `warnings`: those that warn.
        report_age: of its last report of checks; None if there is none.
        stale: the report is older than the health service accepts.
        jobs: ids of jobs that run on it.
    """

    name: str
    state: str
    pool: str = ""
    reason: str = ""
    gpus: int = 0
    health: str = ""
    failing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    report_age: float | None = None
    stale: bool = False
    jobs: tuple[str, ...] = ()

    @property
    def kind(self) -> NodeKind:
        """What its state means."""
        return kind_of(self.state)

    @property
    def off(self) -> bool:
        """Nothing runs under its name, and nothing has to."""
        return self.kind is NodeKind.OFF

    @property
    def needs_attention(self) -> bool:
        """Whether an operator should look at it."""
        return self.kind in (NodeKind.DOWN, NodeKind.DRAINED) or bool(self.failing) or (self.stale and not self.off)


@dataclass(frozen=True)
class JobSummary:
    """One job that waits or runs.

    Args:
        elapsed, limit: as squeue prints them.
        where: the nodes of a running job; the reason of a waiting one.
    """

    id: str
    state: str
    user: str
    partition: str
    nodes: int
    elapsed: str
    limit: str
    where: str
    name: str


@dataclass(frozen=True)
class EndedJob:
    """One job that has ended. `ended`: as sacct prints it, in UTC."""

    id: str
    state: str
    user: str
    partition: str
    nodes: int
    elapsed: str
    exit_code: str
    ended: str
    name: str


@dataclass(frozen=True)
class Health:
    """What the health service reports beside its nodes. `decisions`: the last ones, as its journal has them."""

    interval: float
    shadow: bool
    breakers: tuple[Mapping[str, Any], ...] = ()
    suspects: tuple[Mapping[str, Any], ...] = ()
    decisions: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rail:
    """One port of an RDMA device. None: not known.

    Args:
        rate, received, sent: bytes per second.
        errors: errors per second, all counters together.
    """

    node: str
    device: str
    port: str
    up: bool | None = None
    rate: float | None = None
    received: float | None = None
    sent: float | None = None
    errors: float | None = None


@dataclass(frozen=True)
class Rails:
    """The ports that Prometheus knows.

    Args:
        number: how many there are.
        listed: all of them, or on a large cluster those with a fault.
        complete: whether these are all.
    """

    number: int
    listed: tuple[Rail, ...]
    complete: bool = True


@dataclass(frozen=True)
class Series:
    """One series of Prometheus: its labels, and values with their times."""

    labels: Mapping[str, str]
    values: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class History:
    """What Prometheus has recorded.

    Args:
        series: by the name of the question; see `operations.overview`.
        errors: why a question has no answer, by its name.
    """

    start: float
    end: float
    step: float
    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSummary:
    """One run of gpucluster on this machine. `elapsed`: seconds; None if it did not end."""

    id: str
    command: str
    status: str
    started: str
    elapsed: float | None
    error: str = ""


@dataclass(frozen=True)
class Source:
    """Who was asked, why there was no answer, and when there was one."""

    name: str
    error: str = ""
    time: str = ""


@dataclass(frozen=True)
class Overview:
    """The state of a cluster.

    Args:
        made_at: when it was collected.
        autoscaler: its own status; its value is None and `why` is empty where no pool is elastic.
    """

    version: str
    made_at: float
    facts: ClusterFacts
    pools: tuple[PoolSummary, ...]
    verdict: SourcePart[VerdictSummary] = SourcePart()
    nodes: SourcePart[tuple[NodeSummary, ...]] = SourcePart()
    health: SourcePart[Health] = SourcePart()
    jobs: SourcePart[tuple[JobSummary, ...]] = SourcePart()
    ended: SourcePart[tuple[EndedJob, ...]] = SourcePart()
    rails: SourcePart[Rails] = SourcePart()
    history: SourcePart[History] = SourcePart()
    autoscaler: SourcePart[Mapping[str, Any]] = SourcePart()
    runs: tuple[RunSummary, ...] = ()
    sources: tuple[Source, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"format": VERSION, **asdict(self)}


def counts(nodes: Sequence[NodeSummary]) -> dict[NodeKind, int]:
    """How many nodes are in each kind of state, the worst first; those without any are left out."""
    number_by_kind = Counter(node.kind for node in nodes)
    return {kind: number_by_kind[kind] for kind in NodeKind if number_by_kind[kind]}


def in_order(nodes: Sequence[NodeSummary]) -> list[NodeSummary]:
    """The nodes, those that need attention first, then by their state and name."""
    order = list(NodeKind)
    return sorted(nodes, key=lambda node: (not node.needs_attention, order.index(node.kind), natural(node.name)))


def busy_gpus(nodes: Sequence[NodeSummary]) -> tuple[int, int]:
    """How many GPUs are on nodes with jobs, and on all nodes that exist."""
    there = [node for node in nodes if not node.off]
    return sum(node.gpus for node in there if sinfo_word(node.state) in SINFO_BUSY), sum(node.gpus for node in there)


def natural(name: str) -> tuple[Any, ...]:
    """A key for sorting by which `gpu-2` is before `gpu-10`."""
    parts: list[tuple[int, int, str]] = []
    digits, text = "", ""
    for char in f"{name}\0":
        if char.isascii() and char.isdigit():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits[:18]), ""))
            digits = ""
        text = char
        parts.append((1, 0, text))
    return tuple(parts)


def attention(overview: Overview) -> list[tuple[Tone, str]]:
    """What an operator should look at, in sentences, the worst first."""
    notices: list[tuple[Tone, str]] = []
    verdict = overview.verdict.value
    for status, words, tone in ((Status.FAIL, "failed", Tone.BAD), (Status.UNKNOWN, "is not known", Tone.WARN)):
        if verdict is not None and verdict.status == status:
            checks = _listed([line.name for line in verdict.problems if line.status == status])
            notices.append((tone, f"The last verdict {words}: {checks}."))
    notices += _of_nodes(overview.nodes.value or ())
    health = overview.health.value
    if health is not None:
        notices += [
            (Tone.BAD, f"The health service drains no more nodes of pool {each.get('pool')}: {each.get('drained')} of "
             f"at most {each.get('limit')} were drained within an hour. An operator decides.")
            for each in health.breakers if each.get("open")
        ]  # fmt: skip
        notices += [
            (Tone.WARN, f"The check {each.get('check')} fails on {each.get('nodes')} nodes of pool {each.get('pool')} "
             "and passes on none: the check itself is the suspect.")
            for each in health.suspects
        ]  # fmt: skip
    scaler = overview.autoscaler.value or {}
    notices += [(Tone.BAD, f"The autoscaler: {problem}.") for problem in scaler.get("problems") or ()]
    if scaler.get("paused"):
        notices.append((Tone.WARN, f"The autoscaler is paused: {scaler['paused']}."))
    notices += [(Tone.WARN, f"{text[:1].upper()}{text[1:]}.") for text in overview.facts.pending]
    silent: dict[str, list[str]] = {}
    for each in overview.sources:
        if each.error:
            silent.setdefault(each.error, []).append(each.name)
    notices += [(Tone.UNKNOWN, f"No answer from {', '.join(names)}: {error}.") for error, names in silent.items()]
    rails = overview.rails.value
    down = [rail for rail in rails.listed if rail.up is False] if rails else []
    if down:
        notices.append((Tone.BAD, f"RDMA ports are down: {_listed([f'{rail.node} {rail.device}' for rail in down])}."))
    order = [Tone.BAD, Tone.WARN, Tone.UNKNOWN]
    return sorted(notices, key=lambda each: order.index(each[0]))


def _of_nodes(nodes: Sequence[NodeSummary]) -> list[tuple[Tone, str]]:
    by_words = {
        "Down": (Tone.BAD, [node for node in nodes if node.kind is NodeKind.DOWN]),
        "Drained": (Tone.WARN, [node for node in nodes if node.kind is NodeKind.DRAINED]),
        "Checks fail on": (Tone.WARN, [node for node in nodes if node.failing]),
        "No report of checks in time from": (
            Tone.WARN,
            [node for node in nodes if node.stale and node.kind not in (NodeKind.DOWN, NodeKind.OFF)],
        ),
    }
    return [
        (tone, f"{words}: {_listed([node.name for node in sorted(affected, key=lambda node: natural(node.name))])}.")
        for words, (tone, affected) in by_words.items()
        if affected
    ]


def _listed(names: Sequence[str], most: int = 6) -> str:
    unique = list(dict.fromkeys(names))
    more = [f"{len(unique) - most} more"] if len(unique) > most else []
    return ", ".join([*unique[:most], *more])
