"""Which resources of the cloud become which resources of Terraform: by kind, display name, pool and parent.

A run that was killed between a create call and the write of Terraform's state leaves a resource that no state knows; a
state that was lost leaves all of them. They have the cluster's tag, and the root module names everything in a fixed
way, so each can be imported under the address that it was made for.

`ADOPTED` is the list of the types that are. `NOT_ADOPTED` gives the reason for every other type in terraform/; a test
compares both with the HCL.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.errors import ToolError
from gpucluster.oci import tags
from gpucluster.oci.names import state_volume

#: Terraform's address of a cluster's own network.
NETWORK = "module.network.oci_core_vcn.this[0]"
#: Terraform's address of the controller.
CONTROLLER = "module.controller.oci_core_instance.this"
#: Terraform's address of the host that goes on in the place of the controller.
STANDBY = "module.standby[0].oci_core_instance.this"
#: Terraform's address of the volume with the controller's state.
STATE_VOLUME = "module.state_volume[0].oci_core_volume.this"
#: Terraform's address of its attachment.
STATE_ATTACHMENT = "module.state_volume[0].oci_core_volume_attachment.this"
_MADE_AGAIN = "to create it again changes nothing"
#: Types of terraform/ that are not imported, and why that loses nothing.
NOT_ADOPTED: Mapping[str, str] = {
    "terraform_data": "it exists in the state only; the images that it selects are taken from the existing instances",
    "oci_core_app_catalog_listing_resource_version_agreement": f"it is read, not created: {_MADE_AGAIN}",
    "oci_core_app_catalog_subscription": f"a compartment has one for each version of a listing: {_MADE_AGAIN}",
    "oci_identity_compartment": "it is found by its name, and used as one that exists",
    "oci_containerengine_addon": f"it takes over what is installed: {_MADE_AGAIN}",
    "oci_core_shape_management": f"an entry in the list of an image: {_MADE_AGAIN}",
}

_KEY = re.compile(r'\[("[^"]*"|\d+)\]')
_INSTANCE = "oci_core_instance"
_TYPES = {
    "vcn": "oci_core_vcn",
    "subnet": "oci_core_subnet",
    "internet_gateway": "oci_core_internet_gateway",
    "nat_gateway": "oci_core_nat_gateway",
    "service_gateway": "oci_core_service_gateway",
    "route_table": "oci_core_route_table",
    "security_list": "oci_core_security_list",
    "bastion": "oci_bastion_bastion",
    "cluster": "oci_containerengine_cluster",
    "node_pool": "oci_containerengine_node_pool",
    "instance": _INSTANCE,
    "volume": "oci_core_volume",
    "volume_attachment": "oci_core_volume_attachment",
    "instance_configuration": "oci_core_instance_configuration",
    "cluster_network": "oci_core_cluster_network",
    "compute_cluster": "oci_core_compute_cluster",
    "compute_gpu_memory_cluster": "oci_core_compute_gpu_memory_cluster",
    "file_system": "oci_file_storage_file_system",
    "mount_target": "oci_file_storage_mount_target",
    "export": "oci_file_storage_export",
    "dynamic_group": "oci_identity_dynamic_group",
    "policy": "oci_identity_policy",
}
#: Types of terraform/ that are adopted.
ADOPTED = frozenset(_TYPES.values())
_HOME = "module.home[0]"
#: The mount target of the home share.
HOME_MOUNT_TARGET = f"{_HOME}.{_TYPES['mount_target']}.this"
# Two of them can't be told apart by what uses them: both cost money and may do work, or hold files.
_HOSTS = frozenset({"instance", "cluster_network", "compute_gpu_memory_cluster"})
_VALUABLE = _HOSTS | {"cluster", "node_pool", "file_system", "volume"}
# What a pool consists of: if cluster.yml does not ask for it, it is removed as Terraform would remove it.
_OF_POOLS = _HOSTS | {"instance_configuration", "compute_cluster", "node_pool"}


@dataclass(frozen=True)
class Desired:
    """A resource that the root module makes with these variables.

    Args:
        name: its display name; of an export, its path.
        pool: the pool in its tags; empty for none.
        parent: the address of the resource without which it can't exist, and with which it would be replaced.
    """

    address: str
    kind: str
    name: str
    pool: str = ""
    parent: str = ""


@dataclass(frozen=True)
class Findings:
    """What the cloud has with the cluster's tag, compared with the state and with what cluster.yml asks for.

    Args:
        adopt: by address, what no state knows.
        surplus: duplicates: the state (or `adopt`) has another resource for the same address, and that one exists; or
            they are in a network that is one.
        unwanted: parts of pools, and login nodes, that no state knows and cluster.yml does not ask for.
        left: what else no state knows. It is not removed: file systems, and what is not a part of a pool.
        stale: addresses of the state whose resource does not exist any more, while another one of that name does.
        state_lost: whether the cloud has hosts of the cluster while the state is empty: it was lost, or it is in
            another place.
    """

    adopt: Mapping[str, TaggedResource]
    surplus: tuple[TaggedResource, ...] = ()
    unwanted: tuple[TaggedResource, ...] = ()
    left: tuple[TaggedResource, ...] = ()
    stale: Mapping[str, TaggedResource] = field(default_factory=dict)
    state_lost: bool = False

    @property
    def removable(self) -> tuple[TaggedResource, ...]:
        """What apply removes: it costs money, and cluster.yml does not ask for it."""
        return (*self.surplus, *self.unwanted)


def import_ids(adopt: Mapping[str, TaggedResource]) -> dict[str, str]:
    """What the provider imports, by address: for each of these resources its OCID."""
    return {address: resource.id for address, resource in adopt.items()}


def desired(variables: Mapping[str, Any]) -> tuple[Desired, ...]:
    """Every resource that can be adopted, in the order in which one needs the other.

    Args:
        variables: of the root module (`handover.tfvars`).
    """
    name, iam = variables["cluster_name"], variables.get("iam")
    return (
        *_network(name, variables["network"]),
        Desired(CONTROLLER, "instance", f"{name}-controller"),
        *([Desired(STANDBY, "instance", f"{name}-standby")] if variables["controller"].get("standby") else []),
        *_state_volume(name, variables["controller"]),
        *(
            Desired(f'module.login["{node}"].{_INSTANCE}.this', "instance", node)
            for node in (variables.get("login") or {}).get("names", ())
        ),
        *_home(name, variables["home"]),
        *(part for share, values in (variables.get("shares") or {}).items() for part in _share(name, share, values)),
        *(part for pool, values in variables["pools"].items() for part in _pool(name, pool, values)),
        *(_kubernetes_engine(name, variables["oke"]) if variables.get("oke") else ()),
        *(_iam("iam", iam) if iam else ()),
        *(_iam("node_iam", variables["node_iam"]) if variables.get("node_iam") else ()),
    )


def _network(name: str, network: Mapping[str, Any]) -> Iterator[Desired]:
    public = network["access"] == "public"
    if not public:
        yield Desired("oci_bastion_bastion.this[0]", "bastion", name.replace("-", ""))
    if network.get("vcn_id"):
        return
    yield Desired(NETWORK, "vcn", name)
    gateways = {"internet": "internet_gateway"} if public else {}
    gateways |= {"nat": "nat_gateway", "service": "service_gateway"}
    for suffix, kind in gateways.items():
        yield Desired(f"module.network.{_TYPES[kind]}.this[0]", kind, f"{name}-{suffix}", parent=NETWORK)
    for side in ("public", "private") if public else ("private",):
        for kind in ("route_table", "security_list", "subnet"):
            yield Desired(f"module.network.{_TYPES[kind]}.{side}[0]", kind, f"{name}-{side}", parent=NETWORK)


def _state_volume(name: str, controller: Mapping[str, Any]) -> Iterator[Desired]:
    if controller.get("state_volume"):
        yield Desired(STATE_VOLUME, "volume", state_volume(name))
        yield Desired(STATE_ATTACHMENT, "volume_attachment", state_volume(name), parent=STATE_VOLUME)


def _home(name: str, home: Mapping[str, Any]) -> Iterator[Desired]:
    if not home["enabled"] or home.get("server"):
        return
    if not home.get("file_system_id"):
        yield Desired(f"{_HOME}.{_TYPES['file_system']}.this[0]", "file_system", f"{name}-home")
    yield Desired(HOME_MOUNT_TARGET, "mount_target", f"{name}-home")
    yield Desired(f"{_HOME}.{_TYPES['export']}.this", "export", home["export_path"], parent=HOME_MOUNT_TARGET)


def _share(name: str, share: str, values: Mapping[str, Any]) -> Iterator[Desired]:
    if values.get("server"):
        return
    module, named = f'module.share["{share}"]', f"{name}-{share}"
    if not values.get("file_system_id"):
        yield Desired(f"{module}.{_TYPES['file_system']}.this[0]", "file_system", named)
    target = HOME_MOUNT_TARGET
    if values["mount_target"] == "own":
        target = f"{module}.{_TYPES['mount_target']}.this[0]"
        yield Desired(target, "mount_target", named)
    yield Desired(f"{module}.{_TYPES['export']}.this", "export", values["export_path"], parent=target)


def _pool(name: str, pool: str, values: Mapping[str, Any]) -> Iterator[Desired]:
    module, named = f'module.pool["{pool}"]', f"{name}-{pool}"
    kind = values["kind"]
    together = {"cluster_network": "cluster_network", "gpu_memory_cluster": "compute_gpu_memory_cluster"}.get(kind)
    kinds = ["compute_cluster"] if kind in ("compute_cluster", "gpu_memory_cluster") else []
    kinds += ["instance_configuration"] if together or values["max_count"] > values["count"] else []
    kinds += [together] if together else []
    for each in kinds:
        yield Desired(f"{module}.{_TYPES[each]}.this[0]", each, named, pool)
    for node in () if together else values["node_names"]:
        yield Desired(f'{module}.module.instance["{node}"].{_INSTANCE}.this', "instance", node, pool)


def _kubernetes_engine(name: str, oke: Mapping[str, Any]) -> Iterator[Desired]:
    cluster = "module.oke[0].oci_containerengine_cluster.this"
    yield Desired(cluster, "cluster", name)
    for pool in oke.get("node_pools") or {}:
        address = f'module.oke[0].oci_containerengine_node_pool.this["{pool}"]'
        yield Desired(address, "node_pool", f"{name}-{pool}", pool, parent=cluster)


def _iam(module: str, iam: Mapping[str, Any]) -> Iterator[Desired]:
    at, group = f"module.{module}[0]", iam["dynamic_group"]
    yield Desired(f"{at}.oci_identity_dynamic_group.this", "dynamic_group", group)
    yield Desired(f"{at}.oci_identity_policy.compartment", "policy", group)
    if iam.get("tenancy_statements"):
        yield Desired(f"{at}.oci_identity_policy.tenancy[0]", "policy", f"{group}-tenancy")


def untracked(resources: Iterable[TaggedResource], known: Collection[str]) -> tuple[TaggedResource, ...]:
    """What no state knows, without the members of cluster networks, which go with these, and elastic nodes, which the
    autoscaler owns.

    Args:
        known: the OCIDs in Terraform's state.
    """
    return tuple(each for each in resources if each.id not in known and not each.launched_by_others)


def missing(resources: Sequence[TaggedResource], state: Mapping[str, str], listed: Collection[str]) -> dict[str, str]:
    """What the state knows and the cloud does not have any more: OCID by address.

    Args:
        state: OCID by address.
        listed: the kinds of which `resources` has all that exist. Others are left out.
    """
    types = {_TYPES[kind] for kind in listed if kind in _TYPES}
    present = {each.id for each in resources}
    of_types = {address: ocid for address, ocid in state.items() if _type(address) in types}
    return {address: ocid for address, ocid in of_types.items() if ocid not in present}


def _type(address: str) -> str:
    """`module.a["x.y"].oci_core_vcn.this[0]` has the type `oci_core_vcn`."""
    parts = _KEY.sub("", address).split(".")
    return parts[-2] if len(parts) > 1 else ""


def require_one_cluster(resources: Iterable[TaggedResource], known: Collection[str], cluster: str) -> None:
    """Refuse a second controller beside the one in the state. An interrupted run leaves none: the two have one host
    name, which OCI gives only once in a network. So it is that of another cluster with this name, and nothing of that
    may be taken for a duplicate.

    Args:
        known: the OCIDs in Terraform's state.

    Raises:
        ToolError: with the OCIDs of both.
    """
    controllers = [
        each.id
        for each in resources
        if each.kind == "instance" and not each.ending and tags.controller(each.tags, cluster)
    ]
    ours = [ocid for ocid in controllers if ocid in known]
    others = [ocid for ocid in controllers if ocid not in known]
    if ours and others:
        raise ToolError(
            f"the compartment has two clusters with the name {cluster}: the state knows the controller "
            f"{', '.join(ours)}, and not {', '.join(others)}",
            hint="Use another compartment for one of them. If the second one is not needed, remove it with its own "
            "cluster.yml and state, or terminate its instances in the console",
        )


def compare(
    desired_resources: Sequence[Desired],
    resources: Sequence[TaggedResource],
    state: Mapping[str, str],
    deposed: Collection[str] = (),
) -> Findings:
    """Compare what exists with what the state knows and cluster.yml asks for.

    Args:
        state: the id of each resource in Terraform's state, by address.
        deposed: ids of further ones in the state, which were replaced and are not removed yet.

    Raises:
        ToolError: of two resources for the same address, neither is known, and both may be in use.
    """
    return _Comparison(desired_resources, resources, state, deposed).findings()


class _Comparison:
    def __init__(
        self,
        desired_resources: Sequence[Desired],
        resources: Sequence[TaggedResource],
        state: Mapping[str, str],
        deposed: Collection[str],
    ) -> None:
        self._desired = desired_resources
        self._existing = [each for each in resources if not each.ending]
        self._state = state
        self._rest = {each.id: each for each in untracked(self._existing, {*state.values(), *deposed})}

    def findings(self) -> Findings:
        alive = {each.id for each in self._existing}
        adopt: dict[str, TaggedResource] = {}
        stale: dict[str, TaggedResource] = {}
        surplus: list[TaggedResource] = []
        for each in self._desired:
            present = self._state.get(each.address, "")
            parent = self._parent(each, adopt)
            candidates = [resource for resource in self._rest.values() if _is(resource, each)]
            inside = [resource for resource in candidates if parent is None or parent in resource.uses]
            if inside and not present:
                adopt[each.address] = self._choose(inside)
            elif inside and present not in alive:
                stale[each.address] = self._choose(inside)
            chosen = adopt.get(each.address) or stale.get(each.address)
            duplicates = candidates if parent != "" else inside
            surplus += [resource for resource in duplicates if resource != chosen]
            for resource in duplicates:
                del self._rest[resource.id]
        rest = tuple(self._rest.values())
        files = tuple(each for each in surplus if each.kind in ("file_system", "volume"))
        return Findings(
            adopt,
            tuple(each for each in surplus if each not in files),
            tuple(each for each in rest if _is_of_nodes(each)),
            (*files, *(each for each in rest if not _is_of_nodes(each))),
            stale,
            state_lost=not self._state and any(each.kind in _HOSTS for each in adopt.values()),
        )

    def _parent(self, resource: Desired, adopt: Mapping[str, TaggedResource]) -> str | None:
        """The OCID of the network (or the mount target) that it must be in: in another it is a duplicate. None if it
        needs none; empty if the cluster has none."""
        if not resource.parent:
            return None
        adopted = adopt.get(resource.parent)
        return adopted.id if adopted else self._state.get(resource.parent, "")

    def _choose(self, candidates: Sequence[TaggedResource]) -> TaggedResource:
        """The one that others use; the first that was made, if none is used."""
        if len(candidates) == 1:
            return candidates[0]
        used = [each for each in candidates if any(each.id in other.uses for other in self._existing)]
        if len(used) == 1:
            return used[0]
        if used or candidates[0].kind in _VALUABLE:
            listed = "\n".join(f"  {each.id} ({each.state}, made {each.created})" for each in candidates)
            raise ToolError(
                f"the cloud has {len(candidates)} of the {candidates[0]}, and no state shows which one is in use:\n"
                f"{listed}",
                hint="Remove those that are not in use in the console, then run the same command again",
            )
        return min(candidates, key=lambda each: (each.created, each.id))


def _is(resource: TaggedResource, desired_resource: Desired) -> bool:
    return (resource.kind, resource.name, resource.pool) == (
        desired_resource.kind,
        desired_resource.name,
        desired_resource.pool,
    )


def _is_of_nodes(resource: TaggedResource) -> bool:
    """Whether it is a part of a pool, or a login node."""
    return resource.kind in _OF_POOLS and bool(resource.pool or tags.login_node(resource.tags))


def existing_images(resources: Iterable[TaggedResource], pools: Iterable[str], cluster: str) -> dict[str, str]:
    """The images of the existing hosts, as the variable `existing_images` takes them.

    Args:
        resources: the cluster's resources.
        pools: the names of the pools.
    """
    images: dict[str, str] = {}
    names = set(pools)
    for each in resources:
        permanent = each.kind == "instance" and each.image_id and not each.ending
        if permanent and each.name == f"{cluster}-controller":
            images["controller"] = each.image_id
        elif permanent and tags.login_node(each.tags):
            images.setdefault("login", each.image_id)
        elif permanent and each.pool in names and not each.elastic:
            images.setdefault(f"pool/{each.pool}", each.image_id)
    return images
