"""Locate the hosts of a cluster on any machine: from this machine's cache, Terraform's state, or the cloud's tags.

The folder `.gpucluster/` is a cache. Where its part about the hosts is missing or damaged, the hosts are found again
and the cache is written again: the addresses and the ssh configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucluster import handover
from gpucluster.cloud.bastion import LEFT_FOR_A_COMMAND
from gpucluster.cloud.members import PoolMember
from gpucluster.errors import GpuClusterError, OtherClusterError
from gpucluster.lifecycle.hosts import Deployment, HostSources
from gpucluster.ssh import Host
from gpucluster.workspace.saved_state import SavedHost


class HostLocator:
    """Finds the hosts of one cluster and lets ssh reach them. Needs no run and no lock."""

    def __init__(self, sources: HostSources) -> None:
        self._sources = sources

    def locate(self, *, refresh: bool = False) -> tuple[SavedHost, ...]:
        """The hosts, the controller first; empty if there is no cluster. ssh reaches them by these names afterwards.

        Args:
            refresh: do not use the cache.

        Raises:
            GpuClusterError: the state can't be read and the cloud knows no controller; or the cloud refused.
        """
        if not refresh and self._cached():
            return self._sources.saved.hosts()
        self._sources.cloud.start_if_used()
        try:
            deployment = self.deployment()
        except OtherClusterError:
            raise
        except GpuClusterError:
            if not self._locate_by_tag():  # a state that can't be read does not hide a cluster that runs
                raise
        else:
            if deployment is not None:
                self._write(
                    deployment.hosts,
                    deployment.outputs.controller,
                    deployment.outputs.bastion_id,
                    more=deployment.with_standby[len(deployment.hosts) :],
                )
            elif not self._locate_by_tag():
                self._sources.saved.forget_hosts()
        return self._sources.saved.hosts()

    def nodes_alone(self) -> tuple[SavedHost, ...]:
        """The nodes of a cluster whose controller does not run, found by their tags; empty if it runs. ssh connects to
        them directly afterwards, which works where this machine reaches their network; the next `locate` finds the
        hosts again.

        Raises:
            CloudError: the cloud refused.
        """
        if not self._sources.cloud.in_use():
            return ()
        tagged_hosts = self._sources.pool_members().tagged(self._sources.spec.name)
        if tagged_hosts.controller is not None:
            return ()
        hosts = [
            Host(node.name, node.private_ip, self._sources.spec.pools[pool].image.login_user, node.id)
            for pool, nodes in tagged_hosts.nodes.items()
            if pool in self._sources.spec.pools
            for node in nodes
        ]
        if hosts:
            self._sources.saved.forget_hosts()
            self._sources.write(hosts)
        return tuple(SavedHost(host.name, host.address, None) for host in hosts)

    def deployment(self) -> Deployment | None:
        """The hosts that Terraform's state knows, without waiting for any; None if it holds no cluster.

        Raises:
            GpuClusterError: the state can't be read, or the cloud refused.
        """
        values = self._sources.outputs()
        if not values.get("cluster"):
            return None
        outputs = handover.Outputs.parse(values)
        members = self._sources.pool_members
        return Deployment.of(self._sources.spec, outputs, lambda *network: members().present(*network))

    def _cached(self) -> bool:
        if not self._sources.saved.hosts() or not self._sources.ssh_client().config.exists():
            return False
        return self._sources.spec.network.access != "bastion" or self._sources.bastion().saved

    def _locate_by_tag(self) -> bool:
        """Find the hosts by their tags. False if there is no controller."""
        if not self._sources.cloud.in_use():
            return False
        tagged_hosts = self._sources.pool_members().tagged(self._sources.spec.name)
        if tagged_hosts.controller is None:
            return False
        bastion_id = (
            self._sources.bastion().find(self._sources.spec.name) if not tagged_hosts.controller.public_ip else None
        )
        nodes = {pool: nodes for pool, nodes in tagged_hosts.nodes.items() if pool in self._sources.spec.pools}
        hosts = handover.hosts(
            self._sources.spec, tagged_hosts.controller, nodes, login=tagged_hosts.login, bastion_id=bastion_id
        )
        self._write(hosts, tagged_hosts.controller, bastion_id)
        return True

    def _write(
        self, hosts: Sequence[Host], controller: PoolMember, bastion_id: str | None, *, more: Sequence[Host] = ()
    ) -> None:
        self._sources.paths.create()
        if bastion_id:
            key = self._sources.own_key()
            self._sources.bastion().open(bastion_id, controller.private_ip, key, left=LEFT_FOR_A_COMMAND)
        self._sources.write([*hosts, *more])
        self._sources.saved.save_hosts(hosts, {host.booted for host in self._sources.saved.hosts() if host.booted})
