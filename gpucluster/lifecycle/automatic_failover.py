"""Lets the standby go on by itself: what it needs to know, and the hosts that it may ask about the controller; and the
refusal of a plan whose state does not know that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpucluster import handover
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.events import Sink, warn
from gpucluster.failover.settings import WatchSettings, Witness
from gpucluster.handover.networks import cluster_networks
from gpucluster.lifecycle.hosts import Deployment, HostConnections
from gpucluster.operations.standby import StandbyMirror
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import Host

# An odd number: more than half of them decide.
_WITNESSES = 3


class AutomaticFailover:
    """The program on the standby of one cluster.

    Args:
        authentication: how it authenticates to the cloud.
        lock: the OCID of the network whose tag names the run that holds the cluster; empty if there is none.
        tags: of an address that it has to make again.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        hosts: HostConnections,
        mirror: StandbyMirror,
        authentication: Callable[[], Mapping[str, str]],
        lock: Callable[[], str],
        tags: Callable[[], Mapping[str, str]],
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._hosts = hosts
        self._mirror = mirror
        self._authentication = authentication
        self._lock = lock
        self._tags = tags
        self._on_event = on_event

    @property
    def wanted(self) -> bool:
        """Whether cluster.yml asks for it."""
        return self._spec.controller.automatic_failover

    def update(self, deployment: Deployment) -> None:
        """Let the standby watch the controller as cluster.yml states, or not. May be killed and run again.

        Raises:
            GpuClusterError: the standby can't be reached, or the cloud refused.
        """
        standby = deployment.standby
        if standby is None:
            return
        if self.wanted:
            self._mirror.watch(standby, self._settings(deployment, standby).document())
        else:
            self._mirror.unwatch(standby)

    def _settings(self, deployment: Deployment, standby: Host) -> WatchSettings:
        outputs = deployment.outputs
        if outputs.standby is None or not (lock := self._lock()):
            raise ToolError("the cloud does not list the network of the cluster", hint="Run: gpucluster apply")
        return WatchSettings(
            cluster=outputs.name,
            region=outputs.region,
            compartment_id=outputs.compartment_id,
            authentication=dict(self._authentication()),
            own=outputs.standby.id,
            other=outputs.controller.id,
            own_name=f"{outputs.name}-{outputs.service.other}",
            other_name=f"{outputs.name}-{outputs.service.host}",
            name=deployment.controller.name,
            user=standby.user,
            volume=outputs.state_volume_id,
            lock=lock,
            address=outputs.service.address,
            other_address=outputs.controller.private_ip,
            networks=tuple(cluster_networks(self._spec)),
            patience=float(self._spec.controller.failover_after_seconds),
            witnesses=tuple(self._witnesses(deployment, standby)),
            tags=dict(self._tags()),
        )

    def _witnesses(self, deployment: Deployment, standby: Host) -> Iterator[Witness]:
        """Some hosts that answer, and let the standby ask them: login nodes first, because nodes come and go."""
        outputs = deployment.outputs
        members = [*outputs.login, *(one for pool in deployment.members.values() for one in pool)]
        private = {each.id: each.private_ip for each in members}
        known = self._hosts.host_keys(deployment)
        addresses = (outputs.service.address, outputs.controller.private_ip)
        login = {each.id for each in outputs.login}
        hosts = sorted(deployment.hosts[1:], key=lambda host: host.instance_id not in login)
        key, found = self._mirror.key_of(standby), 0
        for host in hosts:
            if host.instance_id not in known or host.instance_id not in private:
                continue
            try:
                self._mirror.let_ask(host, key, addresses)
            except GpuClusterError as error:
                warn(self._on_event, "standby", f"{host.name} can't be asked about the controller: {error.what}")
                continue
            yield Witness(host.name, f"{host.user}@{private[host.instance_id]}", known[host.instance_id])
            found += 1
            if found == _WITNESSES:
                return


def require_followed(outputs: Mapping[str, Any], holder: Callable[[str], str]) -> None:
    """Refuse a state that does not know that the standby has gone on by itself: a plan would move the volume back.

    Args:
        outputs: those of Terraform.
        holder: asks the cloud which instance has a volume.

    Raises:
        ToolError: with the command that lets the state follow. `apply` has done that before.
        CloudError: the cloud does not answer.
    """
    record = handover.ServiceRecord.parse(outputs)
    if record.begun or not outputs.get("cluster"):
        return
    parsed = handover.Outputs.parse(outputs)
    if parsed.standby is None or not parsed.state_volume_id:
        return
    if holder(parsed.state_volume_id) == parsed.standby.id:
        raise ToolError(
            f"{parsed.name}-{record.other} has gone on by itself in the place of the controller, and the state does "
            "not have it yet",
            hint="Run: gpucluster controller failover. It lets the state follow, and starts the old host as the "
            "standby",
        )
