"""What the health service knows, for Prometheus (a file for the node exporter) and for `health status`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Callable

from gpucluster.controller.health import policy
from gpucluster.controller.health.journal import to_dict
from gpucluster.controller.health.policy import Moment, RecordKind, SchedulerNode
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.health.store import ReportStore
from gpucluster.controller.maintenance.events import NODE, OPEN
from gpucluster.node_agent.checks.model import Status, worst
from gpucluster.node_agent.durable_file import replace

_DECISIONS = 20
_HELP = {
    "gpucluster_health_written_timestamp_seconds": "When this file was written.",
    "gpucluster_health_interval_seconds": "Seconds between two periodic reports of a node.",
    "gpucluster_health_report_timestamp_seconds": "When the last report of a node came.",
    "gpucluster_health_check": "1 for the present status of a check on a node.",
    "gpucluster_health_drained": "1 if failed checks drained the node; the kind shows who decides on it.",
    "gpucluster_health_drains_last_hour": "How many nodes of a pool were drained for their checks in the last hour.",
    "gpucluster_health_shadow": "1 in shadow mode: drains are reported, and not done.",
    "gpucluster_maintenance_listed_timestamp_seconds": "When the cloud's events of maintenance were last listed.",
    "gpucluster_maintenance_start_timestamp_seconds": "When the window of an open maintenance of a host begins.",
    "gpucluster_maintenance_end_timestamp_seconds": "When the host is back from it, at the latest.",
    "gpucluster_maintenance_reserved": "1 if Slurm has a reservation for the maintenance of a node, else 0.",
    "gpucluster_maintenance_jobs": "How many running jobs the maintenance of a node would end.",
    "gpucluster_kubernetes_up": "With Kubernetes: 1 if the API server answered the last time.",
    "gpucluster_kubernetes_node_ready": "With Kubernetes: 1 if a node is ready. Absent while the API server is silent.",
}


def status(
    store: ReportStore,
    settings: HealthSettings,
    drains: Collection[str],
    now: Moment,
    nodes: Mapping[str, SchedulerNode],
) -> Any:
    """What `health status` prints, as a JSON object.

    Args:
        nodes: as Slurm has them; empty where it does not answer.
    """
    journal = store.journal.read()
    evidence = store.evidence(now, drains)
    drained = {record.node: record for record in _open(journal)}
    rows = []
    for name in sorted({*store.reports(), *(name for name, node in nodes.items() if not node.away)}):
        last, node = store.last(name, now), nodes.get(name)
        age = now.since(last.at) if last else None
        results = [each for each in evidence if each.node == name]
        rows.append(
            {
                "node": name,
                "pool": settings.pool_of(name),
                "age_s": None if age is None else round(age, 1),
                "stale": age is None or age > store.stale_after,
                "profile": last.report.profile.value if last else None,
                "status": worst(each.status for each in results).value,
                "failing": [
                    {"check": each.check, "message": each.message, "drains": each.drains}
                    for each in results
                    if each.status is Status.FAIL
                ],
                "warnings": [
                    {"check": each.check, "message": each.message} for each in results if each.status is Status.WARN
                ],
                "drained": node.reason if node is not None and node.ours else "",
                "person": name in drained and drained[name].kind is RecordKind.PERSON,
            }
        )
    breakers = policy.breakers(now, nodes, journal, settings.policy)
    return {
        "version": 1,
        "slurm": settings.slurm,
        "shadow": settings.shadow,
        "interval_s": settings.interval,
        "nodes": rows,
        "breakers": [
            {"pool": pool, "drained": each.drained, "limit": each.limit, "open": each.open}
            for pool, each in sorted(breakers.items())
        ],
        "suspects": [
            {"pool": pool, "check": check, "nodes": count}
            for (pool, check), count in sorted(policy.suspects(nodes, evidence).items())
        ],
        "decisions": [to_dict(record) for record in journal[-_DECISIONS:]],
    }


Sample = tuple[str, tuple[tuple[str, str], ...], str]


def of_kubernetes(ready: Mapping[str, bool] | None, pool_of: Callable[[str], str]) -> Iterator[Sample]:
    """What is measured of Kubernetes itself. Pure.

    Args:
        ready: by host, whether its node is ready; None: the API server does not answer.
        pool_of: the pool of a host.
    """
    yield "gpucluster_kubernetes_up", (), str(int(ready is not None))
    for host, is_ready in (ready or {}).items():
        labels = (("node", host), ("pool", pool_of(host)))
        yield "gpucluster_kubernetes_node_ready", labels, str(int(is_ready))


def write(
    store: ReportStore, settings: HealthSettings, drains: Collection[str], now: Moment, more: Iterable[Sample] = ()
) -> None:
    """Write the file of metrics.

    Args:
        more: further samples.
    """
    samples = sorted([*_samples(store, settings, drains, now), *more])
    lines = []
    for name, text in _HELP.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(labels)} {value}" for metric, labels, value in samples if metric == name]
    replace(store.folder / "metrics.prom", "\n".join(lines) + "\n", mode=0o644, durable=False)


def _samples(store: ReportStore, settings: HealthSettings, drains: Collection[str], now: Moment) -> Iterator[Sample]:
    yield "gpucluster_health_written_timestamp_seconds", (), f"{now.wall:.3f}"
    yield "gpucluster_health_interval_seconds", (), f"{settings.interval:g}"
    yield "gpucluster_health_shadow", (), str(int(settings.shadow))
    for node in store.reports():
        last = store.last(node, now)
        if last is not None:
            of = (("node", node), ("pool", settings.pool_of(node)))
            yield "gpucluster_health_report_timestamp_seconds", of, f"{now.wall - now.since(last.at):.3f}"
    for each in store.evidence(now, drains):
        labels = (("node", each.node), ("check", each.check), ("status", each.status.value))
        yield "gpucluster_health_check", labels, "1"
    journal = store.journal.read()
    for record in _open(journal):
        yield "gpucluster_health_drained", (("node", record.node), ("kind", record.kind.value)), "1"
    recent: dict[str, int] = {}
    for record in journal:
        if record.kind in (RecordKind.DRAIN, RecordKind.PERSON):
            recent[record.pool] = recent.get(record.pool, 0) + (now.since(record.at) < policy.WINDOW)
    for pool, count in recent.items():
        yield "gpucluster_health_drains_last_hour", (("pool", pool),), str(count)


def of_maintenance(content: Mapping[str, Any] | None) -> Iterator[Sample]:
    """What is measured of maintenance. Pure.

    Args:
        content: as `maintenance.control.status` returns it.
    """
    if content is None:
        return
    yield "gpucluster_maintenance_listed_timestamp_seconds", (), f"{content['listed_at']:.0f}"
    for row in content["events"]:
        if row["state"] not in OPEN:
            continue
        labels = tuple((name, str(row[name])) for name in ("host", "role", "state", "action"))
        labels = (*labels, ("event", str(row["id"])[-12:]))
        yield "gpucluster_maintenance_start_timestamp_seconds", labels, f"{row['start']:.0f}"
        yield "gpucluster_maintenance_end_timestamp_seconds", labels, f"{row['end']:.0f}"
        if row["interrupts"] and row["role"] == NODE:
            yield "gpucluster_maintenance_reserved", labels, str(int(bool(row["reservation"])))
            yield "gpucluster_maintenance_jobs", labels, str(len(row["jobs"]))


def _open(journal: Collection[policy.JournalRecord]) -> list[policy.JournalRecord]:
    """The drains that are in force."""
    names = policy.open_drains(journal)
    last = {record.node: record for record in journal if record.kind in (RecordKind.DRAIN, RecordKind.PERSON)}
    return [record for name, record in sorted(last.items()) if name in names]


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels) + "}" if labels else ""
