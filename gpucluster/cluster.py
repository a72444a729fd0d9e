"""A cluster and its operations: `Cluster` puts the parts of the package together.

Only one run at a time: every method that changes something holds the cluster's lock. A run may be killed at any point;
the next run finds out what exists and continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gpucluster import __version__, handover, preflight
from gpucluster.cloud import clusters
from gpucluster.cloud.baked_images import BakedImage, BakedImages
from gpucluster.cloud.bastion import Bastion
from gpucluster.cloud.clusters import CloudContents
from gpucluster.cloud.console import Consoles
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.file_systems import FileSystems
from gpucluster.cloud.members import PoolMembers
from gpucluster.cloud.providers import open_cloud
from gpucluster.cloud.tagged_resources import TaggedResource, TaggedResources
from gpucluster.configuration.runner import Ansible, PlaybookResult
from gpucluster.dashboards.addresses import Subject
from gpucluster.dashboards.overview import Overview
from gpucluster.errors import InputError, TerraformError, ToolError, VerifyError
from gpucluster.events import Sink, ignore, one_at_a_time, warn
from gpucluster.handover import iam
from gpucluster.handover.names import monitoring_host
from gpucluster.lifecycle.adoption import Adoption, Recovered
from gpucluster.lifecycle.bake import Baking
from gpucluster.lifecycle.configure import Configuration
from gpucluster.lifecycle.data_guard import DataGuard, ShareLook
from gpucluster.lifecycle.downloads import Downloads
from gpucluster.lifecycle.elastic_teardown import ElasticTeardown
from gpucluster.lifecycle.hosts import Deployment, Hosts, HostSources
from gpucluster.lifecycle.kubernetes_upgrade import Upgrading
from gpucluster.lifecycle.locate import HostLocator
from gpucluster.lifecycle.ownership import Ownership, origin
from gpucluster.lifecycle.plan import Plan, Planning, refuse_what_stays
from gpucluster.lifecycle.provision import Consent, Provisioning, network_compartment
from gpucluster.lifecycle.repair import Checking, Fix, Repair
from gpucluster.lifecycle.replace import ElasticReplacement, OnKubernetes, OnSlurm, choose
from gpucluster.lifecycle.resize import Resizing
from gpucluster.lifecycle.result import Result
from gpucluster.lifecycle.run_lock import RunLock
from gpucluster.lifecycle.teardown import Teardown
from gpucluster.lifecycle.verification import Request, Verification, in_junit
from gpucluster.operations import kubernetes_upgrade, overview, status
from gpucluster.operations.backup import Backup, Backups, Restored
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.container_images import ContainerImages
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.dashboard import Dashboard, Page
from gpucluster.operations.drain import DRAIN_TIMEOUT, Draining
from gpucluster.operations.generated_keys import GeneratedKeys, keys_in_directory
from gpucluster.operations.health import HealthService
from gpucluster.operations.job_reports import JobReports
from gpucluster.operations.jobs import Jobs
from gpucluster.operations.kubeconfig import Kubeconfigs, kubectl_argv
from gpucluster.operations.kubernetes import ControlPlane, Space, require_kubernetes, require_own_control_plane
from gpucluster.operations.kubernetes_upgrade import KubernetesUpgrade
from gpucluster.operations.measuring import Measuring
from gpucluster.operations.schedulers import kubernetes_nodes, require_slurm
from gpucluster.operations.slurm_upgrade import SlurmReleases, SlurmUpgrade
from gpucluster.operations.users import DirectoryClient, Groups, Users
from gpucluster.paths import ClusterPaths, cache_dir, make_private, read_saved
from gpucluster.process import Completed, signals
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SshClient
from gpucluster.terraform import backends, provider_lock
from gpucluster.terraform.backends import BackendConfig
from gpucluster.terraform.lock import StateLock
from gpucluster.terraform.program import find_program
from gpucluster.terraform.runner import Terraform
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.verdict import Verdict
from gpucluster.workspace import evidence
from gpucluster.workspace import run as runs
from gpucluster.workspace.login_keys import LoginKeys
from gpucluster.workspace.run import Run
from gpucluster.workspace.run_history import past_runs
from gpucluster.workspace.run_log import RunStatus, read_runs
from gpucluster.workspace.saved_state import SavedState


@dataclass(frozen=True)
class _Built:
    """A cluster whose hosts a run has configured.

    Args:
        changes: how many resources Terraform has changed.
        facts: what the hosts said at the end of the configuration; None if they are in another state by now.
    """

    deployment: Deployment
    configured: PlaybookResult
    changes: int = 0
    facts: PlaybookResult | None = None


class Cluster:
    """The cluster that a `ClusterSpec` describes.

    Args:
        on_event: is called with each event as it happens, by one thread at a time.
        provider: "bundled" (the stand-in) or "registry" (the real oracle/oci) for the local cloud's Terraform.
        cluster_id: the identity of the cluster in the cloud that may be changed from here, although this folder has no
            state of it; for a cluster without an identity the OCID of its controller.
    """

    def __init__(
        self, spec: ClusterSpec, *, on_event: Sink = ignore, provider: str = "bundled", cluster_id: str = ""
    ) -> None:
        report = one_at_a_time(on_event)
        self.spec = spec
        self._provider = provider
        self._cluster_id = cluster_id
        self.paths = ClusterPaths.of(spec.file)
        self._on_event = report
        self._cloud = open_cloud(spec, self.paths, report, provider)
        self._saved = SavedState(self.paths)
        self._state_lock = StateLock()
        remote = spec.state.backend != "local"
        self._run_lock = RunLock(self._saved, self._cloud, report, origin=origin(self.paths), remote=remote)
        self._ownership = Ownership(
            spec,
            self.paths,
            self._saved,
            self._cloud,
            self._terraform,
            report,
            self._run_lock,
            remote=remote,
            named=cluster_id,
        )
        self._login_keys = LoginKeys(
            spec,
            self.paths,
            lambda: handover.Identity.parse(self.outputs()).login_keys,
            lambda: keys_in_directory(spec, self._controller, self.users),
        )
        sources = HostSources(
            spec,
            self.paths,
            self._cloud,
            self._saved,
            outputs=self.outputs,
            pool_members=self._pool_members,
            bastion=self._bastion,
            ssh_client=self._ssh_client,
            consoles=self._consoles,
        )
        self._locator = HostLocator(sources)
        self._controller = ControllerConnection(
            spec, self.paths, self._locator.locate, self._bastion, report, require_own=self._require_own
        )
        self._control_plane = ControlPlane(self._controller, report)
        self._record = ConfigurationRecord(self._controller)
        downloads = Downloads(spec, self._cloud, __version__, report)
        self._hosts = Hosts(sources, report)
        self._configuration = Configuration(
            spec,
            self.paths,
            self._cloud,
            self._login_keys,
            downloads,
            version=__version__,
            record=self._record,
            ansible=self._ansible,
            bastion=self._bastion,
            file_systems=self._file_systems,
            elastic=self._elastic,
            on_event=report,
        )
        self._verification = Verification(
            spec,
            self.paths,
            self._cloud,
            collect=self._configuration.collect,
            measurement=Measuring(spec, self._controller, report),
            on_event=report,
        )
        self._baking = Baking(
            spec,
            self.paths,
            images=self._images,
            elastic=self._elastic,
            pool_members=self._pool_members,
            ssh_client=self._ssh_client,
            ansible=self._ansible,
            inventory=self._configuration.inventory,
            on_event=report,
        )
        adoption = Adoption(
            spec.name, self._tagged_resources, report, identity=lambda: self._ownership.id, named=cluster_id
        )
        draining = Draining(self._controller, report, required=spec.slurm.enabled)
        on_kubernetes = spec.scheduler == "kubernetes"
        emptying = OnKubernetes(self._control_plane) if on_kubernetes else OnSlurm(draining, report)
        self._elastic_replacement = ElasticReplacement(emptying, self._elastic, report)
        self._repair = Repair(
            spec, HealthService(self._controller), draining, self._elastic_replacement, self._recreate, report
        )
        elastic_teardown = ElasticTeardown(spec, self._elastic, self._controller)
        self._resizing = Resizing(
            spec,
            self._cloud,
            self._elastic,
            self._controller,
            self._control_plane if on_kubernetes else draining,
            self._hosts,
            self._record,
            report,
        )
        self._provisioning = Provisioning(
            spec,
            self._cloud,
            self._saved,
            self._terraform,
            downloads,
            self._baking,
            elastic_teardown,
            self._resizing,
            self._tagged_resources,
            adoption,
            self._login_keys,
            self._ownership,
            report,
        )
        self._planning = Planning(
            spec,
            self._provisioning,
            self._configuration,
            self._record,
            DirectoryClient(spec, self._controller, report),
            outputs=self.outputs,
            on_event=report,
        )
        self._teardown = Teardown(
            spec,
            self.paths,
            self._saved,
            self._cloud,
            DataGuard(
                self._file_systems,
                ShareLook(self._locator.locate, self._locator.nodes_alone, self._ssh_client),
            ),
            elastic_teardown,
            self._baking,
            terraform=self._terraform,
            elastic=self._elastic,
            adoption=adoption,
            tagged=self._tagged_resources,
            ssh_client=self._ssh_client,
            bastion=self._bastion,
            on_event=report,
        )

    # --- the lifecycle -----

    def preflight(self) -> preflight.Report:
        """Ask the cloud in advance whether it would accept the spec. Reads only, except that the local cloud is
        started.

        Raises:
            GpuClusterError: see `errors`; what the cloud would refuse is in the report.
        """
        outputs: Mapping[str, Any] = {}
        # Before the first run there is no state to read, and a backend may not answer yet.
        with suppress(TerraformError):
            outputs = self.outputs()
        self._cloud.check()
        self._cloud.check_gpus()
        self._cloud.start(to_build=False)
        self._cloud.check_network()
        return preflight.examine(self.spec, self._cloud, outputs)

    def plan(self, *, preflight: bool = True) -> Plan:
        """What `apply` would change: resources, hosts, and their configuration. Nothing is changed, except that the
        local cloud is started.

        Args:
            preflight: ask the cloud in advance whether it would accept the spec.

        Raises:
            GpuClusterError: see `errors`; nothing was created.
        """
        with self._run("plan", prepares=True) as run:
            plan = self._planning.plan(run, preflight=preflight)
        return plan

    def apply(
        self,
        *,
        delete_data: bool = False,
        replace_nodes: bool = False,
        drain_timeout: float = DRAIN_TIMEOUT,
        preflight: bool = True,
        accept_host_keys: bool = False,
        all_tasks: bool = False,
    ) -> Result:
        """Create or update the cluster, then verify it: the cloud's resources, the hosts' configuration, the checks.

        Where neither what the hosts are configured from nor a host has changed since the last apply, of the tasks only
        those for users and accounts run.

        Args:
            delete_data: allow a plan that deletes or replaces the file system with the users' homes.
            replace_nodes: allow a plan that recreates the controller, or permanent nodes that cluster.yml asks for.
            drain_timeout: seconds to wait for jobs on nodes that are removed; with 0 they are requeued, or cancelled.
            preflight: ask the cloud in advance whether it would accept the spec.
            accept_host_keys: trust the ssh host keys that the hosts answer with now, whatever the state says.
            all_tasks: run every task on the hosts, also where nothing has changed.

        Raises:
            VerifyError: everything was built, but a check failed or could not run.
            GpuClusterError: see `errors`; what was built stays, and the next apply continues from there.
        """
        consent = Consent(delete_data, replace_nodes, drain_timeout)
        with self._run("apply", prepares=True) as run:
            terraform = self._provisioning.prepare(run, to_build=True, preflight=preflight)
            if accept_host_keys:
                self._provisioning.forget_host_keys(terraform)
                self._hosts.forget_keys()
            built = self._build(terraform, run, consent, all_tasks=all_tasks)
            verdict = self._verification.run(built.deployment, run, built.facts)
            result = self._result(run, built.deployment, built=built, verdict=verdict)
        return result

    def replace(self, nodes: Sequence[str], *, drain_timeout: float = DRAIN_TIMEOUT) -> Result:
        """Put another machine in the place of each of these nodes, when its jobs have ended, then verify the cluster.

        A permanent node is recreated under its name. An elastic one is given up: the autoscaler terminates its instance
        and launches another one when a job needs it. May be killed at any point; the next `apply` ends what was begun.

        Args:
            drain_timeout: seconds to wait for jobs on these nodes; with 0 they are requeued, or cancelled.

        Raises:
            InputError: there is no such node; or a node is permanent, and cluster.yml asks for other changes as well.
            ToolError: jobs still run there, or a person has drained an elastic one.
            VerifyError: the nodes were replaced, but a check failed or could not run.
            GpuClusterError: see `errors`.
        """
        chosen = choose(self.spec, nodes)
        with self._run("replace", prepares=True) as run:
            terraform = self._provisioning.prepare(run, to_build=True)
            if chosen.elastic:
                with run.phase("elastic nodes"):
                    self._elastic_replacement.replace(chosen.elastic, drain_timeout)
            built = None
            if chosen.permanent:
                built = self._build(terraform, run, Consent(drain_timeout=drain_timeout, recreate=chosen.permanent))
            deployment = built.deployment if built else self._hosts.reach(run)
            verdict = self._repair.prove(deployment, chosen.permanent, self._checking(run))
            result = self._result(run, deployment, built=built, verdict=verdict)
        return result

    def _recreate(self, run: Run, nodes: Sequence[str], drain_timeout: float) -> Deployment:
        """Recreate permanent nodes within a run that has begun with something else."""
        terraform = self._provisioning.prepare(run, to_build=True)
        return self._build(terraform, run, Consent(drain_timeout=drain_timeout, recreate=tuple(nodes))).deployment

    def _build(self, terraform: Terraform, run: Run, consent: Consent, *, all_tasks: bool = False) -> _Built:
        """Change the resources, and configure the hosts."""
        refuse_what_stays(self.spec, self._controller, self._record)
        changes = self._provisioning.apply(terraform, run, consent)
        deployment = self._hosts.reach(run)
        self._provisioning.record(terraform, host_keys=self._hosts.host_keys(deployment))
        configured = self._configuration.apply(
            deployment, run, verify=self._verification.variables(deployment), all_tasks=all_tasks
        )
        self._provisioning.record(terraform, **self._configuration.said(deployment, configured))
        self._keep_login_keys(terraform, self._configuration.login_keys(deployment, configured))
        resumed = self._resizing.resume_changed()
        # Nodes that were resumed are in another state than when their facts were collected.
        return _Built(deployment, configured, changes, facts=None if resumed else configured)

    def _keep_login_keys(self, terraform: Terraform, directory: Mapping[str, Sequence[str]]) -> None:
        """The directory has kept keys that another machine has generated: say so, and use them from now on."""
        if kept := self._login_keys.differing(directory):
            self._provisioning.correct_login_keys(terraform, kept)
        for name, public in kept.items():
            if not self._login_keys.is_here(name, public):
                where = self._login_keys.whereabouts(name, public)
                warn(self._on_event, "users", f"the key of {name} was not changed. {name} logs in {where}")

    def verify(
        self,
        *,
        level: Level | str = Level.QUICK,
        pools: Sequence[str] = (),
        nodes: str = "",
        junit: Path | None = None,
        record_baseline: bool = False,
        fix: Fix | None = None,
    ) -> Result:
        """Say whether the cluster is good, and which host is not.

        Args:
            level: "quick", the checks that `apply` ends with; or "full", also those that need nodes for themselves.
            pools: check the nodes of these pools alone.
            nodes: check these permanent nodes alone; Slurm's hostlist, such as "compute-[1-4,7]".
            junit: write the results as JUnit XML into this file, also when checks fail or nothing can be checked.
            record_baseline: what level full measures becomes what later measurements are compared with, where nothing
                is published.
            fix: take nodes that failed out of service, replace them, check what that touches again, and let them into
                service. None: only say what is found.

        Raises:
            VerifyError: a check failed or could not run; with `fix`: at the end.
            InputError: there is no such level, pool or node, or the file can't be written; nodes can't be taken out of
                service without Slurm; or the answer to a question was no.
            ToolError: no apply has configured the hosts yet.
        """
        request = Request(_level(level), pools, nodes, junit, record_baseline)
        request.check_file()
        with in_junit(junit, self.spec.name) as final:
            request.check(self.spec)
            if fix:
                by_hand = "Run `gpucluster verify`, then `gpucluster replace NODE` for a node that failed"
                require_slurm(self.spec, "verify --fix", kubernetes=by_hand, otherwise=by_hand)
            return self._verify(request, fix, final)

    def _verify(self, request: Request, fix: Fix | None, final: Callable[[Verdict], None]) -> Result:
        changes = bool(fix or request.record_baseline or request.level is Level.FULL)
        with self._run("verify", changes=changes) as run:
            with run.phase("cloud"):
                self._cloud.start(to_build=False)
            deployment = self._hosts.reach(run)
            if not self._configuration.configured():
                warn(self._on_event, "hosts", "the last apply did not configure the hosts to the end")
            done = None
            if fix is None:
                verdict = self._verification.run(deployment, run, request=request)
            else:
                check = self._checking(run, request)
                verdict, done = self._repair.run(run, deployment, check(deployment), check, fix)
            final(verdict)
            result = replace(self._result(run, deployment, verdict=verdict), repair=done)
        return result

    def _checking(self, run: Run, request: Request = Request()) -> Checking:  # noqa: B008 - it is frozen
        """The checks within a run, whose verdict is no error."""

        def check(deployment: Deployment) -> Verdict:
            try:
                return self._verification.run(deployment, run, request=request)
            except VerifyError as error:
                verdict: Verdict = error.verdict
                return verdict

        return check

    def at_release(self, release: str | None) -> Cluster:
        """The same cluster with another release of Slurm than its file says; None: that of the file. A cluster without
        Slurm stays as it is."""
        if release is None or release == self.spec.slurm.release or not self.spec.slurm.enabled:
            return self
        slurm = self.spec.slurm.model_copy(update={"release": release})
        spec = self.spec.model_copy(update={"slurm": slurm})
        return self._with_spec(spec)

    def named(self, cluster_id: str) -> Cluster:
        """The same, for an operator who has named the identity of the cluster: see `Cluster`."""
        return Cluster(self.spec, on_event=self._on_event, provider=self._provider, cluster_id=cluster_id)

    def _with_spec(self, spec: ClusterSpec) -> Cluster:
        return Cluster(spec, on_event=self._on_event, provider=self._provider, cluster_id=self._cluster_id)

    def plan_slurm_upgrade(self) -> SlurmUpgrade:
        """Which Slurm the hosts have, and the steps to the release of the spec. Reads only.

        Raises:
            InputError: there is no way to it.
            ToolError: the controller can't be reached, or has no Slurm yet.
        """
        return SlurmReleases(self.spec, self._controller).plan()

    def upgrade_slurm(self) -> Result:
        """Move Slurm on all hosts to the release of the spec, in SchedMD's order; running jobs go on. Then verify.

        What Slurm has stored is copied on the controller before. May be killed at any point and run again.

        Raises:
            InputError: it takes more than one step, or there is no way.
            GpuClusterError: see `errors`; the next run continues from there.
        """
        with self._run("slurm upgrade") as run:
            with run.phase("cloud"):
                self._cloud.start(to_build=False)
            SlurmReleases(self.spec, self._controller).check()
            deployment = self._hosts.reach(run)
            configured = self._configuration.apply(
                deployment, run, verify=self._verification.variables(deployment), slurm_upgrade=True
            )
            verdict = self._verification.run(deployment, run, configured)
            result = self._result(run, deployment, built=_Built(deployment, configured), verdict=verdict)
            copy = configured.facts.get(deployment.outputs.controller.name, {}).get("gpucluster_slurm_copy")
            result = replace(result, slurm_copy=str(copy) if copy else None)
        return result

    def bake(self, pool: str) -> Result:
        """Bake an image for the elastic nodes of a pool, and let them boot from it: then they need no configuration.

        An instance is launched for it and removed afterwards. Ends with an apply. May be killed at any point and run
        again: what was left unfinished is removed first.

        Raises:
            InputError: there is no such pool, or its nodes are permanent.
            GpuClusterError: see `errors`.
        """
        self._baking.check_pool(pool)
        with self._run("image bake", prepares=True) as run:
            self._provisioning.prepare(run, keep_variables=True)
            self._baking.clear(pool, run)
            deployment = self._hosts.reach(run)
            image = self._baking.bake(pool, deployment, run)
            baked = dict(run.phases)
        done = self.apply()
        self._baking.retire(pool, image)
        phases = {**{f"bake: {name}": took for name, took in baked.items()}, **done.phases}
        return replace(done, command="image bake", phases=phases, elapsed=run.elapsed)

    def destroy(self, *, delete_data: bool = False) -> Result:
        """Remove everything that `apply` made; what it did not make is left alone.

        Args:
            delete_data: delete the homes' file system even if users' files are in it.

        Raises:
            DataGuardError: there are users' files, or nobody can tell.
        """
        with self._run("destroy", prepares=True) as run:
            terraform = self._provisioning.prepare(run, keep_variables=True)
            removed = self._teardown.run(terraform, run, delete_data=delete_data)
            self._run_lock.forget()
            result = Result(run.command, RunStatus.SUCCESS, run.elapsed, run.phases, changes=removed)
        return result

    def recover(self) -> Recovered:
        """Put what the cloud has of this cluster into Terraform's state, which was lost. Nothing else is changed.

        Raises:
            OtherClusterError: nothing says that it is this folder's cluster: no identity was named, and this machine
                knows none.
            ToolError: two resources could be the same.
            GpuClusterError: see `errors`; what was adopted until then is in the state.
        """
        with self._run("state recover", prepares=True) as run:
            self._ownership.require(strict=True)
            self._terraform().set_damaged_state_aside()
            terraform = self._provisioning.prepare(run, recovering=True)
            return self._provisioning.recover(terraform, run)

    def unlock(self, lock_id: str) -> str:
        """Remove the lock of a run of another machine or folder that does not run any more. Returns which run it was.

        Args:
            lock_id: as the refusal of another run names it.

        Raises:
            OtherClusterError: the cluster is not known to be the one of this folder.
            InputError: no run holds it, or another one.
        """
        self._ownership.forget()
        return self._run_lock.described(self._ownership.unlock(lock_id))

    # --- operations on a cluster that is deployed -----

    @property
    def generated_keys(self) -> GeneratedKeys:
        """The generated login keys of the users of cluster.yml with `generate_key`."""
        return GeneratedKeys(self.spec, self._login_keys, self.users)

    @property
    def users(self) -> Users:
        """The users in the cluster's directory."""
        return Users(DirectoryClient(self.spec, self._controller, self._on_event))

    @property
    def groups(self) -> Groups:
        """The groups in the cluster's directory."""
        return Groups(DirectoryClient(self.spec, self._controller, self._on_event))

    @property
    def container_images(self) -> ContainerImages:
        """The container images that all nodes share."""
        return ContainerImages(self.spec, self._controller, self._on_event)

    @property
    def job_reports(self) -> JobReports:
        """Reports of jobs: what they used, and what stands out.

        Raises:
            InputError: the cluster has no Slurm.
        """
        require_slurm(self.spec, "job report", kubernetes="See its pods: gpucluster ssh -- sudo kubectl get pods -A")
        return JobReports(self._controller, monitoring_host(self.spec))

    @property
    def jobs(self) -> Jobs:
        """Jobs from templates, and what they need."""
        return Jobs(self.spec, self._controller, self.container_images, self._on_event)

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane of Kubernetes on the controller: its state, certificates, etcd, nodes.

        Raises:
            InputError: the cluster has none.
        """
        require_own_control_plane(self.spec)
        return ControlPlane(self._controller, self._on_event)

    @property
    def kubeconfigs(self) -> Kubeconfigs:
        """Files with which kubectl reaches Kubernetes' API.

        Raises:
            InputError: the cluster has no Kubernetes.
        """
        require_kubernetes(self.spec)
        return Kubeconfigs(self.spec, self._controller, self._control_plane)

    def kubectl_argv(self, words: Sequence[str], *, terminal: bool = False) -> list[str]:
        """The command line that runs kubectl on the controller, as an operator of the cluster.

        Args:
            terminal: whether it gets a terminal.

        Raises:
            InputError: the cluster has no Kubernetes.
            ToolError: nothing was applied yet.
        """
        require_kubernetes(self.spec)
        return kubectl_argv(self._controller, words, terminal=terminal)

    def plan_kubernetes_upgrade(self, release: str | None = None) -> KubernetesUpgrade:
        """Which Kubernetes the hosts have, and the steps to a release. Reads only.

        Args:
            release: the wanted one; None: that of the file.

        Raises:
            InputError: there is no way to it, or the cluster has no control plane of its own.
            ToolError: the controller or the API server gives no answer.
        """
        require_own_control_plane(self.spec, "upgrade")
        return kubernetes_upgrade.plan(self.spec, self.control_plane, release)

    def upgrade_kubernetes(self, release: str | None = None, *, drain_timeout: float = DRAIN_TIMEOUT) -> Result:
        """Move Kubernetes on all hosts to a release: the control plane, then node by node, each of them drained. Then
        configure the hosts for it, and verify.

        A backup is written before the control plane changes. May be killed at any point and run again.

        Args:
            release: the wanted one; None: that of the file.
            drain_timeout: seconds that each node may take to be drained; with 0 its pods are deleted.

        Raises:
            InputError: there is no way to it, or the cluster has no control plane of its own.
            GpuClusterError: see `errors`; the next run continues from there.
        """
        require_own_control_plane(self.spec, "upgrade")
        if release not in (None, self.spec.kubernetes.release):
            self.plan_kubernetes_upgrade(release)
            section = self.spec.kubernetes.model_copy(update={"release": release})
            spec = self.spec.model_copy(update={"kubernetes": section})
            return self._with_spec(spec).upgrade_kubernetes(drain_timeout=drain_timeout)
        plane = self.control_plane
        with self._run("kubernetes upgrade") as run:
            with run.phase("cloud"):
                self._cloud.start(to_build=False)
            plan = self.plan_kubernetes_upgrade()
            deployment = self._hosts.reach(run)

            def configure(step: str, names: tuple[str, ...]) -> None:
                self._configuration.upgrade_kubernetes(deployment, run, step, names)

            def back_up() -> Path | None:
                if not self.spec.storage.home.enabled:
                    warn(self._on_event, "kubernetes", "no backup: gpucluster backup needs a directory of users")
                    return None
                file = self.paths.backups / f"kubernetes-{plan.version}-{run.id}.tar.gz"
                make_private(file.parent)
                return self.backup(file).file

            upgrading = Upgrading(plane, configure, back_up, self._on_event)
            backup = upgrading.upgrade(plan, deployment.controller.name, run, drain_timeout)
            configured = self._configuration.apply(deployment, run, verify=self._verification.variables(deployment))
            verdict = self._verification.run(deployment, run, configured)
            result = self._result(run, deployment, built=_Built(deployment, configured), verdict=verdict)
            result = replace(result, backup=str(backup) if backup else None)
        return result

    def renew_kubernetes_certificates(self, within_days: float) -> tuple[str, ...]:
        """Renew the certificates of the control plane if one has fewer days left: see `ControlPlane.renew`."""
        require_own_control_plane(self.spec, "certificates")
        plane = self.control_plane
        with self._run("kubernetes certificates"):
            return plane.renew(within_days)

    def compact_etcd(self) -> tuple[Space, Space]:
        """Give back the space of old versions that etcd has stored: see `ControlPlane.compact`."""
        require_own_control_plane(self.spec, "etcd")
        plane = self.control_plane
        with self._run("kubernetes compact"):
            return plane.compact()

    def backup(self, path: Path) -> Backup:
        """Write the directory and the accounting into a new file. The cluster keeps working meanwhile.

        Raises:
            InputError: the file exists already, or can't be written there.
            ToolError: the controller could not make a backup; no file is left then.
        """
        return Backups(self.spec, self._controller).create(path)

    def restore(self, path: Path, *, force: bool = False) -> Restored:
        """Replace the directory and the accounting by those of a backup. Slurm and logins stop for some seconds.

        Args:
            force: allow the backup of another cluster, and a restore while jobs run.

        Raises:
            InputError: the file is no backup, or does not fit; nothing was changed.
            ToolError: it failed, and everything is as before.
        """
        with self._run("restore"):
            return Backups(self.spec, self._controller).restore(path, force=force)

    def images(self) -> tuple[BakedImage, ...]:
        """The baked images of this cluster, the newest first."""
        self._cloud.start(to_build=False)
        return self._images().all()

    def autoscaler_argv(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs the autoscaler's own program on the controller.

        Args:
            arguments: of that program, such as `["status", "--output", "json"]`.

        Raises:
            InputError: no pool is elastic.
            ToolError: nothing was applied yet.
        """
        return self._controller.autoscaler_argv(arguments)

    def run_autoscaler(self, arguments: Sequence[str]) -> Completed:
        """Run the autoscaler's own program on the controller, and return what it has printed, however it has ended.

        Args:
            arguments: see `autoscaler_argv`.

        Raises:
            InputError: no pool is elastic.
            ToolError: the controller can't be reached, or has no autoscaler; or nothing was applied yet.
        """
        return self._controller.run_autoscaler(arguments)

    def autoscaler_status(self) -> dict[str, Any]:
        """What the autoscaler reports of itself, its pools, and the jobs that wait for nodes.

        Raises:
            ToolError: it does not answer.
        """
        return self._controller.autoscaler_status()

    def ssh_argv(self, host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        """The command line that logs in to a host (None: the controller), or runs a command there.

        Raises:
            ToolError: no such host, or nothing was applied yet.
        """
        return self._controller.ssh_argv(host, command)

    def login_addresses(self) -> tuple[str, ...]:
        """Where users log in: the addresses of the login nodes, or of the controller where there is none.

        Raises:
            GpuClusterError: the hosts can't be found.
        """
        return self._controller.login_addresses()

    def forward_dashboard(self, subject: Subject, port: int | None, on_open: Callable[[Page], None]) -> None:
        """Forward a port of this machine to Grafana, or else Prometheus, on the controller, until interrupted.

        Args:
            subject: whose dashboard it is.
            port: of this machine; None takes a free one.
            on_open: is called when the page can be opened.

        Raises:
            InputError: cluster.yml has no monitoring, or the port is taken.
            ToolError: nothing listens there, or the connection ended and no other one could be made.
        """
        Dashboard(self.spec, self._controller, self._on_event).forward(subject, port, on_open)

    def dashboard_password(self) -> str:
        """The password of Grafana's user admin.

        Raises:
            InputError: cluster.yml has no Grafana.
            ToolError: the controller has none, or does not answer.
        """
        return Dashboard(self.spec, self._controller, self._on_event).password()

    def has_new_key(self, host: str | None = None) -> bool:
        """Whether ssh to a host was refused because of a new host key that Terraform's state has: then try again.

        Raises:
            ToolError: the host answers with another key than the state has.
        """
        return self._controller.has_new_key(host)

    # --- status, outputs and generated files -----

    def status(self, *, timeout: float = status.TIMEOUT) -> dict[str, Any]:
        """What exists, what is pending, Slurm's nodes, the autoscaler, the last runs: see `operations.status`. Reads
        only, except that a local cloud with resources is started.

        Args:
            timeout: seconds to wait for the answers of the cloud, the state and the controller.
        """
        return status.status(
            self.spec,
            status.Sources(
                resources=self._tagged,
                contents=lambda: self._terraform().contents(),
                hosts=self._controller.hosts,
                hosts_saved_at=self._saved.hosts_saved_at,
                controller=self._controller,
                kubernetes_nodes=lambda: kubernetes_nodes(self._control_plane),
                certificates=self._control_plane.certificates,
                record=self._record,
                runs=read_runs(self.paths),
            ),
            timeout,
        )

    def overview(self, *, timeout: float = overview.TIMEOUT) -> Overview:
        """The state of the cluster on one page: see `dashboards.overview`. Reads only, except that a local cloud with
        resources is started.

        Args:
            timeout: seconds to wait for all answers together.

        Raises:
            ToolError: there is no cluster, or nothing is known of it.
        """
        return overview.overview(
            self.spec,
            overview.Sources(
                status=lambda: self.status(timeout=timeout * overview.STATUS_PART),
                controller=self._controller,
                evidence=lambda: evidence.newest(self.paths),
                runs=lambda: past_runs(self.paths),
            ),
            version=__version__,
            timeout=timeout,
        )

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
        if not self._cloud.in_use():
            return ()
        self._cloud.start_if_used()
        return clusters.in_compartment(self._cloud.access())

    def outputs(self) -> Mapping[str, Any]:
        """Terraform's outputs, versioned (`contract_version`); empty if nothing was applied.

        Raises:
            OtherClusterError: they are of another cluster than cluster.yml names.
            TerraformError: the state can't be read.
        """
        outputs = self._terraform().outputs()
        self._ownership.require_outputs(outputs)
        return outputs

    def known_outputs(self) -> Mapping[str, Any]:
        """The same, of a cluster that is there.

        Raises:
            ToolError: there is no cluster, or its state is lost.
        """
        outputs = self.outputs()
        if not outputs:
            raise self._nothing_known()
        return outputs

    def _nothing_known(self) -> ToolError:
        """The error for an empty state."""
        if self._locator.locate():
            return ToolError(
                f"the cloud has a cluster {self.spec.name}, and this folder has no state of it",
                hint="If somebody else has built it, choose another `name`. If it is yours, its state is lost. Run: "
                "gpucluster state recover",
            )
        return ToolError("there is no cluster yet", hint="Run: gpucluster apply")

    def lock_provider(self) -> tuple[Path, bool]:
        """Keep the version and the checksums of Terraform's provider in a file that every later run keeps to.

        Returns:
            The file, and whether it changed.

        Raises:
            InputError: no run on this machine has recorded them yet, or the provider is a part of gpucluster.
            EnvironmentFault: the file can't be written.
        """
        return provider_lock.path_of(self.spec.file), self._terraform().keep_provider_lock()

    def inventory(self) -> Mapping[str, Any]:
        """The Ansible inventory: of the last run on this machine that reached the hosts, else as the state has it.

        Raises:
            ToolError: there is no cluster, or its state is lost.
        """
        import yaml

        file = self.paths.ansible / "inventory.yml"
        with suppress(OSError, yaml.YAMLError):
            loaded = yaml.safe_load(read_saved(file))
            if isinstance(loaded, dict):
                return loaded
        deployment = self._locator.deployment()
        if deployment is None:
            raise self._nothing_known()
        return self._configuration.inventory(deployment)

    def policies(self) -> iam.Policies:
        """The permissions that the cluster and its operator need. Reads only, except that the local cloud is
        started."""
        self._cloud.start(to_build=False)
        outputs = self.outputs()
        access = self._cloud.access()
        return iam.policies(
            self.spec,
            compartment_id=access.compartment_id,
            controller_id=handover.Outputs.parse(outputs).controller.id if outputs else None,
            network_compartment_id=network_compartment(self.spec, access),
        )

    def person_key(self, name: str) -> Path:
        """The path of a user's generated private key."""
        return self._login_keys.private_key(name)

    # --- runs -----

    @contextmanager
    def _run(self, command: str, *, changes: bool = True, prepares: bool = False) -> Iterator[Run]:
        """Hold the cluster for one run, on this machine and on every other one that shares the state.

        Args:
            changes: the run may change the cluster: it must be the one of this folder.
            prepares: the run begins with `Provisioning.prepare`, which asks that itself.

        Raises:
            OtherClusterError: it is not, or is not known to be; nothing was changed.
            LockedError: another run holds it.
        """
        self._ownership.require_name()
        with runs.run(command, self.paths, self._on_event) as run, self._terraform().hold_state():
            self._ownership.forget()
            self._run_lock.begin(command)
            try:
                if changes and not prepares:
                    self._ownership.require()
                yield run
            finally:
                signals.surely(self._run_lock.end)  # no Ctrl-C, not even the first, may leave a lock
                self._ownership.forget()

    def require_name(self) -> None:
        """Refuse a folder whose local state is that of another cluster than cluster.yml names. Asks no service.

        Raises:
            OtherClusterError: with both names.
        """
        self._ownership.require_name()

    def require_own(self) -> None:
        """Refuse a cluster in the cloud that is not known to be the one of this folder. Reads only. What changes
        something asks this itself.

        Raises:
            OtherClusterError: with the facts, and how to name that cluster.
            GpuClusterError: the state can't be read, or the cloud refused.
        """
        self._ownership.forget()
        self._ownership.require(strict=True)

    def _require_own(self) -> None:
        self._ownership.require(state=False)

    def _result(
        self,
        run: Run,
        deployment: Deployment,
        *,
        built: _Built | None = None,
        verdict: Verdict | None = None,
    ) -> Result:
        configured = built.configured if built else None
        return Result(
            run.command,
            RunStatus.SUCCESS,
            run.elapsed,
            run.phases,
            roles=configured.roles if configured else {},
            changes=built.changes if built else 0,
            changed={host: done.changed for host, done in configured.hosts.items()} if configured else {},
            verdict=verdict,
            login=self._login_keys.login_commands(deployment.login),
        )

    # --- clients: made when they are needed, because the local cloud answers only after a run has started it -----

    def _terraform(self, env: Mapping[str, str] | None = None) -> Terraform:
        environment = {**runs.environment(self.paths), **(env or {})}
        return Terraform(
            self.paths,
            self._terraform_program,
            environment,
            self._on_event,
            backend=self._backend,
            state_lock=self._state_lock,
            kept_lock=None if self._cloud.own_provider else provider_lock.path_of(self.spec.file),
        )

    @cached_property
    def _terraform_program(self) -> Path:
        return find_program(cache_dir())

    @cached_property
    def _backend(self) -> BackendConfig:
        state, cloud = self.spec.state, self.spec.cloud
        return backends.desired(
            state.backend,
            state.config,
            cluster=self.spec.name,
            local_file=self.paths.terraform_state,
            region=cloud.region,
            profile=cloud.profile,
        )

    def _ansible(self) -> Ansible:
        return Ansible(self.paths, self._ssh_client().config, runs.environment(self.paths), self._on_event)

    def _ssh_client(self) -> SshClient:
        return SshClient(self.paths, self._cloud.ssh_key())

    def _bastion(self) -> Bastion:
        return Bastion(self._cloud.access(), self.paths, self._on_event)

    def _pool_members(self) -> PoolMembers:
        return PoolMembers(self._cloud.access(), self._on_event)

    def _consoles(self) -> Consoles:
        return Consoles(self._cloud.access())

    def _elastic(self) -> ElasticInstances:
        return ElasticInstances(self._cloud.access(), self.spec.name, self._on_event, identity=self._ownership.id)

    def _images(self) -> BakedImages:
        return BakedImages(self._cloud.access(), self.spec.name, self._on_event, identity=self._ownership.id)

    def _tagged(self) -> tuple[TaggedResource, ...]:
        if not self._cloud.in_use():
            return ()
        self._cloud.start_if_used()
        return self._tagged_resources().find()

    def _file_systems(self) -> FileSystems:
        existing = self.spec.storage.home.file_system_id
        keep = frozenset((existing,) if existing else ())
        return FileSystems(self._cloud.access(), self.spec.name, keep=keep)

    def _tagged_resources(self) -> TaggedResources:
        network, home = self.spec.network, self.spec.storage.home
        named = (network.vcn_id, network.public_subnet_id, network.private_subnet_id, home.file_system_id)
        return TaggedResources(
            self._cloud.access(), self.spec.name, self._on_event, keep={ocid for ocid in named if ocid}
        )


def _level(level: Level | str) -> Level:
    try:
        return Level(level)
    except ValueError:
        raise InputError(f"there is no level {level}", hint=f"Levels: {', '.join(Level)}") from None
