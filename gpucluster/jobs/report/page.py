"""A report as one HTML file, which users can send on."""

from __future__ import annotations

import statistics
from collections import defaultdict

from markupsafe import Markup

from gpucluster.controller.rules.slurm_jobs import WAITING
from gpucluster.jobs.report.build import GROUPS, JobReport
from gpucluster.jobs.report.facts import DeviceUse, counted
from gpucluster.jobs.report.text import counter_row, facts_of, step_row, title
from gpucluster.node_agent.record.difference import CONGESTION, RDMA
from gpucluster.pages.colours import Tone
from gpucluster.pages.frame import Section, page
from gpucluster.pages.markup import element, joined
from gpucluster.pages.plots import Bar, bars, time_series
from gpucluster.pages.tables import Column, badge, facts, listing, notice, table
from gpucluster.pages.units import BYTES, duration
from gpucluster.slurm.states import JOB_ON_NODES, JobState

#: The kind by which `pages.frame.is_page` knows such a file.
KIND = "job-report"
_MOST_STEPS, _MOST_DEVICES, _MOST_RAILS, _MOST_TASKS = 500, 400, 24, 500
_GOOD_STATES, _BUSY_STATES = frozenset({JobState.COMPLETED}), WAITING | frozenset(JOB_ON_NODES)
_MORE = "All of them: gpucluster job report ID --output json"


def html(report: JobReport, *, made_at: float, made_by: str) -> str:
    """The page.

    Args:
        made_at: seconds since 1970.
        made_by: the program with its version.
    """
    sections = [Section("summary", "Summary", _summary(report))]
    known = report.known
    if known.result.get("values"):
        sections.append(Section("result", "Result", _result(report)))
    if report.plots:
        sections.append(Section("plots", "Over time", _plots(report)))
    if known.devices:
        sections.append(Section("counters", "Network counters", _counters(report)))
    if known.tasks:
        rows = [[each.id, _state(each.state), each.exit_code, duration(each.elapsed)] for each in known.tasks]
        body = table("Tasks", ["Task", "State", "Exit code", "Time"], rows, most=_MOST_TASKS, more=_MORE)
        sections.append(Section("tasks", "Tasks", body))
    if known.steps:
        sections.append(Section("steps", "Steps", _steps(report)))
    return page(f"Job {title(report)}", sections, kind=KIND, made_at=made_at, made_by=made_by)


def _state(state: str) -> Markup:
    tone = Tone.GOOD if state in _GOOD_STATES else Tone.BUSY if state in _BUSY_STATES else Tone.BAD
    return badge(state or "UNKNOWN", Tone.UNKNOWN if state in ("", "UNKNOWN") else tone)


def _summary(report: JobReport) -> Markup:
    pairs: list[tuple[str, object]] = list(facts_of(report))
    job = report.known.job
    if job is not None:
        exit_code = f" exit code {job.exit_code}" if job.exit_code else ""
        pairs[0] = ("State", joined([_state(job.state), exit_code]))
    body = joined(notice(each.text, each.tone) for each in report.remarks) + facts(pairs)
    if report.missing:
        body += element("h3", "What is missing") + listing(report.missing)
    return body


def _result(report: JobReport) -> Markup:
    result = report.known.result
    units = result.get("units") or {}
    rows = []
    for name, value in (result.get("values") or {}).items():
        if isinstance(value, int | float):
            expected = "; ".join(
                f"{each.bound} {each.value:g} {each.unit} ({each.condition}; {each.source})"
                for each in report.figures
                if each.name == name
            )
            rows.append([name, f"{value:g} {units.get(name, '')}".strip(), expected])
    about = element("p", f"Template {result['template']}.") if result.get("template") else Markup("")
    return about + table("What the job has reached", ["Value", Column("Reached", number=True), "Expected"], rows)


def _plots(report: JobReport) -> Markup:
    start, end = report.known.span or (None, None)
    drawn = [
        time_series(plot.panel.title, plot.lines, plot.panel.unit, start=start, end=end, about=plot.panel.about)
        for plot in report.plots
    ]
    shared = element(
        "p", "Values are of whole nodes. Where other jobs ran on the same nodes, they are in them too.", class_="soft"
    )
    return shared + element("div", *drawn, class_="plots")


def _counters(report: JobReport) -> Markup:
    devices = sorted(report.known.devices, key=lambda each: (-each.bad, *each.place))
    heads = [
        Column("Node"), Column("Device"), Column("Received", number=True), Column("Sent", number=True),
        *(Column(each.capitalize(), number=True) for each in GROUPS), Column("Which, and remarks"),
    ]  # fmt: skip
    rows = [_row(each) for each in devices]
    body = element(
        "p", "What each device has counted after the job, less what it had counted before.", class_="soft"
    ) + _rails(report)
    body += table("Counters of each node and device", heads, rows, most=_MOST_DEVICES, more=_MORE)
    notes = [f"{node}: {note}." for node, notes in sorted(report.known.notes.items()) for note in notes]
    return body + listing(notes[:50])


def _row(each: DeviceUse) -> list[object]:
    cells: list[object] = list(counter_row(each))
    for at, group in enumerate(GROUPS, start=4):
        if each.events.get(group):
            cells[at] = badge(str(cells[at]), Tone.UNKNOWN if group == CONGESTION else Tone.WARN)
    which = ", ".join(f"{name} {grown:,}" for name, grown in sorted(each.counters.items(), key=lambda one: -one[1])[:4])
    cells[-1] = "; ".join(filter(None, (which, each.remark)))
    return cells


def _rails(report: JobReport) -> Markup:
    """How much each rail has sent, on all nodes: one that carries less is seen at once."""
    sent: dict[str, list[float]] = defaultdict(list)
    for each in report.known.devices:
        if each.kind == RDMA and each.sent:
            sent[each.device].append(each.sent)
    if len(sent) < 2:  # noqa: PLR2004 - nothing to compare
        return Markup("")
    items = [
        Bar(device, statistics.median(values), f"{BYTES.text(min(values))} to {BYTES.text(max(values))}")
        for device, values in sorted(sent.items(), key=lambda each: counted(each[0]))[:_MOST_RAILS]
    ]
    nodes = max(map(len, sent.values()))
    return bars("Sent by each rail", items, BYTES, about=f"Median of {nodes} nodes, and their range.")


def _steps(report: JobReport) -> Markup:
    heads = [
        Column("Step"), Column("Name"), Column("State"), Column("Exit code"), Column("Tasks", number=True),
        Column("Time", number=True),
    ]  # fmt: skip
    rows = []
    for each in report.known.steps:
        cells: list[object] = list(step_row(each))
        cells[2] = _state(each.state)
        rows.append(cells)
    return table("Steps", heads, rows, most=_MOST_STEPS, more=_MORE)
