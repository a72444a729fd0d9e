"""The hosts that Terraform made: find them, connect to them, wait until they have booted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpucluster import handover
from gpucluster.cloud.bastion import LEFT_FOR_A_RUN, Bastion
from gpucluster.cloud.console import Consoles, fingerprint
from gpucluster.cloud.members import PoolMember, PoolMembers
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import CloudError, GpuClusterError
from gpucluster.events import Sink, warn
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import Host, SshClient, host_key_error, own_key
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState

# Bare metal needs up to 30 minutes for the first 20 nodes of a cluster network, and the same for each further 20.
MEMBERS_DEADLINE = 90 * 60.0
# From "RUNNING" to an ssh daemon: the firmware of bare metal tests the hardware first.
BOOT_DEADLINE = 20 * 60.0
# For a host that has answered before: a virtual machine restarts in this time.
ANSWER_DEADLINE = 5 * 60.0
# Consoles that are read at the same time.
_CONSOLES = 8


@dataclass(frozen=True)
class Deployment:
    """The hosts of a cluster that Terraform has built: the outputs, the members of each pool, how ssh reaches them.

    Each phase after Terraform begins with it.
    """

    outputs: handover.Outputs
    members: Mapping[str, Sequence[PoolMember]]
    hosts: tuple[Host, ...]
    #: The host that would go on in the place of the controller. It is none of `hosts`: it has no part in the cluster.
    standby: Host | None = None

    @classmethod
    def of(
        cls,
        spec: ClusterSpec,
        outputs: handover.Outputs,
        network_members: Callable[[str, str, Sequence[str]], Sequence[PoolMember]],
    ) -> Deployment:
        """The hosts of the pools that cluster.yml has; another pool is removed by the next apply.

        Args:
            network_members: reads the members of a pool's cluster network, by the pool, the network and their names.
        """
        members: dict[str, Sequence[PoolMember]] = {}
        for name, pool in outputs.pools.items():
            if name in spec.pools and (launched_together := pool.launched_together_id):
                names = handover.permanent_names(name, spec.pools[name])
                members[name] = network_members(name, launched_together, names)
            elif name in spec.pools:
                members[name] = pool.instances
        hosts = handover.hosts(spec, outputs.controller, members, login=outputs.login, bastion_id=outputs.bastion_id)
        return cls(outputs, members, hosts, handover.standby_host(spec, outputs))

    @property
    def controller(self) -> Host:
        """The controller, through which the other hosts are reached."""
        return self.hosts[0]

    @property
    def with_standby(self) -> tuple[Host, ...]:
        """All hosts that ssh reaches: the standby is the last one."""
        return (*self.hosts, *([self.standby] if self.standby else []))

    @property
    def login(self) -> Host:
        """Where users log in: the first login node, or the controller where there is none."""
        return self.hosts[1] if self.outputs.login else self.controller


@dataclass(frozen=True, kw_only=True)
class HostSources:
    """What it takes to find the hosts of one cluster and to let ssh reach them.

    Args:
        outputs: reads Terraform's outputs; empty without a state.
        pool_members, bastion, ssh_client, consoles: make the clients of the started cloud.
    """

    spec: ClusterSpec
    paths: ClusterPaths
    cloud: CloudProvider
    saved: SavedState
    outputs: Callable[[], Mapping[str, Any]]
    pool_members: Callable[[], PoolMembers]
    bastion: Callable[[], Bastion]
    ssh_client: Callable[[], SshClient]
    consoles: Callable[[], Consoles]

    def own_key(self) -> str:
        """The public key with which this machine logs in."""
        return self.spec.ssh.public_key or own_key(self.cloud.authorized_keys())

    def write(self, hosts: Sequence[Host], *, built: bool = False) -> Mapping[str, Collection[str]]:
        """Let ssh reach these hosts by their names, and no others under the name of a host that the state knows.

        Args:
            built: by this run, as far as the state does not know them.

        Returns:
            The host keys that a new controller may have from the one before it, by its OCID.
        """
        outputs: Mapping[str, Any] = {}
        identity = handover.Identity()
        # A state that can't be read hides no host. What this machine knows of the keys holds nevertheless.
        with suppress(GpuClusterError):
            outputs = self.outputs()
            identity = handover.Identity.parse(outputs)
        here = {host.instance_id for host in hosts}
        inherited = self._inherited_keys(outputs, identity.host_keys, here)
        self.ssh_client().write(
            hosts,
            {ocid: key for ocid, key in identity.host_keys.items() if ocid in here},
            authority=identity.ssh_authority,
            new=here if built else (),
            alternatives=inherited if outputs else None,
        )
        return inherited

    def _inherited_keys(
        self, outputs: Mapping[str, Any], keys: Mapping[str, str], here: Collection[str]
    ) -> dict[str, tuple[str, ...]]:
        """The host keys that a new controller may have from the one before it, with the volume of its state: by its
        OCID; empty for one whose key is recorded.

        It gets them within a run; one that is killed then has not recorded which one the controller has. Terraform's
        state has the key of the earlier one until a run records that of the new one.

        Args:
            keys: that the state has, by OCID.
            here: the OCIDs of all hosts.
        """
        if not self.spec.controller.has_state_volume:
            return {}
        controller = ""
        with suppress(GpuClusterError):
            parsed = handover.Outputs.parse(outputs)
            controller = parsed.controller.id
            if parsed.standby and parsed.service.begun:
                # It gets the keys of the other host within the failover.
                return {controller: tuple(keys[ocid] for ocid in (parsed.standby.id,) if ocid in keys)}
        if controller in keys or controller not in here:
            return {}
        return {controller: tuple(key for ocid, key in keys.items() if ocid not in here)}


class HostConnections:
    """The controller, the login nodes and the permanent nodes of one cluster."""

    def __init__(self, sources: HostSources, on_event: Sink) -> None:
        self._sources = sources
        self._on_event = on_event
        self._trusts_answers = False

    def reach(self, run: Run) -> Deployment:
        """Find every host and wait until it answers.

        Raises:
            GpuClusterError: nothing was applied yet, or a host does not run or answer in time.
        """
        with run.phase("hosts"):
            outputs = handover.Outputs.parse(self._sources.outputs())
            pool_members = self._sources.pool_members()
            deployment = Deployment.of(
                self._sources.spec,
                outputs,
                lambda pool, network, names: pool_members.members(pool, network, names, MEMBERS_DEADLINE),
            )
            self._open_bastion(outputs)
            self._wait(deployment)
        return deployment

    def locate(self) -> Deployment:
        """Find every host, and wait for none.

        Raises:
            GpuClusterError: nothing was applied yet, or the cloud refused.
        """
        outputs = handover.Outputs.parse(self._sources.outputs())
        deployment = Deployment.of(self._sources.spec, outputs, self._sources.pool_members().present)
        self._open_bastion(outputs)
        return deployment

    def look(self) -> Deployment:
        """Find every host, let ssh reach them, and wait for none.

        Raises:
            GpuClusterError: nothing was applied yet, or the cloud refused.
        """
        deployment = self.locate()
        self._sources.write(deployment.with_standby)
        return deployment

    def locate_with(self, outputs: handover.Outputs) -> Deployment:
        """Let ssh reach the hosts as they are with these outputs, and wait for none. The cache stays as it is.

        Raises:
            GpuClusterError: the cloud refused.
        """
        deployment = Deployment.of(self._sources.spec, outputs, self._sources.pool_members().present)
        self._open_bastion(outputs)
        self._sources.write(deployment.with_standby)
        return deployment

    def remember(self, deployment: Deployment) -> None:
        """Write down where the hosts are, as after `reach`."""
        booted = {host.booted for host in self._sources.saved.hosts() if host.booted}
        self._sources.saved.save_hosts(deployment.hosts, {*booted, deployment.controller.instance_id})

    def operator_keys(self) -> Sequence[str]:
        """The public keys of the operators, who log in to every host."""
        return self._sources.cloud.authorized_keys()

    def reach_standby(self, deployment: Deployment) -> None:
        """Wait until the standby answers.

        Raises:
            ToolError: it does not, or it has another host key than its console shows.
        """
        standby, ssh_client = deployment.standby, self._sources.ssh_client()
        if standby is None:
            return
        is_new = standby.instance_id not in ssh_client.host_keys()
        if is_new:
            ssh_client.write(deployment.with_standby, new={standby.instance_id})
        ssh_client.wait([standby], BOOT_DEADLINE if is_new else ANSWER_DEADLINE, self._on_event)
        if is_new:
            self._check_first_contacts([standby], {})
            ssh_client.write(deployment.with_standby)

    def come_back(self, deployment: Deployment, nodes: Collection[str], deadline: float) -> dict[str, str]:
        """Wait until these nodes have booted from another disk, and return why one has not, by its name.

        Args:
            deadline: seconds from now, for all of them together.

        Raises:
            ToolError: one has answered with another host key than its console shows.
        """
        hosts = [host for host in deployment.hosts if host.name in nodes]
        ssh_client = self._sources.ssh_client()
        self._sources.write(deployment.with_standby, built=True)
        known = ssh_client.host_keys()
        silent = ssh_client.silent(hosts, deadline, self._on_event)
        self._check_first_contacts([host for host in hosts if host.instance_id not in known], {})
        ssh_client.write(deployment.with_standby)
        return silent

    def host_keys(self, deployment: Deployment) -> dict[str, str]:
        """The ssh host keys of hosts that were reached, by the instance's OCID."""
        known = self._sources.ssh_client().host_keys()
        hosts = deployment.with_standby
        return {host.instance_id: known[host.instance_id] for host in hosts if host.instance_id in known}

    def forget_keys(self) -> None:
        """Forget all host keys, and where the hosts are: the next contact with each is a first one, and is trusted."""
        self._trusts_answers = True
        ssh_client = self._sources.ssh_client()
        ssh_client.forget_all()
        self._sources.saved.forget_hosts()

    def forget(self, *, rebooted: Collection[str], replaced: Collection[str]) -> None:
        """Forget that these instances have booted: the next `reach` waits for them.

        Args:
            rebooted: their OCIDs.
            replaced: those that get another boot volume, and with it another host key under the same OCID.
        """
        if rebooted or replaced:
            self._sources.saved.forget_booted({*rebooted, *replaced})
            self._sources.ssh_client().forget(replaced)

    def _open_bastion(self, outputs: handover.Outputs) -> None:
        """A controller without a public address is reached through a session of the Bastion service."""
        if outputs.bastion_id:
            key = self._sources.own_key()
            self._sources.bastion().open(outputs.bastion_id, outputs.controller.private_ip, key, left=LEFT_FOR_A_RUN)

    def _wait(self, deployment: Deployment) -> None:
        hosts, ssh_client = deployment.hosts, self._sources.ssh_client()
        inherited = self._sources.write(deployment.with_standby, built=True)
        # A host that has answered once has booted. If it does not exist any more, Ansible reports it.
        booted = {host.booted for host in self._sources.saved.hosts() if host.booted}
        self._sources.saved.save_hosts(hosts, booted)
        # Always ask the controller: that opens the one connection that all others share.
        again = [host for host in hosts[:1] if host.instance_id in booted]
        known = ssh_client.host_keys()
        ssh_client.wait(again, ANSWER_DEADLINE, self._on_event)
        ssh_client.wait([host for host in hosts if host.instance_id not in booted], BOOT_DEADLINE, self._on_event)
        new_hosts = [host for host in hosts if host.instance_id not in known]
        self._check_first_contacts(new_hosts, inherited)
        ssh_client.write(deployment.with_standby)  # from now on with the keys of new hosts
        self._sources.saved.save_hosts(hosts, {host.instance_id for host in hosts})

    def _check_first_contacts(self, hosts: Sequence[Host], inherited: Mapping[str, Collection[str]]) -> None:
        """Compare the keys of hosts that have answered for the first time with what the cloud has of their consoles.
        Nothing but the question whether they have booted was sent to them.

        Args:
            inherited: the keys that one may have from the host before it, by its OCID.

        Raises:
            ToolError: one has answered with another key.
        """
        ssh_client = self._sources.ssh_client()
        learned = ssh_client.host_keys()
        # The console of a new controller shows the keys that it made, and not those of the one before it.
        new_hosts = [
            host
            for host in hosts
            if host.instance_id in learned and learned[host.instance_id] not in inherited.get(host.instance_id, ())
        ]
        if not new_hosts or self._trusts_answers:
            return
        consoles = self._sources.consoles()

        def ask(host: Host) -> Collection[str] | CloudError:
            try:
                return consoles.fingerprints(host.instance_id)
            except CloudError as error:
                return error

        with ThreadPoolExecutor(_CONSOLES) as workers:
            by_host = dict(zip(new_hosts, workers.map(ask, new_hosts), strict=True))
        wrong = [
            host
            for host, fingerprints in by_host.items()
            if fingerprints
            and not isinstance(fingerprints, CloudError)
            and fingerprint(learned[host.instance_id]) not in fingerprints
        ]
        if wrong:
            ssh_client.forget({host.instance_id for host in wrong})
            raise host_key_error(", ".join(host.name for host in wrong))
        refused = [fingerprints for fingerprints in by_host.values() if isinstance(fingerprints, CloudError)]
        silent = [
            host.name
            for host, fingerprints in by_host.items()
            if not fingerprints or isinstance(fingerprints, CloudError)
        ]
        if silent:
            why = f" ({refused[0].what})" if refused else ""
            text = f"the cloud's console history does not show the ssh host keys of {', '.join(silent)}{why}: "
            warn(self._on_event, "ssh", f"{text}their first answer was trusted")
