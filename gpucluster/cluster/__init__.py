"""A cluster and its operations: `Cluster`.

`gpucluster COMMAND` is `Cluster.COMMAND()`, and `gpucluster GROUP COMMAND` a method of the attribute of that name:
`gpucluster slurm upgrade` is `cluster.slurm.upgrade()`. `composition` puts the parts of the package together.

Only one run at a time: every method that changes something holds the cluster's lock. A run may be killed at any point;
the next run finds out what exists and continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpucluster import preflight
from gpucluster.cloud.clusters import CloudContents
from gpucluster.cluster import changing, reading
from gpucluster.cluster.autoscaler import AutoscalerOperations
from gpucluster.cluster.backup import BackupOperations
from gpucluster.cluster.composition import Options, compose
from gpucluster.cluster.controller import ControllerOperations
from gpucluster.cluster.hosts import HostOperations
from gpucluster.cluster.images import ImageOperations
from gpucluster.cluster.kubernetes import KubernetesOperations
from gpucluster.cluster.secrets import SecretOperations
from gpucluster.cluster.slurm import SlurmOperations
from gpucluster.cluster.state import StateOperations
from gpucluster.cost.report import By
from gpucluster.dashboards.overview import Overview
from gpucluster.drift.model import DriftReport
from gpucluster.events import Sink, ignore, warn
from gpucluster.handover import iam
from gpucluster.lifecycle.cost import CostReport
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.provision import Consent
from gpucluster.lifecycle.repair import Fix
from gpucluster.lifecycle.result import RunResult
from gpucluster.lifecycle.rollout import RolloutRequest
from gpucluster.lifecycle.verification import VerifyRequest, in_junit, level_of
from gpucluster.operations import overview, status
from gpucluster.operations.container_images import ContainerImages
from gpucluster.operations.dashboard import Dashboard
from gpucluster.operations.drain import DRAIN_TIMEOUT
from gpucluster.operations.exposure import Exposure
from gpucluster.operations.generated_keys import GeneratedKeys
from gpucluster.operations.job_reports import JobReports
from gpucluster.operations.jobs import Jobs
from gpucluster.operations.schedulers import require_slurm
from gpucluster.operations.status import ClusterStatus
from gpucluster.operations.support_bundle import SINCE_H, SupportBundle
from gpucluster.operations.support_bundle import TIMEOUT as SUPPORT_TIMEOUT
from gpucluster.operations.users import Groups, Users
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.plan import ResourceChange
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.verdict import Verdict
from gpucluster.workspace.run_log import RunStatus


class Cluster:
    """The cluster that a `ClusterSpec` describes.

    Args:
        on_event: is called with each event as it happens, by one thread at a time.
        provider: "bundled" (the stand-in) or "registry" (the real oracle/oci) for the local cloud's Terraform.
        cluster_id: the identity of the cluster in the cloud that may be changed from here, although this folder has no
            state of it; for a cluster without an identity the OCID of its controller.

    Attributes:
        spec: the content of cluster.yml.
        paths: the files of this machine that belong to the cluster.
        users: the users in the cluster's directory.
        groups: the groups in the cluster's directory.
        generated_keys: the generated login keys of the users of cluster.yml with `generate_key`.
        jobs: jobs from templates, and what they need.
        job_reports: what jobs used, and what stands out.
        container_images: the container images that all nodes share.
        images: the baked images that elastic nodes boot from.
        slurm: Slurm's release.
        kubernetes: the control plane of Kubernetes, its release, and access to its API.
        autoscaler: the autoscaler of elastic nodes.
        hosts: ssh to the hosts, and Ansible's inventory.
        dashboard: Grafana's or Prometheus' pages on a port of this machine.
        backup: users, accounting and the control plane in a file.
        controller: the controller itself: another machine in its place.
        secrets: rotation of what hosts trust each other by.
        state: Terraform's state, outputs and lock.
    """

    def __init__(
        self, spec: ClusterSpec, *, on_event: Sink = ignore, provider: str = "bundled", cluster_id: str = ""
    ) -> None:
        parts = compose(Options(spec=spec, on_event=on_event, provider=provider, cluster_id=cluster_id))
        connections = parts.connections
        self._parts = parts
        self.spec: ClusterSpec = spec
        self.paths: ClusterPaths = parts.paths
        self.users: Users = Users(connections.directory)
        self.groups: Groups = Groups(connections.directory)
        self.generated_keys: GeneratedKeys = GeneratedKeys(spec, parts.identity.login_keys, self.users)
        self.container_images: ContainerImages = ContainerImages(spec, connections.controller, parts.on_event)
        self.jobs: Jobs = Jobs(spec, connections.controller, self.container_images, parts.on_event)
        self.job_reports: JobReports = JobReports(spec, connections.controller)
        self.images: ImageOperations = ImageOperations(parts, self.apply)
        self.slurm: SlurmOperations = SlurmOperations(parts)
        self.kubernetes: KubernetesOperations = KubernetesOperations(parts)
        self.autoscaler: AutoscalerOperations = AutoscalerOperations(parts)
        self.hosts: HostOperations = HostOperations(parts)
        self.dashboard: Dashboard = Dashboard(spec, connections.controller, parts.on_event)
        self.backup: BackupOperations = BackupOperations(parts)
        self.controller: ControllerOperations = ControllerOperations(parts)
        self.secrets: SecretOperations = SecretOperations(parts)
        self.state: StateOperations = StateOperations(parts)

    def preflight(self) -> preflight.PreflightReport:
        """Ask the cloud in advance whether it would accept the spec. Reads only; the local cloud is started.

        Raises:
            GpuClusterError: see `errors`; what the cloud would refuse is in the report.
        """
        return reading.preflight(self._parts)

    def plan(self, *, preflight: bool = True, refresh_prices: bool = False, out: Path | None = None) -> ClusterPlan:
        """What `apply` would change: resources, hosts, and their configuration. Reads only, as `preflight`.

        Args:
            preflight: ask the cloud in advance whether it would accept the spec.
            refresh_prices: fetch Oracle's public price list first; later plans of this folder use it, too.
            out: write the plan into this file, for `apply`.

        Raises:
            GpuClusterError: see `errors`; nothing was created.
        """
        return changing.plan(self._parts, preflight=preflight, refresh_prices=refresh_prices, out=out)

    def apply(
        self,
        *,
        delete_data: bool = False,
        replace_nodes: bool = False,
        drain_timeout: float = DRAIN_TIMEOUT,
        preflight: bool = True,
        accept_host_keys: bool = False,
        all_tasks: bool = False,
        confirm: Callable[[Sequence[ResourceChange]], None] | None = None,
        plan: Path | None = None,
    ) -> RunResult:
        """Create or update the cluster, then verify it: the cloud's resources, the hosts' configuration, the checks.

        Where neither what the hosts are configured from nor a host has changed since the last apply, of the tasks only
        those for users and accounts run.

        Args:
            delete_data: allow a plan that deletes or replaces file systems with users' files.
            replace_nodes: allow a plan that recreates the controller, or permanent nodes that cluster.yml asks for.
            drain_timeout: seconds to wait for jobs on nodes that are removed; with 0 they are requeued, or cancelled.
            preflight: ask the cloud in advance whether it would accept the spec.
            accept_host_keys: trust the ssh host keys that the hosts answer with now, whatever the state has.
            all_tasks: run every task on the hosts, also where nothing has changed.
            confirm: is called with the changes of resources of a cluster that stands, before the first of them is
                made. What it raises ends the run, and nothing was changed.
            plan: a file of `plan`: do exactly what it states. `confirm` is not called then.

        Raises:
            MovedError: the plan does not hold any more; nothing was changed.
            VerifyError: everything was built, but a check failed or could not run.
            GpuClusterError: see `errors`; what was built stays, and the next apply continues from there.
        """
        consent = Consent(delete_data, replace_nodes, drain_timeout, confirm=confirm)
        return changing.apply(
            self._parts,
            consent,
            plan_file=plan,
            preflight=preflight,
            accept_host_keys=accept_host_keys,
            all_tasks=all_tasks,
        )

    def replace(self, nodes: Sequence[str], *, drain_timeout: float = DRAIN_TIMEOUT, report: str = "") -> RunResult:
        """Put another machine in the place of each of these nodes, when its jobs have ended, then verify the cluster.

        A permanent node is recreated under its name. An elastic one is given up: the autoscaler terminates its instance
        and launches another one when a job needs it. May be killed at any point; the next `apply` ends what was begun.
        The physical host of a node that is out of service for failed checks is reported to Oracle first.

        Args:
            drain_timeout: seconds to wait for jobs on these nodes; with 0 they are requeued, or cancelled.
            report: what was seen of nodes that do not answer, for instance: all their physical hosts are reported.

        Raises:
            InputError: there is no such node; or a node is permanent, and cluster.yml asks for other changes as well.
            ToolError: jobs still run there, or an operator has drained an elastic one.
            VerifyError: the nodes were replaced, but a check failed or could not run.
            GpuClusterError: see `errors`.
        """
        return changing.replace_nodes(self._parts, nodes, drain_timeout, report)

    def rollout(self, request: RolloutRequest | None = None) -> RunResult:
        """Make what `apply` makes, but give another image of a pool to its nodes one after the other, when their jobs
        have ended; then verify the cluster. The first node is a canary. May be killed at any point: the next one goes
        on.

        Args:
            request: which pools, and under which policy; None: all pools, under the default one.

        Raises:
            InputError: there is no such pool, none of its nodes could leave, the image has another distribution, or
                the scheduler is not Slurm.
            ToolError: it was taken back, or it stopped before every node had the image: with the reasons.
            VerifyError: all nodes have the image, but a check failed or could not run.
            GpuClusterError: see `errors`.
        """
        return changing.roll_out(self._parts, request or RolloutRequest())

    def verify(
        self,
        *,
        level: Level | str = Level.QUICK,
        pools: Sequence[str] = (),
        nodes: str = "",
        junit: Path | None = None,
        record_baseline: bool = False,
        fix: Fix | None = None,
    ) -> RunResult:
        """Say whether the cluster is good, and which host is not.

        Args:
            level: "quick", the checks that `apply` ends with; or "full", also those that need nodes for themselves.
            pools: check the nodes of these pools alone.
            nodes: check these permanent nodes alone; Slurm's hostlist, such as "compute-[1-4,7]".
            junit: write the results as JUnit XML into this file, also when checks fail or nothing can be checked.
            record_baseline: what level full measures becomes what later measurements are compared with, where nothing
                is published.
            fix: take nodes that failed out of service, replace them, check what that touches again, and let them into
                service. None: only report what is found.

        Raises:
            VerifyError: a check failed or could not run; with `fix`: at the end.
            InputError: there is no such level, pool or node, or the file can't be written; nodes can't be taken out of
                service without Slurm; or the answer to a question was no.
            ToolError: no apply has configured the hosts yet.
        """
        request = VerifyRequest(level_of(level), pools, nodes, junit, record_baseline)
        request.check_file()
        with in_junit(junit, self.spec.name) as final:
            request.check(self.spec)
            if fix:
                by_hand = "Run `gpucluster verify`, then `gpucluster replace NODE` for a node that failed"
                require_slurm(self.spec, "verify --fix", kubernetes=by_hand, otherwise=by_hand)
            return self._verify(request, fix, final)

    def _verify(self, request: VerifyRequest, fix: Fix | None, final: Callable[[Verdict], None]) -> RunResult:
        parts, phases = self._parts, self._parts.phases
        changes = bool(fix or request.record_baseline or request.level is Level.FULL)
        with parts.identity.runs.run("verify", changes=changes) as run:
            with run.phase("cloud"):
                parts.cloud.start(to_build=False)
            deployment = parts.connections.hosts.reach(run)
            if not phases.configuration.configured():
                warn(parts.on_event, "hosts", "the last apply did not configure the hosts to the end")
            phases.failover.warn_if_behind(deployment)
            repaired = None
            if fix is None:
                verdict = phases.verification.run(deployment, run, request=request)
            else:
                check = partial(phases.verification.verdict, run=run, request=request)
                verdict, repaired = phases.repair.run(run, deployment, check(deployment), check, fix)
            final(verdict)
            result = replace(phases.building.result(run, deployment, verdict=verdict), repair=repaired)
        return result

    def destroy(self, *, delete_data: bool = False) -> RunResult:
        """Remove everything that `apply` made; what it did not make is left alone.

        Args:
            delete_data: delete the cluster's file systems even if users' files are in them.

        Raises:
            DataGuardError: there are users' files, or no host can tell.
        """
        parts, phases = self._parts, self._parts.phases
        with parts.identity.runs.run("destroy", prepares=True) as run:
            terraform = phases.provisioning.prepare(run, keep_variables=True)
            removed = phases.teardown.run(terraform, run, delete_data=delete_data)
            parts.identity.run_lock.forget()
            result = RunResult(run.command, RunStatus.SUCCESS, run.elapsed, run.phases, changes=removed)
        return result

    def status(self, *, timeout: float = status.TIMEOUT) -> ClusterStatus:
        """What exists, what is pending, Slurm's nodes, the autoscaler, the last runs. Reads only, as `overview`.

        Args:
            timeout: seconds to wait for the answers of the cloud, the state and the controller.
        """
        return reading.status(self._parts, timeout)

    def exposure(self) -> Exposure:
        """What each host runs, and which known faults of these versions the table of advisories has. Reads only.

        A host that does not answer is in the result, with the reason.

        Raises:
            ToolError: there is no cluster, or the controller does not answer.
        """
        return reading.exposure(self._parts)

    def drift(self) -> DriftReport:
        """What is not as cluster.yml, Terraform's state and the last apply have it. It changes nothing.

        A host that does not answer, and what else could not be compared, is in the result (`unseen`).

        Raises:
            ToolError: there is no cluster.
            LockedError: another run holds it.
            GpuClusterError: see `errors`; Terraform or the cloud refused.
        """
        return reading.drift(self._parts)

    def cost(self, by: By = "account", *, since: str | None = None, until: str | None = None) -> CostReport:
        """What the cluster has cost: instances times the prices of the time, divided among the jobs. Reads only.

        Args:
            by: the rows: of each account, user, pool, job or day.
            since: a day or a time in the time zone of the cluster; None: the beginning of this month.
            until: the same; None: now.

        Raises:
            InputError: a time can't be read, or the cluster has no accounting.
            ToolError: there is no cluster, or the controller does not answer.
        """
        return reading.cost(self._parts, by, since, until)

    def support_bundle(
        self, path: Path, *, since_h: int = SINCE_H, hosts: Sequence[str] = (), timeout: float = SUPPORT_TIMEOUT
    ) -> SupportBundle:
        """Write one archive with what a person needs who looks for a fault: logs and outputs of this machine, status,
        exposure, and of each host that answers journals, Slurm's configuration and state. Secrets are removed. Reads
        only, except that a local cloud with resources is started; also without a cluster.

        Args:
            path: of a new file, `.tar.gz`, which only its owner may read.
            since_h: hours of the journals.
            hosts: ask these hosts alone; empty for all.
            timeout: seconds for all answers together; what does not answer is named in the archive.

        Raises:
            InputError: the file exists already, or can't be written there; there is no such host.
        """
        return reading.support_bundle(self._parts, path, since_h, hosts, timeout)

    def overview(self, *, timeout: float = overview.TIMEOUT) -> Overview:
        """The state of the cluster on one page: see `dashboards.overview`. Reads only, except that a local cloud with
        resources is started.

        Args:
            timeout: seconds to wait for all answers together.

        Raises:
            ToolError: there is no cluster, or nothing is known of it.
        """
        return reading.overview(self._parts, timeout)

    def contents(self) -> CloudContents:
        """What exists of this cluster in the cloud, by its tag: what `destroy` would remove. Reads only.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        mine = (each for each in self.clusters() if each.name == self.spec.name)
        return next(mine, CloudContents(self.spec.name))

    def clusters(self) -> tuple[CloudContents, ...]:
        """What exists of each cluster in the compartment of this one, itself included. Reads only.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        return reading.clusters(self._parts)

    def policies(self) -> iam.Policies:
        """The permissions that the cluster and its operator need. Reads only; the local cloud is started."""
        return reading.policies(self._parts)
