"""A cluster, and what can be done with it. Each public method of `Cluster` reads like a table of contents.

One run at a time: whatever changes something holds the cluster's lock. Every step may be killed at any point; the next
run looks at what is there and goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpucluster import __version__, handover, preflight
from gpucluster.cloud.baked_images import BakedImage
from gpucluster.configuration.runner import PlaybookResult
from gpucluster.configuration.verify import Check
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.events import Sink, ignore, one_at_a_time
from gpucluster.handover import iam
from gpucluster.lifecycle.bake import Baking
from gpucluster.lifecycle.elastic_teardown import Withdrawal
from gpucluster.lifecycle.hosts import Hosts, Landscape
from gpucluster.lifecycle.provision import Consent, Provisioning, network_compartment
from gpucluster.lifecycle.resize import Scaling
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.operations.backup import Backup, Backups, Restored
from gpucluster.operations.container_images import ContainerImages
from gpucluster.operations.controller import Controller
from gpucluster.operations.drain import DRAIN_TIMEOUT
from gpucluster.operations.users import Door, Groups, Users
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.plan import Plan
from gpucluster.workspace import run as runs
from gpucluster.workspace.run import Run
from gpucluster.workspace.run_log import last_run


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Args:
        phases: seconds by phase, in order; `roles`: seconds by Ansible role.
        changes: how many resources Terraform changed; `changed`: changed tasks by host.
        login: how to log in, for people.
    """

    command: str
    status: str
    elapsed: float
    phases: Mapping[str, float]
    roles: Mapping[str, float] = field(default_factory=dict)
    changes: int = 0
    changed: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    login: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "command": self.command,
            "status": self.status,
            "elapsed": round(self.elapsed, 2),
            "phases": {name: round(seconds, 2) for name, seconds in self.phases.items()},
            "roles": {name: round(seconds, 2) for name, seconds in self.roles.items()},
            "changes": self.changes,
            "changed": dict(self.changed),
            "checks": [check.to_dict() for check in self.checks],
            "login": dict(self.login),
        }


class Cluster:
    """The cluster that a `ClusterSpec` wishes for.

    Args:
        on_event: is told of everything that happens, as it happens, by one thread at a time.
        provider: "bundled" (the stand-in) or "registry" (the real oracle/oci) for the local cloud's Terraform.
    """

    def __init__(self, spec: ClusterSpec, *, on_event: Sink = ignore, provider: str = "bundled") -> None:
        self.spec = spec
        self._tools = Toolbox(spec, one_at_a_time(on_event), provider=provider, version=__version__)
        self.paths = self._tools.paths
        self._controller = Controller(self._tools)
        self._hosts = Hosts(self._tools)
        self._baking = Baking(self._tools, self._hosts)
        self._withdrawal = Withdrawal(self._tools, self._controller)
        scaling = Scaling(self._tools, self._controller)
        self._provisioning = Provisioning(self._tools, self._baking, self._withdrawal, scaling)

    @property
    def users(self) -> Users:
        """The people in the cluster's directory."""
        return Users(Door(self._tools, self._controller))

    @property
    def groups(self) -> Groups:
        """The groups in the cluster's directory."""
        return Groups(Door(self._tools, self._controller))

    @property
    def container_images(self) -> ContainerImages:
        """The container images that all nodes share."""
        return ContainerImages(self._tools, self._controller)

    def backup(self, path: Path) -> Backup:
        """Write the directory and the accounting into a new file. The cluster works on meanwhile.

        Raises:
            InputError: the file is there already, or can't be written there.
            ToolError: the controller could not make a backup; there is no file then.
        """
        return Backups(self._tools, self._controller).create(path)

    def restore(self, path: Path, *, force: bool = False) -> Restored:
        """Replace the directory and the accounting by those of a backup. Slurm and logins stop for some seconds.

        Args:
            force: also by those of another cluster, and while jobs run.

        Raises:
            InputError: the file is no backup, or does not fit; nothing was changed.
            ToolError: it failed, and everything is as it was before.
        """
        with self._run("restore"):
            return Backups(self._tools, self._controller).restore(path, force=force)

    def preflight(self) -> preflight.Report:
        """Whether the cloud would do what is wished for. Reads only, except that the local cloud is started.

        Raises:
            GpuClusterError: see `errors`; what the cloud would refuse is in the report.
        """
        cloud = self._tools.cloud
        cloud.check(fresh=not self._tools.kept.begun)
        cloud.start(to_build=False)
        # Where nothing was built yet there is no state to read, and a backend that does not answer is no news.
        return preflight.examine(self.spec, cloud, self.outputs() if self._tools.kept.begun else {})

    def policies(self) -> iam.Policies:
        """The rights that the cluster and its operator need. Reads only, except that the local cloud is started."""
        cloud = self._tools.cloud
        cloud.start(to_build=False)
        outputs = self.outputs()
        controller = handover.Outputs.parse(outputs).controller.id if outputs else None
        access = cloud.access()
        network = network_compartment(self.spec, access)
        return iam.policies(
            self.spec,
            compartment_id=access.compartment_id,
            controller_id=controller,
            network_compartment_id=network,
        )

    def plan(self, *, preflight: bool = True) -> Plan:
        """What `apply` would change in the cloud. Nothing is changed, except that the local cloud is started.

        Args:
            preflight: ask the cloud first whether it would do it.

        Raises:
            GpuClusterError: see `errors`; nothing was created.
        """
        with self._run("plan") as run:
            terraform = self._provisioning.prepare(run, preflight=preflight)
            with run.phase("plan"):
                plan, replaced = self._provisioning.plan(terraform)
            for one in replaced:
                self._tools.warn(f"apply would refuse this without --replace-nodes: {one}")
            plan.file.unlink(missing_ok=True)
        return plan

    def apply(
        self,
        *,
        delete_data: bool = False,
        replace_nodes: bool = False,
        drain_timeout: float = DRAIN_TIMEOUT,
        preflight: bool = True,
    ) -> Result:
        """Make it so, and prove it: the cloud's resources, the hosts' configuration, the checks.

        Args:
            delete_data: allow a plan that deletes or replaces the file system with the users' homes.
            replace_nodes: allow one that makes permanent nodes anew that are still wished for, or the controller.
            drain_timeout: seconds that jobs on nodes that go are given to end; with 0 they are requeued, or ended.
            preflight: ask the cloud first whether it would do it.

        Raises:
            VerifyError: everything was built, but a check failed or could not run.
            GpuClusterError: see `errors`; what was built stays, and the next apply goes on from there.
        """
        consent = Consent(delete_data, replace_nodes, drain_timeout)
        with self._run("apply") as run:
            terraform = self._provisioning.prepare(run, to_build=True, preflight=preflight)
            changes = self._provisioning.build(terraform, run, consent)
            landscape = self._hosts.reach(run)
            configured = self._hosts.configure(landscape, run)
            checks = self._hosts.check(landscape, run)
            result = self._result(run, landscape, changes=changes, configured=configured, checks=checks)
        return result

    def verify(self) -> Result:
        """Run the checks alone.

        Raises:
            VerifyError: a check failed or could not run.
        """
        with self._run("verify") as run:
            with run.phase("cloud"):
                self._tools.cloud.start(to_build=False)
            landscape = self._hosts.reach(run)
            checks = self._hosts.check(landscape, run)
            result = self._result(run, landscape, checks=checks)
        return result

    def bake(self, pool: str) -> Result:
        """Bake an image for the elastic nodes of a pool, and let them boot from it: then they need no configuration.

        An instance is launched for it and removed afterwards. Ends with an apply. May be killed at any point and run
        again: what was half made is removed first.

        Raises:
            InputError: there is no such pool, or its nodes do not come and go.
            GpuClusterError: see `errors`.
        """
        self._baking.check_pool(pool)
        with self._run("image bake") as run:
            self._provisioning.prepare(run, keep_variables=True)
            self._baking.clear(pool, run)
            landscape = self._hosts.reach(run)
            image = self._baking.bake(pool, landscape, run)
            baked = dict(run.phases)
        done = self.apply()
        self._baking.retire(pool, image)
        phases = {**{f"bake: {name}": took for name, took in baked.items()}, **done.phases}
        return replace(done, command="image bake", phases=phases, elapsed=run.elapsed)

    def images(self) -> tuple[BakedImage, ...]:
        """The baked images of this cluster, the newest first."""
        self._tools.cloud.start(to_build=False)
        return self._tools.images().all()

    def autoscaler_argv(self, words: Sequence[str]) -> list[str]:
        """The command line that asks the autoscaler on the controller: `["status", "--output", "json"]`.

        Raises:
            InputError: no pool is elastic.
            ToolError: nothing was applied yet.
        """
        return self._controller.autoscaler_argv(words)

    def autoscaler_status(self) -> dict[str, Any]:
        """What the autoscaler says of itself, its pools, and the jobs that wait for nodes.

        Raises:
            ToolError: it gives no answer.
        """
        return self._controller.autoscaler_status()

    def destroy(self, *, delete_data: bool = False) -> Result:
        """Take everything away that `apply` made; what it did not make is left alone.

        Args:
            delete_data: delete the homes' file system even when users' files are in it.

        Raises:
            DataGuardError: there are users' files, or nobody could look.
        """
        with self._run("destroy") as run:
            terraform = self._provisioning.prepare(run, keep_variables=True)
            gone = terraform.addresses()
            if gone and not delete_data and self._deletes_homes(gone):
                self._hosts.guard_data(run)
            if self.spec.elastic_pools or self._tools.elastic().instances():
                self._withdrawal.remove_all(run)
            if gone:
                self._provisioning.tear_down(terraform, run)
            with run.phase("clean up"):
                self._remove_orphans()
                self._baking.retire_all()
                self._forget()
            result = Result(run.command, "success", run.elapsed, run.phases, changes=len(gone))
        return result

    def status(self) -> dict[str, Any]:
        """What stands: the hosts, Slurm's view of them, the last run. Reads only.

        Returns:
            {name, state: "absent" | "present", last_run, hosts: [{name, address}], slurm: [{node, state, partition}],
            autoscaler: its own status, None where no pool is elastic, {"error": ...} where it gives no answer}
        """
        run = last_run(self.paths) if self.paths.runs.is_dir() else None
        answer: dict[str, Any] = {"name": self.spec.name, "state": "absent", "last_run": run, "hosts": [], "slurm": []}
        answer["autoscaler"] = None
        kept = self._tools.kept.hosts()
        if not kept:
            return answer
        hosts = [{"name": host.name, "address": host.address} for host in kept]
        slurm = self._controller.slurm_nodes() if self.spec.slurm.enabled else []
        answer |= {"state": "present", "hosts": hosts, "slurm": slurm}
        if self.spec.elastic_pools:
            try:
                answer["autoscaler"] = self.autoscaler_status()
            except GpuClusterError as error:
                answer["autoscaler"] = {"error": error.what}
        return answer

    def outputs(self) -> Mapping[str, Any]:
        """Terraform's outputs, versioned (`contract_version`); empty where nothing was applied."""
        return self._tools.terraform().outputs()

    def inventory(self) -> Mapping[str, Any]:
        """The Ansible inventory of the last run that reached the hosts.

        Raises:
            ToolError: there is none yet.
        """
        import yaml

        file = self.paths.ansible / "inventory.yml"
        if not file.exists():
            raise ToolError("there is no inventory yet", where=str(file), hint="Run: gpucluster apply")
        loaded: Mapping[str, Any] = yaml.safe_load(file.read_text())
        return loaded

    def ssh_argv(self, host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        """The command line that logs in to a host (the controller when none is named), or runs a command there.

        Raises:
            ToolError: no such host, or nothing was applied yet.
        """
        return self._controller.ssh_argv(host, command)

    def person_key(self, name: str) -> Path:
        """Where the generated private key of a person lies."""
        return self._tools.people.key(name)

    def _run(self, command: str) -> AbstractContextManager[Run]:
        return runs.run(command, self.paths, self._tools.on_event)

    def _result(
        self,
        run: Run,
        landscape: Landscape,
        *,
        changes: int = 0,
        configured: PlaybookResult | None = None,
        checks: tuple[Check, ...] = (),
    ) -> Result:
        return Result(
            run.command,
            "success",
            run.elapsed,
            run.phases,
            roles=configured.roles if configured else {},
            changes=changes,
            changed={host: done.changed for host, done in configured.hosts.items()} if configured else {},
            checks=checks,
            login=self._tools.people.logins(landscape.controller),
        )

    def _deletes_homes(self, addresses: Sequence[str]) -> bool:
        """Whether the homes' file system is ours to delete; one that cluster.yml only names is not."""
        home = self.spec.storage.home
        named = home.file_system_id or home.server or not home.enabled
        return not named or any("oci_file_storage_file_system." in address for address in addresses)

    def _remove_orphans(self) -> None:
        """Remove what an earlier run made and could not write into Terraform's state before it was killed."""
        orphans = self._tools.orphans()
        orphans.remove(orphans.find())

    def _forget(self) -> None:
        """Forget the cluster on this machine: keys, connections, working copies. The diary stays."""
        self._tools.route().close()
        self._tools.bastion().forget()
        for folder in (self.paths.ssh, self.paths.ansible):
            shutil.rmtree(folder, ignore_errors=True)
        self._tools.kept.forget()
        self._tools.terraform().forget()
        for name in ("provider", "terraform.rc"):
            (self.paths.root / name).unlink(missing_ok=True)
        self._tools.cloud.stop_if_empty()
