"""The state of a cluster on one page: who is asked, and what the answers become. `dashboards` has the page.

Everything is asked at the same time, so the slowest answer decides. A source that does not answer is named in its
place.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpucluster import shapes
from gpucluster.controller.maintenance.control import text_lines as maintenance_lines
from gpucluster.dashboards import overview as model
from gpucluster.dashboards.overview import Overview, SourcePart
from gpucluster.errors import ToolError
from gpucluster.handover.names import monitoring_host
from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import BY_WEIGHT, Status, worst
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.inquiry import Inquiry, InquiryAnswer
from gpucluster.operations.status import SOURCES, ClusterState
from gpucluster.process import Completed
from gpucluster.slurm.hostlists import HostlistError, expand
from gpucluster.spec import ClusterSpec
from gpucluster.text import printable
from gpucluster.workspace.evidence import SavedEvidence
from gpucluster.workspace.run_history import PastRun

T = TypeVar("T")

# Seconds for all answers together.
TIMEOUT = 6.0
# The part of it that the status may take, which asks several of the same.
STATUS_PART = 0.9
# Seconds of history, between two of its points, and between two columns of the plot by node.
_HISTORY, _STEP, _COLUMN = 86_400, 300, 900
# Up to so many nodes, each has a row of its own in the plots, and every RDMA port is listed.
_FEW_NODES = 64
# Bytes of what a command of Slurm may print: jobs can be a hundred thousand lines. And lines of ended jobs.
_MOST, _MOST_ENDED = 4_000_000, 200
_MOST_PROBLEMS = 200
_NOT_FOUND, _TIMED_OUT = 127, 124
# Of a pipe whose end had enough: the text is cut off.
_CUT_OFF = 141
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")
_QUERY = "gpucluster-agent monitor query"
_HEALTH = "sudo -n gpucluster-agent health status --output json"
_MONITORING_OFF = "Monitoring is off. Set monitoring.enabled: true in cluster.yml and run: gpucluster apply"


class _Slurm:
    """Commands of Slurm on the controller's shell, in UTC, with one line of output for each thing.

    Names of jobs may have line breaks and any sign. So what separates two fields is made up for each call: no user can
    have it in a name, and a line without it is the rest of a name.

    Args:
        seconds: for each command.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._mark = f"\x1f{secrets.token_hex(6)}\x1f"

    def _line(self, command: str, fields: Sequence[str], end: str) -> str:
        shown = command.format(fields=self._mark.join(fields), mark=self._mark)
        return f"set -o pipefail; sudo -n env TZ=UTC timeout {self._seconds:g} {shown} | {end}"

    def nodes(self) -> str:
        """Sinfo has a line for each node and partition."""
        return self._line("sinfo -h -N -o '{fields}'", ("%N", "%T", "%R", "%G", "%E"), f"head -c {_MOST}")

    def jobs(self) -> str:
        """Running jobs first: they are never those that are cut off."""
        fields = ("%i", "%T", "%u", "%P", "%D", "%M", "%l", "%r", "%N", "%j")
        return self._line("squeue -h -S -T,i -o '{fields}'", fields, f"head -c {_MOST}")

    def ended(self) -> str:
        """Of the last day."""
        command = (
            "sacct -X -a -n -P --delimiter='{mark}' -S now-1days -E now -s BF,CA,CD,DL,F,NF,OOM,PR,TO "
            "-o JobID,State,User,Partition,NNodes,Elapsed,ExitCode,End,JobName"
        )
        return self._line(command, (), f"tail -n {_MOST_ENDED}")

    def reader(self, fields: int, build: Callable[[Iterable[Sequence[str]]], T]) -> Callable[[str], T]:
        """Reads what one of the commands has printed. A line that was cut off has fewer fields, and is left out.

        Args:
            fields: of a line.
        """

        def rows(text: str) -> Iterator[list[str]]:
            for line in text.split("\n"):
                row = line.split(self._mark)
                if len(row) == fields:
                    yield [field.strip() for field in row]

        return lambda text: build(rows(text))


@dataclass(frozen=True)
class OverviewSources:
    """Who is asked. Each may raise GpuClusterError.

    Args:
        status: as `operations.status` makes it, within some seconds.
        evidence: of the last check on this machine; None without any.
        runs: the runs of this machine, the newest first.
    """

    status: Callable[[], Mapping[str, Any]]
    controller: ControllerConnection
    evidence: Callable[[], SavedEvidence | None]
    runs: Callable[[], Sequence[PastRun]]


def overview(spec: ClusterSpec, sources: OverviewSources, *, version: str, timeout: float = TIMEOUT) -> Overview:
    """Collect the state of a cluster. Reads only; takes no lock.

    Args:
        version: of this program.
        timeout: seconds for all answers together.

    Raises:
        ToolError: there is no cluster, or nothing is known of it.
    """
    until, now = time.monotonic() + timeout, time.time()
    hosts = Inquiry(sources.controller.hosts)

    def on_host(command: str, text: str = "", *, host: str | None = None) -> Inquiry[Completed]:
        def ask() -> Completed:
            if not hosts.result():
                raise ToolError("there is no controller yet", hint="Run: gpucluster apply")
            return sources.controller.ask(command, host=host, text=text, timeout=timeout)

        return Inquiry(ask)

    commands = _Slurm(timeout)
    slurm, monitoring = spec.slurm.enabled, spec.monitoring.enabled
    queries = json.dumps({"queries": _queries(spec, now)})
    inquiries = {
        **({"nodes": on_host(commands.nodes()), "jobs": on_host(commands.jobs())} if slurm else {}),
        **({"accounting": on_host(commands.ended())} if slurm and spec.slurm.accounting else {}),
        "health": on_host(_HEALTH),
        **({"prometheus": on_host(_QUERY, queries, host=monitoring_host(spec))} if monitoring else {}),
    }
    status, evidence, runs = Inquiry(sources.status), Inquiry(sources.evidence), Inquiry(sources.runs)
    answer = status.answer(until)
    known, past = answer.value or {}, runs.answer(until).value or ()
    if not known:
        raise ToolError(f"nothing is known of this cluster: {answer.error}", hint="Run: gpucluster status")
    _check_existence(known, past)
    answers = {name: inquiry.answer(until) for name, inquiry in inquiries.items()}
    by_node, health = _health(answers["health"])
    off = "{} is off in cluster.yml."
    jobs = _read("Slurm's jobs", answers.get("jobs"), commands.reader(10, _jobs), otherwise=off.format("Slurm"))
    nodes = _read("Slurm's nodes", answers.get("nodes"), commands.reader(5, _nodes), otherwise=off.format("Slurm"))
    ended = _read(
        "The accounting", answers.get("accounting"), commands.reader(9, _ended), otherwise=off.format("Accounting")
    )
    history, rails = _recorded(answers.get("prometheus"), now)
    parts: dict[str, SourcePart[Any]] = {
        "nodes": nodes, "jobs": jobs, "accounting": ended, "health": health, "prometheus": history
    }  # fmt: skip
    return Overview(
        version=version,
        made_at=now,
        facts=_facts(spec, known),
        pools=tuple(_pools(spec)),
        verdict=_verdict(evidence.answer(until)),
        nodes=replace(nodes, value=_joined(spec, nodes.value, by_node, jobs.value or ())) if nodes.value else nodes,
        health=health,
        jobs=jobs,
        ended=ended,
        rails=rails,
        history=history,
        autoscaler=_autoscaler(known.get("autoscaler")),
        runs=tuple(
            model.RunSummary(run.id, run.command, run.status, run.started, run.elapsed, run.error) for run in past
        ),
        sources=tuple(_sources(known, answers, parts)),
    )


def _check_existence(known: Mapping[str, Any], past: Sequence[PastRun]) -> None:
    """Whether there is anything to show.

    Raises:
        ToolError: there is no cluster, or nothing is known of it.
    """
    if known["state"] == ClusterState.ABSENT and not known.get("hosts"):
        raise ToolError("there is no cluster yet", hint="Run: gpucluster apply")
    if known["state"] == ClusterState.UNKNOWN and not known.get("hosts") and not past:
        errors = [source["error"] for source in known["sources"].values() if source["error"]]
        raise ToolError(f"nothing is known of this cluster: {'; '.join(errors)}", hint="Run: gpucluster status")


# --- answers of the controller -----


def _read(
    what: str, answer: InquiryAnswer[Completed] | None, parse: Callable[[str], T], *, otherwise: str = ""
) -> SourcePart[T]:
    """What a program on the controller has printed, or why that is not known.

    Args:
        what: was asked for, in words.
        answer: None if it was not asked.
        otherwise: why it was not.
    """
    if answer is None:
        return SourcePart(why=otherwise)
    why = _failure(answer)
    if why:
        return SourcePart(why=f"{what} could not be read: {why}.")
    try:
        return SourcePart(parse(answer.value.stdout if answer.value else ""))
    except ToolError as error:
        return SourcePart(why=f"{what} could not be read: {error.what}.")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return SourcePart(
            why=f"{what} could not be read: the answer has an unknown form ({printable(str(error))[:100]})."
        )


def _failure(answer: InquiryAnswer[Completed]) -> str:
    """Why there is no text; empty if there is one."""
    result = answer.value
    if result is None:
        return answer.error
    if result.returncode in (0, _CUT_OFF):
        return ""
    last = printable(result.stderr.strip().rpartition("\n")[2])
    if result.returncode == _NOT_FOUND or "command not found" in last:
        return "the controller does not have the program yet; run: gpucluster apply"
    return "no answer in time" if result.returncode == _TIMED_OUT else last or f"status {result.returncode}"


def _nodes(rows: Iterable[Sequence[str]]) -> tuple[model.NodeSummary, ...]:
    by_name: dict[str, model.NodeSummary] = {}
    for name, state, _partition, gres, reason in rows:
        gpus = sum(int(number[:6]) for number in _GPUS.findall(gres))
        by_name.setdefault(name, model.NodeSummary(name, state, reason="" if reason == "none" else reason, gpus=gpus))
    return tuple(by_name.values())


def _jobs(rows: Iterable[Sequence[str]]) -> tuple[model.JobSummary, ...]:
    summaries = []
    for id_, state, user, partition, nodes, elapsed, limit, reason, where, name in rows:
        shown = reason if state == "PENDING" else where
        summaries.append(model.JobSummary(id_, state, user, partition, _int(nodes), elapsed, limit, shown, name))
    return tuple(summaries)


def _ended(rows: Iterable[Sequence[str]]) -> tuple[model.EndedJob, ...]:
    jobs = [
        model.EndedJob(id_, state, user, partition, _int(nodes), elapsed, exit_code, end, name)
        for id_, state, user, partition, nodes, elapsed, exit_code, end, name in rows
    ]
    return tuple(sorted(jobs, key=lambda job: job.ended, reverse=True))


def _int(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _health(answer: InquiryAnswer[Completed]) -> tuple[Mapping[str, Mapping[str, Any]], SourcePart[model.Health]]:
    """What the health service reports of each node, and beside that."""
    read = _read("The health service", answer, _health_of)
    if read.value is None:
        return {}, SourcePart(why=read.why)
    return read.value[0], SourcePart(read.value[1])


def _health_of(text: str) -> tuple[Mapping[str, Mapping[str, Any]], model.Health]:
    raw = bounded.loads(text)
    by_node = {str(row["node"]): row for row in raw["nodes"]}
    # An agent of an earlier release does not send it.
    announced = maintenance_lines(raw["maintenance"]) if raw.get("maintenance") else ()
    health = model.Health(
        interval=float(raw["interval_s"]),
        shadow=raw["shadow"] is True,
        breakers=tuple(raw["breakers"]),
        suspects=tuple(raw["suspects"]),
        decisions=tuple(raw["decisions"]),
        problems=(*map(str, raw.get("problems", ())), *announced),
    )
    return by_node, health


def _joined(
    spec: ClusterSpec,
    nodes: Sequence[model.NodeSummary],
    health: Mapping[str, Mapping[str, Any]],
    jobs: Sequence[model.JobSummary],
) -> tuple[model.NodeSummary, ...]:
    """Slurm's nodes, with the health service's state and the running jobs of each."""
    on_node: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        if job.state != "PENDING":
            for name in _names(job.where):
                on_node[name].append(job.id)
    summaries = []
    for node in nodes:
        row = health.get(node.name, {})
        failing, warnings = (
            tuple(f"{each.get('check')}: {each.get('message')}" for each in row.get(kind) or ())
            for kind in ("failing", "warnings")
        )
        age = row.get("age_s")
        summaries.append(
            replace(
                node,
                pool=_pool_of(spec, node.name),
                health=str(row.get("status") or ""),
                failing=failing,
                warnings=warnings,
                report_age=float(age) if isinstance(age, int | float) else None,
                stale=row.get("stale") is True,
                jobs=tuple(on_node.get(node.name, ())),
            )
        )
    return tuple(summaries)


def _names(hostlist: str) -> list[str]:
    try:
        return expand(hostlist)
    except HostlistError:
        return []


def _pool_of(spec: ClusterSpec, node: str) -> str:
    """The pool of a node: its name is the pool's, and a number."""
    pool, _, number = node.rpartition("-")
    return pool if pool in spec.pools and number.removeprefix("e").isdigit() else ""


# --- Prometheus -----


def _queries(spec: ClusterSpec, now: float) -> list[dict[str, Any]]:
    """What Prometheus is asked. The names are those of `dashboards.overview.History.series`."""
    few = _few(spec)
    over = {
        "nodes": "gpucluster:slurm_nodes:count",
        "jobs": "gpucluster:slurm_jobs:count",
        "gpu_low": "min(gpucluster:gpu_utilization:ratio)",
        "gpu_middle": "quantile(0.5, gpucluster:gpu_utilization:ratio)",
        "gpu_high": "max(gpucluster:gpu_utilization:ratio)",
        "rdma_receive": "sum(gpucluster:rdma_receive:bytes_per_second)",
        "rdma_transmit": "sum(gpucluster:rdma_transmit:bytes_per_second)",
    }
    by = "node" if few else "pool"
    place = f"avg by ({by}) (avg_over_time(gpucluster:gpu_utilization:ratio[{_COLUMN}s]))"
    errors = "sum by (node, device, port) (gpucluster:rdma_errors:per_second)"
    at = {
        "rails": "count(gpucluster_rdma_port_up)",
        "rail_up": f"gpucluster_rdma_port_up{'' if few else ' == 0'}",
        "rail_errors": f"{errors}{'' if few else ' > 0'}",
    }
    if few:
        at |= {
            "rail_rate": "gpucluster_rdma_port_rate_bytes_per_second",
            "rail_received": "gpucluster:rdma_receive:bytes_per_second",
            "rail_sent": "gpucluster:rdma_transmit:bytes_per_second",
        }
    start = now - _HISTORY
    return [
        *({"name": name, "expr": expr, "start": start, "end": now, "step": _STEP} for name, expr in over.items()),
        {"name": "gpu_by_place", "expr": place, "start": start + _COLUMN, "end": now, "step": _COLUMN},
        *({"name": name, "expr": expr, "time": now} for name, expr in at.items()),
    ]


def _few(spec: ClusterSpec) -> bool:
    return sum(pool.max_count for pool in spec.pools.values()) <= _FEW_NODES


def _recorded(
    answer: InquiryAnswer[Completed] | None, now: float
) -> tuple[SourcePart[model.History], SourcePart[model.Rails]]:
    if answer is None:
        return SourcePart(why=_MONITORING_OFF), SourcePart(
            why=f"The ports are read by the exporters. {_MONITORING_OFF}"
        )
    read = _read("Prometheus", answer, lambda text: _history(text, now))
    if read.value is None:
        return SourcePart(why=read.why), SourcePart(why=read.why)
    return SourcePart(read.value), _rails(read.value)


def _history(text: str, now: float) -> model.History:
    raw = bounded.loads(text)
    if raw["prometheus"] is not True:
        raise ToolError(printable(str(raw.get("why") or "it does not run"))[:300])
    series = {str(name): tuple(_series(each) for each in listed) for name, listed in raw["results"].items()}
    errors = {str(name): str(why) for name, why in (raw.get("errors") or {}).items()}
    return model.History(now - _HISTORY, now, _STEP, series, errors)


def _series(raw: Mapping[str, Any]) -> model.Series:
    """What is not a number is left out: its place is a gap."""
    values = ((float(time_), float(value)) for time_, value in raw["values"])
    labels = {str(name): str(value) for name, value in raw["labels"].items()}
    return model.Series(labels, tuple(point for point in values if all(map(math.isfinite, point))))


def _rails(history: model.History) -> SourcePart[model.Rails]:
    """The RDMA ports, put together from one answer for each of their values."""
    failed = history.errors.get("rail_up")
    if failed:
        return SourcePart(why=f"Prometheus could not be asked for RDMA ports: {failed}.")
    by_port: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for name in ("rail_up", "rail_rate", "rail_received", "rail_sent", "rail_errors"):
        for each in history.series.get(name, ()):
            key = (each.labels.get("node", ""), each.labels.get("device", ""), each.labels.get("port", ""))
            if each.values:
                by_port[key][name] = each.values[-1][1]
    rails = tuple(
        model.Rail(
            *key,
            up=bool(values["rail_up"]) if "rail_up" in values else None,
            rate=values.get("rail_rate"),
            received=values.get("rail_received"),
            sent=values.get("rail_sent"),
            errors=values.get("rail_errors"),
        )
        for key, values in by_port.items()
    )
    number = next((int(each.values[-1][1]) for each in history.series.get("rails", ()) if each.values), 0)
    return SourcePart(model.Rails(number or len(rails), rails, complete=len(rails) >= number))


# --- what this machine and the cloud know -----


def _facts(spec: ClusterSpec, known: Mapping[str, Any]) -> model.ClusterFacts:
    running = known.get("running")
    words = f"{running.get('command', 'a run')} on {running.get('host', 'an unknown host')}" if running else ""
    return model.ClusterFacts(
        name=spec.name,
        cloud=spec.cloud.provider,
        region=spec.cloud.region,
        state=str(known["state"]),
        slurm_release=spec.slurm.release if spec.slurm.enabled else "off",
        monitoring=spec.monitoring.enabled,
        controller_shape=spec.controller.shape,
        pending=tuple(known.get("pending") or ()),
        resources=known.get("resources"),
        running=words,
    )


def _pools(spec: ClusterSpec) -> Iterator[model.PoolSummary]:
    for name, pool in spec.pools.items():
        shape = shapes.get(pool.shape)
        rdma = len(shape.rdma_devices) if pool.uses_rdma else 0
        yield model.PoolSummary(
            name, pool.shape, pool.partition or name, pool.count, pool.max_count, shape.gpus, rdma, shape.rdma_link_gbps
        )


def _verdict(answer: InquiryAnswer[SavedEvidence | None]) -> SourcePart[model.VerdictSummary]:
    if answer.error:
        return SourcePart(why=f"The last verdict could not be read: {answer.error}.")
    if answer.value is None:
        return SourcePart(why="This machine has no verdict of this cluster. Run: gpucluster verify")
    content = answer.value.content
    lines = [line for each in _listed(content.get("results")) if (line := _check(each)) is not None]
    known = Counter(line.status for line in lines)
    order = [Status.FAIL, Status.UNKNOWN, Status.WARN]
    problems = sorted(
        (line for line in lines if line.status in order), key=lambda line: order.index(Status(line.status))
    )
    return SourcePart(
        model.VerdictSummary(
            run=str(content.get("run") or ""),
            level=str(content.get("level") or ""),
            status=worst(Status(line.status) for line in lines).value,
            at=answer.value.written_at,
            counts={each.value: known[each.value] for each in reversed(BY_WEIGHT) if known[each.value]},
            problems=tuple(problems[:_MOST_PROBLEMS]),
            rails=tuple(line for line in lines if line.check.startswith("rdma_") and line.status != Status.SKIP.value),
        )
    )


def _listed(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _check(raw: Any) -> model.CheckLine | None:
    """One result; None where another version wrote something else."""
    try:
        words = {key: str(raw[key]) for key in ("check", "name", "subject", "status", "message", "remedy")}
        Status(words["status"])
    except (KeyError, TypeError, ValueError):
        return None
    return model.CheckLine(**words)


def _autoscaler(raw: Mapping[str, Any] | None) -> SourcePart[Mapping[str, Any]]:
    if raw and "error" in raw:
        return SourcePart(why=f"The autoscaler could not be asked: {raw['error']}.")
    return SourcePart(raw)


_NAMES = {
    "nodes": "Slurm's nodes", "jobs": "Slurm's jobs", "accounting": "the accounting", "health": "the health service",
    "prometheus": "Prometheus",
}  # fmt: skip


def _sources(
    known: Mapping[str, Any], answers: Mapping[str, InquiryAnswer[Completed]], parts: Mapping[str, SourcePart[Any]]
) -> Iterator[model.Source]:
    """Who was asked.

    Args:
        parts: what the answers became.
    """
    for name, source in known["sources"].items():
        if name != "slurm":  # it is asked for more here
            yield model.Source(SOURCES[name], source["error"], source["time"])
    for name, answer in answers.items():
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(answer.time))
        unread = "" if parts[name].value is not None else "its content could not be read"
        yield model.Source(_NAMES[name], _failure(answer) or unread, stamp)
