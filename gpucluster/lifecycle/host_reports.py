"""A physical host that is bad is reported to Oracle before its node is replaced, with evidence, and is remembered.

The tag is one word. What a support request asks for is in a file on this machine: the node, its instance, what failed,
and the id of the physical host. The id is in Terraform's state, so that any machine sees a host that comes back
(`returned_hosts`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucluster import __version__
from gpucluster.cloud.host_reports import HostReports
from gpucluster.errors import InputError
from gpucluster.events import Sink, info, warn
from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.checks.registry import of_hardware
from gpucluster.node_agent.rules.reasons import storable
from gpucluster.node_agent.rules.scrubbing import scrubbed
from gpucluster.oci.bad_host import BY_OPERATOR, bad_host, of_software
from gpucluster.oci.tags import HOST_TAG
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.spec import ClusterSpec
from gpucluster.workspace import evidence

# What hosts report that names no user: their own checks, and their versions.
_FACTS = ("agent_check", "versions")


@dataclass(frozen=True)
class HostFault:
    """A fault of a node's hardware.

    Args:
        reason: the failed checks, as text.
        findings: the failed checks, where this run has them.
    """

    reason: str
    findings: tuple[Finding, ...] = ()


def fault_of_findings(findings: Iterable[Finding]) -> HostFault | None:
    """The fault of the hardware that failed checks show; None if they show another one: what is wrong with a mount or a
    driver is not Oracle's. Pure."""
    failed = tuple(findings)
    if not any(each.check in of_hardware() and not of_software(each.message) for each in failed):
        return None
    return HostFault("; ".join(f"{each.check}: {each.message}" for each in failed), failed)


def fault_of_reason(reason: str) -> HostFault | None:
    """The same, from the reason of a node that is drained for its checks, or for those of an earlier instance on its
    physical host."""
    found = bad_host(reason, of_hardware())
    return HostFault(found) if found else None


def fault_of_report(text: str) -> HostFault:
    """The fault that an operator has seen, of a node that does not answer or whose checks show nothing.

    Args:
        text: what was seen, for a support request.

    Raises:
        InputError: it is empty.
    """
    if not text.strip():
        raise InputError("the report is empty", where="--report", hint="State what was seen, for Oracle's support")
    return HostFault(storable(f"{BY_OPERATOR} {text}"))


@dataclass(frozen=True)
class ReportedHost:
    """A physical host that was reported, or that a report was tried for.

    Args:
        node, instance: which node it had, and the OCID of the node's instance.
        reason: the fault.
        at: UTC (ISO 8601).
        proven: the OCIDs of later instances on it for which all checks have passed.
    """

    node: str
    instance: str
    reason: str
    at: str
    proven: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As Terraform's state has it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> ReportedHost | None:
        """From Terraform's state; None if it can't be read."""
        try:
            raw = bounded.loads(text)
            words = [raw[key] for key in ("node", "instance", "reason", "at")]
            proven = tuple(raw["proven"])
        except (KeyError, TypeError, ValueError):
            return None
        if not all(isinstance(each, str) for each in (*words, *proven)):
            return None
        node, instance, reason, at = words
        return cls(node, instance, reason, at, proven)


def returned(
    reported: Mapping[str, str], physical: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, ReportedHost]:
    """The nodes that are on a physical host that was reported for an earlier instance, and that have not passed all
    checks there. Pure.

    Args:
        reported: by the id of the physical host, as the state has it.
        physical: the id of the physical host by the instance's OCID.
        names: the node's name by its instance's OCID.
    """
    found = {}
    for ocid, name in names.items():
        record = ReportedHost.parse(reported.get(physical.get(ocid, ""), ""))
        if record is not None and ocid != record.instance and ocid not in record.proven:
            found[name] = record
    return found


class HostReporting:
    """Reports the physical hosts of one cluster's nodes.

    Args:
        reports: makes the client of the started cloud.
    """

    def __init__(
        self, *, spec: ClusterSpec, paths: ClusterPaths, reports: Callable[[], HostReports], on_event: Sink
    ) -> None:
        self._spec = spec
        self._paths = paths
        self._reports = reports
        self._on_event = on_event

    def report(
        self, faults: Mapping[str, HostFault], instances: Mapping[str, str], physical: Mapping[str, str]
    ) -> None:
        """Write the evidence against each of these nodes, and report its physical host. What the cloud refuses is a
        warning: the node is replaced in any case.

        Args:
            faults: by the node's name.
            instances: the OCID of each node's instance, by name. A node without one is left out.
            physical: the id of the physical host by the instance's OCID, where it is known.

        Raises:
            EnvironmentFault: the evidence can't be written. Nothing was reported.
        """
        for node in sorted(faults.keys() & instances.keys()):
            ocid = instances[node]
            host = physical.get(ocid, "")
            file = self._keep(node, faults[node], ocid, host, None)
            result = self._reports().report(ocid, node)
            self._keep(node, faults[node], ocid, host, result.instance, file, reported=result.reported, why=result.why)
            subject = f"node {node}"
            if result.reported:
                words = "was reported to Oracle already" if result.before else f"is reported to Oracle ({HOST_TAG})"
                info(self._on_event, subject, f"its physical host {words}. Evidence for a support request: {file}")
            else:
                text = f"its physical host is not reported to Oracle: {result.why}. The node is replaced nevertheless"
                following = f"{result.next}, and open" if result.next else "open"
                warn(self._on_event, subject, f"{text}. Next: {following} a support request with the evidence: {file}")

    def remember(
        self, faults: Mapping[str, HostFault], instances: Mapping[str, str], physical: Mapping[str, str]
    ) -> dict[str, str]:
        """What Terraform's state keeps of these physical hosts, by their ids. As `report`; changes nothing."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return {
            physical[ocid]: ReportedHost(node, ocid, str(scrubbed(faults[node].reason)), at).to_json()
            for node, ocid in instances.items()
            if node in faults and physical.get(ocid)
        }

    def _keep(
        self,
        node: str,
        fault: HostFault,
        ocid: str,
        host: str,
        instance: Mapping[str, Any] | None,
        file: Path | None = None,
        **outcome: Any,
    ) -> Path:
        """Write the evidence into a file that only the owner may read."""
        now = datetime.now(UTC)
        if file is None:
            file = self._paths.host_reports / f"{node}-{now:%Y%m%dT%H%M%SZ}.json"
        newest = evidence.newest(self._paths)
        last: Mapping[str, Any] = newest.content if newest else {}
        content = {
            "cluster": self._spec.name,
            "gpucluster": __version__,
            "written": now.isoformat(timespec="seconds"),
            "node": node,
            "physical_host": host or None,
            "instance": {"id": ocid, **(instance or {})},
            "tag": {"name": HOST_TAG, **outcome},
            "fault": fault.reason,
            "findings": [each.to_dict() for each in fault.findings] or _failures(last.get("results"), node),
            "facts": _facts(last.get("facts"), node),
        }
        write_private(file, json.dumps(scrubbed(content), indent=1, default=str) + "\n")
        return file


def _failures(results: Any, node: str) -> list[Any]:
    """What failed on a node in the last check of the cluster from this machine."""
    listed: Sequence[Any] = results if isinstance(results, list) else ()
    about = [each for each in listed if isinstance(each, Mapping) and each.get("subject") == node]
    return [each for each in about if each.get("status") == Status.FAIL.value]


def _facts(facts: Any, node: str) -> dict[str, Any]:
    of_node = facts.get(node) if isinstance(facts, Mapping) else None
    return {name: of_node[name] for name in _FACTS if name in of_node} if isinstance(of_node, Mapping) else {}
