"""A cluster, and what can be done with it. Each public method of `Cluster` reads like a table of contents.

One run at a time: whatever changes something holds the cluster's lock. Every step may be killed at any point; the next
run looks at what is there and goes on.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpucluster import __version__, handover, process, shapes, wheels
from gpucluster.ansible import Ansible, PlaybookResult, write_inventory
from gpucluster.clouds import Cloud, open_cloud
from gpucluster.elastic import Elastic
from gpucluster.errors import (
    DataGuardError,
    GpuClusterError,
    InputError,
    Interrupted,
    TerraformError,
    ToolError,
    VerifyError,
)
from gpucluster.events import Event, Sink, ignore
from gpucluster.images import BakedImage, Images, newest, superseded
from gpucluster.instances import Instances, Member
from gpucluster.journal import Journal, last_run, lock
from gpucluster.orphans import Orphans
from gpucluster.paths import ClusterPaths, cache_dir, write_private
from gpucluster.spec import ClusterSpec, finding
from gpucluster.ssh import Host, Route, ensure_key, public_key
from gpucluster.terraform import Plan, Terraform, find_program
from gpucluster.verify import Check, Expectation, judge, passed

# Bare metal needs up to 30 minutes for the first 20 nodes of a cluster network; each further 20 as long again.
MEMBERS_DEADLINE = 90 * 60.0
# From "RUNNING" to an ssh daemon: bare metal passes its firmware's tests first.
BOOT_DEADLINE = 20 * 60.0
LEFTOVER_PATIENCE = 120.0
AUTOSCALER = "gpucluster-autoscaler"
AUTOSCALER_UNITS = ("gpucluster-autoscaler.service", "gpucluster-join.service")
# For a word with the controller that may be gone.
_CONTROLLER_PATIENCE = 60.0
_MARK = "GPUCLUSTER_CLUSTER"


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


@dataclass(frozen=True)
class Landscape:
    """What Terraform made and who is there: the outputs, the members of each pool, and the ssh route to all."""

    outputs: handover.Outputs
    members: Mapping[str, Sequence[Member]]
    hosts: tuple[Host, ...]

    @property
    def controller(self) -> Host:
        """The bastion and head of the cluster."""
        return self.hosts[0]


class _Run:
    """The phases of one run: announced, timed, and written into the diary whichever way it ends."""

    def __init__(self, command: str, paths: ClusterPaths, on_event: Sink) -> None:
        self.command = command
        self.journal = Journal(paths, command)
        self.phases: dict[str, float] = {}
        self._on_event = on_event
        self._started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One named part of the run."""
        begin = time.monotonic()
        self._on_event(Event("phase", name, "started"))
        status = "failed"
        try:
            yield
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            self.phases[name] = time.monotonic() - begin
            self._on_event(Event("phase", name, status, elapsed=self.phases[name]))


class Cluster:
    """The cluster that a `ClusterSpec` wishes for.

    Args:
        on_event: is told of everything that happens, as it happens.
        provider: "bundled" (the stand-in) or "registry" (the real oracle/oci) for the local cloud's Terraform.
    """

    def __init__(self, spec: ClusterSpec, *, on_event: Sink = ignore, provider: str = "bundled") -> None:
        self.spec = spec
        self.paths = ClusterPaths.of(spec.file)
        self._on_event = on_event
        self._warned: set[str] = set()
        self._cloud: Cloud = open_cloud(spec, self.paths, on_event, provider)

    # --- what can be asked for -----

    def plan(self) -> Plan:
        """What `apply` would change in the cloud. Nothing is changed, except that the local cloud is started.

        Raises:
            GpuClusterError: see `errors`; nothing was created.
        """
        with self._run("plan") as run:
            terraform = self._prepare(run)
            with run.phase("plan"):
                plan = terraform.plan()
            plan.file.unlink(missing_ok=True)
        return plan

    def apply(self, *, delete_data: bool = False) -> Result:
        """Make it so, and prove it: the cloud's resources, the hosts' configuration, the checks.

        Args:
            delete_data: allow a plan that deletes or replaces the file system with the users' homes.

        Raises:
            VerifyError: everything was built, but a check failed or could not run.
            GpuClusterError: see `errors`; what was built stays, and the next apply goes on from there.
        """
        with self._run("apply") as run:
            changes = self._provision(self._prepare(run, to_build=True), run, delete_data=delete_data)
            landscape = self._reach(run)
            configured = self._configure(landscape, run)
            checks = self._check(landscape, run)
            result = self._result(run, landscape, changes=changes, configured=configured, checks=checks)
        return result

    def verify(self) -> Result:
        """Run the checks alone.

        Raises:
            VerifyError: a check failed or could not run.
        """
        with self._run("verify") as run:
            with run.phase("prepare"):
                self._cloud.start(to_build=False)
            landscape = self._reach(run)
            checks = self._check(landscape, run)
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
        self._elastic_pool(pool)
        with self._run("image bake") as run:
            self._prepare(run, keep_variables=True)
            with run.phase("left from before"):
                self._remove_builder(pool)
                half = [image for image in self._images().all() if image.pool == pool and image.state != "AVAILABLE"]
                self._images().remove(half)
            landscape = self._reach(run)
            try:
                builder = self._configured_builder(pool, landscape, run)
                with run.phase("image"):
                    fingerprint = handover.node_fingerprint(self.spec, landscape.outputs, pool)
                    image = self._images().create(pool, fingerprint, builder.id)
            finally:
                # On the real cloud it costs as much as a node.
                with run.phase("remove the builder"):
                    self._remove_builder(pool)
            baked = dict(run.phases)
        done = self.apply()
        self._images().remove(superseded(self._images().all(), pool, image.id))
        phases = {**{f"bake: {name}": took for name, took in baked.items()}, **done.phases}
        return replace(done, command="image bake", phases=phases, elapsed=run.elapsed)

    def images(self) -> tuple[BakedImage, ...]:
        """The baked images of this cluster, the newest first."""
        self._cloud.start(to_build=False)
        return self._images().all()

    def autoscaler_argv(self, words: Sequence[str]) -> list[str]:
        """The command line that asks the autoscaler on the controller: `["status", "--output", "json"]`.

        Raises:
            InputError: no pool is elastic.
            ToolError: nothing was applied yet.
        """
        if not self.spec.elastic_pools:
            raise InputError(
                "this cluster has no elastic pool, and so no autoscaler",
                where=str(self.spec.file),
                hint="Set max_count of a pool above its count, and apply",
            )
        # ssh joins the words by spaces, and a shell reads them.
        return self.ssh_argv(None, [shlex.join(["sudo", AUTOSCALER, *words])])

    def autoscaler_status(self) -> dict[str, Any]:
        """What the autoscaler says of itself, its pools, and the jobs that wait for nodes.

        Raises:
            ToolError: it gives no answer.
        """
        argv = self.autoscaler_argv(["status", "--output", "json"])
        done = process.run(argv, check=False, timeout=_CONTROLLER_PATIENCE)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            said = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
            hint = "Look at its log: gpucluster ssh -- sudo journalctl --unit gpucluster-autoscaler"
            raise ToolError(f"the autoscaler gives no answer: {said}", hint=hint) from None
        return answer

    def destroy(self, *, delete_data: bool = False) -> Result:
        """Take everything away that `apply` made; what it did not make is left alone.

        Args:
            delete_data: delete the homes' file system even when users' files are in it.

        Raises:
            DataGuardError: there are users' files, or nobody could look.
        """
        with self._run("destroy") as run:
            terraform = self._prepare(run, keep_variables=True)
            gone = terraform.addresses()
            if gone and not delete_data:
                with run.phase("look for users' files"):
                    self._guard_data(run)
            if self.spec.elastic_pools or self._elastic().instances():
                with run.phase("elastic nodes"):
                    self._remove_elastic()
            if gone:
                with run.phase("terraform"):
                    self._tear_down(terraform)
            with run.phase("clean up"):
                self._remove_orphans()
                self._images().remove(self._images().all())
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
        kept = self._kept_landscape()
        if kept is None:
            return answer
        hosts = [{"name": host["name"], "address": host["address"]} for host in kept["hosts"]]
        answer |= {"state": "present", "hosts": hosts, "slurm": self._slurm(kept["hosts"][0]["name"])}
        if self.spec.elastic_pools:
            try:
                answer["autoscaler"] = self.autoscaler_status()
            except GpuClusterError as error:
                answer["autoscaler"] = {"error": error.what}
        return answer

    def outputs(self) -> Mapping[str, Any]:
        """Terraform's outputs, versioned (`contract_version`); empty where nothing was applied."""
        return self._terraform().outputs()

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
        kept = self._kept_landscape()
        if kept is None:
            raise ToolError("there is no cluster yet", hint="Run: gpucluster apply")
        names = [known["name"] for known in kept["hosts"]]
        wanted = host or names[0]
        if wanted not in names:
            raise ToolError(f"there is no host {wanted}", hint=f"The hosts are {', '.join(names)}")
        return Route(self.paths, None).argv(wanted, command)

    # --- the steps -----

    @contextmanager
    def _run(self, command: str) -> Iterator[_Run]:
        self.paths.create()
        with lock(self.paths, command):
            run = _Run(command, self.paths, self._on_event)
            try:
                self._end_leftovers()
                yield run
            except KeyboardInterrupt:
                self._close(run, "interrupted", "stopped by a signal")
                raise Interrupted(
                    f"{command} was interrupted", hint="Nothing is lost: run the same command again to go on"
                ) from None
            except GpuClusterError as error:
                self._close(run, "failed", str(error))
                raise
            except BaseException as error:
                self._close(run, "failed", repr(error))
                raise
            self._close(run, "success", "")

    @staticmethod
    def _close(run: _Run, status: str, error: str) -> None:
        phases = {name: round(seconds, 2) for name, seconds in run.phases.items()}
        run.journal.close(status, elapsed=round(run.elapsed, 2), phases=phases, error=error)

    @property
    def _mark(self) -> dict[str, str]:
        """Marks the programs that we start, so that the next run finds those that outlived a killed one."""
        return {_MARK: str(self.paths.root)}

    def _end_leftovers(self) -> None:
        left = process.marked(_MARK, str(self.paths.root))
        if not left:
            return
        self._on_event(
            Event("log", "leftovers", "warning", f"ending {len(left)} programs of an earlier run that was killed")
        )
        stuck = process.end(left, LEFTOVER_PATIENCE)
        if stuck:
            raise ToolError(
                f"programs of an earlier run do not end: pids {', '.join(map(str, stuck))}",
                hint="Wait for them or end them, then run the same command again",
            )

    def _terraform(self) -> Terraform:
        return Terraform(self.paths, find_program(cache_dir()), self._mark, self._on_event)

    def _prepare(self, run: _Run, *, to_build: bool = False, keep_variables: bool = False) -> Terraform:
        """Look before anything is created, make the cloud answer, and get Terraform ready."""
        with run.phase("prepare"):
            self._cloud.check(fresh=not self._compartment_file.exists())
            program = find_program(cache_dir())
            self._cloud.start(to_build=to_build)
            if to_build and self.spec.elastic_pools:
                self._wheels()
                self._cloud.controller_access()
            plain = Terraform(self.paths, program, self._mark, self._on_event)
            self._stay_in(self._cloud.access().compartment_id)
            plain.prepare()
            env = {**self._mark, **self._cloud.terraform_env(plain.provider_address())}
            terraform = Terraform(self.paths, program, env, self._on_event)
            terraform.init()
            if not (keep_variables and terraform.has_variables):
                terraform.set_variables(self._variables(self._baked_images(terraform.outputs())))
        return terraform

    def _variables(self, baked: Mapping[str, BakedImage]) -> dict[str, Any]:
        return handover.tfvars(
            self.spec,
            tenancy_id=self._cloud.tenancy_id,
            compartment_id=self._cloud.access().compartment_id,
            ssh_authorized_keys=self._cloud.authorized_keys(),
            baked_images={pool: image.id for pool, image in baked.items()},
        )

    def _wheels(self) -> Path:
        """The Python packages for the controller: it need not reach a package index."""
        software, image = self.spec.software, self.spec.controller.image
        python = software.controller_python or wheels.python_of(image.operating_system, image.version)
        if python is None:
            raise InputError(
                "which Python does the controller have? Its image does not say",
                findings=[
                    finding(
                        self.spec,
                        ("controller", "image"),
                        "is none whose Python is known",
                        'Add `controller_python: "3.12"` under `software:`',
                    )
                ],
            )
        target = wheels.Target(python, shapes.get(self.spec.controller.shape).architecture)
        return wheels.ensure(target, software.wheels_directory, __version__, self._on_event)

    def _images(self) -> Images:
        return Images(self._cloud.access(), (handover.CLUSTER_TAG, self.spec.name), self._on_event)

    def _elastic(self) -> Elastic:
        return Elastic(self._cloud.access(), (handover.CLUSTER_TAG, self.spec.name), self._on_event)

    def _baked_images(self, outputs: Mapping[str, Any]) -> dict[str, BakedImage]:
        """By elastic pool, the newest image that fits to what stands now; a pool without one is left out."""
        if not self.spec.elastic_pools or not outputs:
            return {}
        made, listed = handover.Outputs.parse(outputs), self._images().all()
        found = {}
        for pool in self.spec.elastic_pools:
            image = newest(listed, pool, handover.node_fingerprint(self.spec, made, pool))
            if image:
                found[pool] = image
            elif any(other.pool == pool and other.state == "AVAILABLE" for other in listed):
                words = f"the baked image of pool {pool} is for another controller, share or image, and is not used"
                self._warn(f"{words}. Bake it again: gpucluster image bake {pool}", once=True)
        return found

    def _stay_in(self, compartment: str) -> None:
        """Refuse to look for this cluster in another compartment (or another local cloud) than it was built in: there,
        Terraform would find nothing of it and build it all again.

        Raises:
            InputError: with both compartments.
        """
        if self._compartment_file.exists():
            built_in = self._compartment_file.read_text().strip()
            if built_in != compartment:
                raise InputError(
                    f"this cluster was built in another compartment: {built_in}, and not {compartment}",
                    where=str(self._compartment_file),
                    hint="Go back to the file (or the local cloud) that it was built with, and destroy it there first",
                )
        else:
            write_private(self._compartment_file, compartment + "\n")

    def _provision(self, terraform: Terraform, run: _Run, *, delete_data: bool) -> int:
        with run.phase("terraform"):
            changes = self._change(terraform, delete_data=delete_data)
            # What was built now may be another controller or another share, for which other images are right.
            if terraform.set_variables(self._variables(self._baked_images(terraform.outputs()))):
                changes += self._change(terraform, delete_data=delete_data)
        return changes

    def _change(self, terraform: Terraform, *, delete_data: bool) -> int:
        plan = terraform.plan()
        lost = plan.lost("oci_file_storage_file_system")
        if lost and not delete_data:
            raise DataGuardError(
                f"this would delete the file system with the users' homes ({', '.join(lost)})",
                hint="Undo the change in cluster.yml, or say --delete-data",
            )
        self._withdraw(plan)
        if plan.changes:
            terraform.apply(plan)
        else:
            plan.file.unlink(missing_ok=True)
        return len(plan.changes)

    # --- baking -----

    def _elastic_pool(self, name: str) -> None:
        if name in self.spec.elastic_pools:
            return
        if name not in self.spec.pools:
            raise InputError(f"there is no pool {name}", hint=f"The pools are {', '.join(self.spec.pools)}")
        raise InputError(
            f"the nodes of pool {name} stay, and need no image",
            hint="Images are for pools whose max_count is above their count",
        )

    def _remove_builder(self, pool: str) -> None:
        self._elastic().remove(lambda one: one.builder and one.pool == pool)

    def _configured_builder(self, pool: str, landscape: Landscape, run: _Run) -> Member:
        """Launch the instance that is to become the image, and make a node of it that is switched off."""
        made = landscape.outputs.pools.get(pool)
        if made is None or not (made.instance_configuration_id and made.image_id):
            raise ToolError(f"pool {pool} is not built yet as cluster.yml has it", hint="Run: gpucluster apply")
        with run.phase("builder"):
            name = handover.builder_name(pool)
            launched = self._elastic().launch_builder(pool, name, made.instance_configuration_id, made.image_id)
            builder = Instances(self._cloud.access(), self._on_event).member(launched)
            user = self.spec.pools[pool].image.login_user
            host = Host(name, builder.private_ip, user, builder.id, jump=landscape.controller.name)
            self._route().write([*landscape.hosts, host])
            self._route().wait([host], BOOT_DEADLINE)
        with run.phase("ansible"):
            plain = self._inventory(landscape)
            file = self.paths.ansible / "builder.yml"
            write_inventory(self.paths, handover.builder_inventory(plain, self.spec, pool, builder), file)
            self._ansible().run("bake.yml", file, run_id=run.journal.run_id)
        return builder

    # --- elastic nodes, when they are in the way -----

    def _withdraw(self, plan: Plan) -> None:
        """Remove the elastic nodes that the wish has no place for any more: Terraform does not know them, and can't
        delete what they stand in."""
        here = self._elastic().instances()
        lost = set(re.findall(r'module\.pool\["([^"]+)"\]', " ".join(plan.lost("oci_core_compute_cluster"))))
        everywhere = bool(plan.lost("oci_core_subnet"))
        pools = {one.pool for one in here if everywhere or one.pool in lost or one.pool not in self.spec.elastic_pools}
        if pools:
            nodes = [one.node for one in here if one.pool in pools and not one.builder]
            # The next run of the autoscaler is with the new policy: Ansible starts it again, or takes it away.
            self._stop_autoscaler(nodes, f"pool {', '.join(sorted(pools))} is being removed")
            self._elastic().remove(lambda one: one.pool in pools)

    def _remove_elastic(self) -> int:
        """Remove every elastic node and builder of the cluster; returns how many there were."""
        here = self._elastic().instances()
        self._stop_autoscaler([one.node for one in here if not one.builder], "the cluster is being removed")
        return self._elastic().remove()

    def _stop_autoscaler(self, nodes: Sequence[str], why: str) -> None:
        """Stop it on the controller and tell the jobs on these nodes, as well as it goes: there may be none."""
        kept = self._kept_landscape()
        if kept is None:
            return
        stop = f"sudo systemctl stop {' '.join(AUTOSCALER_UNITS)}"
        running = f"squeue --noheader --states=RUNNING,COMPLETING --format=%A --nodelist={shlex.quote(','.join(nodes))}"
        words = shlex.quote(f"gpucluster: {why}")
        tell = f"for job in $({running} | sort -u); do sudo scontrol notify $job {words} && echo $job; done"
        argv = Route(self.paths, None).argv(kept["hosts"][0]["name"], [f"{stop} && {{ {tell if nodes else 'true'}; }}"])
        try:
            done = process.run(argv, check=False, timeout=_CONTROLLER_PATIENCE)
            said = (
                "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
            )
            told = done.stdout.split()
        except GpuClusterError as error:
            said, told = error.what, []
        if said and "not loaded" not in said:  # it was never installed
            self._warn(f"the autoscaler could not be stopped on the controller: {said}")
        elif told:
            self._warn(f"jobs run on nodes that go now, and were told: {', '.join(told)}")

    def _warn(self, words: str, *, once: bool = False) -> None:
        if once and words in self._warned:
            return
        self._warned.add(words)
        self._on_event(Event("log", "cluster", "warning", words))

    def _reach(self, run: _Run) -> Landscape:
        """Find every host and wait until it answers."""
        with run.phase("hosts"):
            outputs = handover.Outputs.parse(self._terraform().outputs())
            members = self._members(outputs)
            landscape = Landscape(outputs, members, handover.hosts(self.spec, outputs, members))
            route = self._route()
            route.write(landscape.hosts)
            # Who has answered once has booted; if it went away since, Ansible will say so.
            booted = {host.get("booted") for host in (self._kept_landscape() or {}).get("hosts", ())}
            self._keep_landscape(landscape, booted)
            # The bastion is asked each time: that opens the one connection that all others share.
            asked = [host for host in landscape.hosts if not host.jump or host.instance_id not in booted]
            route.wait(asked, BOOT_DEADLINE)
            self._keep_landscape(landscape, {host.instance_id for host in landscape.hosts})
        return landscape

    def _members(self, outputs: handover.Outputs) -> dict[str, Sequence[Member]]:
        instances = Instances(self._cloud.access(), self._on_event)
        found: dict[str, Sequence[Member]] = {}
        for name, pool in outputs.pools.items():
            if pool.cluster_network_id:
                size = self.spec.pools[name].count if name in self.spec.pools else 0
                found[name] = instances.members(name, pool.cluster_network_id, size, MEMBERS_DEADLINE)
            else:
                found[name] = pool.instances
        return found

    def _route(self) -> Route:
        return Route(self.paths, self._cloud.ssh_key())

    def _ansible(self) -> Ansible:
        return Ansible(self.paths, self._route().config, self._mark, self._on_event)

    def _configure(self, landscape: Landscape, run: _Run) -> PlaybookResult:
        with run.phase("ansible"):
            inventory = write_inventory(self.paths, self._inventory(landscape))
            self._home_in_use.touch()
            return self._ansible().run("site.yml", inventory, run_id=run.journal.run_id)

    def _inventory(self, landscape: Landscape) -> dict[str, Any]:
        return handover.inventory(
            self.spec,
            landscape.outputs,
            landscape.members,
            person_keys=self._person_keys(),
            hardware_emulated=self._cloud.hardware_emulated,
            autoscaling=self._autoscaling(landscape.outputs),
        )

    def _autoscaling(self, outputs: handover.Outputs) -> handover.Autoscaling | None:
        if not self.spec.elastic_pools:
            return None
        baked = frozenset(pool for pool, made in outputs.pools.items() if made.baked_image_id)
        return handover.Autoscaling(self._cloud.controller_access(), baked, self._wheels())

    def _person_keys(self) -> dict[str, tuple[str, ...]]:
        """The public keys of each person; a pair of its own for whoever asks for one."""
        keys = {}
        for person in self.spec.users.people:
            mine = tuple(person.ssh_keys)
            if person.generate_key:
                pair = ensure_key(self.person_key(person.name), f"{person.name}@{self.spec.name}")
                mine += (public_key(pair),)
            keys[person.name] = mine
        return keys

    def person_key(self, name: str) -> Path:
        """Where the generated private key of a person lies."""
        return self.paths.ssh / f"{name}_ed25519"

    def _check(self, landscape: Landscape, run: _Run) -> tuple[Check, ...]:
        with run.phase("verify"):
            expected = Expectation(
                hosts=[host.name for host in landscape.hosts],
                pools={name: [node.name for node in nodes] for name, nodes in landscape.members.items()},
                people=[person.name for person in self.spec.users.people],
                home_mount_path=self.spec.storage.home.mount_path,
                users_gid=self.spec.users.gid,
                accounting=self.spec.slurm.accounting,
                autoscaler=bool(self.spec.elastic_pools),
                partitions={name: pool.partition for name, pool in self.spec.pools.items()},
            )
            inventory = self.paths.ansible / "inventory.yml"
            found = self._ansible().run("verify.yml", inventory, run_id=run.journal.run_id)
            facts = {host: dict(kept.get("gpucluster_facts") or {}) for host, kept in found.facts.items()}
            checks = judge(expected, {host: fact for host, fact in facts.items() if fact})
            for check in checks:
                self._on_event(Event("check", check.name, check.status, check.message))
            if not passed(checks):
                bad = [f"  {check.name}: {check.message}" for check in checks if check.status != "pass"]
                raise VerifyError("the cluster was built, but these checks did not pass:\n" + "\n".join(bad))
        return checks

    def _result(
        self,
        run: _Run,
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
            login=self._login(landscape.controller),
        )

    def _login(self, controller: Host) -> dict[str, str]:
        ways = {}
        for person in self.spec.users.people:
            # With our configuration, ssh knows the host's key; a person with a key of their own is somewhere else.
            ways[person.name] = (
                f"ssh -F {self._route().config} -i {self.person_key(person.name)} {person.name}@{controller.name}"
                if person.generate_key
                else f"ssh {person.name}@{controller.address}"
            )
        return ways

    # --- what is kept between runs -----

    @property
    def _landscape_file(self) -> Path:
        return self.paths.root / "hosts.json"

    @property
    def _compartment_file(self) -> Path:
        return self.paths.root / "compartment"

    @property
    def _home_in_use(self) -> Path:
        """Stands from the moment when users may reach the share: before that, nobody can have files in it."""
        return self.paths.root / "home-in-use"

    def _keep_landscape(self, landscape: Landscape, booted: AbstractSet[str]) -> None:
        """Write down the hosts, and the instance of each that has booted."""
        hosts = [
            {
                "name": host.name,
                "address": host.address,
                "booted": host.instance_id if host.instance_id in booted else None,
            }
            for host in landscape.hosts
        ]
        write_private(self._landscape_file, json.dumps({"hosts": hosts}, indent=2) + "\n")

    def _kept_landscape(self) -> dict[str, Any] | None:
        try:
            kept: dict[str, Any] = json.loads(self._landscape_file.read_text())
        except (OSError, ValueError):
            return None
        return kept if kept.get("hosts") else None

    def _slurm(self, controller: str) -> list[dict[str, str]]:
        argv = Route(self.paths, None).argv(controller, ["sinfo", "-h", "-N", "-o", "%N/%T/%R"])
        done = process.run(argv, check=False, timeout=20)
        rows = [line.split("/") for line in done.stdout.splitlines() if line.count("/") == 2]  # noqa: PLR2004 (two slashes, three fields)
        return [{"node": node, "state": state, "partition": partition} for node, state, partition in rows]

    def _tear_down(self, terraform: Terraform) -> None:
        """Let Terraform remove what it made. An autoscaler that could not be stopped may have launched a node since,
        which holds its network fast; with the controller gone it launches no more."""
        try:
            terraform.apply(terraform.plan(destroy=True))
        except TerraformError:
            if not self._elastic().remove():
                raise
            terraform.apply(terraform.plan(destroy=True))

    def _guard_data(self, run: _Run) -> None:
        """Refuse to go on where users' files are in the share, or where nobody can look.

        Raises:
            DataGuardError: with the number of files of each owner.
        """
        if not self._home_in_use.exists():
            return
        hint = "Copy what is needed, then say --delete-data to delete the share with everything in it"
        try:
            found = self._ansible().run("data.yml", self.paths.ansible / "inventory.yml", run_id=run.journal.run_id)
        except GpuClusterError as error:
            raise DataGuardError(f"can't look whether users' files are in the share: {error}", hint=hint) from error
        counts: dict[str, int] = {}
        for facts in found.facts.values():
            counts |= facts.get("gpucluster_home_files") or {}
        owners = {owner: int(number) for owner, number in counts.items() if int(number)}
        if owners:
            told = ", ".join(f"{number} of {owner}" for owner, number in sorted(owners.items()))
            raise DataGuardError(
                f"the share {self.spec.storage.home.export_path} holds {sum(owners.values())} files of users: {told}",
                hint=hint,
            )
        # From here the homes may go: a destroy that is killed half way must not need the controller again.
        self._home_in_use.unlink(missing_ok=True)

    def _remove_orphans(self) -> None:
        """Remove what an earlier run made and could not write into Terraform's state before it was killed."""
        orphans = Orphans(self._cloud.access(), (handover.CLUSTER_TAG, self.spec.name), self._on_event)
        orphans.remove(orphans.find())

    def _forget(self) -> None:
        """Forget the cluster on this machine: keys, connections, working copies. The diary stays."""
        import shutil

        self._route().close()
        for folder in (self.paths.ssh, self.paths.ansible, self.paths.terraform):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (
            self._landscape_file,
            self._home_in_use,
            self._compartment_file,
            self.paths.root / "provider",
            self.paths.root / "terraform.rc",
            self.paths.root / "terraform.tfstate",
            self.paths.root / "terraform.tfstate.backup",
        ):
            file.unlink(missing_ok=True)
        self._cloud.stop_if_empty()
