"""A new instance may be on a physical host that was found bad. Its node takes no jobs until all checks passed.

Oracle repairs a host that was reported, and then gives it out again; or it gives out one that is still bad. The id
alone does not show which, and a fault that comes and goes is not there when it is looked for once. So a host that came
back gets the checks of level full, which need it for itself, before its first job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpucluster import handover
from gpucluster.events import Event, EventKind, Sink, warn
from gpucluster.lifecycle.host_reports import ReportedHost, returned
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.lifecycle.provision import Provisioning
from gpucluster.lifecycle.verification import OF_NODES_IN_SERVICE, Verification, VerifyRequest
from gpucluster.node_agent.rules.reasons import RETURNED, storable
from gpucluster.operations.drain import Draining
from gpucluster.terraform.runner import Terraform
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.verdict import problems_of
from gpucluster.workspace.run import Run


class ReturnedHosts:
    """Keeps nodes on physical hosts that were reported out of service until their checks have passed.

    Args:
        draining: takes nodes out of service; None where the scheduler is not Slurm: then it is only a warning.
    """

    def __init__(
        self, *, draining: Draining | None, provisioning: Provisioning, verification: Verification, on_event: Sink
    ) -> None:
        self._draining = draining
        self._provisioning = provisioning
        self._verification = verification
        self._on_event = on_event

    def examine(self, run: Run, terraform: Terraform, deployment: Deployment) -> None:
        """Check the nodes that are on such a host, and let those in that pass. The others stay drained, with the
        reason. May be killed at any point: the next apply finds them again.

        Args:
            terraform: of this run, after its `apply`; its state has the ids of the physical hosts.

        Raises:
            ToolError: Slurm does not answer.
        """
        identity = handover.Identity.parse(terraform.outputs())
        names = {node.id: node.name for members in deployment.members.values() for node in members}
        found = returned(identity.reported_hosts, identity.physical_hosts, names)
        if not found:
            return
        for name, record in found.items():
            text = (
                f"it is on the physical host that node {record.node} had, which was found bad at {record.at} "
                f"({record.reason})"
            )
            warn(self._on_event, f"node {name}", text)
        if self._draining is None:
            return
        self._draining.hold({name: storable(f"{RETURNED} {record.reason}") for name, record in found.items()})
        with run.phase("full checks"):
            request = VerifyRequest(
                level=Level.FULL, nodes=",".join(sorted(found)), leave_out=OF_NODES_IN_SERVICE, measured=False
            )
            outcomes = problems_of(self._verification.verdict(deployment, run, request), found)
        good = [name for name, why in outcomes.items() if not why]
        self._let_in(terraform, {name: found[name] for name in good}, {name: ocid for ocid, name in names.items()})
        for name in found.keys() - {*good}:
            text = f"stays out of service on that physical host: {outcomes[name]}. Next: gpucluster replace {name}"
            warn(self._on_event, f"node {name}", text)

    def _let_in(self, terraform: Terraform, good: Mapping[str, ReportedHost], instances: Mapping[str, str]) -> None:
        if not good or self._draining is None:
            return
        identity = handover.Identity.parse(terraform.outputs())
        proven = {
            identity.physical_hosts[instances[name]]: replace(record, proven=(*record.proven, instances[name]))
            for name, record in good.items()
        }
        texts = {host: record.to_json() for host, record in proven.items()}
        self._provisioning.record(terraform, reported_hosts={**identity.reported_hosts, **texts})
        self._draining.end_hold(good)
        for name in good:
            text = "all checks have passed on that physical host"
            self._on_event(Event(EventKind.RESOURCE, f"node {name}", "resumed", text))
