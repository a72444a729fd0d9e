"""Add and remove permanent nodes as cluster.yml changes, and keep Terraform from removing other ones.

The present nodes are compared with the names that cluster.yml asks for (`handover.permanent_names`). Nodes to remove
are drained in Slurm first. A member of a cluster network is then detached by its own name, before Terraform plans: its
refresh then finds the desired size, or one that can only grow. Nodes of the other kinds are resources of Terraform,
each by its name.

Terraform calls two changes of an instance an update in place which are none for its users (docs/adr/0024): another
image replaces the boot volume with everything on it, and other cores, memory or firmware settings reboot it. The first
is treated as a replacement; before the second, the node is drained.

A node that the operator names is recreated under its name (`gpucluster replace`): Terraform replaces it, or a member of
a cluster network is detached while the size stays, and OCI launches another, which gets the name that is free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gpucluster import handover
from gpucluster.cloud.cluster_network import ClusterNetwork, NetworkStatus
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.gpu_memory_cluster import launched_together
from gpucluster.cloud.members import numbered_names
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import GpuClusterError, InputError, ReplacementError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.handover.kubernetes import has_kubernetes_engine
from gpucluster.lifecycle.hosts import HostConnections
from gpucluster.node_agent.rules.reasons import CHANGED, REMOVED
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import DRAIN_TIMEOUT
from gpucluster.operations.schedulers import SchedulerNodes
from gpucluster.spec import ClusterSpec, PoolSpec
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.terraform.runner import Terraform

Names = Mapping[str, Sequence[str]]
# The name of each present node by its OCID, by pool.
Present = Mapping[str, Mapping[str, str]]

_POOL = re.compile(r'module\.pool\["([^"]+)"\]')
_NODE = re.compile(r'module\.instance\["([^"]+)"\]\.oci_core_instance\.')
_LOGIN = re.compile(r'module\.login\["([^"]+)"\]\.oci_core_instance\.')
_CONTROLLER = re.compile(r"module\.controller\.oci_core_instance\.")
_CONTROL_PLANE = re.compile(r"module\.oke\[0\]\.oci_containerengine_cluster\.")
_NODE_POOL = re.compile(r'module\.oke\[0\]\.oci_containerengine_node_pool\.this\["([^"]+)"\]')
# What launches the members of a pool itself.
_NETWORKS = ("oci_core_cluster_network.", "oci_core_compute_gpu_memory_cluster.")
_CLUSTER = "oci_core_compute_cluster."
# Reasons of a replacement that loses nothing: the resource was never complete, or the operator requested it by name.
_HARMLESS = frozenset({"tainted", "requested"})
# The attributes whose update replaces the boot volume of an instance, or reboots it (docs: UpdateInstanceDetails).
_BOOT_VOLUME = ("source_details.source_id", "source_details.source_type")
_REBOOTING = ("shape", "shape_config", "platform_config", "launch_options", "fault_domain")
_ANOTHER_IMAGE = "another image would replace its boot volume, with everything on it"
_KINDS = {
    "cluster_network": "a cluster network",
    "compute_cluster": "a compute cluster",
    "gpu_memory_cluster": "a GPU memory cluster",
    "instances": "instances",
    "node_pool": "a node pool of Kubernetes Engine",
}


@dataclass(frozen=True)
class Replacement:
    """What a plan would delete, or delete and recreate, although cluster.yml still asks for it.

    Args:
        what: the resource, in words.
        nodes: the names of the permanent nodes that are lost with it.
        why: the reason of the replacement; empty if it is not known.
        address: of the resource.
    """

    what: str
    nodes: tuple[str, ...]
    why: str
    address: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what


@dataclass(frozen=True)
class PoolScaling:
    """The permanent nodes of one pool that an apply would change, by name.

    Args:
        replaced: they are recreated, or get another boot volume: what is on their disks is lost.
        rebooted: they keep their disks.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    rebooted: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"{', '.join(names)} to {verb}"
            for verb, names in (
                ("add", self.added),
                ("remove", self.removed),
                ("replace", self.replaced),
                ("reboot", self.rebooted),
            )
            if names
        ]
        return " and ".join(parts)


@dataclass(frozen=True)
class Scaling:
    """The hosts that an apply would add, remove, replace or reboot. False if there is none.

    Args:
        pools: without those whose permanent nodes all stay as they are.
        controller: what happens to the controller: `replaced`, `rebooted`, or empty.
        login: what happens to login nodes. Apply does not wait for the users who are logged in there.
        replacements: why hosts that cluster.yml still asks for are replaced: apply needs --replace-nodes for them.
        staying: the OCIDs of the hosts that are neither removed nor replaced, by name.
    """

    pools: Mapping[str, PoolScaling]
    controller: str = ""
    replacements: tuple[Replacement, ...] = ()
    staying: Mapping[str, str] = field(default_factory=dict, compare=False)
    login: PoolScaling = PoolScaling()

    def names(self, *kinds: str) -> list[str]:
        """The names of the nodes of all pools that are `added`, `removed`, `replaced` or `rebooted`."""
        return sorted(name for pool in self.pools.values() for kind in kinds for name in getattr(pool, kind))

    @property
    def touched(self) -> int:
        """How many hosts are added, removed, replaced or rebooted."""
        kinds = [*self.pools.values(), self.login]
        named = sum(len(each.added) + len(each.removed) + len(each.replaced) + len(each.rebooted) for each in kinds)
        return named + bool(self.controller)

    def __bool__(self) -> bool:
        return bool(self.pools or self.controller or self.login != PoolScaling())


def desired_names(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """The names of the permanent nodes of each pool that cluster.yml asks for."""
    return {name: handover.permanent_names(name, pool) for name, pool in spec.pools.items()}


def recreated_addresses(spec: ClusterSpec, nodes: Collection[str]) -> tuple[str, ...]:
    """The addresses of these permanent nodes in Terraform; members of cluster networks have none."""
    return tuple(
        f'module.pool["{pool}"].module.instance["{name}"].oci_core_instance.this'
        for pool, names in desired_names(spec).items()
        if not spec.pools[pool].launched_together
        for name in names
        if name in nodes
    )


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
    changes: Iterable[ResourceChange], spec: ClusterSpec, outputs: handover.Outputs | None, present: Present
) -> tuple[Replacement, ...]:
    """What a plan would remove although cluster.yml asks for it: permanent nodes, what they are in, login nodes, the
    controller, a control plane of Kubernetes Engine and its node pools.

    Args:
        outputs: of the last apply; None if nothing was applied yet.
    """
    desired = desired_names(spec)
    replaced = []
    for change in changes:
        if not _loses(change):
            continue
        pool = pool_of(change.address)
        nodes = _lost(change.address, pool, desired.get(pool, ()), present.get(pool, {}))
        login = _LOGIN.match(change.address)
        if login and login.group(1) in handover.login_names(spec):
            nodes = (login.group(1),)
        if nodes or is_controller(change.address) or _is_of_kubernetes_engine(change.address, spec):
            output = outputs.pools.get(pool) if outputs else None
            what = _what(change.address, pool, nodes)
            replaced.append(Replacement(what, nodes, _why(change, output, spec.pools.get(pool)), change.address))
    return tuple(replaced)


def reboots(changes: Iterable[ResourceChange]) -> dict[str, str]:
    """The hosts that a plan reboots: by the address of the instance, the name of the node or login node, or empty for
    the controller."""
    return {
        change.address: _name(change.address)
        for change in changes
        if is_host(change.address) and change.action == "update" and _changes(change, _REBOOTING) and not _loses(change)
    }


def scaling(
    changes: Sequence[ResourceChange],
    spec: ClusterSpec,
    outputs: handover.Outputs | None,
    present: Present,
    recreate: Collection[str] = (),
) -> Scaling:
    """What an apply of these changes would do to the hosts. Pure.

    Args:
        outputs: of the last apply; None if nothing was applied yet: then every desired node is added.
        recreate: the nodes that the operator has named.
    """
    desired = desired_names(spec)
    lost = replacements(changes, spec, outputs, present)
    standing = {name for nodes in present.values() for name in nodes.values()}
    replaced = {node for replacement in lost for node in replacement.nodes} | (standing & set(recreate))
    rebooting = reboots(changes)
    added, removed = nodes_to_add(desired, present), nodes_to_remove(desired, present)
    pools = {}
    for pool in sorted({*desired, *present}):
        names = desired.get(pool, ())
        change_of_pool = PoolScaling(
            tuple(added.get(pool, ())),
            tuple(removed.get(pool, {}).values()),
            tuple(name for name in names if name in replaced),
            tuple(name for name in names if name in rebooting.values() and name not in replaced),
        )
        if change_of_pool != PoolScaling():
            pools[pool] = change_of_pool
    controller = "replaced" if any(is_controller(each.address) for each in lost) else ""
    login = _login_scaling(spec, outputs, replaced, rebooting.values())
    gone = {*replaced, *login.removed} | {ocid for nodes in removed.values() for ocid in nodes}
    nodes = {name: ocid for pool in present.values() for ocid, name in pool.items() if not gone & {ocid, name}}
    if outputs and not controller:
        nodes[outputs.controller.name] = outputs.controller.id
    nodes |= {node.name: node.id for node in (outputs.login if outputs else ()) if node.name not in gone}
    return Scaling(pools, controller or ("rebooted" if "" in rebooting.values() else ""), lost, nodes, login)


def _login_scaling(
    spec: ClusterSpec, outputs: handover.Outputs | None, replaced: Collection[str], rebooted: Collection[str]
) -> PoolScaling:
    desired, present = handover.login_names(spec), [node.name for node in outputs.login] if outputs else []
    return PoolScaling(
        tuple(name for name in desired if name not in present),
        tuple(name for name in present if name not in desired),
        tuple(name for name in desired if name in replaced),
        tuple(name for name in desired if name in rebooted and name not in replaced),
    )


def _loses(change: ResourceChange) -> bool:
    """Whether a resource is lost, or the disk of an instance."""
    if change.action == "update":
        return is_host(change.address) and _changes(change, _BOOT_VOLUME)
    return change.action in ("delete", "replace") and change.reason not in _HARMLESS


def _is_of_kubernetes_engine(address: str, spec: ClusterSpec) -> bool:
    """Whether this is the control plane or a node pool of Kubernetes Engine that cluster.yml asks for."""
    pool = _NODE_POOL.match(address)
    if pool is not None:
        return pool.group(1) in spec.managed_pools
    return bool(_CONTROL_PLANE.match(address)) and has_kubernetes_engine(spec)


def pool_of(address: str) -> str:
    """The name of the pool that a resource is of; empty for one of no pool."""
    match = _POOL.match(address)
    return match.group(1) if match else ""


def is_controller(address: str) -> bool:
    """Whether this is the instance of the controller."""
    return bool(_CONTROLLER.match(address))


def is_host(address: str) -> bool:
    """Whether this is the instance of a node, of a login node or of the controller."""
    return bool(_NODE.search(address) or _LOGIN.match(address) or is_controller(address))


def _name(address: str) -> str:
    """The name of the node or login node that has this address; empty for the controller."""
    match = _NODE.search(address) or _LOGIN.match(address)
    return match.group(1) if match else ""


def _changes(change: ResourceChange, attributes: Sequence[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for name in change.changed for each in attributes)


def _lost(address: str, pool: str, desired: Sequence[str], present: Mapping[str, str]) -> tuple[str, ...]:
    """The desired nodes of the pool that are lost with a resource."""
    if node := _NODE.search(address):
        return tuple(name for name in desired if name == node.group(1))
    if _CLUSTER in address or _of_network(address):
        placed = set(numbered_names(pool, present, desired).values())
        return tuple(name for name in desired if name in placed)
    return ()


def _of_network(address: str) -> bool:
    """Whether this launches the members of a pool itself."""
    return any(network in address for network in _NETWORKS)


def _what(address: str, pool: str, nodes: Sequence[str]) -> str:
    if _of_network(address):
        what = "cluster network" if _NETWORKS[0] in address else "GPU memory cluster"
        return f"the {what} of pool {pool} with {', '.join(nodes)}"
    if _CLUSTER in address:
        return f"the compute cluster of pool {pool} with {', '.join(nodes)}"
    if _LOGIN.match(address):
        return f"login node {nodes[0]}"
    if _CONTROL_PLANE.match(address):
        return "the control plane of Kubernetes Engine, with everything that Kubernetes stores"
    if node_pool := _NODE_POOL.match(address):
        return f"the node pool {node_pool.group(1)}, with all of its nodes"
    return f"node {nodes[0]}" if nodes else "the controller, with what the scheduler stores and the user directory"


def _why(change: ResourceChange, output: handover.PoolOutput | None, desired: PoolSpec | None) -> str:
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
    if change.action == "update":
        return _ANOTHER_IMAGE
    if change.forced_by:
        return f"{', '.join(change.forced_by)} can't be changed in place"
    return change.reason.replace("_", " ")


class Resizing:
    """Adds and removes the permanent nodes of one cluster.

    Args:
        elastic: makes the client of elastic instances; only called after the cloud was started.
        nodes: takes nodes out of service, and lets them in again.
        hosts: what this machine knows of hosts that boot again is forgotten there.
        record: states on the controller whether all hosts are configured.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        cloud: CloudProvider,
        elastic: Callable[[], ElasticInstances],
        controller: ControllerConnection,
        nodes: SchedulerNodes,
        hosts: HostConnections,
        record: ConfigurationRecord,
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._cloud = cloud
        self._controller = controller
        self._elastic = elastic
        self._hosts = hosts
        self._record = record
        self._on_event = on_event
        self._nodes = nodes
        self._changed: set[str] = set()

    def drain_and_detach(
        self,
        terraform: Terraform,
        plan: TerraformPlan,
        *,
        replace_nodes: bool = False,
        recreate: Collection[str] = (),
        drain_timeout: float = DRAIN_TIMEOUT,
        again: Callable[[], TerraformPlan] | None = None,
        emptied: Callable[[], None] = lambda: None,
    ) -> TerraformPlan:
        """Prepare the removal of the nodes that cluster.yml does not ask for, where Terraform can't or must not do it.

        These nodes are drained, nodes that cluster.yml asks for again are resumed, and members of cluster networks are
        detached. Nodes that the plan replaces or reboots are drained, too. May be killed at any point and run again.
        Returns the plan to apply: this one, or a new one if this one is out of date.

        Args:
            replace_nodes: allow nodes that cluster.yml still asks for to be recreated.
            recreate: the nodes that the operator has named: they are recreated, and nothing else may change.
            drain_timeout: seconds to wait for jobs; with 0 they are requeued, or cancelled.
            again: makes the plan again; None: Terraform, with the nodes to recreate.
            emptied: is called when no job is on the nodes that change, before anything is removed.

        Raises:
            InputError: nodes are to be recreated, and the plan would change something else. Nothing was changed.
            ReplacementError: the plan would replace such nodes, and that is not allowed. Nothing was changed.
            ToolError: jobs still run on nodes that are to be removed. Nothing was removed.
            CloudError: the cloud refused. Nodes that are removed stay removed; the next run continues from there.
        """
        spec, outputs = self._spec, self._outputs(terraform)
        networks = self._networks(outputs)
        observed = {pool: network.settle() for pool, network in networks.items()}
        present = _present(spec, outputs, observed)
        changes = scaling(plan.changes, spec, outputs, present, recreate)
        if recreate:
            _check_nothing_else(plan, changes, spec, recreate)
        if changes.replacements and not replace_nodes:
            raise _refused(changes.replacements)
        if outputs is None:
            return plan
        self._drain(changes, drain_timeout)
        emptied()
        members = nodes_to_remove(desired_names(spec), present)
        for pool in networks:
            named = {ocid: name for ocid, name in present[pool].items() if name in recreate}
            members |= {pool: {**members.get(pool, {}), **named}} if named else {}
        staying = [pool for pool in networks if not self._loses_network(pool, plan)]
        for pool in staying:
            self._resize(networks[pool], observed[pool], spec.pools[pool].count, members.get(pool, {}), plan)
        if any(pool in members for pool in staying):
            plan = again() if again else terraform.plan(recreate=recreated_addresses(spec, recreate))
        return plan

    def instances(self, terraform: Terraform, nodes: Collection[str]) -> dict[str, str]:
        """The OCIDs of the instances of these permanent nodes, by name. Reads only.

        Raises:
            CloudError: the cloud refused.
        """
        outputs = self._outputs(terraform)
        observed = {pool: network.status() for pool, network in self._networks(outputs).items()}
        present = _present(self._spec, outputs, observed).values()
        return {name: ocid for members in present for ocid, name in members.items() if name in nodes}

    def drain(self, nodes: Sequence[str], timeout: float) -> None:
        """Wait until no job is on these nodes, which leave without Terraform."""
        if nodes and self._controller.hosts():
            self._nodes.drain(dict.fromkeys(nodes, REMOVED), timeout)
            self._nodes.remove(nodes)

    def scaling(self, terraform: Terraform, plan: TerraformPlan) -> Scaling:
        """What an apply of this plan would do to the hosts, those changes included that are made without Terraform.
        Reads only.

        Raises:
            CloudError: the cloud refused.
        """
        outputs = self._outputs(terraform)
        observed = {pool: network.status() for pool, network in self._networks(outputs).items()}
        return scaling(plan.changes, self._spec, outputs, _present(self._spec, outputs, observed))

    def new_disks(self, terraform: Terraform, plan: TerraformPlan) -> set[str]:
        """The OCIDs of the instances that this plan gives another boot volume, and with it another host key."""
        addresses = [each.address for each in plan.changes if each.action == "update" and _loses(each)]
        return set(_instances(addresses, self._outputs(terraform)))

    @contextmanager
    def restarts(self, terraform: Terraform, plan: TerraformPlan) -> Iterator[None]:
        """Apply a plan inside this block: what this machine knows of the hosts that boot again is forgotten.

        It is forgotten before, in case that this run is killed, and afterwards, because `gpucluster ssh` may have
        learned it again meanwhile. A host with a new disk is not configured, under the same OCID.
        """
        outputs = self._outputs(terraform)
        rebooted = _instances(reboots(plan.changes), outputs)
        replaced = self.new_disks(terraform, plan)
        if replaced:
            # A controller that gives no answer may be the one that gets another disk.
            with suppress(GpuClusterError):
                self._record.reopen()
        self._hosts.forget(rebooted=rebooted, replaced=replaced)
        try:
            yield
        finally:
            self._hosts.forget(rebooted=rebooted, replaced=replaced)

    @property
    def changed(self) -> frozenset[str]:
        """The nodes that this run has drained to replace or reboot them."""
        return frozenset(self._changed)

    def resume_changed(self) -> bool:
        """Resume the nodes that this run has drained to replace or reboot them. They are configured again by now.

        Returns:
            Whether there were any.
        """
        if self._changed:
            self._nodes.resume(sorted(self._changed))
            self._nodes.await_answers(self._changed)
        return bool(self._changed)

    @staticmethod
    def _outputs(terraform: Terraform) -> handover.Outputs | None:
        outputs = terraform.outputs()
        return handover.Outputs.parse(outputs) if outputs.get("cluster") else None

    def _networks(self, outputs: handover.Outputs | None) -> dict[str, ClusterNetwork]:
        """The existing cluster networks, by pool; Terraform recreates one that was deleted outside of it."""
        networks = {}
        for pool, output in outputs.pools.items() if outputs else ():
            if launched_together_id := output.launched_together_id:
                network = launched_together(self._cloud.access(), launched_together_id, self._on_event)
                if network.present() is not None:
                    networks[pool] = network
        return networks

    def _loses_network(self, pool: str, plan: TerraformPlan) -> bool:
        """Whether the whole cluster network of a pool is removed, and its members with it."""
        desired = self._spec.pools.get(pool)
        lost = {pool_of(address) for network in _NETWORKS for address in plan.lost(network.rstrip("."))}
        return desired is None or not desired.launched_together or pool in lost

    def _drain(self, changes: Scaling, timeout: float) -> None:
        for pool, nodes in changes.pools.items():
            self._on_event(Event(EventKind.LOG, f"pool {pool}", "scaling", str(nodes)))
        if changes.login != PoolScaling():
            self._on_event(Event(EventKind.LOG, "login nodes", "scaling", str(changes.login)))
        if changes.controller == "rebooted":
            message = "is rebooted: the scheduler gives no answer meanwhile, and what runs on the nodes continues"
            self._on_event(Event(EventKind.LOG, "controller", "scaling", message))
        if not self._controller.hosts():
            return  # Without a controller no job ever ran.
        self._changed = set(changes.names("replaced", "rebooted"))
        leaving = {*changes.names("removed"), *self._without_pool()}
        reasons = {**dict.fromkeys(self._changed, CHANGED), **dict.fromkeys(leaving, REMOVED)}
        to_keep = {name for names in desired_names(self._spec).values() for name in names}
        self._nodes.resume(sorted(to_keep - reasons.keys()))
        if reasons:
            self._nodes.drain(reasons, timeout)
        gone = sorted({*leaving, *changes.names("replaced")})
        if gone:
            self._nodes.remove(gone)

    def _without_pool(self) -> list[str]:
        """Elastic nodes whose pool is no longer elastic or was removed; `elastic_teardown` removes them afterwards."""
        elastic = self._spec.elastic_pools
        return [each.node for each in self._elastic().instances() if each.pool not in elastic and not each.builder]

    @staticmethod
    def _resize(
        network: ClusterNetwork, status: NetworkStatus, count: int, removed: Mapping[str, str], plan: TerraformPlan
    ) -> None:
        if removed:
            network.remove(removed, count)
            return
        touched = any(_of_network(change.address) for change in plan.changes)
        if len(status.members) < status.size == count and not touched:
            network.refill(count)


def _present(spec: ClusterSpec, outputs: handover.Outputs | None, observed: Mapping[str, NetworkStatus]) -> Present:
    """The present nodes, by pool. A member without a name of ours has the name that it would get."""
    present: dict[str, Mapping[str, str]] = {}
    desired = desired_names(spec)
    for pool, output in outputs.pools.items() if outputs else ():
        if output.launched_together_id:
            members = observed[pool].members if pool in observed else {}
            present[pool] = {**members, **numbered_names(pool, members, desired.get(pool, ()))}
        else:
            present[pool] = {node.id: node.name for node in output.instances}
    return present


def _instances(addresses: Iterable[str], outputs: handover.Outputs | None) -> list[str]:
    """The OCIDs of instances, from their addresses."""
    if outputs is None:
        return []
    listed = (*outputs.login, *(node for pool in outputs.pools.values() for node in pool.instances))
    nodes = {"": outputs.controller.id, **{node.name: node.id for node in listed}}
    return [nodes[name] for address in addresses if (name := _name(address)) in nodes]


def _check_nothing_else(plan: TerraformPlan, changes: Scaling, spec: ClusterSpec, recreate: Collection[str]) -> None:
    """Who names a node to be recreated did not ask for what else cluster.yml may ask for meanwhile.

    Raises:
        InputError: with what else would change.
    """
    own = recreated_addresses(spec, recreate)
    others = [change.address for change in plan.changes if not change.internal and change.address not in own]
    others += [name for name in changes.names("added", "removed", "replaced", "rebooted") if name not in recreate]
    if others:
        raise InputError(
            f"cluster.yml asks for other changes as well, and nothing was replaced: {', '.join(dict.fromkeys(others))}",
            hint="See them with `gpucluster plan`, and make them with `gpucluster apply`, then run the same command "
            "again",
        )


def _refused(replaced: Sequence[Replacement]) -> ReplacementError:
    listed = "\n".join(f"  {replacement}" for replacement in replaced)
    only_images = all(_NODE.search(each.address) and each.why == _ANOTHER_IMAGE for each in replaced)
    rolling = "To give nodes the image one after the other, run: gpucluster rollout. " if only_images else ""
    return ReplacementError(
        f"this would delete or recreate what cluster.yml still asks for:\n{listed}",
        hint=f"{rolling}Undo the change in cluster.yml, or pass --replace-nodes: apply waits for the jobs on these "
        "nodes first",
    )
