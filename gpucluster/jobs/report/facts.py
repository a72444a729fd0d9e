"""The answer of `gpucluster-agent monitor jobs` about a job, as types, and what of it must not be sent on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster.node_agent.record.difference import CONGESTION, ERRORS, ETHERNET, FILES, PAUSE, RDMA, RETRANSMITS

#: Words that stand for those that are left out.
USER, ACCOUNT, ADDRESS = "user-1", "account-1", "[address]"
# The counters of port data count words of four bytes.
_WORD = 4
_RECEIVED = {
    RDMA: ("port_rcv_data", "ip4InOctets", "ip6InOctets"), ETHERNET: ("rx_bytes",), FILES: ("read_bytes",),
}  # fmt: skip
_SENT = {
    RDMA: ("port_xmit_data", "ip4OutOctets", "ip6OutOctets"), ETHERNET: ("tx_bytes",), FILES: ("written_bytes",),
}  # fmt: skip
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6 = re.compile(
    r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{1,4}(?![\w:])|(?<![\w:])[0-9A-Fa-f:]{2,}::[0-9A-Fa-f:]*"
)
# Where the job's files lie is of no use to others, and contains names of users.
_PLACES = frozenset({"folder", "work_dir", "output"})


@dataclass(frozen=True)
class JobStep:
    """A job, a component of one, or a step of one. Times in seconds since 1970, None where there is none yet."""

    id: str
    step: str
    name: str
    user: str
    account: str
    partition: str
    state: str
    exit_code: str
    submitted: float | None
    started: float | None
    ended: float | None
    elapsed: float
    tasks: int | None
    cpus: int
    gpus: int
    memory: str
    nodes: tuple[str, ...]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> JobStep:
        """From JSON. What is missing is empty."""
        words: dict[str, Any] = {key: str(raw.get(key) or "") for key in _WORDS}
        times: dict[str, Any] = {key: _number(raw.get(key)) for key in ("submitted", "started", "ended")}
        tasks = _number(raw.get("tasks"))
        return cls(
            **words,
            **times,
            elapsed=_number(raw.get("elapsed")) or 0.0,
            tasks=None if tasks is None else int(tasks),
            cpus=int(_number(raw.get("cpus")) or 0),
            gpus=int(_number(raw.get("gpus")) or 0),
            nodes=tuple(map(str, raw.get("node_list") or ())),
        )


_WORDS = ("id", "step", "name", "user", "account", "partition", "state", "exit_code", "memory")


@dataclass(frozen=True)
class DeviceUse:
    """What one device of a node counted during the job. None where it is not known.

    Args:
        kind: rdma, ethernet or files (an export of a file server).
        received, sent: bytes.
        events: by class: retransmits, pause, congestion, errors.
        counters: each counter of these classes that changed, by its name.
        remark: "" or why there are no numbers, or why they are less than all.
    """

    node: str
    kind: str
    device: str
    received: float | None
    sent: float | None
    events: Mapping[str, int]
    counters: Mapping[str, int]
    remark: str = ""

    @property
    def place(self) -> tuple[object, ...]:
        """For sorting in natural order: mlx5_2 before mlx5_10."""
        return counted(self.node), self.kind, counted(self.device)

    @property
    def bad(self) -> int:
        """Events that cost time."""
        return self.events.get(RETRANSMITS, 0) + self.events.get(PAUSE, 0) + self.events.get(ERRORS, 0)


def counted(name: str) -> tuple[object, ...]:
    """A name for sorting: its numbers as numbers."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))


@dataclass(frozen=True)
class Known:
    """All that the controller knows of a job.

    Args:
        components: one; several for a heterogeneous job.
        tasks: those of an array, if the whole of it was asked for.
        recorded: nodes with a record, and the job's whole GPUs there as NVIDIA's tools number them.
        divided: nodes with a record of instances of divided GPUs (MIG), and how many.
        told: what the watcher has reported of the job and done to it, each line with its time.
        result: of a job from a template, as it was judged.
        problems: what could not be found out.
        now: when that was, by the controller's clock.
    """

    id: str
    components: tuple[JobStep, ...]
    tasks: tuple[JobStep, ...]
    steps: tuple[JobStep, ...]
    steps_left_out: int
    devices: tuple[DeviceUse, ...]
    recorded: Mapping[str, tuple[str, ...]]
    divided: Mapping[str, int]
    notes: Mapping[str, tuple[str, ...]]
    told: tuple[str, ...]
    result: Mapping[str, Any]
    problems: tuple[str, ...]
    now: float

    @property
    def job(self) -> JobStep | None:
        """The job, or its first component."""
        return self.components[0] if self.components else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Of all components."""
        names = dict.fromkeys(node for each in self.components for node in each.nodes)
        return tuple(names) or tuple(self.recorded)

    @property
    def gpus(self) -> int:
        """That were reserved on all nodes."""
        return sum(each.gpus for each in self.components) or sum(
            [*map(len, self.recorded.values()), *self.divided.values()]
        )

    @property
    def span(self) -> tuple[float, float] | None:
        """From its start to its end, or to now; None for a job that has not begun."""
        began = [each.started for each in self.components if each.started is not None]
        if not began:
            return None
        ends = [each.ended for each in self.components]
        end = max(each for each in ends if each is not None) if all(each is not None for each in ends) else self.now
        return (min(began), end) if end > min(began) else (min(began), min(began))


def read(raw: Mapping[str, Any], *, anonymous: bool = False) -> Known:
    """From the JSON of the controller. Addresses and places of files are left out.

    Args:
        anonymous: leave out the names of users and accounts too, wherever they are written.
    """
    raw = without_addresses(raw)
    if anonymous:
        rows = [*(raw.get("components") or ()), *(raw.get("tasks") or ())]
        hidden = {str(row.get(key) or ""): word for row in rows for key, word in (("account", ACCOUNT), ("user", USER))}
        hidden |= {str(run.get("user") or ""): USER for run in raw.get("records") or ()}
        raw = replaced(raw, {name: word for name, word in hidden.items() if name})
    runs = [run for run in raw.get("records") or () if isinstance(run, Mapping)]
    components = tuple(map(JobStep.parse, raw.get("components") or ())) or tuple(_from_records(runs))
    return Known(
        id=str(raw.get("id") or ""),
        components=components,
        tasks=tuple(map(JobStep.parse, raw.get("tasks") or ())),
        steps=tuple(map(JobStep.parse, raw.get("steps") or ())),
        steps_left_out=int(raw.get("steps_left_out") or 0),
        devices=tuple(use for run in runs for use in devices(run)),
        recorded={str(run["node"]): _whole(run) for run in runs},
        divided={str(run["node"]): parts for run in runs if (parts := _parts(run))},
        notes={str(run["node"]): tuple(map(str, run["notes"])) for run in runs if run.get("notes")},
        told=tuple(map(str, raw.get("told") or ())),  # an agent of an earlier release does not send it
        result=raw.get("result") or {},
        problems=tuple(map(str, raw.get("problems") or ())),
        now=_number(raw.get("now")) or 0.0,
    )


def _whole(run: Mapping[str, Any]) -> tuple[str, ...]:
    """The whole GPUs of a record, as NVIDIA's tools number them."""
    # Where no GPU is divided, Slurm's numbers count for them.
    divided = run.get("divided") or {}
    gpus = [divided.get(name, {"number": name}) for name in map(str, run.get("gpus") or ())]
    return tuple(str(gpu.get("number")) for gpu in gpus if not gpu.get("instance"))


def _parts(run: Mapping[str, Any]) -> int:
    """The instances of divided GPUs (MIG) of a record."""
    return sum(bool(gpu.get("instance")) for gpu in (run.get("divided") or {}).values())


def _from_records(runs: Sequence[Mapping[str, Any]]) -> Iterable[JobStep]:
    """The job as its nodes know it, where there is no accounting. A number may have had several runs: the last one."""
    if not runs:
        return
    last = max(runs, key=lambda run: _number(run.get("started")) or 0.0)
    began = _number(last.get("started")) or 0.0
    same = [run for run in runs if abs((_number(run.get("started")) or 0.0) - began) < 300]  # noqa: PLR2004 - seconds
    ended = max(_number(run.get("ended")) or 0.0 for run in same)
    yield JobStep.parse(
        {
            "id": last["job_id"], "user": last.get("user"), "state": "UNKNOWN", "started": began, "ended": ended,
            "elapsed": ended - began, "node_list": [str(run["node"]) for run in same],
            "gpus": sum(len(run.get("gpus") or ()) for run in same),
        }
    )  # fmt: skip


def devices(run: Mapping[str, Any]) -> Iterable[DeviceUse]:
    """The devices of one record."""
    changes: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for change in run.get("changes") or ():
        if isinstance(change, Mapping):
            changes[str(change.get("kind")), str(change.get("device"))].append(change)
    for device in run.get("devices") or ():
        if not isinstance(device, Mapping):
            continue
        kind, name, remark = (str(device.get(key) or "") for key in ("kind", "name", "remark"))
        of_it = changes[kind, name]
        counted = {str(each.get("counter")): _number(each.get("change")) for each in of_it}
        events: dict[str, int] = dict.fromkeys((RETRANSMITS, PAUSE, CONGESTION, ERRORS), 0)
        counters: dict[str, int] = {}
        for each in of_it:
            grown = _number(each.get("change"))
            if each.get("group") in events and grown:
                events[str(each["group"])] += int(grown)
                counters[str(each.get("counter"))] = int(grown)
        remarks = sorted({str(each["remark"]) for each in of_it if each.get("remark")})
        yield DeviceUse(
            node=str(run["node"]),
            kind=kind,
            device=name,
            received=None if remark else _bytes(counted, _RECEIVED.get(kind, ())),
            sent=None if remark else _bytes(counted, _SENT.get(kind, ())),
            events={} if remark else events,
            counters=counters,
            remark=remark or (f"some counters: {', '.join(remarks)}" if remarks else ""),
        )


def _bytes(counted: Mapping[str, float | None], names: Sequence[str]) -> float | None:
    """A counter that did not change is in no record: it is 0. One that was reset is None."""
    total = 0.0
    for name in names:
        value = counted.get(name, 0.0)
        if value is None:
            return None
        total += value * (_WORD if name.startswith("port_") else 1)
    return total


def without_addresses(value: Any) -> Any:
    """The same without IP addresses and without places of files."""
    if isinstance(value, str):
        # A report of a large job has a million texts, and hardly any with an address.
        if value.count(".") < 3 and value.count(":") < 2:  # noqa: PLR2004 - what an address has
            return value
        return _IPV6.sub(ADDRESS, _IPV4.sub(ADDRESS, value))
    if isinstance(value, Mapping):
        return {key: without_addresses(each) for key, each in value.items() if key not in _PLACES}
    if isinstance(value, list | tuple):
        return [without_addresses(each) for each in value]
    return value


def replaced(value: Any, words: Mapping[str, str]) -> Any:
    """The same with other words. Only whole words: a user `a` is not each letter."""
    if not words:
        return value
    longest = sorted(words, key=len, reverse=True)
    pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest))})(?![A-Za-z0-9])")

    def change(each: Any) -> Any:
        if isinstance(each, str):
            return pattern.sub(lambda match: words[match[0]], each)
        if isinstance(each, Mapping):
            # Names of nodes and states of Slurm are not names of users.
            return {key: inner if key in _NO_PEOPLE else change(inner) for key, inner in each.items()}
        return [change(inner) for inner in each] if isinstance(each, list | tuple) else each

    return change(value)


_NO_PEOPLE = frozenset(
    {"node", "node_list", "state", "kind", "device", "counter", "group", "id", "job_id", "step", "partition", "gpus"}
)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 1e30:  # noqa: PLR0124, PLR2004
        return None
    return float(value)
