"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from gpucluster.controller.columns import columns, padded
from gpucluster.jobs.report.build import GROUPS, JobReport, extremes
from gpucluster.jobs.report.facts import DeviceUse, JobStep
from gpucluster.pages.colours import Tone
from gpucluster.pages.units import BYTES, NOTHING, NUMBER, RATIO, duration, utc
from gpucluster.text import count, printable

_SIGNS = {Tone.BAD: "FAIL", Tone.WARN: "warn", Tone.UNKNOWN: "note", Tone.GOOD: "good"}
#: Rows of a table in a terminal.
MOST_ROWS = 40


def text(report: JobReport) -> str:
    """The whole of it."""
    lines = [f"Job {title(report)}", *facts_lines(report), ""]
    lines += [f"  {_SIGNS.get(each.tone, 'note')}  {printable(each.text)}" for each in report.remarks]
    known = report.known
    if known.tasks:
        lines += ["", "Tasks", *_table(["TASK", "STATE", "EXIT", "TIME"], [_task(each) for each in known.tasks])]
    if known.steps:
        lines += [
            "",
            "Steps",
            *_table(["STEP", "NAME", "STATE", "EXIT", "TASKS", "TIME"], list(map(step_row, known.steps))),
        ]
    values = extremes(report)
    if values:
        lines += ["", "Over the time of the job", *_table(["WHAT", "OF", "MEAN", "MAX"], values)]
    if known.devices:
        head = ["NODE", "DEVICE", "RECEIVED", "SENT", *(each.upper() for each in GROUPS), "REMARK"]
        lines += ["", "Counters of the network, after the job less before it", *_table(head, counter_rows(report))]
    if report.missing:
        lines += ["", "Missing", *(f"  {printable(each)}" for each in report.missing)]
    return "\n".join(lines)


def title(report: JobReport) -> str:
    """Number, name and state."""
    job = report.known.job
    if job is None:
        return report.known.id
    name = f" {printable(job.name)[:200]}" if job.name else ""
    return f"{report.known.id}{name}: {job.state}"


def facts_of(report: JobReport) -> list[tuple[str, str]]:
    """What it was, in pairs of name and value."""
    known, job = report.known, report.known.job
    if job is None:
        return []
    span = known.span
    gpu_hours = ""
    if report.gpu_hours:
        gpu_hours = f"{NUMBER.text(report.gpu_hours)} reserved"
        if report.gpu_use is not None:
            gpu_hours += f", {NUMBER.text(report.gpu_hours * report.gpu_use)} used ({RATIO.text(report.gpu_use)})"
    energy = ""
    if report.energy is not None:
        part = "" if report.measured > 0.95 else f" (samples of {RATIO.text(report.measured)} of the time)"  # noqa: PLR2004
        energy = f"{NUMBER.text(report.energy)} kWh{part}"
    waited = job.started - job.submitted if job.started is not None and job.submitted is not None else None
    return [
        ("State", f"{job.state}, exit code {job.exit_code}" if job.exit_code else job.state),
        ("User", " / ".join(filter(None, (job.user, job.account)))),
        ("Partition", job.partition),
        ("Started", utc(span[0]) if span else ""),
        ("Ended", utc(job.ended) if job.ended else ""),
        ("Time", duration(report.seconds) if span else ""),
        ("Waited", duration(waited) if waited is not None else ""),
        ("Nodes", _nodes(known.nodes)),
        ("GPUs", str(known.gpus) if known.gpus else "none"),
        ("GPU hours", gpu_hours),
        ("Energy of the GPUs", energy),
    ]


def _nodes(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:4])
    return f"{count(len(nodes), 'node')}: {shown}{', …' if nodes[4:] else ''}" if nodes else ""


def facts_lines(report: JobReport) -> list[str]:
    """The facts as lines."""
    rows = [(name, value) for name, value in facts_of(report) if value]
    width = max((len(name) for name, _value in rows), default=0)
    return [f"  {name:<{width}}  {printable(value)}" for name, value in rows]


def step_row(each: JobStep) -> list[str]:
    """One row of the table of steps."""
    return [
        each.step, printable(each.name)[:60], each.state, each.exit_code,
        "" if each.tasks is None else str(each.tasks), duration(each.elapsed),
    ]  # fmt: skip


def _task(each: JobStep) -> list[str]:
    return [each.id, each.state, each.exit_code, duration(each.elapsed)]


def counter_rows(report: JobReport) -> list[list[str]]:
    """The devices, those with bad events first."""
    ordered = sorted(report.known.devices, key=lambda each: (-each.bad, *each.place))
    return [counter_row(each) for each in ordered]


def counter_row(each: DeviceUse) -> list[str]:
    """One device."""
    events = [f"{each.events[group]:,}" if group in each.events else NOTHING for group in GROUPS]
    return [each.node, each.device, BYTES.text(each.received), BYTES.text(each.sent), *events, each.remark]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    shown = [[printable(cell) for cell in row] for row in rows[:MOST_ROWS]]
    widths = [max(columns(row[at]) for row in [head, *shown]) for at in range(len(head))]
    lines = ["  " + "  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in [head, *shown]]  # fmt: skip
    left = len(rows) - len(shown)
    return [*lines, *([f"  {left} more: see --html or --output json"] if left > 0 else [])]
