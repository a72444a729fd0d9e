"""Locate the hosts of a cluster on any machine: from this machine's cache, Terraform's state, or the cloud's tags.

The folder `.gpucluster/` is a cache. Where its part about the hosts is missing or damaged, the hosts are found again
and the cache is written again: the addresses and the ssh configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpucluster import handover
from gpucluster.cloud.bastion import LEFT_FOR_A_COMMAND, Bastion
from gpucluster.cloud.members import Member, PoolMembers
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import GpuClusterError
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import Host, SshClient
from gpucluster.workspace.saved_state import SavedHost, SavedState


class HostLocator:
    """Finds the hosts of one cluster and lets ssh reach them. Needs no run and no lock.

    Args:
        outputs: reads Terraform's outputs; empty without a state.
        pool_members, bastion, ssh_client: make the clients of the started cloud.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        paths: ClusterPaths,
        cloud: CloudProvider,
        saved: SavedState,
        *,
        outputs: Callable[[], Mapping[str, Any]],
        pool_members: Callable[[], PoolMembers],
        bastion: Callable[[], Bastion],
        ssh_client: Callable[[], SshClient],
    ) -> None:
        self._spec = spec
        self._paths = paths
        self._cloud = cloud
        self._saved = saved
        self._outputs = outputs
        self._pool_members = pool_members
        self._bastion = bastion
        self._ssh_client = ssh_client

    def locate(self, *, refresh: bool = False) -> tuple[SavedHost, ...]:
        """The hosts, the controller first; empty if there is no cluster. ssh reaches them by these names afterwards.

        Args:
            refresh: do not use the cache.

        Raises:
            GpuClusterError: the state can't be read and the cloud knows no controller; or the cloud refused.
        """
        if not refresh and self._cached():
            return self._saved.hosts()
        self._cloud.start_if_used()
        try:
            deployment = self.deployment()
        except GpuClusterError:
            if not self._locate_by_tag():  # a state that can't be read does not hide a cluster that runs
                raise
        else:
            if deployment is not None:
                self._write(deployment.hosts, deployment.outputs.controller, deployment.outputs.bastion_id)
            elif not self._locate_by_tag():
                self._saved.forget_hosts()
        return self._saved.hosts()

    def nodes_alone(self) -> tuple[SavedHost, ...]:
        """The nodes of a cluster whose controller does not run, found by their tags; empty if it runs. ssh connects to
        them directly afterwards, which works where this machine reaches their network; the next `locate` finds the
        hosts again.

        Raises:
            CloudError: the cloud refused.
        """
        if not self._cloud.in_use():
            return ()
        found = self._pool_members().tagged(self._spec.name)
        if found.controller is not None:
            return ()
        hosts = [
            Host(node.name, node.private_ip, self._spec.pools[pool].image.login_user, node.id)
            for pool, nodes in found.nodes.items()
            if pool in self._spec.pools
            for node in nodes
        ]
        if hosts:
            self._saved.forget_hosts()
            self._ssh_client().write(hosts)
        return tuple(SavedHost(host.name, host.address, None) for host in hosts)

    def deployment(self) -> Deployment | None:
        """The hosts that Terraform's state knows, without waiting for any; None if it holds no cluster.

        Raises:
            GpuClusterError: the state can't be read, or the cloud refused.
        """
        found = self._outputs()
        if not found.get("cluster"):
            return None
        outputs = handover.Outputs.parse(found)
        return Deployment.of(self._spec, outputs, lambda *network: self._pool_members().present(*network))

    def _cached(self) -> bool:
        if not self._saved.hosts() or not self._ssh_client().config.exists():
            return False
        return self._spec.network.access != "bastion" or self._bastion().saved

    def _locate_by_tag(self) -> bool:
        """Find the hosts by their tags. False if there is no controller."""
        if not self._cloud.in_use():
            return False
        found = self._pool_members().tagged(self._spec.name)
        if found.controller is None:
            return False
        bastion_id = self._bastion().find(self._spec.name) if not found.controller.public_ip else None
        nodes = {pool: nodes for pool, nodes in found.nodes.items() if pool in self._spec.pools}
        hosts = handover.hosts(self._spec, found.controller, nodes, bastion_id=bastion_id)
        self._write(hosts, found.controller, bastion_id)
        return True

    def _write(self, hosts: Sequence[Host], controller: Member, bastion_id: str | None) -> None:
        self._paths.create()
        if bastion_id:
            key = self._cloud.authorized_keys()[0]
            self._bastion().open(bastion_id, controller.private_ip, key, left=LEFT_FOR_A_COMMAND)
        self._ssh_client().write(hosts)
        self._saved.save_hosts(hosts, {host.booted for host in self._saved.hosts() if host.booted})
