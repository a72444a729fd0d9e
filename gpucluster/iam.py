"""The rights that a cluster needs in OCI: its wish in, statements of OCI's policy language out. Pure.

Two who ask: the controller, whose autoscaler launches and ends nodes (Terraform writes its dynamic group and policies,
unless an administrator is to do it), and the operator, who runs gpucluster (an administrator writes these, for nobody
can give rights to himself).

Statements name single resource-types and the lowest verb that does, so that reading them says what can happen.
`rights` has what the autoscaler needs. Source: Oracle's policy reference (Identity/policyreference), by service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpucluster.oci import permissions
from gpucluster.oci.permissions import Right
from gpucluster.spec import ClusterSpec, Pool

# What stands for things that are not known yet, or not ours to know.
CONTROLLER = "OCID_OF_THE_CONTROLLER"
OPERATORS = "OPERATORS"
# Dynamic groups of other domains have an API of their own, which Terraform's root does not speak.
DEFAULT_DOMAIN = "Default"


@dataclass(frozen=True)
class Statement:
    """One statement of a policy.

    Args:
        feature: what it is for.
        text: `Allow ...`, as OCI reads it.
    """

    feature: str
    text: str


@dataclass(frozen=True)
class Policies:
    """Everything that one cluster needs.

    Args:
        dynamic_group: its name; the policies have it too. `subject`: the same with its domain, as statements name it.
        matching_rule: of the dynamic group: one instance.
        created: Terraform makes the controller's.
        controller, controller_tenancy: for the policy in the cluster's compartment, and for one in the tenancy.
        operator, operator_tenancy: the same for whoever runs gpucluster.
        notes: what an administrator must know beside the statements.
    """

    cluster: str
    compartment_id: str
    dynamic_group: str
    subject: str
    domain: str
    matching_rule: str
    created: bool
    controller: tuple[Statement, ...]
    controller_tenancy: tuple[Statement, ...]
    operator: tuple[Statement, ...]
    operator_tenancy: tuple[Statement, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "cluster": self.cluster,
            "compartment_id": self.compartment_id,
            "created_by_terraform": self.created,
            "dynamic_group": {"name": self.dynamic_group, "domain": self.domain, "matching_rule": self.matching_rule},
            "controller": {"compartment": _rows(self.controller), "tenancy": _rows(self.controller_tenancy)},
            "operator": {"compartment": _rows(self.operator), "tenancy": _rows(self.operator_tenancy)},
            "notes": list(self.notes),
        }


def _rows(statements: Iterable[Statement]) -> list[dict[str, str]]:
    return [{"feature": one.feature, "statement": one.text} for one in statements]


def policies(
    spec: ClusterSpec, *, compartment_id: str, controller_id: str | None, network_compartment_id: str | None = None
) -> Policies:
    """The rights for a cluster.

    Args:
        compartment_id: OCID of the cluster's compartment; that of the tenancy is its root compartment.
        controller_id: OCID of the controller's instance; None as long as it was not made.
        network_compartment_id: of the subnet of the nodes where that is an existing one; None: the cluster's own.
    """
    name = permissions.dynamic_group(spec.name)
    domain = spec.iam.identity_domain or DEFAULT_DOMAIN
    subject = f"'{domain}'/'{name}'" if spec.iam.identity_domain else name
    here, network = _place(compartment_id), _place(network_compartment_id or compartment_id)
    elastic = tuple(spec.elastic_pools.values())
    mine = _controller(spec, elastic, f"dynamic-group {subject}", here, network) if elastic else ()
    of_controller, of_controller_outside = _parted(mine, here)
    of_operator, of_operator_outside = _parted(_operator(spec, f"group {OPERATORS}", here, network), here)
    return Policies(
        cluster=spec.name,
        compartment_id=compartment_id,
        dynamic_group=name,
        subject=subject,
        domain=domain,
        matching_rule=f"instance.id = '{controller_id or CONTROLLER}'",
        created=bool(elastic) and spec.iam.create and domain == DEFAULT_DOMAIN,
        controller=of_controller,
        controller_tenancy=of_controller_outside,
        operator=of_operator,
        operator_tenancy=of_operator_outside,
        notes=tuple(_notes(spec, elastic, network_compartment_id)),
    )


def tfvars(wanted: Policies) -> dict[str, Any] | None:
    """The variable `iam` of the root `terraform/cluster`; None where nothing is to be made."""
    if not wanted.created:
        return None
    return {
        "dynamic_group": wanted.dynamic_group,
        "description": f"The controller of the cluster {wanted.cluster}: what its autoscaler may do",
        "compartment_statements": [one.text for one in wanted.controller],
        "tenancy_statements": [one.text for one in wanted.controller_tenancy],
    }


def _place(compartment_id: str) -> str:
    """Where a statement holds: the root compartment is the tenancy."""
    return "in tenancy" if compartment_id.startswith("ocid1.tenancy.") else f"in compartment id {compartment_id}"


# A statement, and where it holds.
_Found = tuple[Statement, str]


def _allow(feature: str, who: str, right: Right, place: str, condition: str = "") -> _Found:
    where = condition or right.condition
    return Statement(feature, f"Allow {who} to {right} {place}" + (f" where {where}" if where else "")), place


def _parted(found: Iterable[_Found], here: str) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Those that a policy of the cluster's compartment can make, and those that it can't. None twice."""
    once = {one.text: (one, place == here) for one, place in reversed(tuple(found))}
    inside = tuple(one for one, mine in reversed(once.values()) if mine)
    return inside, tuple(one for one, mine in reversed(once.values()) if not mine)


# --- the controller -----


def _controller(spec: ClusterSpec, pools: tuple[Pool, ...], who: str, here: str, network: str) -> Iterator[_Found]:
    for feature, wanted in _for_nodes(pools):
        for right in wanted:
            places = {permissions.SUBNETS: [network], permissions.VNICS: [here, network]}.get(right, [here])
            for place in dict.fromkeys(places):
                yield _allow(feature, who, right, place)
    if any(pool.image.listing for pool in pools):
        yield _allow("images of a Marketplace listing", who, permissions.LISTINGS, "in tenancy")
    if spec.cloud.defined_tags:
        yield _allow("defined tags of new nodes", who, permissions.TAG_NAMESPACES, "in tenancy", _of_tags(spec))


def _for_nodes(pools: tuple[Pool, ...]) -> Iterator[tuple[str, tuple[Right, ...]]]:
    yield (
        "elastic nodes: launch, look, end",
        (permissions.INSTANCES, permissions.READ_CONFIGURATIONS, permissions.LAUNCH_CONFIGURATIONS, permissions.IMAGES),
    )
    yield "their network interfaces", (permissions.VNICS, permissions.VNIC_ATTACHMENTS, permissions.SUBNETS)
    yield "ending a node that has volumes", (permissions.VOLUMES, permissions.VOLUME_ATTACHMENTS)
    yield "why a launch failed", (permissions.WORK_REQUESTS,)
    yield "the console of a node that does not join", (permissions.CONSOLE,)
    if any(pool.kind == "compute_cluster" for pool in pools):
        yield "elastic RDMA nodes", (permissions.COMPUTE_CLUSTERS,)
    if any(pool.capacity_reservation_id for pool in pools):
        yield "capacity reservations", (permissions.CAPACITY_RESERVATIONS,)


def _of_tags(spec: ClusterSpec) -> str:
    """The condition on namespaces. A tag namespace lies anywhere above the compartment, most often in the tenancy."""
    spaces = sorted({name.partition(".")[0] for name in spec.cloud.defined_tags})
    tests = [f"target.tag-namespace.name = '{space}'" for space in spaces]
    return tests[0] if len(tests) == 1 else f"any {{{', '.join(tests)}}}"


# --- the operator -----

_MADE_NETWORK = (
    "vcns", "subnets", "route-tables", "security-lists", "dhcp-options", "internet-gateways", "nat-gateways",
    "service-gateways",
)  # fmt: skip


def _operator(spec: ClusterSpec, who: str, here: str, network: str) -> Iterator[_Found]:
    for feature, wanted, place in (
        *_looks(),
        *_computes(spec, here),
        *_networks(spec, here, network),
        *_stores(spec, here),
        *_identifies(spec, here),
    ):
        for right in wanted:
            yield _allow(feature, who, right, place)
    if spec.cloud.defined_tags:
        yield _allow("defined tags", who, permissions.TAG_NAMESPACES, "in tenancy", _of_tags(spec))
    if spec.state.backend == "oci" and isinstance(bucket := spec.state.config.get("bucket"), str):
        mine = f"target.bucket.name = '{bucket}'"
        for right in (Right("read", "buckets"), Right("manage", "objects")):
            yield _allow("Terraform's state in Object Storage", who, right, "in tenancy", mine)
    if any(pool.capacity_reservation_id and pool.kind == "cluster_network" for pool in spec.pools.values()):
        # docs: "Managing Cluster Networks with Instance Pools": the service launches, not who asked for the pool.
        feature = "capacity reservations of a cluster network"
        yield _allow(feature, "service compute_management", permissions.CAPACITY_RESERVATIONS, "in tenancy")


_Wanted = tuple[str, tuple[Right, ...], str]


def _looks() -> Iterator[_Wanted]:
    yield "preflight: compartments, domains, the home region", (
        Right("inspect", "compartments"), Right("inspect", "tenancies"),
    ), "in tenancy"  # fmt: skip
    yield "preflight: limits and capacity", (
        Right("inspect", "limits"), Right("read", "resource-availability"), Right("manage", "compute-capacity-reports"),
    ), "in tenancy"  # fmt: skip


def _computes(spec: ClusterSpec, here: str) -> Iterator[_Wanted]:
    pools = spec.pools.values()
    kinds = {pool.kind for pool in pools}
    machines = (spec.controller, *pools)
    yield "controller and nodes", (
        Right("manage", "instances"), permissions.VOLUMES, permissions.VOLUME_ATTACHMENTS,
        permissions.WORK_REQUESTS,
    ), here  # fmt: skip
    changes = spec.elastic_pools or any(machine.image.make_compatible for machine in machines)
    yield "images (baked ones are made and removed)" if changes else "images", (
        Right("manage" if changes else "read", "instance-images"),
    ), here  # fmt: skip
    if any(machine.image.listing for machine in machines):
        yield "images of a Marketplace listing", (Right("manage", "app-catalog-listing"),), "in tenancy"
    if spec.elastic_pools or "cluster_network" in kinds:
        yield "how nodes are launched", (Right("manage", "instance-configurations"),), here
    if "cluster_network" in kinds:
        yield "cluster networks", (Right("manage", "cluster-networks"), Right("manage", "instance-pools")), here
    if "compute_cluster" in kinds:
        yield "compute clusters", (Right("manage", "compute-clusters"),), here
    if any(pool.capacity_reservation_id for pool in pools):
        yield "capacity reservations", (permissions.CAPACITY_RESERVATIONS,), here


def _networks(spec: ClusterSpec, here: str, network: str) -> Iterator[_Wanted]:
    if spec.network.vcn_id is None:
        yield "network", tuple(Right("manage", kind) for kind in _MADE_NETWORK), here
    else:
        yield "existing network", (
            *(Right("read", kind) for kind in _MADE_NETWORK if kind != "subnets"), permissions.SUBNETS,
        ), network  # fmt: skip
    for place in dict.fromkeys((here, network)):
        yield (
            "network interfaces",
            (permissions.VNICS, permissions.VNIC_ATTACHMENTS, Right("use", "private-ips")),
            place,
        )
    if spec.network.access == "bastion":
        yield "bastion", (Right("manage", "bastion"), Right("manage", "bastion-session")), here


def _stores(spec: ClusterSpec, here: str) -> Iterator[_Wanted]:
    home = spec.storage.home
    if home.server is not None or not home.enabled:
        return
    systems = Right("manage", "file-systems") if home.file_system_id is None else Right("use", "file-systems")
    yield "shared home", (systems, Right("manage", "mount-targets"), Right("manage", "export-sets")), here


def _identifies(spec: ClusterSpec, here: str) -> Iterator[_Wanted]:
    if not spec.elastic_pools or not spec.iam.create:
        return
    outside = any(pool.image.listing for pool in spec.elastic_pools.values()) or bool(spec.cloud.defined_tags)
    yield "rights of the controller", (Right("manage", "dynamic-groups"),), "in tenancy"
    yield "rights of the controller", (Right("manage", "policies"),), "in tenancy" if outside else here


# --- for people -----


def _notes(spec: ClusterSpec, elastic: tuple[Pool, ...], network_compartment_id: str | None) -> Iterator[str]:
    if elastic and spec.iam.create and (spec.iam.identity_domain or DEFAULT_DOMAIN) != DEFAULT_DOMAIN:
        yield (
            f"The identity domain {spec.iam.identity_domain} is not the default one: the dynamic group and the "
            "policies are not created, make them by hand."
        )
    if spec.network.vcn_id is not None and network_compartment_id is None:
        yield (
            "The network exists already. If its subnets are in another compartment, put the statements about subnets, "
            "vnics and private-ips into a policy there, too."
        )
    if any(pool.capacity_reservation_id for pool in spec.pools.values()):
        yield "If a capacity reservation is in another compartment, put the statement about it into a policy there."
    if any(pool.image.ocid for pool in spec.pools.values()):
        yield "If an image is in another compartment, put the statement about instance-images into a policy there, too."


def text(wanted: Policies) -> str:
    """The rights for an administrator: statements can be copied as they stand, `#` begins a comment."""
    lines = [f"# Rights for the cluster {wanted.cluster}, compartment {wanted.compartment_id}"]
    lines += [f"# {note}" for note in wanted.notes]
    lines += [
        "",
        *(_controller_text(wanted) or ["# No pool is elastic: the controller asks the cloud for nothing."]),
        "",
        "# --- for whoever runs gpucluster: an administrator creates these ---",
        f"# Put the name of your group instead of {OPERATORS}, with its domain where that is not the default one.",
        *_policy_text("in the cluster's compartment", wanted.operator),
        *_policy_text("in the tenancy (root compartment)", wanted.operator_tenancy),
    ]
    return "\n".join(lines)


def _controller_text(wanted: Policies) -> list[str]:
    if not wanted.controller:
        return []
    how = "Terraform creates these" if wanted.created else "an administrator creates these by hand"
    lines = [
        f"# --- for the controller: {how} ---",
        f"# Dynamic group {wanted.dynamic_group}, identity domain {wanted.domain}, matching rule:",
        wanted.matching_rule,
    ]
    if CONTROLLER in wanted.matching_rule:
        lines += [
            f"# {CONTROLLER} is known after the first apply: `gpucluster output` shows it as cluster.controller.id.",
            "# A controller that is made anew is another instance: change the rule then.",
        ]
    return [
        *lines,
        *_policy_text(f"{wanted.dynamic_group} in the cluster's compartment", wanted.controller),
        *_policy_text(f"{wanted.dynamic_group}-tenancy in the tenancy (root compartment)", wanted.controller_tenancy),
    ]


def _policy_text(name: str, statements: Iterable[Statement]) -> list[str]:
    features: dict[str, list[str]] = {}
    for one in statements:
        features.setdefault(one.feature, []).append(one.text)
    lines = ["", f"# Policy {name}"] if features else []
    for feature, found in features.items():
        lines += [f"# {feature}", *found]
    return lines
