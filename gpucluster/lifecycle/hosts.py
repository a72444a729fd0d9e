"""The hosts that Terraform made: found, waited for, configured and checked.

What there is to know of a cluster that stands is its landscape; every later step begins with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster import handover
from gpucluster.cloud.bastion import LEFT_FOR_A_RUN
from gpucluster.cloud.members import Member
from gpucluster.configuration.runner import PlaybookResult, write_inventory
from gpucluster.configuration.verify import Check, Expectation, faults, judge, passed
from gpucluster.errors import DataGuardError, GpuClusterError, VerifyError
from gpucluster.events import Event
from gpucluster.handover import user_data
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.ssh import Host
from gpucluster.workspace.run import Run

# Bare metal needs up to 30 minutes for the first 20 nodes of a cluster network; each further 20 as long again.
MEMBERS_DEADLINE = 90 * 60.0
# From "RUNNING" to an ssh daemon: bare metal passes its firmware's tests first.
BOOT_DEADLINE = 20 * 60.0


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


class Hosts:
    """The controller and the permanent nodes of one cluster."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def reach(self, run: Run) -> Landscape:
        """Find every host and wait until it answers.

        Raises:
            GpuClusterError: nothing was applied yet, or a host does not run or answer in time.
        """
        with run.phase("hosts"):
            outputs = handover.Outputs.parse(self._tools.terraform().outputs())
            members = self._members(outputs)
            landscape = Landscape(outputs, members, handover.hosts(self._tools.spec, outputs, members))
            self._open_way_in(landscape)
            self._wait(landscape.hosts)
        return landscape

    def inventory(self, landscape: Landscape) -> dict[str, Any]:
        """The Ansible inventory of the whole cluster."""
        return handover.inventory(
            self._tools.spec,
            landscape.outputs,
            landscape.members,
            person_keys=self._tools.people.public_keys(),
            hardware_emulated=self._tools.cloud.hardware_emulated,
            autoscaling=self._autoscaling(landscape.outputs),
            software=self._tools.software(),
        )

    def configure(self, landscape: Landscape, run: Run) -> PlaybookResult:
        """Make each host what its part in the cluster asks for. From here on users may reach the share.

        Raises:
            AnsibleError: a task failed or a host can't be reached.
        """
        with run.phase("ansible"):
            file = write_inventory(self._tools.paths, self.inventory(landscape))
            self._tools.kept.home_in_use = self._tools.spec.storage.home.enabled
            return self._tools.ansible().run("site.yml", file, run_id=run.id)

    def check(self, landscape: Landscape, run: Run) -> tuple[Check, ...]:
        """Collect facts from the hosts and judge them.

        Raises:
            VerifyError: a check failed or could not run.
        """
        with run.phase("verify"):
            checks = judge(self._expectation(landscape), self._facts(run))
            for check in checks:
                self._tools.on_event(Event("check", check.name, check.status, check.message))
            if not passed(checks):
                bad = [f"  {check.name}: {check.message}" for check in faults(checks)]
                raise VerifyError("the cluster was built, but these checks did not pass:\n" + "\n".join(bad))
        return checks

    def guard_data(self, run: Run) -> None:
        """Refuse to go on where users' files are in the share, or where nobody can look.

        Raises:
            DataGuardError: with the number of files of each owner.
        """
        with run.phase("look for users' files"):
            if not self._tools.kept.home_in_use:
                return
            self._refuse_where_files_are(run)
            # From here the homes may go: a destroy that is killed half way must not need the controller again.
            self._tools.kept.home_in_use = False

    def _members(self, outputs: handover.Outputs) -> dict[str, Sequence[Member]]:
        spec, instances = self._tools.spec, self._tools.instances()
        found: dict[str, Sequence[Member]] = {}
        for name, pool in outputs.pools.items():
            if name not in spec.pools:
                continue  # taken out of the file and not applied yet
            if pool.cluster_network_id:
                names = handover.permanent_names(name, spec.pools[name])
                found[name] = instances.members(name, pool.cluster_network_id, names, MEMBERS_DEADLINE)
            else:
                found[name] = pool.instances
        return found

    def _open_way_in(self, landscape: Landscape) -> None:
        """A controller without a public address is reached by a session of the Bastion service."""
        if landscape.outputs.bastion_id:
            key = self._tools.cloud.authorized_keys()[0]
            address = landscape.outputs.controller.private_ip
            self._tools.bastion().open(landscape.outputs.bastion_id, address, key, left=LEFT_FOR_A_RUN)

    def _wait(self, hosts: Sequence[Host]) -> None:
        kept, route = self._tools.kept, self._tools.route()
        route.write(hosts)
        # Who has answered once has booted; if it went away since, Ansible will say so.
        booted = {host.booted for host in kept.hosts() if host.booted}
        kept.keep_hosts(hosts, booted)
        # The controller is asked each time: that opens the one connection that all others share.
        route.wait([host for host in hosts if host.is_entrance or host.instance_id not in booted], BOOT_DEADLINE)
        kept.keep_hosts(hosts, {host.instance_id for host in hosts})

    def _autoscaling(self, outputs: handover.Outputs) -> handover.Autoscaling | None:
        if not self._tools.spec.elastic_pools:
            return None
        baked = frozenset(pool for pool, made in outputs.pools.items() if made.baked_image_id)
        access = self._tools.cloud.controller_access(outputs.controller.id)
        return handover.Autoscaling(access, baked, self._tools.wheels())

    def _expectation(self, landscape: Landscape) -> Expectation:
        spec = self._tools.spec
        wanted = {landscape.outputs.controller.name: user_data.boot_settings(spec, None)}
        wanted |= {
            node.name: user_data.boot_settings(spec, pool)
            for pool, nodes in landscape.members.items()
            for node in nodes
        }
        return Expectation(
            hosts=[host.name for host in landscape.hosts],
            pools={name: [node.name for node in nodes] for name, nodes in landscape.members.items()},
            people=handover.primary_gids(spec),
            home_mount_path=spec.storage.home.mount_path if spec.storage.home.enabled else None,
            scheduler=spec.slurm.enabled,
            containers="enroot" in spec.containers.runtimes,
            accounting=spec.slurm.enabled and spec.slurm.accounting,
            autoscaler=bool(spec.elastic_pools),
            partitions={name: pool.partition for name, pool in spec.pools.items()},
            local_drives={host: machine.local_disk.count for host, machine in wanted.items() if machine.local_disk},
            rdma_addressed=[host for host, machine in wanted.items() if machine.rdma],
            hardware_emulated=self._tools.cloud.hardware_emulated,
        )

    def _facts(self, run: Run) -> dict[str, dict[str, Any]]:
        """What verify.yml found, by host; a host that told nothing is left out."""
        found = self._ask("verify.yml", run)
        facts = {host: dict(kept.get("gpucluster_facts") or {}) for host, kept in found.facts.items()}
        return {host: fact for host, fact in facts.items() if fact}

    def _refuse_where_files_are(self, run: Run) -> None:
        hint = "Copy what is needed, then say --delete-data to delete the share with everything in it"
        try:
            found = self._ask("data.yml", run)
        except GpuClusterError as error:
            raise DataGuardError(f"can't look whether users' files are in the share: {error}", hint=hint) from error
        counts: dict[str, int] = {}
        for facts in found.facts.values():
            counts |= facts.get("gpucluster_home_files") or {}
        owners = {owner: int(number) for owner, number in counts.items() if int(number)}
        if owners:
            share = self._tools.spec.storage.home.export_path
            told = ", ".join(f"{number} of {owner}" for owner, number in sorted(owners.items()))
            raise DataGuardError(f"the share {share} holds {sum(owners.values())} files of users: {told}", hint=hint)

    def _ask(self, playbook: str, run: Run) -> PlaybookResult:
        """Run a playbook that only looks, on the hosts that were configured last."""
        self._tools.bastion().renew()
        return self._tools.ansible().run(playbook, self._tools.paths.ansible / "inventory.yml", run_id=run.id)
