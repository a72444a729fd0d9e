"""Add and remove permanent nodes as cluster.yml changes, and keep Terraform from removing other ones.

The present nodes are compared with the names that cluster.yml asks for (`handover.permanent_names`). Nodes to remove
are drained in Slurm first. A member of a cluster network is then detached by its own name, before Terraform plans: its
refresh then finds the desired size, or one that can only grow. Nodes of the other kinds are resources of Terraform,
each by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucluster import handover
from gpucluster.cloud.cluster_network import ClusterNetwork, NetworkStatus
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.members import numbered_names
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import ReplacementError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import DRAIN_TIMEOUT, Draining
from gpucluster.spec import ClusterSpec, Pool
from gpucluster.terraform.plan import Change, Plan
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace.saved_state import SavedState

Names = Mapping[str, Sequence[str]]
# The name of each present node by its OCID, by pool.
Present = Mapping[str, Mapping[str, str]]

_POOL = re.compile(r'module\.pool\["([^"]+)"\]')
_NODE = re.compile(r'module\.instance\["([^"]+)"\]\.oci_core_instance\.')
_CONTROLLER = re.compile(r"module\.controller\.oci_core_instance\.")
_NETWORK = "oci_core_cluster_network."
_CLUSTER = "oci_core_compute_cluster."
# Reasons of a replacement that loses nothing: the resource was never complete, or the operator requested it by name.
_HARMLESS = frozenset({"tainted", "requested"})
_KINDS = {"cluster_network": "a cluster network", "compute_cluster": "a compute cluster", "instances": "instances"}


@dataclass(frozen=True)
class Replacement:
    """What a plan would delete, or delete and recreate, although cluster.yml still asks for it.

    Args:
        what: the resource, in words.
        nodes: the names of the permanent nodes that are lost with it.
        why: the reason of the replacement; empty if it is not known.
    """

    what: str
    nodes: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what


def desired_names(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """The names of the permanent nodes of each pool that cluster.yml asks for."""
    return {name: handover.permanent_names(name, pool) for name, pool in spec.pools.items()}


def nodes_to_remove(desired: Names, present: Present) -> dict[str, dict[str, str]]:
    """The nodes to remove: name by OCID, by pool. Pools without such nodes are left out."""
    removed = {}
    for pool, nodes in present.items():
        placed = numbered_names(pool, nodes, desired.get(pool, ()))
        removed[pool] = {ocid: name for ocid, name in nodes.items() if ocid not in placed}
    return {pool: nodes for pool, nodes in removed.items() if nodes}


def nodes_to_add(desired: Names, present: Present) -> dict[str, tuple[str, ...]]:
    """The names of the nodes to add, by pool. Pools without such nodes are left out."""
    added = {}
    for pool, names in desired.items():
        placed = set(numbered_names(pool, present.get(pool, {}), names).values())
        added[pool] = tuple(name for name in names if name not in placed)
    return {pool: names for pool, names in added.items() if names}


def replacements(
    changes: Iterable[Change], spec: ClusterSpec, outputs: handover.Outputs | None, present: Present
) -> tuple[Replacement, ...]:
    """What a plan would remove although cluster.yml asks for it: permanent nodes, what they are in, the controller.

    Args:
        outputs: of the last apply; None if nothing was applied yet.
    """
    desired = desired_names(spec)
    replaced = []
    for change in changes:
        if change.action not in ("delete", "replace") or change.reason in _HARMLESS:
            continue
        match = _POOL.match(change.address)
        pool = match.group(1) if match else ""
        nodes = _lost(change.address, pool, desired.get(pool, ()), present.get(pool, {}))
        if nodes or _CONTROLLER.match(change.address):
            output = outputs.pools.get(pool) if outputs else None
            what = _what(change.address, pool, nodes)
            replaced.append(Replacement(what, nodes, _why(change, output, spec.pools.get(pool))))
    return tuple(replaced)


def _lost(address: str, pool: str, desired: Sequence[str], present: Mapping[str, str]) -> tuple[str, ...]:
    """The desired nodes of the pool that are lost with a resource."""
    if node := _NODE.search(address):
        return tuple(name for name in desired if name == node.group(1))
    if _NETWORK in address or _CLUSTER in address:
        placed = set(numbered_names(pool, present, desired).values())
        return tuple(name for name in desired if name in placed)
    return ()


def _what(address: str, pool: str, nodes: Sequence[str]) -> str:
    if _NETWORK in address:
        return f"the cluster network of pool {pool} with {', '.join(nodes)}"
    if _CLUSTER in address:
        return f"the compute cluster of pool {pool} with {', '.join(nodes)}"
    return f"node {nodes[0]}" if nodes else "the controller, with Slurm's queue and the user directory"


def _why(change: Change, output: handover.PoolOutput | None, desired: Pool | None) -> str:
    if output is not None and desired is not None:
        if output.kind != desired.kind:
            reason = "max_count is above count" if desired.elastic else "max_count is count"
            because = f", because {reason} now" if desired.uses_rdma and output.kind != "instances" else ""
            kind = _KINDS.get(output.kind, output.kind)
            return f"the pool is made of {kind}, and would be {_KINDS[desired.kind]}{because}"
        if output.shape != desired.shape:
            return f"shape {output.shape} would become {desired.shape}"
        if desired.availability_domain not in (None, output.availability_domain):
            return f"availability_domain {output.availability_domain} would become {desired.availability_domain}"
    if change.forced_by:
        return f"{', '.join(change.forced_by)} can't be changed in place"
    return change.reason.replace("_", " ")


class Resizing:
    """Adds and removes the permanent nodes of one cluster.

    Args:
        elastic: makes the client of elastic instances; only called after the cloud was started.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        cloud: CloudProvider,
        saved: SavedState,
        elastic: Callable[[], ElasticInstances],
        controller: ControllerConnection,
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._cloud = cloud
        self._saved = saved
        self._elastic = elastic
        self._on_event = on_event
        self._draining = Draining(controller, on_event)

    def drain_and_detach(
        self, terraform: Terraform, plan: Plan, *, replace_nodes: bool = False, drain_timeout: float = DRAIN_TIMEOUT
    ) -> Plan:
        """Prepare the removal of the nodes that cluster.yml does not ask for, where Terraform can't or must not do it.

        These nodes are drained, nodes that cluster.yml asks for again are resumed, and members of cluster networks are
        detached. May be killed at any point and run again. Returns the plan to apply: this one, or a new one if this
        one is out of date.

        Args:
            replace_nodes: allow nodes that cluster.yml still asks for to be recreated; they are drained first, too.
            drain_timeout: seconds to wait for jobs; with 0 they are requeued, or cancelled.

        Raises:
            ReplacementError: the plan would replace such nodes, and that is not allowed. Nothing was changed.
            ToolError: jobs still run on nodes that are to be removed. Nothing was removed.
            CloudError: the cloud refused. Nodes that are removed stay removed; the next run continues from there.
        """
        spec, outputs = self._spec, self._outputs(terraform)
        networks = self._networks(outputs)
        observed = {pool: network.settle() for pool, network in networks.items()}
        present = _present(spec, outputs, observed)
        replaced = replacements(plan.changes, spec, outputs, present)
        if replaced and not replace_nodes:
            raise _refused(replaced)
        if outputs is None:
            return plan
        self._drain(present, [node for replacement in replaced for node in replacement.nodes], drain_timeout)
        members = nodes_to_remove(desired_names(spec), present)
        staying = [pool for pool in networks if not self._loses_network(pool, plan)]
        for pool in staying:
            self._resize(networks[pool], observed[pool], spec.pools[pool].count, members.get(pool, {}), plan)
        if any(pool in members for pool in staying):
            plan = terraform.plan()
        return plan

    def drain(self, nodes: Sequence[str], timeout: float) -> None:
        """Wait until no job is on these nodes, if a run has ever reached the hosts."""
        if nodes and self._saved.hosts():
            self._draining.drain(nodes, timeout)

    def replacements(self, terraform: Terraform, plan: Plan) -> tuple[Replacement, ...]:
        """What a plan would remove although cluster.yml asks for it. Reads only.

        Raises:
            CloudError: the cloud refused.
        """
        outputs = self._outputs(terraform)
        observed = {pool: network.status() for pool, network in self._networks(outputs).items()}
        return replacements(plan.changes, self._spec, outputs, _present(self._spec, outputs, observed))

    @staticmethod
    def _outputs(terraform: Terraform) -> handover.Outputs | None:
        outputs = terraform.outputs()
        return handover.Outputs.parse(outputs) if outputs.get("cluster") else None

    def _networks(self, outputs: handover.Outputs | None) -> dict[str, ClusterNetwork]:
        """The existing cluster networks, by pool; Terraform recreates one that was deleted outside of it."""
        networks = {}
        for pool, output in outputs.pools.items() if outputs else ():
            if output.cluster_network_id:
                network = ClusterNetwork(self._cloud.access(), output.cluster_network_id, self._on_event)
                if network.present() is not None:
                    networks[pool] = network
        return networks

    def _loses_network(self, pool: str, plan: Plan) -> bool:
        """Whether the whole cluster network of a pool is removed, and its members with it."""
        desired = self._spec.pools.get(pool)
        lost = {match.group(1) for address in plan.lost(_NETWORK.rstrip(".")) if (match := _POOL.match(address))}
        return desired is None or desired.kind != "cluster_network" or pool in lost

    def _drain(self, present: Present, replaced: Sequence[str], timeout: float) -> None:
        desired = desired_names(self._spec)
        removed, added = nodes_to_remove(desired, present), nodes_to_add(desired, present)
        for pool in sorted({*removed, *added}):
            self._on_event(Event(EventKind.LOG, f"pool {pool}", "scaling", _scaling_text(pool, added, removed)))
        if not self._saved.hosts():
            return  # No run has reached the hosts, and so no job ever ran.
        to_drain = {name for nodes in removed.values() for name in nodes.values()} | {*replaced, *self._without_pool()}
        to_keep = {name for names in desired.values() for name in names}
        self._draining.resume(sorted(to_keep - to_drain))
        if to_drain:
            self._draining.drain(sorted(to_drain), timeout)

    def _without_pool(self) -> list[str]:
        """Elastic nodes whose pool is no longer elastic or was removed; `elastic_teardown` removes them afterwards."""
        elastic = self._spec.elastic_pools
        return [each.node for each in self._elastic().instances() if each.pool not in elastic and not each.builder]

    @staticmethod
    def _resize(
        network: ClusterNetwork, status: NetworkStatus, count: int, removed: Mapping[str, str], plan: Plan
    ) -> None:
        if removed:
            network.remove(removed, count)
            return
        touched = any(_NETWORK in change.address for change in plan.changes)
        if len(status.members) < status.size == count and not touched:
            network.refill(count)


def _present(spec: ClusterSpec, outputs: handover.Outputs | None, observed: Mapping[str, NetworkStatus]) -> Present:
    """The present nodes, by pool. A member without a name of ours has the name that it would get."""
    present: dict[str, Mapping[str, str]] = {}
    desired = desired_names(spec)
    for pool, output in outputs.pools.items() if outputs else ():
        if output.cluster_network_id:
            members = observed[pool].members if pool in observed else {}
            present[pool] = {**members, **numbered_names(pool, members, desired.get(pool, ()))}
        else:
            present[pool] = {node.id: node.name for node in output.instances}
    return present


def _scaling_text(pool: str, added: Names, removed: Present) -> str:
    to_add, to_remove = ", ".join(added.get(pool, ())), ", ".join(removed.get(pool, {}).values())
    parts = [f"{to_add} to add" if to_add else "", f"{to_remove} to remove" if to_remove else ""]
    return " and ".join(part for part in parts if part)


def _refused(replaced: Sequence[Replacement]) -> ReplacementError:
    listed = "\n".join(f"  {replacement}" for replacement in replaced)
    return ReplacementError(
        f"this would delete or recreate what cluster.yml still asks for:\n{listed}",
        hint="Undo the change in cluster.yml, or pass --replace-nodes: apply waits for the jobs on these nodes first",
    )
