"""The report of a job, from what the controller knows and what Prometheus answered."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gpucluster.controller.rules.slurm_jobs import ENDED
from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Expectation
from gpucluster.jobs.report import queries
from gpucluster.jobs.report.facts import JobStep, Known
from gpucluster.jobs.report.queries import Means, Plot
from gpucluster.jobs.report.summary import JobRemark, remarks
from gpucluster.node_agent.record.difference import CONGESTION, ERRORS, PAUSE, RETRANSMITS
from gpucluster.pages.series import SeriesLine, summary
from gpucluster.text import count

#: The classes of counters, in the order of their columns.
GROUPS = (RETRANSMITS, PAUSE, ERRORS, CONGESTION)
_JOULES_OF_KWH = 3.6e6
# Two points that are further apart than so many steps have a gap between them.
_GAP = 2.5


@dataclass(frozen=True)
class JobReport:
    """A report.

    Args:
        missing: what is not in it, and why.
        energy: kWh of the job's GPUs; None where it was not measured.
        measured: the part of the job's time for which there are samples of its power.
        gpu_use: mean use of the job's GPUs; None where it was not measured.
        figures: what its template should reach, and what others have published.
    """

    known: Known
    remarks: tuple[JobRemark, ...]
    plots: tuple[Plot, ...]
    means: Means
    missing: tuple[str, ...]
    energy: float | None
    measured: float
    gpu_use: float | None
    figures: Expectation = ()

    @property
    def seconds(self) -> float:
        """For which the job ran, so far."""
        return self.known.span[1] - self.known.span[0] if self.known.span else 0.0

    @property
    def gpu_hours(self) -> float:
        """That were reserved."""
        spans = [(each.gpus, each.elapsed or self.seconds) for each in self.known.components]
        return sum(gpus * seconds for gpus, seconds in spans) / 3600

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        known = self.known
        return {
            "id": known.id,
            "components": [_step(each) for each in known.components],
            "tasks": [_step(each) for each in known.tasks],
            "seconds": self.seconds,
            "nodes": list(known.nodes),
            "gpus": known.gpus,
            "gpu_hours_reserved": self.gpu_hours,
            "gpu_use": self.gpu_use,
            "gpu_hours_used": None if self.gpu_use is None else self.gpu_use * self.gpu_hours,
            "energy_kwh": self.energy,
            "energy_measured": self.measured,
            "summary": [{"status": str(each.tone), "text": each.text} for each in self.remarks],
            "missing": list(self.missing),
            "steps": [_step(each) for each in known.steps],
            "steps_left_out": known.steps_left_out,
            "counters": [
                {**vars(each), "events": dict(each.events), "counters": dict(each.counters)} for each in known.devices
            ],
            "notes": {node: list(notes) for node, notes in known.notes.items()},
            "result": dict(known.result),
            "expectation": [each.to_dict() for each in self.figures],
            "series": {
                plot.panel.key: [_line(line) for line in plot.lines] for plot in self.plots
            },
        }  # fmt: skip


def _step(each: JobStep) -> dict[str, Any]:
    return {**vars(each), "nodes": list(each.nodes)}


def _line(line: Any) -> dict[str, Any]:
    columns = ["time", "value"] if isinstance(line, SeriesLine) else ["time", "min", "median", "max"]
    return {"name": line.name, "columns": columns, "points": [list(point) for point in line.points]}


def ids(known: Known) -> tuple[str, ...]:
    """The numbers under which the job's series are."""
    return tuple(each.id for each in known.components) or (known.id,)


def request(known: Known) -> list[dict[str, Any]]:
    """The questions to Prometheus; none for a job that has not begun, or for a whole array."""
    return queries.request(ids(known), known.nodes, known.span) if known.span and not known.tasks else []


def build(known: Known, answer: Mapping[str, Any]) -> JobReport:
    """The report.

    Args:
        answer: of `monitor query`, for `request`.
    """
    span = known.span
    results = answer.get("results") or {}
    step = queries.step_of(span) if span else queries.SHORTEST_STEP
    means = _of_the_job(queries.means(results), known)
    plots = queries.plots(results, known.nodes, step)
    energy, covered = _integral(means.power, step)
    if span and means.power and not covered:
        # One sample: it stands for all of the job, which was short.
        energy, covered = means.power[0][1] * (span[1] - span[0]), span[1] - span[0]
    seconds = span[1] - span[0] if span else 0.0
    use = [value for _time, value in means.use] or list(means.gpu.values())
    return JobReport(
        known,
        remarks(known, means),
        plots,
        means,
        (*_missing(known, answer, plots), *_unmeasured(means)),
        energy / _JOULES_OF_KWH if means.power else None,
        min(1.0, covered / seconds) if seconds else 0.0,
        statistics.fmean(use) if use else None,
        expectation(known),
    )


def expectation(known: Known) -> Expectation:
    """The figures of the job's template, for its number of nodes; none for a job of another origin."""
    try:
        template = registry.template(str(known.result["template"]))
        launcher = registry.launcher(template, "")
        return template.expectation(
            choose.describe(template, launcher, {}, nodes=max(1, len(known.nodes)), shape=None, gpus=_per_node(known))
        )
    except (InputError, KeyError):
        return ()


def _per_node(known: Known) -> int:
    return known.gpus // max(1, len(known.nodes))


def _of_the_job(means: Means, known: Known) -> Means:
    """Without GPUs of other jobs on the same nodes, where the records show which are the job's.

    The figures of a whole GPU are not those of one of its instances: other jobs use that, too.
    """
    divided = {**known.divided, **means.instances}

    def own(of_gpus: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        return {
            (node, number): value
            for (node, number), value in of_gpus.items()
            if number in known.recorded.get(node, ())
            or (node not in divided and not _numbers(known.recorded.get(node, ())))
        }

    return replace(means, gpu=own(means.gpu), idle=own(means.idle), instances=divided)


def _unmeasured(means: Means) -> list[str]:
    """What nothing measures of the job's instances of divided GPUs."""
    if not means.instances:
        return []
    use = "" if means.use else (
        "The use of the job's instances of GPUs (MIG) was not measured: nvidia-smi has none, "
        "and DCGM's exporter, which has it, does not run or its profiling fields are off."
    )  # fmt: skip
    return [*filter(None, [use]), "The power of instances (MIG) is not measured: the driver has that of whole GPUs."]


def _numbers(gpus: Sequence[str]) -> bool:
    return bool(gpus) and all(re.fullmatch(r"\d+", each) for each in gpus)


def _integral(points: Sequence[tuple[float, float]], step: float) -> tuple[float, float]:
    """The area below the points, and the seconds that it is of. Gaps count for nothing."""
    area = covered = 0.0
    for (earlier, low), (later, high) in pairwise(sorted(points)):
        if 0 < later - earlier <= step * _GAP:
            area += (low + high) / 2 * (later - earlier)
            covered += later - earlier
    return area, covered


def _missing(known: Known, answer: Mapping[str, Any], plots: Sequence[Plot]) -> list[str]:
    sentences = [f"{each[:1].upper()}{each[1:]}." for each in known.problems]
    if known.tasks:
        return [
            *sentences,
            f"This is an array: plots and counters are in the report of one task, such as {_task(known)}.",
        ]
    if known.span is None:
        return sentences
    if answer.get("prometheus") is False:
        why = str(answer.get("why") or "it does not run")
        sentences.append(f"There are no plots: {why}. Turn it on with monitoring.enabled in cluster.yml.")
    elif not plots:
        seconds = known.span[1] - known.span[0]
        short = f" The job ran for {seconds:.0f} s, and nodes are asked every {queries.SHORTEST_STEP} s."
        sentences.append("There are no plots: Prometheus has no samples of these nodes from that time." + (
            short if seconds < 4 * queries.SHORTEST_STEP else " It may have removed them: see monitoring.retention."
        ))  # fmt: skip
    else:
        present = {plot.panel.key for plot in plots}
        absent = [each.title for each in queries.PANELS if each.key not in present]
        if absent:
            sentences.append(f"Without samples: {', '.join(absent)}.")
        gaps = [plot.panel.title for plot in plots if any(len(line.drawn) > 1 for line in plot.lines)]
        if gaps:
            sentences.append(f"There are times without samples: {', '.join(gaps)}.")
    sentences += [
        f"Prometheus refused a question: {why}." for why in sorted(set((answer.get("errors") or {}).values()))[:3]
    ]
    without = [node for node in known.nodes if node not in known.recorded]
    ended = all(each.state in ENDED for each in known.components)
    if without and ended:
        some = "" if len(without) == len(known.nodes) else f" ({', '.join(without[:3])}{', …' if without[3:] else ''})"
        sentences.append(
            f"{count(len(without), 'node')} of {len(known.nodes)} sent no counters{some}: their checks are off, "
            "they lost their power, or the job ran before this release."
        )
    elif without:
        sentences.append("The counters of the network come with the end of the job.")
    if known.steps_left_out:
        sentences.append(
            f"{count(known.steps_left_out, 'step')} of {known.steps_left_out + len(known.steps)} are not listed."
        )
    return sentences


def _task(known: Known) -> str:
    return known.tasks[0].id


def extremes(report: JobReport) -> list[tuple[str, str, str, str]]:
    """Of each line of each plot: its name, mean, maximum and unit's text."""
    rows = []
    for plot in report.plots:
        for line in plot.lines:
            numbers = summary(line)
            unit = plot.panel.unit
            rows.append((plot.panel.title, line.name, unit.text(numbers.mean), unit.text(numbers.most)))
    return rows
