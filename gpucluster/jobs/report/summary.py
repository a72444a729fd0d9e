"""What stands out in a job, in sentences."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucluster.controller.rules.slurm_jobs import ENDED
from gpucluster.jobs.report.facts import DeviceUse, Known
from gpucluster.jobs.report.queries import IDLE, Means
from gpucluster.node_agent.record.difference import CONGESTION, ERRORS, PAUSE, RDMA, RETRANSMITS
from gpucluster.pages.colours import Tone
from gpucluster.pages.units import BYTES, BYTES_PER_SECOND, RATIO
from gpucluster.text import count, some

#: A node, a rail or a GPU below this part of the middle of the others stands out.
SLOWER = 0.8
# Below these nothing is compared: a mean of use, bytes.
_SOME_USE, _SOME_BYTES = 0.05, 1e8
_IDLE_SHARE, _THROTTLED, _NAMED = 0.25, 0.01, 3
_FEW = 2
# Such as FAILED, but nothing that the job did itself.
_STOPPED = frozenset({"CANCELLED", "PREEMPTED", "REVOKED"})
_EVENTS = {
    RETRANSMITS: ("packets were lost and sent again, or came in the wrong order", Tone.WARN),
    PAUSE: ("pause frames, or time in which a sender was stopped by them", Tone.WARN),
    ERRORS: ("errors, or packets that were thrown away", Tone.WARN),
    CONGESTION: ("marks of congestion: senders were told to send more slowly", Tone.UNKNOWN),
}


@dataclass(frozen=True)
class JobRemark:
    """One sentence, and how bad it is."""

    tone: Tone
    text: str


def remarks(known: Known, means: Means) -> tuple[JobRemark, ...]:
    """All of them, the worst first."""
    order = (Tone.BAD, Tone.WARN, Tone.UNKNOWN, Tone.GOOD)
    lines = [
        *_state(known),
        *_result(known),
        *_stuck(means),
        *_reactions(known),
        *_gpus(known, means),
        *_rails(known, means),
        *_counters(known),
    ]
    if not any(each.tone in (Tone.BAD, Tone.WARN) for each in lines):
        lines.append(JobRemark(Tone.GOOD, "Nothing stands out in what was measured."))
    return tuple(sorted(lines, key=lambda each: order.index(each.tone)))


def watched(means: Means) -> tuple[JobRemark, ...]:
    """What the watcher of the nodes reports about a job that runs."""
    return tuple(_stuck(means, now=True))


def _state(known: Known) -> Iterator[JobRemark]:
    job = known.job
    if job is None:
        return
    if job.state in ENDED and job.state != "COMPLETED":
        tone = Tone.WARN if job.state in _STOPPED else Tone.BAD
        yield JobRemark(tone, f"The job ended as {job.state} with the exit code {job.exit_code or 'unknown'}.")
    elif known.span is None:
        yield JobRemark(Tone.UNKNOWN, f"The job has not begun: it is {job.state}.")
    elif job.state not in ENDED and job.ended is None:
        yield JobRemark(Tone.UNKNOWN, "The job still runs: these are its numbers so far.")
    failed = [each for each in known.steps if each.state in ENDED and each.state not in {"COMPLETED", *_STOPPED}]
    if failed:
        names = ", ".join(f"{each.step} ({each.exit_code})" for each in failed[:_NAMED])
        more = f", and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        yield JobRemark(Tone.BAD, f"{count(len(failed), 'step')} failed: {names}{more}.")


def _result(known: Known) -> Iterator[JobRemark]:
    verdict = str(known.result.get("verdict") or known.result.get("status") or "")
    tones = {"pass": Tone.GOOD, "warn": Tone.WARN, "fail": Tone.BAD}
    for finding in known.result.get("findings") or ():
        if isinstance(finding, Mapping) and finding.get("message"):
            tone = tones.get(str(finding.get("status")), Tone.UNKNOWN)
            yield JobRemark(tone, f"{finding.get('check')}: {finding['message']}")
    if verdict and not known.result.get("findings"):
        yield JobRemark(tones.get(verdict, Tone.UNKNOWN), f"It was judged: {verdict}.")


def _stuck(means: Means, *, now: bool = False) -> Iterator[JobRemark]:
    """What the watcher of the nodes has reported (docs/how-to/hangs.md)."""
    tones = {"hung": Tone.BAD, "straggling": Tone.WARN}
    stuck = []
    for each in sorted(means.stuck, key=lambda row: (row["state"] not in tones, *row.values())):
        was, had = ("is", "has") if now else ("was", "had")
        what = f"{was} hung" if each["state"] == "hung" else f"{had} a straggler"
        place = f": rank {each['rank']}, process {each['process']} on {each['host'] or 'an unknown host'}"
        operation = f", {was} behind in {each['collective']}" if each["collective"] else ""
        text = f"The job {what}{place if each['rank'] else ''}{operation}."
        stuck.append(JobRemark(tones.get(each["state"], Tone.UNKNOWN), text))
    yield from _first(stuck, "more times the job was hung or had a straggler")
    if means.wasted > 0:
        yield JobRemark(Tone.WARN, f"GPUs without a process have cost {means.wasted:.1f} GPU hours.")


def _reactions(known: Known) -> Iterator[JobRemark]:
    """What the watcher has reported of the job, and done to it: the last lines, which show how it ended."""
    for line in known.told[-_NAMED:]:
        yield JobRemark(Tone.WARN, f"The watcher: {line}")


def _gpus(known: Known, means: Means) -> Iterator[JobRemark]:
    idle = [share for (node, _gpu), share in means.idle.items() if node in known.nodes]
    if idle and known.gpus and statistics.fmean(idle) >= _IDLE_SHARE:
        share = RATIO.text(statistics.fmean(idle))
        yield JobRemark(Tone.WARN, f"GPUs did nothing for {share} of the time (less than {IDLE:.0%} use).")
    by_node: dict[str, list[float]] = defaultdict(list)
    for (node, _gpu), use in means.gpu.items():
        by_node[node].append(use)
    use_of = {node: statistics.fmean(values) for node, values in by_node.items()}
    for node, use, middle in _behind(use_of, _SOME_USE):
        yield JobRemark(
            Tone.WARN, f"{node}: its GPUs were used {RATIO.text(use)}, those of the others {RATIO.text(middle)}."
        )
    for (node, cause), part in sorted(means.throttled.items(), key=lambda each: -each[1])[: 2 * _NAMED]:
        if part >= _THROTTLED:
            yield JobRemark(
                Tone.WARN, f"{node}: a GPU was slowed down for {RATIO.text(part)} of the time, cause: {cause}."
            )


def _rails(known: Known, means: Means) -> Iterator[JobRemark]:
    """A rail that carries less than the others of its node: by the counters, which miss nothing, or by Prometheus."""
    sent: dict[str, dict[str, float]] = defaultdict(dict)
    for each in known.devices:
        if each.kind == RDMA and each.sent is not None:
            sent[each.node][each.device] = each.sent
    unit, floor = BYTES, _SOME_BYTES
    if not sent:
        unit, floor = BYTES_PER_SECOND, _SOME_BYTES / 100
        for (node, device), value in means.rails.items():
            sent[node][device] = value
    remarks_of_rails = [
        JobRemark(Tone.WARN, f"{node}: the rail {device} sent {unit.text(value)}, the others {unit.text(middle)}.")
        for node, rails in sorted(sent.items())
        # A port for the VCN, and others that the job did not use, are none of its rails.
        for device, value, middle in _behind({name: size for name, size in rails.items() if size > floor / 100}, floor)
    ]
    yield from _first(remarks_of_rails, "more rails carried less than the others")
    of_node = {node: sum(rails.values()) for node, rails in sent.items()}
    slow = [
        JobRemark(Tone.WARN, f"{node} sent {unit.text(value)} through RDMA, the other nodes {unit.text(middle)}.")
        for node, value, middle in _behind(of_node, floor)
    ]
    yield from _first(slow, "more nodes sent less than the others")


def _behind(values: Mapping[str, float], floor: float) -> list[tuple[str, float, float]]:
    """What is well below the middle of the others, with both numbers."""
    if len(values) < _FEW:
        return []
    below = []
    middle = statistics.median(values.values()) if len(values) > _FEW else max(values.values())
    for name, value in sorted(values.items()):
        if middle > floor and value < SLOWER * middle:
            below.append((name, value, middle))
    return below


def _first(lines: Sequence[JobRemark], rest: str) -> Iterable[JobRemark]:
    yield from lines[:_NAMED]
    if len(lines) > _NAMED:
        yield JobRemark(Tone.WARN, f"{len(lines) - _NAMED} {rest}.")


def _counters(known: Known) -> Iterator[JobRemark]:
    for group, (words, tone) in _EVENTS.items():
        bad = sorted((each for each in known.devices if each.events.get(group)), key=lambda each: -each.events[group])
        if bad:
            total = sum(each.events[group] for each in bad)
            worst = ", ".join(_named(each, group) for each in bad[:_NAMED])
            more = f", and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            yield JobRemark(tone, f"{group.capitalize()}: {total:,} ({words}): {worst}{more}.")
    unknown = sorted({each.node for each in known.devices if each.remark})
    if unknown:
        names = some(unknown, _NAMED)
        yield JobRemark(Tone.UNKNOWN, f"Not all counters can be compared on {names}: see the table.")


def _named(each: DeviceUse, group: str) -> str:
    return f"{each.node} {each.device} {each.events[group]:,}"
