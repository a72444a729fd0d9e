"""Change a cluster's resources and configure its hosts, in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster import handover
from gpucluster.configuration.runner import PlaybookResult
from gpucluster.events import Sink, warn
from gpucluster.lifecycle.configure import Configuration
from gpucluster.lifecycle.duration import Work
from gpucluster.lifecycle.failover import Failover
from gpucluster.lifecycle.host_reports import HostFault
from gpucluster.lifecycle.hosts import Deployment, HostConnections
from gpucluster.lifecycle.plan import refuse_what_stays
from gpucluster.lifecycle.provision import Consent, Provisioning
from gpucluster.lifecycle.resize import Resizing
from gpucluster.lifecycle.result import RunResult
from gpucluster.lifecycle.returned_hosts import ReturnedHosts
from gpucluster.lifecycle.verification import HostFacts, Verification
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.controller_state import ControllerState
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.runner import Terraform
from gpucluster.verdict.verdict import Verdict
from gpucluster.workspace.login_keys import LoginKeys
from gpucluster.workspace.run import Run
from gpucluster.workspace.run_log import RunStatus


@dataclass(frozen=True)
class Built:
    """A cluster whose hosts a run has configured.

    Args:
        changes: how many resources were changed, by the action.
        facts: what the hosts reported at the end of the configuration; None if they are in another state by now.
    """

    deployment: Deployment
    configured: PlaybookResult
    changes: Mapping[str, int] = field(default_factory=dict)
    facts: HostFacts | None = None


class Building:
    """Builds one cluster."""

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        controller: ControllerConnection,
        record: ConfigurationRecord,
        hosts: HostConnections,
        provisioning: Provisioning,
        configuration: Configuration,
        verification: Verification,
        resizing: Resizing,
        returned_hosts: ReturnedHosts,
        login_keys: LoginKeys,
        state: ControllerState,
        failover: Failover,
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._state = state
        self._failover = failover
        self._controller = controller
        self._record = record
        self._hosts = hosts
        self._provisioning = provisioning
        self._configuration = configuration
        self._verification = verification
        self._resizing = resizing
        self._returned_hosts = returned_hosts
        self._login_keys = login_keys
        self._on_event = on_event

    def build(self, terraform: Terraform, run: Run, consent: Consent, *, all_tasks: bool = False) -> Built:
        """Change the resources, and configure the hosts.

        Args:
            all_tasks: run every task on the hosts, also where nothing has changed.

        Raises:
            GpuClusterError: see `errors`; what was built stays, and the next run continues from there.
        """
        before = refuse_what_stays(self._spec, self._controller, self._record)
        first = not terraform.outputs().get("cluster")
        self._failover.resume(terraform, run)
        changes = self._provisioning.apply(terraform, run, consent)
        self._failover.prepare(terraform)
        deployment = self._hosts.reach(run)
        if self._spec.controller.has_state_volume:
            with run.phase("state volume"):
                address = deployment.outputs.service.address if deployment.standby else ""
                self._state.attach(deployment.controller, address=address, networks=self._failover.networks)
        self._provisioning.record(terraform, host_keys=self._hosts.host_keys(deployment))
        configured = self._configuration.apply(deployment, run, before=before, all_tasks=all_tasks)
        if first or before is not None:
            run.work = self._work(deployment, configured, changes, first=first, before=before or {}).to_dict()
        facts = self._verification.collect(deployment, run)
        if self._spec.controller.has_state_volume:
            self._state.save(deployment.controller)
        identity = handover.Identity.parse(terraform.outputs())
        self._provisioning.record(
            terraform,
            **self._configuration.host_facts(deployment, facts),
            physical_hosts=self._configuration.physical_hosts(deployment, facts, identity.physical_hosts),
        )
        self._keep_login_keys(terraform, self._configuration.login_keys(deployment, configured))
        self._returned_hosts.examine(run, terraform, deployment)
        self._failover.update_standby(terraform, deployment, run)
        resumed = self._resizing.resume_changed()
        # Nodes that were resumed are in another state than when their facts were collected.
        return Built(deployment, configured, changes, facts=None if resumed else facts)

    def _work(
        self,
        deployment: Deployment,
        configured: PlaybookResult,
        changes: Mapping[str, int],
        *,
        first: bool,
        before: Mapping[str, Any],
    ) -> Work:
        """What this run had to do.

        Args:
            before: how the hosts were configured before it.
        """
        now = {host.name: host.instance_id for host in deployment.hosts}
        known = before.get("hosts") or {}
        differing = {name for name in {*now, *known} if now.get(name) != known.get(name)} | self._resizing.changed
        return Work.of(
            first=first,
            hosts=len(differing),
            resources=any(changes.values()),
            configuration=configured.changed > 0,
        )

    def recreate(
        self, run: Run, nodes: Sequence[str], drain_timeout: float, faults: Mapping[str, HostFault]
    ) -> Deployment:
        """Recreate permanent nodes within a run that has begun with something else.

        Args:
            faults: of their hardware, by the node's name.
        """
        terraform = self._provisioning.prepare(run, to_build=True)
        consent = Consent(drain_timeout=drain_timeout, recreate=tuple(nodes), faults=faults)
        return self.build(terraform, run, consent).deployment

    def upgrade(self, deployment: Deployment, run: Run, *, slurm: bool = False) -> tuple[Built, Verdict]:
        """Configure the hosts for another release, and verify them. Resources stay.

        Args:
            slurm: move Slurm to the release of the spec.

        Raises:
            VerifyError: a check failed or could not run.
            GpuClusterError: see `errors`; the next run continues from there.
        """
        configured = self._configuration.apply(deployment, run, slurm_upgrade=slurm)
        verdict = self._verification.run(deployment, run)
        return Built(deployment, configured), verdict

    def result(
        self, run: Run, deployment: Deployment, *, built: Built | None = None, verdict: Verdict | None = None
    ) -> RunResult:
        """How a run ended that has succeeded."""
        configured = built.configured if built else None
        return RunResult(
            run.command,
            RunStatus.SUCCESS,
            run.elapsed,
            run.phases,
            roles=configured.roles if configured else {},
            changes=sum(built.changes.values()) if built else 0,
            resources=built.changes if built else {},
            changed={host: tasks.changed for host, tasks in configured.hosts.items()} if configured else {},
            verdict=verdict,
            login=self._login_keys.login_commands(deployment.login),
        )

    def _keep_login_keys(self, terraform: Terraform, directory: Mapping[str, Sequence[str]]) -> None:
        """The directory has kept keys that another machine has generated: report it, and use them from now on."""
        if kept := self._login_keys.differing(directory):
            self._provisioning.correct_login_keys(terraform, kept)
        for name, public in kept.items():
            if not self._login_keys.is_here(name, public):
                where = self._login_keys.whereabouts(name, public)
                warn(self._on_event, "users", f"the key of {name} was not changed. {name} logs in {where}")
