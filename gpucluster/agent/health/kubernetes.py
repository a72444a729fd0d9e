"""The health service on a cluster with Kubernetes: reports come and drains go by the Node objects of the API.

A node writes its report into its own object, with the certificate of its kubelet: the API server lets a kubelet change
no other node's object (NodeRestriction), and no taint of its own. So a report needs no further port, no further secret,
and nobody but root of a node speaks for it. The condition `GpuclusterHealthy` is what the node says of itself. The
taint `gpucluster.io/unhealthy` is what the service on the controller decides: the breaker is in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Callable

from gpucluster.agent.checks.model import Finding, Report, Status
from gpucluster.agent.errors import AgentError, Failed
from gpucluster.agent.health import metrics
from gpucluster.agent.health.control import Control
from gpucluster.agent.health.policy import Moment, Node
from gpucluster.agent.health.settings import Settings
from gpucluster.agent.health.store import Store
from gpucluster.agent.kubernetes import faults, nodes
from gpucluster.agent.kubernetes.kubectl import ApiFailed, Kubectl, checked_name
from gpucluster.agent.rules import reasons
from gpucluster.agent.rules.unhealthy import EFFECT, REASON, TAINT, reason_of, taints

CONDITION = "GpuclusterHealthy"
#: The reason in the condition of a node that reports nothing any more.
SILENT = "NoReport"
#: Annotations with the last report of each profile: this and the name of the profile.
REPORT = "gpucluster.io/checks-"
#: Characters of a report, and of the words of one finding. All annotations of an object have 256 KiB.
LONGEST, _LONGEST_WORDS = 96 * 1024, 300
_LONGEST_CONDITION = 1000
_TRIES = 5
#: Seconds for which an API server may be away, or new: it refuses much until it has read all of its own objects.
_AWAY_S, _POLL_S = 120.0, 5.0


# --- the node -----


def publish(
    kubectl: Kubectl,
    report: Report,
    drains: Collection[str],
    now: float,
    name: str = "",
    wait: Callable[[float], None] = time.sleep,
    away_s: float = _AWAY_S,
) -> None:
    """Write a report of this host, and what it says of the host's health, into its Node object.

    Args:
        kubectl: with the rights of this host's kubelet.
        drains: the checks whose failure drains.
        now: Unix time in seconds.
        name: of this host's node in the API; empty: the name of the host.
        wait: waits some seconds.
        away_s: for which it is tried again.

    Raises:
        Failed: the API server does not take it, or does not answer.
    """
    name, until = checked_name(name or report.host), time.monotonic() + away_s

    def write() -> None:
        node = kubectl.get("node", name)
        notes = dict(node["metadata"].get("annotations") or {})
        # What was seen before the last boot is no evidence any more.
        former = [each for each in _reports(report.host, notes) if each.boot_id == report.boot_id]
        kept = {each.profile: each for each in former} | {report.profile: report}
        notes = {key: value for key, value in notes.items() if not key.startswith(REPORT)}
        notes.update({f"{REPORT}{each.profile.value}": _text(each) for each in kept.values()})
        noted = {**node, "metadata": {**node["metadata"], "annotations": notes}}
        _write_condition(kubectl, noted, condition(kept.values(), drains, _condition(node), now))

    while True:
        try:
            _again_after_conflicts(write)
        except AgentError:
            if time.monotonic() > until:
                raise
            wait(_POLL_S)
        else:
            return


def condition(
    reports: Collection[Report], drains: Collection[str], before: Mapping[str, Any], now: float
) -> dict[str, str]:
    """The condition of a node with these reports. Pure.

    Args:
        before: the condition as it is; its time of change stays while the status stays.
    """
    latest: dict[str, Finding] = {}
    for report in sorted(reports, key=lambda each: each.started):
        latest.update({each.check: each for each in report.findings if each.subject == report.host})
    found = [each for check, each in sorted(latest.items()) if check in drains or check == "profile"]
    failed = [each for each in found if each.status is Status.FAIL]
    unknown = [each for each in found if each.status is Status.UNKNOWN]
    passed = [each for each in found if each.status in (Status.PASS, Status.WARN)]
    if failed:
        status, reason, said = "False", "ChecksFailed", failed
    elif unknown and not passed:
        status, reason, said = "Unknown", "ChecksUnknown", unknown
    else:
        status, reason, said = "True", "ChecksPassed", unknown
    words = "; ".join(f"{each.check}: {each.message}" for each in said)
    if said is unknown and words:
        words = f"not known: {words}"
    at = _utc(now)
    changed = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": CONDITION, "status": status, "reason": reason, "message": words[:_LONGEST_CONDITION],
        "lastHeartbeatTime": at, "lastTransitionTime": changed or at,
    }  # fmt: skip


def silent(before: Mapping[str, Any], since: float, now: float) -> dict[str, str]:
    """The condition of a node that reports nothing any more. Pure.

    Args:
        before: the condition as it is.
        since: when the last report came, in Unix seconds.
    """
    return {
        "type": CONDITION, "status": "Unknown", "reason": SILENT,
        "message": f"no report of this node's checks since {_utc(since)}",
        "lastHeartbeatTime": str(before.get("lastHeartbeatTime") or _utc(since)),
        "lastTransitionTime": _utc(now),
    }  # fmt: skip


def _condition(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our condition of a node; empty if it has none."""
    found = (node.get("status") or {}).get("conditions") or []
    return next((each for each in found if each.get("type") == CONDITION), {})


def _write_condition(kubectl: Kubectl, node: Mapping[str, Any], fresh: Mapping[str, str]) -> None:
    name, status = node["metadata"]["name"], node.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each.get("type") != CONDITION]
    whole = {**node, "status": {**status, "conditions": [*others, fresh]}}
    # kubectl has --subresource from 1.24 on only.
    words = ["replace", f"--raw=/api/v1/nodes/{name}/status", "--filename=-"]
    kubectl.run(*words, text=json.dumps(whole), where=f"node {name}")


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _text(report: Report) -> str:
    """A report as an annotation: without evidence, which `gpucluster-agent check` shows on the node."""
    raw = report.to_dict()
    for finding in raw["findings"]:
        finding.update(message=finding["message"][:_LONGEST_WORDS], evidence={})
    return json.dumps(raw)


def _reports(host: str, notes: Mapping[str, str]) -> Iterator[Report]:
    """The reports in the annotations of a host's node. One that can't be read, or is of another host, is left out."""
    for key, text in notes.items():
        if not key.startswith(REPORT) or len(text) > LONGEST:
            continue
        try:
            report = Report.from_dict(json.loads(text))
        except (AttributeError, TypeError, ValueError, RecursionError):
            continue
        if report.host == host and key == f"{REPORT}{report.profile.value}":
            yield report


# --- the controller -----


def reports_of(found: Collection[Mapping[str, Any]]) -> list[Report]:
    """What nodes have reported last, by each profile."""
    reports: list[Report] = []
    for host, node in nodes.by_host(found).items():
        reports += _reports(host, node["metadata"].get("annotations") or {})
    return reports


class KubernetesNodes:
    """Nodes as the health service has them, and the taint; the place of Slurm on such a cluster.

    Args:
        kubectl: with the rights of `kubernetes.health_access`.
        pool_of: the pool of a node.
    """

    def __init__(self, kubectl: Kubectl, pool_of: Callable[[str], str]) -> None:
        self._kubectl, self._pool_of = kubectl, pool_of

    def nodes(self, *names: str) -> dict[str, Node]:
        """All nodes, or those with these names."""
        found = nodes.by_host(self._kubectl.list("nodes"))
        return {host: self._node(host, each) for host, each in found.items() if not names or host in names}

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

        _again_after_conflicts(write)

    def undrain(self, node: str) -> None:
        """Remove our taint, and nothing else."""

        def write() -> None:
            now = nodes.find(self._kubectl, node)
            if reason_of(now):
                self._write(now, _others(now), None)

        _again_after_conflicts(write)

    def say_silent(self, seen: Mapping[str, Any], since: float, now: float) -> None:
        """Let the condition of a node say that its last report is too old.

        Args:
            seen: the node as it was when that was decided: one that has reported meanwhile is left alone.
            since: when the last report came, in Unix seconds. `now`: the present time.
        """

        def write() -> None:
            found = self._kubectl.get("node", seen["metadata"]["name"])
            if _condition(found) == _condition(seen):
                _write_condition(self._kubectl, found, silent(_condition(found), since, now))

        _again_after_conflicts(write)

    def all(self) -> list[dict[str, Any]]:
        """The nodes as the API has them."""
        return self._kubectl.list("nodes")

    def _write(self, node: Mapping[str, Any], wanted: list[dict[str, str]], reason: str | None) -> None:
        # With the version, so that a taint that somebody sets right now is not lost.
        meta = {"annotations": {REASON: reason}, "resourceVersion": node["metadata"]["resourceVersion"]}
        self._kubectl.patch("node", node["metadata"]["name"], {"metadata": meta, "spec": {"taints": wanted or None}})

    def _node(self, host: str, node: Mapping[str, Any]) -> Node:
        told = nodes.described(node)
        flags, reason = set(), ""
        if _tainted(node):
            flags.add("DRAIN")
            reason = reason_of(node) or f"somebody else's taint {TAINT}"
        elif told["cordoned"]:
            flags.add("DRAIN")
            reason = told["reason"] or "cordoned by an administrator"
        if told["ready"] != "True":
            flags.add("DOWN")
        machine = str(((node.get("status") or {}).get("nodeInfo") or {}).get("systemUUID", ""))
        return Node(host, self._pool_of(host), frozenset(flags), reason, machine)


def _others(node: Mapping[str, Any]) -> list[dict[str, str]]:
    return [each for each in taints(node) if (each.get("key"), each.get("effect")) != (TAINT, EFFECT)]


def _tainted(node: Mapping[str, Any]) -> bool:
    return any(each.get("key") == TAINT for each in taints(node))


def _again_after_conflicts(write: Callable[[], None]) -> None:
    """A kubelet and others write the same object."""
    for attempt in range(1, _TRIES + 1):
        try:
            write()
            return
        except ApiFailed as error:
            if error.kind != faults.CONFLICT or attempt == _TRIES:
                raise


class Follower:
    """Reads what nodes report, and makes a pass when something calls for it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
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
            found = self._cluster.all()
        except AgentError:
            self._write_metrics(None)
            raise
        for report in reports_of(found):
            known = self._store.reports().get(report.host, {}).get(report.profile.value)
            if known is None or (known.report.started, known.report.boot_id) != (report.started, report.boot_id):
                self._store.keep(report.host, report, self._moment())
        if not self._control.is_quiet():
            self._control.run()
        self._name_silent(found)
        self._write_metrics(
            {host: nodes.described(node)["ready"] == "True" for host, node in nodes.by_host(found).items()}
        )

    def _write_metrics(self, ready: Mapping[str, bool] | None) -> None:
        """Write the file of metrics, also where the API server does not answer: that is what it says then."""
        more = metrics.of_kubernetes(ready, self._settings.pool_of)
        metrics.write(self._store, self._settings, self._drains, self._moment(), more)

    def _name_silent(self, found: Collection[Mapping[str, Any]]) -> None:
        """Nothing follows from reports that are too old, so the condition must not go on saying that checks passed."""
        now = self._moment()
        for host, node in nodes.by_host(found).items():
            last, said = self._store.last(host, now), _condition(node)
            age = 0.0 if last is None else now.since(last.at)
            if not said or said.get("reason") == SILENT or age <= self._store.stale_after:
                continue
            try:
                self._cluster.say_silent(node, now.wall - age, now.wall)
            except ApiFailed as error:
                # It may have been deleted meanwhile.
                if error.kind != faults.NOT_FOUND:
                    raise
