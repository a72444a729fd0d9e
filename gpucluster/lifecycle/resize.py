"""Permanent nodes come and go by changing the file: who goes, who comes, and what Terraform must not do meanwhile.

What stands is compared with the names that cluster.yml wishes for (`handover.permanent_names`). Who goes is drained in
Slurm first. A member of a cluster network is then taken out by its own name, before Terraform looks: the size that its
refresh finds is the wished one, or one that can only grow. Nodes of the other kinds are Terraform's, each by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucluster import handover
from gpucluster.cloud.cluster_network import ClusterNetwork, NetworkStatus
from gpucluster.cloud.members import numbered_names
from gpucluster.errors import ReplacementError
from gpucluster.events import Event
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.operations.controller import Controller
from gpucluster.operations.drain import DRAIN_TIMEOUT, Draining
from gpucluster.spec import ClusterSpec, Pool
from gpucluster.terraform.plan import Change, Plan
from gpucluster.terraform.runner import Terraform

Names = Mapping[str, Sequence[str]]
# The name of each standing node by its OCID, by pool.
Standing = Mapping[str, Mapping[str, str]]

_POOL = re.compile(r'module\.pool\["([^"]+)"\]')
_NODE = re.compile(r'module\.instance\["([^"]+)"\]\.oci_core_instance\.')
_CONTROLLER = re.compile(r"module\.controller\.oci_core_instance\.")
_NETWORK = "oci_core_cluster_network."
_CLUSTER = "oci_core_compute_cluster."
# It was never whole, or somebody has asked Terraform for it by name.
_HARMLESS = frozenset({"tainted", "requested"})
_KINDS = {"cluster_network": "a cluster network", "compute_cluster": "a compute cluster", "instances": "instances"}


@dataclass(frozen=True)
class Replacement:
    """What a plan would delete, or delete and make anew, although it is still wished for.

    Args:
        what: in words.
        nodes: the names of the permanent nodes that go with it.
    """

    what: str
    nodes: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what


def wished_names(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """The names of the permanent nodes of each pool, as cluster.yml wishes for them."""
    return {name: handover.permanent_names(name, pool) for name, pool in spec.pools.items()}


def shrink(wished: Names, standing: Standing) -> dict[str, dict[str, str]]:
    """The nodes that go: name by OCID, by pool. Pools of which nobody goes are left out."""
    going = {}
    for pool, nodes in standing.items():
        placed = numbered_names(pool, nodes, wished.get(pool, ()))
        going[pool] = {one: name for one, name in nodes.items() if one not in placed}
    return {pool: nodes for pool, nodes in going.items() if nodes}


def grow(wished: Names, standing: Standing) -> dict[str, tuple[str, ...]]:
    """The names of the nodes that come, by pool. Pools to which nobody comes are left out."""
    coming = {}
    for pool, names in wished.items():
        placed = set(numbered_names(pool, standing.get(pool, {}), names).values())
        coming[pool] = tuple(name for name in names if name not in placed)
    return {pool: names for pool, names in coming.items() if names}


def replacements(
    changes: Iterable[Change], spec: ClusterSpec, outputs: handover.Outputs | None, standing: Standing
) -> tuple[Replacement, ...]:
    """What a plan would take away although it is wished for: permanent nodes, what they stand in, the controller.

    Args:
        outputs: of the last apply; None where there was none.
    """
    wished = wished_names(spec)
    found = []
    for change in changes:
        if change.action not in ("delete", "replace") or change.reason in _HARMLESS:
            continue
        match = _POOL.match(change.address)
        pool = match.group(1) if match else ""
        nodes = _lost(change.address, pool, wished.get(pool, ()), standing.get(pool, {}))
        if nodes or _CONTROLLER.match(change.address):
            made = outputs.pools.get(pool) if outputs else None
            what = _what(change.address, pool, nodes)
            found.append(Replacement(what, nodes, _why(change, made, spec.pools.get(pool))))
    return tuple(found)


def _lost(address: str, pool: str, wished: Sequence[str], standing: Mapping[str, str]) -> tuple[str, ...]:
    """The wished nodes of the pool that go with a resource."""
    if node := _NODE.search(address):
        return tuple(name for name in wished if name == node.group(1))
    if _NETWORK in address or _CLUSTER in address:
        placed = set(numbered_names(pool, standing, wished).values())
        return tuple(name for name in wished if name in placed)
    return ()


def _what(address: str, pool: str, nodes: Sequence[str]) -> str:
    if _NETWORK in address:
        return f"the cluster network of pool {pool} with {', '.join(nodes)}"
    if _CLUSTER in address:
        return f"the compute cluster of pool {pool} with {', '.join(nodes)}"
    return f"node {nodes[0]}" if nodes else "the controller, with Slurm's queue and the people's directory"


def _why(change: Change, made: handover.PoolOutput | None, wish: Pool | None) -> str:
    if made is not None and wish is not None:
        if made.kind != wish.kind:
            reason = "max_count is above count" if wish.elastic else "max_count is count"
            because = f", because {reason} now" if wish.uses_rdma and made.kind != "instances" else ""
            return f"the pool is made of {_KINDS.get(made.kind, made.kind)}, and would be {_KINDS[wish.kind]}{because}"
        if made.shape != wish.shape:
            return f"shape {made.shape} would become {wish.shape}"
        if wish.availability_domain not in (None, made.availability_domain):
            return f"availability_domain {made.availability_domain} would become {wish.availability_domain}"
    if change.forced_by:
        return f"{', '.join(change.forced_by)} can't be changed in place"
    return change.reason.replace("_", " ")


class Scaling:
    """The permanent nodes of one cluster."""

    def __init__(self, tools: Toolbox, controller: Controller) -> None:
        self._tools = tools
        self._kept = tools.kept
        self._draining = Draining(controller, tools.on_event)

    def make_way(
        self, terraform: Terraform, plan: Plan, *, replace_nodes: bool = False, drain_timeout: float = DRAIN_TIMEOUT
    ) -> Plan:
        """Let the nodes go that cluster.yml does not wish for, as far as Terraform can't or must not do it.

        They are drained, those that are wished for again are resumed, and members leave their cluster network. May be
        killed at any point and run again. Returns the plan to carry out: this one, or a new one where this one is old.

        Args:
            replace_nodes: nodes that are still wished for may be made anew; they are drained before, too.
            drain_timeout: seconds that jobs are given to end; with 0 they are requeued, or ended.

        Raises:
            ReplacementError: the plan would replace such nodes, and nobody said that it may. Nothing was touched.
            ToolError: jobs still run on nodes that are to go. Nothing was removed.
            CloudError: the cloud refused. Who is gone stays gone, and the next run goes on from there.
        """
        spec, outputs = self._tools.spec, self._outputs(terraform)
        networks = self._networks(outputs)
        looks = {pool: network.settle() for pool, network in networks.items()}
        standing = _standing(spec, outputs, looks)
        replaced = replacements(plan.changes, spec, outputs, standing)
        if replaced and not replace_nodes:
            raise _refused(replaced)
        if outputs is None:
            return plan
        self._drain(standing, [node for one in replaced for node in one.nodes], drain_timeout)
        members = shrink(wished_names(spec), standing)
        staying = [pool for pool in networks if not self._ends(pool, plan)]
        for pool in staying:
            self._resize(networks[pool], looks[pool], spec.pools[pool].count, members.get(pool, {}), plan)
        if any(pool in members for pool in staying):
            plan = terraform.plan()
        return plan

    def replacements(self, terraform: Terraform, plan: Plan) -> tuple[Replacement, ...]:
        """What a plan would take away although cluster.yml wishes for it. Reads only.

        Raises:
            CloudError: the cloud refused.
        """
        outputs = self._outputs(terraform)
        looks = {pool: network.status() for pool, network in self._networks(outputs).items()}
        return replacements(plan.changes, self._tools.spec, outputs, _standing(self._tools.spec, outputs, looks))

    @staticmethod
    def _outputs(terraform: Terraform) -> handover.Outputs | None:
        outputs = terraform.outputs()
        return handover.Outputs.parse(outputs) if outputs.get("cluster") else None

    def _networks(self, outputs: handover.Outputs | None) -> dict[str, ClusterNetwork]:
        """The cluster networks that stand, by pool; one that somebody has deleted is Terraform's to make anew."""
        found = {}
        for pool, made in outputs.pools.items() if outputs else ():
            if made.cluster_network_id:
                network = ClusterNetwork(self._tools.cloud.access(), made.cluster_network_id, self._tools.on_event)
                if network.present() is not None:
                    found[pool] = network
        return found

    def _ends(self, pool: str, plan: Plan) -> bool:
        """Whether the whole cluster network goes: then its members go with it."""
        wish = self._tools.spec.pools.get(pool)
        lost = {match.group(1) for address in plan.lost(_NETWORK.rstrip(".")) if (match := _POOL.match(address))}
        return wish is None or wish.kind != "cluster_network" or pool in lost

    def _drain(self, standing: Standing, replaced: Sequence[str], timeout: float) -> None:
        wished = wished_names(self._tools.spec)
        going, coming = shrink(wished, standing), grow(wished, standing)
        for pool in sorted({*going, *coming}):
            leave, come = ", ".join(going.get(pool, {}).values()), ", ".join(coming.get(pool, ()))
            words = " and ".join([*([f"{come} to come"] if come else []), *([f"{leave} to go"] if leave else [])])
            self._tools.on_event(Event("log", f"pool {pool}", "scaling", words))
        if not self._kept.hosts():
            return  # No run has reached the hosts, and so no job ever ran.
        leaving = {name for nodes in going.values() for name in nodes.values()} | {*replaced, *self._homeless()}
        staying = {name for names in wished.values() for name in names}
        self._draining.welcome_back(sorted(staying - leaving))
        if leaving:
            self._draining.drain(sorted(leaving), timeout)

    def _homeless(self) -> list[str]:
        """Elastic nodes whose pool is no longer elastic, or gone; they are removed after this (see `withdrawal`)."""
        elastic = self._tools.spec.elastic_pools
        return [one.node for one in self._tools.elastic().instances() if one.pool not in elastic and not one.builder]

    @staticmethod
    def _resize(network: ClusterNetwork, look: NetworkStatus, count: int, going: Mapping[str, str], plan: Plan) -> None:
        if going:
            network.remove(going, count)
            return
        touched = any(_NETWORK in change.address for change in plan.changes)
        if len(look.members) < look.size == count and not touched:
            network.refill(count)


def _standing(spec: ClusterSpec, outputs: handover.Outputs | None, looks: Mapping[str, NetworkStatus]) -> Standing:
    """Who stands, by pool. A member that has no name of ours yet stands under the one that it would get."""
    standing: dict[str, Mapping[str, str]] = {}
    wished = wished_names(spec)
    for pool, made in outputs.pools.items() if outputs else ():
        if made.cluster_network_id:
            members = looks[pool].members if pool in looks else {}
            standing[pool] = {**members, **numbered_names(pool, members, wished.get(pool, ()))}
        else:
            standing[pool] = {node.id: node.name for node in made.instances}
    return standing


def _refused(replaced: Sequence[Replacement]) -> ReplacementError:
    listed = "\n".join(f"  {one}" for one in replaced)
    return ReplacementError(
        f"this would delete or make anew what cluster.yml still wishes for:\n{listed}",
        hint="Undo the change in cluster.yml, or say --replace-nodes: the jobs on these nodes are waited for first",
    )
