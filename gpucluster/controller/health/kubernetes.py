"""The health service on a cluster with Kubernetes: reports come and drains go by the Node objects of the API.

Nodes write their reports into their own objects (`health.node_object`). The taint `gpucluster.io/unhealthy` is what the
service on the controller decides: the breaker is in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Callable

from gpucluster.controller.health import metrics
from gpucluster.controller.health.control import Control
from gpucluster.controller.health.policy import Moment, SchedulerNode
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.health.store import ReportStore
from gpucluster.controller.kubernetes import nodes
from gpucluster.controller.rules.unhealthy import EFFECT, REASON, TAINT, reason_of, taints
from gpucluster.node_agent.checks.model import HostReport
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.health.node_object import (
    CONDITION,
    again_after_conflicts,
    condition_of,
    reports_in,
    utc,
    write_condition,
)
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from gpucluster.node_agent.rules import reasons

#: The reason in the condition of a node that reports nothing any more.
SILENT = "NoReport"


def silent(before: Mapping[str, Any], since: float, now: float) -> dict[str, str]:
    """The condition of a node that reports nothing any more. Pure.

    Args:
        before: the condition as it is.
        since: when the last report came, in Unix seconds.
    """
    return {
        "type": CONDITION, "status": "Unknown", "reason": SILENT,
        "message": f"no report of this node's checks since {utc(since)}",
        "lastHeartbeatTime": str(before.get("lastHeartbeatTime") or utc(since)),
        "lastTransitionTime": utc(now),
    }  # fmt: skip


def reports_of(node_objects: Collection[Mapping[str, Any]]) -> list[HostReport]:
    """What nodes have reported last, by each profile."""
    reports: list[HostReport] = []
    for host, node in nodes.by_host(node_objects).items():
        reports += reports_in(host, node["metadata"].get("annotations") or {})
    return reports


class KubernetesNodes:
    """Nodes as the health service has them, and the taint; the place of Slurm on such a cluster.

    Args:
        kubectl: with the rights of `kubernetes.health_access`.
        pool_of: the pool of a node.
    """

    def __init__(self, kubectl: Kubectl, pool_of: Callable[[str], str]) -> None:
        self._kubectl, self._pool_of = kubectl, pool_of

    def nodes(self, *names: str) -> dict[str, SchedulerNode]:
        """All nodes, or those with these names."""
        objects = nodes.by_host(self._kubectl.list("nodes"))
        return {host: self._node(host, each) for host, each in objects.items() if not names or host in names}

    def addresses(self) -> Mapping[str, str]:
        """None: no report comes from an address."""
        return {}

    def drain(self, node: str, reason: str) -> None:
        """Let no new pod start on a node, by a taint. Pods that tolerate it, and those that run, stay."""

        def write() -> None:
            now = nodes.find(self._kubectl, node)
            if _tainted(now) and not reason_of(now):
                raise Failed(f"{node} has a taint {TAINT} that is not of the health service: it is not changed")
            taint = {"key": TAINT, "value": reasons.first_check(reason), "effect": EFFECT}
            self._write(now, [*_others(now), taint], reason)

        again_after_conflicts(write)

    def undrain(self, node: str) -> None:
        """Remove our taint, and nothing else."""

        def write() -> None:
            now = nodes.find(self._kubectl, node)
            if reason_of(now):
                self._write(now, _others(now), None)

        again_after_conflicts(write)

    def reboot(self, node: str) -> None:
        """Never asked for: the settings have no reboots with Kubernetes."""
        raise Failed(f"{node} is not rebooted: only Slurm reboots nodes")

    def say_silent(self, seen: Mapping[str, Any], since: float, now: float) -> None:
        """Set the condition of a node to: its last report is too old.

        Args:
            seen: the node as it was when that was decided: one that has reported meanwhile is left alone.
            since: when the last report came, in Unix seconds. `now`: the present time.
        """

        def write() -> None:
            node = self._kubectl.get("node", seen["metadata"]["name"])
            if condition_of(node) == condition_of(seen):
                write_condition(self._kubectl, node, silent(condition_of(node), since, now))

        again_after_conflicts(write)

    def all(self) -> list[dict[str, Any]]:
        """The nodes as the API has them."""
        return self._kubectl.list("nodes")

    def _write(self, node: Mapping[str, Any], taint_list: list[dict[str, str]], reason: str | None) -> None:
        # With the version, so that a taint that another program sets at the same time is not lost.
        meta = {"annotations": {REASON: reason}, "resourceVersion": node["metadata"]["resourceVersion"]}
        self._kubectl.patch(
            "node", node["metadata"]["name"], {"metadata": meta, "spec": {"taints": taint_list or None}}
        )

    def _node(self, host: str, node: Mapping[str, Any]) -> SchedulerNode:
        description = nodes.described(node)
        flags, reason = set(), ""
        if _tainted(node):
            flags.add("DRAIN")
            reason = reason_of(node) or f"the taint {TAINT}, which gpucluster did not set"
        elif description["cordoned"]:
            flags.add("DRAIN")
            reason = description["reason"] or "cordoned by an administrator"
        if description["ready"] != "True":
            flags.add("DOWN")
        machine = str(((node.get("status") or {}).get("nodeInfo") or {}).get("systemUUID", ""))
        return SchedulerNode(host, self._pool_of(host), frozenset(flags), reason, machine)


def _others(node: Mapping[str, Any]) -> list[dict[str, str]]:
    return [each for each in taints(node) if (each.get("key"), each.get("effect")) != (TAINT, EFFECT)]


def _tainted(node: Mapping[str, Any]) -> bool:
    return any(each.get("key") == TAINT for each in taints(node))


class Follower:
    """Reads what nodes report, and makes a pass when something calls for it."""

    def __init__(
        self,
        settings: HealthSettings,
        store: ReportStore,
        cluster: KubernetesNodes,
        control: Control,
        *,
        drains: Collection[str],
        moment: Callable[[], Moment],
    ) -> None:
        self._settings, self._store, self._cluster, self._control = settings, store, cluster, control
        self._drains, self._moment = drains, moment

    def tick(self) -> None:
        """Keep what is new, decide, and write the metrics.

        Raises:
            Failed: the API server does not answer, or does not take a change.
        """
        try:
            node_objects = self._cluster.all()
        except AgentError:
            self._write_metrics(None)
            raise
        for report in reports_of(node_objects):
            known = self._store.reports().get(report.host, {}).get(report.profile.value)
            if known is None or (known.report.started, known.report.boot_id) != (report.started, report.boot_id):
                self._store.keep(report.host, report, self._moment())
        if not self._control.is_quiet():
            self._control.run()
        self._name_silent(node_objects)
        self._write_metrics(
            {host: nodes.described(node)["ready"] == "True" for host, node in nodes.by_host(node_objects).items()}
        )

    def _write_metrics(self, ready: Mapping[str, bool] | None) -> None:
        """Write the file of metrics, also where the API server does not answer: then it has only that."""
        more = metrics.of_kubernetes(ready, self._settings.pool_of)
        metrics.write(self._store, self._settings, self._drains, self._moment(), more)

    def _name_silent(self, node_objects: Collection[Mapping[str, Any]]) -> None:
        """Nothing follows from reports that are too old, so the condition must no longer be that checks passed."""
        now = self._moment()
        for host, node in nodes.by_host(node_objects).items():
            last, present_condition = self._store.last(host, now), condition_of(node)
            age = 0.0 if last is None else now.since(last.at)
            if not present_condition or present_condition.get("reason") == SILENT or age <= self._store.stale_after:
                continue
            try:
                self._cluster.say_silent(node, now.wall - age, now.wall)
            except ApiFailed as error:
                # It may have been deleted meanwhile.
                if error.kind != faults.NOT_FOUND:
                    raise
