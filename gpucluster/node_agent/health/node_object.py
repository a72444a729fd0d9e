"""What a node of Kubernetes writes into its own Node object: the reports of its checks, and a condition.

With the certificate of its kubelet: the API server lets a kubelet change no other node's object (NodeRestriction), and
no taint of its own. So a report needs no further port, no further secret, and only root of a node reports for it.
The condition `GpuclusterHealthy` is what the node reports of itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Callable

from gpucluster.node_agent.checks.model import Finding, HostReport, Status
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl, checked_name

CONDITION = "GpuclusterHealthy"
#: Annotations with the last report of each profile: this and the name of the profile.
REPORT = "gpucluster.io/checks-"
#: Characters of a report, and of the words of one finding. All annotations of an object have 256 KiB.
LONGEST, _LONGEST_WORDS = 96 * 1024, 300
_LONGEST_CONDITION = 1000
_TRIES = 5
#: Seconds for which an API server may be away, or new: it refuses much until it has read all of its own objects.
_AWAY_S, _POLL_S = 120.0, 5.0


def publish(
    kubectl: Kubectl,
    report: HostReport,
    drains: Collection[str],
    now: float,
    name: str = "",
    wait: Callable[[float], None] = time.sleep,
    away_s: float = _AWAY_S,
) -> None:
    """Write a report of this host, and its result for the host's health, into its Node object.

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
        # What was seen before the last boot no longer counts.
        former = [each for each in reports_in(report.host, notes) if each.boot_id == report.boot_id]
        kept = {each.profile: each for each in former} | {report.profile: report}
        notes = {key: value for key, value in notes.items() if not key.startswith(REPORT)}
        notes.update({f"{REPORT}{each.profile.value}": _text(each) for each in kept.values()})
        noted = {**node, "metadata": {**node["metadata"], "annotations": notes}}
        write_condition(kubectl, noted, condition(kept.values(), drains, condition_of(node), now))

    while True:
        try:
            again_after_conflicts(write)
        except AgentError:
            if time.monotonic() > until:
                raise
            wait(_POLL_S)
        else:
            return


def condition(
    reports: Collection[HostReport], drains: Collection[str], before: Mapping[str, Any], now: float
) -> dict[str, str]:
    """The condition of a node with these reports. Pure.

    Args:
        before: the condition as it is; its time of change stays while the status stays.
    """
    latest: dict[str, Finding] = {}
    for report in sorted(reports, key=lambda each: each.started):
        latest.update({each.check: each for each in report.findings if each.subject == report.host})
    findings = [each for check, each in sorted(latest.items()) if check in drains or check == "profile"]
    failed = [each for each in findings if each.status is Status.FAIL]
    unknown = [each for each in findings if each.status is Status.UNKNOWN]
    passed = [each for each in findings if each.status in (Status.PASS, Status.WARN)]
    if failed:
        status, reason, basis = "False", "ChecksFailed", failed
    elif unknown and not passed:
        status, reason, basis = "Unknown", "ChecksUnknown", unknown
    else:
        status, reason, basis = "True", "ChecksPassed", unknown
    words = "; ".join(f"{each.check}: {each.message}" for each in basis)
    if basis is unknown and words:
        words = f"not known: {words}"
    at = utc(now)
    changed = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": CONDITION, "status": status, "reason": reason, "message": words[:_LONGEST_CONDITION],
        "lastHeartbeatTime": at, "lastTransitionTime": changed or at,
    }  # fmt: skip


def condition_of(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our condition of a node; empty if it has none."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == CONDITION), {})


def write_condition(kubectl: Kubectl, node: Mapping[str, Any], fresh: Mapping[str, str]) -> None:
    """Replace our condition of a node in the API, and leave the others alone."""
    name, status = node["metadata"]["name"], node.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each.get("type") != CONDITION]
    whole = {**node, "status": {**status, "conditions": [*others, fresh]}}
    # kubectl has --subresource from 1.24 on only.
    words = ["replace", f"--raw=/api/v1/nodes/{name}/status", "--filename=-"]
    kubectl.run(*words, text=json.dumps(whole), where=f"node {name}")


def utc(seconds: float) -> str:
    """A moment in Unix seconds, as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _text(report: HostReport) -> str:
    """A report as an annotation: without evidence, which `gpucluster-agent check` shows on the node."""
    raw = report.to_dict()
    for finding in raw["findings"]:
        finding.update(message=finding["message"][:_LONGEST_WORDS], evidence={})
    return json.dumps(raw)


def reports_in(host: str, notes: Mapping[str, str]) -> Iterator[HostReport]:
    """The reports in the annotations of a host's node. One that can't be read, or is of another host, is left out."""
    for key, text in notes.items():
        if not key.startswith(REPORT) or len(text) > LONGEST:
            continue
        try:
            report = HostReport.from_dict(json.loads(text))
        except (AttributeError, TypeError, ValueError, RecursionError):
            continue
        if report.host == host and key == f"{REPORT}{report.profile.value}":
            yield report


def again_after_conflicts(write: Callable[[], None]) -> None:
    """Write again where another program has written the same object meanwhile: a kubelet does.

    Raises:
        ApiFailed: of another kind than `faults.CONFLICT`, or at the last try.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            write()
            return
        except ApiFailed as error:
            if error.kind != faults.CONFLICT or attempt == _TRIES:
                raise
