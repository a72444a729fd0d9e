"""The state of a cluster as one HTML page, for users without Grafana.

What needs attention is first. A cluster of thousands of nodes is summaries, a compact grid, and the nodes with faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from markupsafe import Markup

from gpucluster.dashboards import overview as model
from gpucluster.dashboards.overview import TONES, NodeKind, NodeSummary, Overview, Series
from gpucluster.node_agent.checks.model import BY_WEIGHT, Status
from gpucluster.pages import plots, tables, units
from gpucluster.pages.colours import Tone
from gpucluster.pages.frame import Section, page
from gpucluster.pages.markup import element, joined
from gpucluster.pages.series import Band, SeriesLine, counted
from gpucluster.pages.tables import Cell, Column, badge
from gpucluster.text import count, some

#: The kind of page that `pages.frame.is_page` knows.
KIND = "overview"
# Rows of a table. What is left out is named, with the command that shows it.
_MOST_NODES, _MOST_JOBS, _MOST_PENDING, _MOST_ENDED, _MOST_RAILS, _MOST_RUNS = 120, 100, 60, 40, 100, 15
# From so many nodes on, a grid of all of them is clearer than a table alone.
_GRID = 24
# Characters of a name in a table.
_LONGEST_NAME = 60
_MARKS = {
    NodeKind.DOWN: "X",
    NodeKind.DRAINED: "D",
    NodeKind.OTHER: "?",
    NodeKind.STARTING: "^",
    NodeKind.MIXED: "M",
    NodeKind.ALLOCATED: "A",
    NodeKind.IDLE: "I",
    NodeKind.OFF: "-",
}
_STATUS = {"pass": Tone.GOOD, "skip": Tone.OFF, "warn": Tone.WARN, "fail": Tone.BAD, "unknown": Tone.UNKNOWN}
_RUNS = {
    "success": Tone.GOOD, "running": Tone.BUSY, "refused": Tone.WARN, "interrupted": Tone.WARN, "failed": Tone.BAD,
    "killed": Tone.BAD,
}  # fmt: skip
_CLUSTER = {"present": Tone.GOOD, "partial": Tone.WARN, "unknown": Tone.UNKNOWN, "absent": Tone.OFF}
_JOBS = {
    "RUNNING": Tone.BUSY, "COMPLETING": Tone.BUSY, "CONFIGURING": Tone.BUSY, "PENDING": Tone.OFF,
    "COMPLETED": Tone.GOOD, "FAILED": Tone.BAD, "NODE_FAIL": Tone.BAD, "OUT_OF_MEMORY": Tone.BAD, "BOOT_FAIL": Tone.BAD,
    "TIMEOUT": Tone.WARN, "CANCELLED": Tone.OFF, "PREEMPTED": Tone.WARN, "SUSPENDED": Tone.WARN, "DEADLINE": Tone.WARN,
}  # fmt: skip
_DECISIONS = {
    "drain": ("to drain", Tone.WARN),
    "person": ("to drain, an operator decides", Tone.BAD),
    "done": ("drained", Tone.WARN),
    "undrain": ("to undrain", Tone.BUSY),
    "ended": ("in service again", Tone.GOOD),
    "shadow": ("shadow mode: nothing done", Tone.OFF),
}


def html(overview: Overview) -> str:
    """The page."""
    facts = overview.facts
    sections = [
        Section("summary", "Summary", _summary(overview)),
        Section("verdict", "Last verdict", _verdict(overview)),
        Section("nodes", "Nodes", _nodes(overview)),
        Section("jobs", "Jobs", _jobs(overview)),
        Section("rails", "RDMA", _rails(overview)),
        Section("history", "Last 24 hours", _history(overview)),
        Section("autoscaler", "Autoscaler", _autoscaler(overview)),
        Section("health", "Health service", _health(overview)),
        Section("runs", "Runs", _runs(overview)),
        Section("cluster", "Cluster", _cluster(overview)),
    ]
    return page(
        f"Cluster {facts.name}",
        sections,
        kind=KIND,
        made_at=overview.made_at,
        made_by=f"gpucluster {overview.version}",
        subtitle=f"{'the local cloud' if facts.cloud == 'local' else facts.region}, a picture of one moment",
    )


def _missing(why: str, *, tone: Tone = Tone.UNKNOWN) -> Markup:
    return tables.notice(why, tone)


# --- summary -----


def _summary(overview: Overview) -> Markup:
    facts, nodes, verdict = overview.facts, overview.nodes.value, overview.verdict.value
    pairs: list[tuple[str, object]] = [("Cluster", badge(facts.state, _CLUSTER.get(facts.state, Tone.UNKNOWN)))]
    if verdict is not None:
        age = units.duration(max(0.0, overview.made_at - verdict.at))
        pairs.append(("Last verdict", tables.words(_status(verdict.status), element("span", f"{age} ago"))))
    if nodes is not None:
        there = [node for node in nodes if not node.off]
        pairs.append(("Nodes", tables.words(f"{len(there):,}", _off_words(len(nodes) - len(there)))))
    cost = (overview.autoscaler.value or {}).get("cost_per_hour")
    if isinstance(cost, int | float):
        pairs.append(("Elastic nodes cost", f"{cost:,.2f} an hour"))
    pairs.append(("Works on it now", facts.running))
    attention = model.attention(overview)
    first: list[tuple[str, object]] = [("Needs attention", f"{len(attention):,}")]
    if nodes is not None:
        busy, gpus = model.busy_gpus(nodes)
        first += [("GPUs on nodes with jobs", f"{busy:,} of {gpus:,}")] if gpus else []
    jobs = overview.jobs.value
    if jobs is not None:
        running, waiting = _running(jobs), _waiting(jobs)
        first.append(("Jobs", f"{len(running):,} running, {len(waiting):,} waiting"))
    if attention:
        notices = joined(tables.notice(text, tone) for tone, text in attention)
    else:
        notices = tables.notice("Nothing that was asked needs attention.", Tone.GOOD)
    return tables.figures(first) + notices + tables.facts(pairs)


def _off_words(number: int) -> str:
    return f"and {number:,} powered down" if number else ""


def _status(status: str) -> Markup:
    return badge(status, _STATUS.get(status, Tone.UNKNOWN))


# --- verdict -----


def _verdict(overview: Overview) -> Markup:
    verdict = overview.verdict.value
    if verdict is None:
        return _missing(overview.verdict.why)
    age = units.duration(max(0.0, overview.made_at - verdict.at))
    results = joined(
        (badge(f"{number:,} {status}", _STATUS.get(status, Tone.UNKNOWN)) for status, number in verdict.counts.items()),
        " ",
    )
    lead = tables.facts(
        [
            ("Verdict", _status(verdict.status)),
            ("Made", f"{units.utc(verdict.at)}, {age} ago"),
            ("Level", verdict.level),
            ("Run", verdict.run),
        ]
    ) + element("p", results)
    rows = [(line.name, _status(line.status), line.subject, line.message, line.remedy) for line in verdict.problems]
    columns = ("Check", "Status", "Of", Column("What was seen", long=True), Column("What to do", long=True))
    return lead + tables.table(
        "Checks that did not pass", columns, rows, empty="Every check passed, or had nothing to check.",
        most=_MOST_NODES, more="All of them: gpucluster verify",
    )  # fmt: skip


# --- nodes -----


def _nodes(overview: Overview) -> Markup:
    nodes = overview.nodes.value
    if nodes is None:
        return _missing(overview.nodes.why)
    if not nodes:
        return tables.notice("Slurm has no nodes.", Tone.OFF)
    ordered = model.in_order(nodes)
    attention = [node for node in ordered if node.needs_attention]
    parts = [_by_pool(nodes)]
    if len(nodes) >= _GRID:
        parts += _grids(nodes)
        parts += [element("h3", "Nodes that need attention"), _node_table(attention, "No node needs attention.")]
        return joined(parts)
    there = [node for node in ordered if node.needs_attention or not node.off]
    return joined([*parts, _node_table(there, "Every node is powered down.")])


def _grids(nodes: Sequence[NodeSummary]) -> Iterator[Markup]:
    """A field for each node that exists, one grid for each pool."""
    by_pool: dict[str, list[NodeSummary]] = {}
    for node in sorted(nodes, key=lambda node: (node.pool, model.natural(node.name))):
        if not node.off:
            by_pool.setdefault(node.pool, []).append(node)
    for pool, members in by_pool.items():
        name = f"Pool {pool}" if pool else "Nodes of no pool"
        cells = [Cell(_MARKS[node.kind], TONES[node.kind], _cell_title(node)) for node in members]
        numbers = model.counts(members)
        legend = [(_MARKS[kind], TONES[kind], f"{kind.value} ({numbers[kind]:,})") for kind in numbers]
        title = f"{name}: {len(members):,} {'node' if len(members) == 1 else 'nodes'}"
        yield element("h3", title)
        yield tables.grid(title, cells, legend)


def _cell_title(node: NodeSummary) -> str:
    reason = f", {node.reason[:80]}" if node.reason and node.needs_attention else ""
    return f"{node.name}: {model.state_words(node.state)}{reason}"


def _by_pool(nodes: Sequence[NodeSummary]) -> Markup:
    kinds = list(model.counts(nodes))
    rows = []
    for name in dict.fromkeys(sorted(node.pool for node in nodes)):
        numbers = model.counts([node for node in nodes if node.pool == name])
        rows.append(
            (name or "no pool", f"{sum(numbers.values()):,}", *(_number(numbers.get(kind, 0)) for kind in kinds))
        )
    columns: list[Column | str] = [
        "Pool",
        Column("Nodes", number=True),
        *(Column(kind.value, number=True) for kind in kinds),
    ]
    return tables.table("Nodes of each pool by state", columns, rows)


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _node_table(nodes: Sequence[NodeSummary], empty: str) -> Markup:
    rows = [
        (
            node.name,
            badge(model.state_words(node.state), TONES[node.kind]),
            node.pool,
            node.gpus or None,
            _node_health(node),
            _report(node),
            some(node.jobs),
            _reasons(node),
        )
        for node in nodes
    ]
    columns: list[Column | str] = [
        "Node", "State", "Pool", Column("GPUs", number=True), "Checks", "Last report", "Jobs",
        Column("Reason, checks", long=True),
    ]  # fmt: skip
    return tables.table(
        "Nodes",
        columns,
        rows,
        empty=empty,
        most=_MOST_NODES,
        more="All of them: gpucluster ssh -- sinfo --list-reasons",
    )


def _node_health(node: NodeSummary) -> Markup | str:
    return _status(node.health) if node.health else units.NOTHING


def _report(node: NodeSummary) -> Markup | str:
    if node.report_age is None:
        return units.NOTHING
    age = f"{units.duration(node.report_age)} ago"
    return tables.words(age, badge("stale", Tone.WARN)) if node.stale and not node.off else age


def _reasons(node: NodeSummary) -> Markup:
    return joined(filter(None, [node.reason, *node.failing, *node.warnings]), "; ")


# --- jobs -----


def _running(jobs: Sequence[model.JobSummary]) -> list[model.JobSummary]:
    return [job for job in jobs if job.state != "PENDING"]


def _waiting(jobs: Sequence[model.JobSummary]) -> list[model.JobSummary]:
    return [job for job in jobs if job.state == "PENDING"]


def _jobs(overview: Overview) -> Markup:
    return joined(
        [element("h3", "Running"), *_now(overview), element("h3", "Ended in the last 24 hours"), _ended(overview)]
    )


def _now(overview: Overview) -> Iterator[Markup]:
    jobs = overview.jobs.value
    if jobs is None:
        yield _missing(overview.jobs.why)
        return
    columns = [*_JOB_COLUMNS, Column("Limit", number=True)]

    def rows(listed: Sequence[model.JobSummary]) -> list[tuple[object, ...]]:
        return [(*_job_cells(job), job.limit, job.where) for job in listed]

    more = "All of them: gpucluster ssh -- sudo squeue"
    yield tables.table(
        "Running jobs",
        [*columns, Column("On", long=True)],
        rows(_running(jobs)),
        empty="No job runs.",
        most=_MOST_JOBS,
        more=more,
    )
    yield element("h3", "Waiting")
    yield tables.table(
        "Waiting jobs",
        [*columns, Column("Why", long=True)],
        rows(_waiting(jobs)),
        empty="No job waits.",
        most=_MOST_PENDING,
        more=more,
    )


def _ended(overview: Overview) -> Markup:
    ended = overview.ended.value
    if ended is None:
        return _missing(overview.ended.why)
    rows = [(*_job_cells(job), job.exit_code, job.ended.replace("T", " ")) for job in ended]
    return tables.table(
        "Jobs that have ended", [*_JOB_COLUMNS, "Exit code", "Ended (UTC)"], rows, empty="No job has ended.",
        most=_MOST_ENDED, more="All of them: gpucluster ssh -- sudo sacct --allusers",
    )  # fmt: skip


# Of every job, whether it runs or has ended.
_JOB_COLUMNS: tuple[Column | str, ...] = (
    "Job", "Name", "User", "State", "Partition", Column("Nodes", number=True), Column("Time", number=True),
)  # fmt: skip


def _job_cells(job: model.JobSummary | model.EndedJob) -> tuple[object, ...]:
    return (job.id, _short(job.name), job.user, _job_state(job.state), job.partition, job.nodes, job.elapsed)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _job_state(state: str) -> Markup:
    word = (state.split() or ["UNKNOWN"])[0]  # CANCELLED by 1001
    return badge(word.lower().replace("_", " "), _JOBS.get(word, Tone.UNKNOWN))


# --- RDMA -----


def _rails(overview: Overview) -> Markup:
    if not any(pool.rdma_devices for pool in overview.pools):
        return tables.notice("No shape of this cluster has RDMA devices.", Tone.OFF)
    return joined([_ports(overview), _rail_checks(overview)])


def _ports(overview: Overview) -> Markup:
    rails = overview.rails.value
    if rails is None:
        return _missing(overview.rails.why, tone=Tone.UNKNOWN if overview.facts.monitoring else Tone.OFF)
    columns: list[Column | str] = [
        "Port", "State", Column("Rate", number=True), Column("Received", number=True), Column("Sent", number=True),
        Column("Errors", number=True),
    ]  # fmt: skip
    errors = units.per_second("errors")
    rows = [
        (
            f"{rail.node} {rail.device}" + (f" port {rail.port}" if rail.port not in ("", "1") else ""),
            _port_state(rail),
            _gbps(rail.rate),
            units.BYTES_PER_SECOND.text(rail.received),
            units.BYTES_PER_SECOND.text(rail.sent),
            "0" if rail.errors == 0 else errors.text(rail.errors),
        )
        for rail in sorted(rails.listed, key=_rail_order)
    ]
    sentence = f"Prometheus knows {count(rails.number, 'port')}."
    if not rails.complete:
        sentence += " Only those with a fault are listed."
    empty = "None of them is down or has errors." if rails.number else "No exporter reports an RDMA port."
    return element("p", sentence) + tables.table("RDMA ports", columns, rows, empty=empty, most=_MOST_RAILS)


def _rail_order(rail: model.Rail) -> tuple[bool, bool, object, object]:
    return rail.up is not False, not rail.errors, model.natural(rail.node), model.natural(rail.device)


def _port_state(rail: model.Rail) -> Markup:
    if rail.up is None:
        return badge("unknown", Tone.UNKNOWN)
    if not rail.up:
        return badge("down", Tone.BAD)
    return badge("errors", Tone.WARN) if rail.errors else badge("up", Tone.GOOD)


def _gbps(rate: float | None) -> str:
    """The rate of a port, in bits as its data sheet has it."""
    return units.NOTHING if rate is None else units.BITS_PER_SECOND.text(rate * 8)


def _rail_checks(overview: Overview) -> Markup:
    verdict = overview.verdict.value
    if verdict is None or not verdict.rails:
        return Markup("")
    by_check: dict[str, list[model.CheckLine]] = {}
    for line in verdict.rails:
        by_check.setdefault(line.check, []).append(line)
    rows = []
    for check, lines in by_check.items():
        bad = [line for line in lines if line.status not in ("pass", "skip")]
        worst = max(lines, key=lambda line: BY_WEIGHT.index(Status(line.status)))
        message = "; ".join(f"{line.subject}: {line.message}" for line in bad[:6]) or worst.message
        more = f" and {len(bad) - 6} more" if len(bad) > 6 else ""  # noqa: PLR2004
        rows.append((check, _status(worst.status), f"{len(lines) - len(bad)} of {len(lines)}", message + more))
    head = element("h3", "Checks of RDMA devices in the last verdict")
    columns = ("Check", "Worst", "Nodes without fault", Column("What was seen", long=True))
    return head + tables.table("Checks of RDMA devices", columns, rows)


# --- history -----


def _history(overview: Overview) -> Markup:
    history = overview.history.value
    if history is None:
        return _missing(overview.history.why, tone=Tone.UNKNOWN if overview.facts.monitoring else Tone.OFF)
    start, end, step = history.start, history.end, history.step

    def lines(name: str, label: Callable[[Mapping[str, str]], str]) -> list[SeriesLine]:
        return [SeriesLine(label(each.labels), each.values, step) for each in history.series.get(name, ())]

    def plot(title: str, drawn: Sequence[SeriesLine | Band], unit: units.Unit, *names: str) -> Markup:
        why = "; ".join(history.errors[name] for name in names if name in history.errors)
        return plots.time_series(
            title, drawn, unit, start=start, end=end, empty=f"No answer: {why}." if why else "Prometheus has no values."
        )

    use = _band(history.series, step)
    drawn = [
        plot("Nodes by state", counted(lines("nodes", _state_label)), units.COUNT, "nodes"),
        plot("Jobs by state", counted(lines("jobs", _state_label)), units.COUNT, "jobs"),
        plot("GPU utilisation", use, units.RATIO, "gpu_low", "gpu_middle", "gpu_high"),
        plot(
            "RDMA throughput of all nodes",
            [*lines("rdma_receive", lambda _: "received"), *lines("rdma_transmit", lambda _: "sent")],
            units.BYTES_PER_SECOND,
            "rdma_receive",
            "rdma_transmit",
        ),
    ]
    return element("div", *drawn, class_="plots") + _heat(history)


def _state_label(labels: Mapping[str, str]) -> str:
    return labels.get("state", "all").lower().replace("_", " ")


def _band(series: Mapping[str, tuple[Series, ...]], step: float) -> list[SeriesLine | Band]:
    at: list[dict[float, float]] = []
    for name in ("gpu_low", "gpu_middle", "gpu_high"):
        matching = series.get(name) or ()
        at.append(dict(matching[0].values) if matching else {})
    low, middle, high = at
    points = [(time, low[time], middle[time], high[time]) for time in sorted(middle) if time in low and time in high]
    return [Band("median of all GPUs, and their range", points, step)] if points else []


def _heat(history: model.History) -> Markup:
    by_place = history.series.get("gpu_by_place") or ()
    if not by_place:
        return Markup("")
    times = sorted({time for each in by_place for time, _ in each.values})
    rows = []
    for each in sorted(by_place, key=lambda series: model.natural(_place(series.labels))):
        at = dict(each.values)
        rows.append(plots.Strip(_place(each.labels), [at.get(time) for time in times]))
    what = "node" if "node" in by_place[0].labels else "pool"
    ends = (units.utc(times[0])[5:16], f"{units.utc(times[-1])[5:16]} UTC") if times else ("", "")
    return plots.heat_strips(f"GPU utilisation by {what}", rows, units.RATIO, ends=ends)


def _place(labels: Mapping[str, str]) -> str:
    return labels.get("node") or labels.get("pool") or "?"


# --- autoscaler, health service, runs -----


def _autoscaler(overview: Overview) -> Markup:
    status = overview.autoscaler.value
    if status is None:
        if overview.autoscaler.why:
            return _missing(overview.autoscaler.why)
        return tables.notice("No pool is elastic, so there is no autoscaler.", Tone.OFF)
    state = badge("paused", Tone.WARN) if status.get("paused") else _good(bool(status.get("healthy")))
    age = status.get("last_success_age")
    lead = tables.facts(
        [
            ("State", state),
            ("Last successful pass", f"{units.duration(age)} ago" if isinstance(age, int | float) else "none yet"),
            ("Paused", str(status.get("paused") or "")),
        ]
    )
    pools = [
        (
            name,
            pool.get("max_nodes"),
            _numbers(pool.get("instances")),
            _numbers(pool.get("nodes")),
            "baked image" if pool.get("baked") else "configured after boot",
            f"until {_clock(cool['until'])}: {cool['message']}" if (cool := pool.get("cool_down")) else None,
        )
        for name, pool in (status.get("pools") or {}).items()
    ]
    gangs = [
        (gang.get("jobs"), gang.get("attempts"), _clock(gang.get("next_try")), gang.get("message"))
        for gang in status.get("gangs") or ()
    ]
    columns: list[Column | str] = [
        "Pool",
        Column("At most", number=True),
        "Instances",
        "Slurm",
        "Nodes boot from",
        "Cool-down",
    ]
    waiting: list[Column | str] = ["Jobs", Column("Tries", number=True), "Next try", Column("What happened", long=True)]
    return joined(
        [
            lead,
            tables.table("Elastic pools", columns, pools, empty="It knows no pool."),
            element("h3", "Jobs that wait for nodes"),
            tables.table("Jobs that wait for nodes", waiting, gangs, empty="None.", most=_MOST_PENDING),
        ]
    )


def _clock(iso: object) -> str:
    """A time in UTC, readable."""
    return f"{str(iso)[:19].replace('T', ' ')} UTC" if iso else ""


def _good(good: bool) -> Markup:
    return badge("healthy", Tone.GOOD) if good else badge("not healthy", Tone.BAD)


def _numbers(by_state: Mapping[str, int] | None) -> str:
    return (
        ", ".join(f"{number} {state.lower().replace('_', ' ')}" for state, number in (by_state or {}).items()) or "none"
    )


def _health(overview: Overview) -> Markup:
    health = overview.health.value
    if health is None:
        return _missing(overview.health.why)
    lead = tables.facts(
        [
            ("Mode", badge("shadow", Tone.WARN) if health.shadow else badge("drains nodes", Tone.GOOD)),
            ("A report of each node", f"every {units.duration(health.interval)}"),
        ]
    )
    rows = []
    for each in reversed(health.decisions):
        words, tone = _DECISIONS.get(str(each.get("kind")), (str(each.get("kind")), Tone.UNKNOWN))
        wall = (each.get("at") or {}).get("wall")
        when = units.utc(wall) if isinstance(wall, int | float) else units.NOTHING
        checks = ", ".join(map(str, each.get("checks") or ()))
        rows.append((when, each.get("node"), badge(words, tone), checks, each.get("reason")))
    columns = ("When", "Node", "Decision", "Checks", Column("Reason", long=True))
    problems = joined(tables.notice(text, Tone.WARN) for text in health.problems)
    head = element("h3", "Last decisions")
    return lead + problems + head + tables.table("Decisions", columns, rows, empty="It has not decided anything yet.")


def _runs(overview: Overview) -> Markup:
    rows = [
        (
            run.id,
            run.command,
            badge(run.status, _RUNS.get(run.status, Tone.UNKNOWN)),
            run.started[:19].replace("T", " "),
            units.NOTHING if run.elapsed is None else units.duration(run.elapsed),
            run.error.split("\n")[0],
        )
        for run in overview.runs
    ]
    columns = ("Run", "Command", "Status", "Started (UTC)", "Took", Column("Error", long=True))
    return tables.table(
        "Runs of gpucluster on this machine", columns, rows, empty="This machine's log has no runs.", most=_MOST_RUNS,
        more="All of them: gpucluster runs --all",
    )  # fmt: skip


# --- cluster -----


def _cluster(overview: Overview) -> Markup:
    facts = overview.facts
    resources = [f"{number} {kind.replace('_', ' ')}" for kind, number in sorted((facts.resources or {}).items())]
    pairs = [
        ("Cloud", facts.cloud),
        ("Region", facts.region),
        ("Controller", facts.controller_shape),
        ("Slurm", facts.slurm_release),
        ("Monitoring", "on" if facts.monitoring else "off"),
    ]
    pools = [
        (
            pool.name,
            pool.shape,
            pool.partition,
            pool.count if pool.count == pool.max_count else f"{pool.count} to {pool.max_count}",
            pool.gpus or None,
            f"{pool.rdma_devices} x {pool.rdma_gbps:g} Gb/s" if pool.rdma_devices and pool.rdma_gbps else None,
        )
        for pool in overview.pools
    ]
    columns: list[Column | str] = [
        "Pool", "Shape", "Partition", Column("Nodes", number=True), Column("GPUs of a node", number=True),
        "RDMA of a node",
    ]  # fmt: skip
    sources = [
        (source.name, badge("no answer", Tone.UNKNOWN) if source.error else badge("answered", Tone.GOOD), source.error
         or source.time.replace("T", " ").replace("+00:00", " UTC"))
        for source in overview.sources
    ]  # fmt: skip
    return joined(
        [
            tables.facts(pairs),
            element("p", f"Resources in the cloud: {', '.join(resources)}.") if resources else "",
            tables.table("Pools", columns, pools),
            element("h3", "Who was asked"),
            tables.table("Sources", ("Source", "Answer", Column("When, or why not", long=True)), sources),
        ]
    )
