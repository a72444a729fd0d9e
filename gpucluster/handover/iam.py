"""The permissions that a cluster needs in OCI, as statements of OCI's policy language. Pure.

There are three subjects: the controller, whose autoscaler launches and terminates nodes, and which is an administrator
of a control plane of Kubernetes Engine; the instances that join such a control plane; and the operator, who runs
gpucluster. Terraform creates the dynamic groups and policies of the first two, unless an administrator does. An
administrator creates those of the operator, because users can't grant permissions to themselves.

Statements name single resource types and the lowest sufficient verb, so that they show what the subject can do. The
permissions of the autoscaler are in `oci.permissions`. Source: Oracle's policy reference (Identity/policyreference).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpucluster.handover.kubernetes import has_kubernetes_engine
from gpucluster.oci import permissions
from gpucluster.oci.names import elastic_compartment
from gpucluster.oci.permissions import Right, all_of, any_of
from gpucluster.oci.tags import HOST_ACTIONS
from gpucluster.spec import ClusterSpec, PoolSpec

# Placeholders for values that are not known yet, or that gpucluster can't know.
CONTROLLER = "OCID_OF_THE_CONTROLLER"
STANDBY = "OCID_OF_THE_STANDBY"
#: The HCL replaces this one.
ENGINE_CLUSTER = "OCID_OF_THE_CLUSTER"
OPERATORS = "OPERATORS"
RUNNERS, RUNNER = "RUNNERS", "OCID_OF_THE_RUNNER"
_POD = ("OCID_OF_THE_RUNNERS_CLUSTER", "NAMESPACE", "SERVICE_ACCOUNT")
_OF_CLUSTER = f"target.cluster.id = '{ENGINE_CLUSTER}'"
_REPORTS = "bad hosts are reported to Oracle"
_OF_HOST_ACTIONS = any_of("target.tag-namespace.name", (HOST_ACTIONS,))
_NO_OTHERS = "no maintenance is read, and no standby goes on by itself"
# Dynamic groups of other domains have another API, which the Terraform root module does not use.
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
    """All permissions that one cluster needs.

    Args:
        dynamic_group: its name, which is also that of the policies. `subject`: the same with its domain.
        matching_rule: of the dynamic group; it matches the controller, and its standby.
        created: Terraform creates those of the controller and of the nodes.
        node_group, node_rule: the same of the instances that join a control plane of Kubernetes Engine; empty without.
        nodes: their statements, for the cluster's compartment.
        controller, controller_tenancy: statements for the cluster's compartment, and for the tenancy.
        operator, operator_tenancy: the same for the users or runners that run gpucluster.
        runner_rule: matching rule of the runners' dynamic group; empty where they need none.
        notes: what an administrator must know in addition to the statements.
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
    node_group: str = ""
    node_rule: str = ""
    nodes: tuple[Statement, ...] = ()
    runner_rule: str = ""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "cluster": self.cluster,
            "compartment_id": self.compartment_id,
            "created_by_terraform": self.created,
            "dynamic_group": {"name": self.dynamic_group, "domain": self.domain, "matching_rule": self.matching_rule},
            "controller": {"compartment": _rows(self.controller), "tenancy": _rows(self.controller_tenancy)},
            "nodes": {
                "dynamic_group": {"name": self.node_group, "domain": self.domain, "matching_rule": self.node_rule},
                "compartment": _rows(self.nodes),
            },
            "operator": {"compartment": _rows(self.operator), "tenancy": _rows(self.operator_tenancy)},
            **self._runners(),
            "notes": list(self.notes),
        }

    def _runners(self) -> dict[str, Any]:
        """The dynamic group of the runners; nothing where they need none."""
        group = {"name": RUNNERS, "matching_rule": self.runner_rule}
        return {"runners": {"dynamic_group": group}} if self.runner_rule else {}


def _rows(statements: Iterable[Statement]) -> list[dict[str, str]]:
    return [{"feature": statement.feature, "statement": statement.text} for statement in statements]


def policies(
    spec: ClusterSpec,
    *,
    compartment_id: str,
    controller_id: str | None,
    standby_id: str | None = None,
    network_compartment_id: str | None = None,
) -> Policies:
    """The permissions for a cluster.

    Args:
        compartment_id: OCID of the cluster's compartment; the OCID of the tenancy means the root compartment.
        controller_id: OCID of the controller's instance; None as long as it does not exist. `standby_id`: that of the
            other host, where cluster.yml has a standby.
        network_compartment_id: compartment of an existing subnet of the nodes; None: the cluster's own.
    """
    name = permissions.dynamic_group(spec.name)
    domain = spec.iam.identity_domain or DEFAULT_DOMAIN
    subject = f"'{domain}'/'{name}'" if spec.iam.identity_domain else name
    places = _places(spec, compartment_id, network_compartment_id)
    elastic = tuple(spec.elastic_pools.values())
    engine = has_kubernetes_engine(spec)
    placed = [
        *(_controller(spec, elastic, f"dynamic-group {subject}", places) if elastic else ()),
        *(_of_maintenance(spec, f"dynamic-group {subject}", places) if spec.maintenance.enabled else ()),
        *(_of_failover(spec, f"dynamic-group {subject}", places) if spec.controller.automatic_failover else ()),
        *([_administers(subject, places)] if engine else ()),
    ]
    controller, controller_tenancy = _by_policy(placed, places)
    joins = _joins(spec)
    group = permissions.node_group(spec.name)
    who, only = _who_runs(spec)
    granted = (_only(each, who, only) for each in _operator(spec, who, places))
    operator, operator_tenancy = _by_policy(granted, places)
    return Policies(
        cluster=spec.name,
        compartment_id=compartment_id,
        dynamic_group=name,
        subject=subject,
        domain=domain,
        matching_rule=permissions.any_of("instance.id", _hosts(spec, controller_id, standby_id)),
        created=(spec.asks_cloud or engine) and spec.iam.create and domain == DEFAULT_DOMAIN,
        controller=controller,
        controller_tenancy=controller_tenancy,
        operator=operator,
        operator_tenancy=operator_tenancy,
        node_group=group if joins else "",
        node_rule=_node_rule(spec, compartment_id) if joins else "",
        nodes=(_join(f"'{domain}'/'{group}'" if spec.iam.identity_domain else group, places),) if joins else (),
        runner_rule=_runner_rule(spec, compartment_id),
        notes=tuple(_notes(spec, elastic, network_compartment_id)),
    )


def _hosts(spec: ClusterSpec, controller_id: str | None, standby_id: str | None) -> list[str]:
    """The instances that have the permissions of the controller: the standby has them before it is in service."""
    return [controller_id or CONTROLLER, *([standby_id or STANDBY] if spec.controller.standby else [])]


def tfvars(needed: Policies) -> dict[str, Any] | None:
    """The variable `iam` of the root module `terraform/cluster`; None if Terraform creates nothing."""
    if not needed.created or not needed.controller:
        return None
    return {
        "dynamic_group": needed.dynamic_group,
        "description": f"The controller of the cluster {needed.cluster}: what its programs may do",
        "compartment_statements": [statement.text for statement in needed.controller],
        "tenancy_statements": [statement.text for statement in needed.controller_tenancy],
    }


def node_tfvars(needed: Policies) -> dict[str, Any] | None:
    """The variable `node_iam` of the root module `terraform/cluster`; None if Terraform creates nothing."""
    if not needed.created or not needed.nodes:
        return None
    return {
        "dynamic_group": needed.node_group,
        "description": f"Nodes of the cluster {needed.cluster}: they may join its control plane",
        "matching_rule": needed.node_rule,
        "statements": [statement.text for statement in needed.nodes],
    }


def _place(compartment_id: str) -> str:
    """The location of a statement. The root compartment is the tenancy."""
    return "in tenancy" if compartment_id.startswith("ocid1.tenancy.") else f"in compartment id {compartment_id}"


@dataclass(frozen=True)
class _Places:
    """The locations of statements.

    Args:
        own: the cluster's compartment. network: that of the nodes' subnet. elastic: that of elastic nodes.
        inside: `elastic` is below `own`: what is granted in `own` holds there, too.
    """

    own: str
    network: str
    elastic: str
    inside: bool

    def distinct(self, *locations: str) -> tuple[str, ...]:
        """These locations without those that another one covers."""
        return tuple(each for each in dict.fromkeys(locations) if not (self.covers(each) and self.own in locations))

    def covers(self, place: str) -> bool:
        """Whether a place is below the cluster's compartment. A policy there may be about it."""
        return self.inside and place == self.elastic


def _places(spec: ClusterSpec, compartment_id: str, network_compartment_id: str | None) -> _Places:
    own = _place(compartment_id)
    elastic = own
    if spec.iam.creates_compartment:
        # By its name, which the policy of the parent resolves: its OCID is not known before it is created.
        elastic = f"in compartment {elastic_compartment(spec.name)}"
    elif spec.iam.elastic_compartment:
        elastic = _place(spec.iam.elastic_compartment)
    network = _place(network_compartment_id or compartment_id)
    return _Places(own, network, elastic, inside=spec.iam.creates_compartment)


# A statement, and its location.
_Placed = tuple[Statement, str]


def _allow(feature: str, subject: str, right: Right, place: str, condition: str = "") -> _Placed:
    where = condition or right.condition
    return Statement(feature, f"Allow {subject} to {right} {place}" + (f" where {where}" if where else "")), place


def _by_policy(placed: Iterable[_Placed], places: _Places) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """The statements for a policy in the cluster's compartment, and those for the tenancy. None appears twice."""
    once = {
        statement.text: (statement, place == places.own or places.covers(place))
        for statement, place in reversed(tuple(placed))
    }
    inside = tuple(statement for statement, is_own in reversed(once.values()) if is_own)
    return inside, tuple(statement for statement, is_own in reversed(once.values()) if not is_own)


# --- the controller -----


def _controller(spec: ClusterSpec, pools: tuple[PoolSpec, ...], subject: str, places: _Places) -> Iterator[_Placed]:
    needed = {
        permissions.SUBNETS: (places.network,),
        permissions.VNICS: (places.elastic, places.network),
        # Images and reservations are the cluster's; what has no compartment counts as in that of the instance.
        permissions.IMAGES: (places.own, places.elastic),
        permissions.CAPACITY_RESERVATIONS: (places.own, places.elastic),
    }
    for feature, rights in _for_nodes(pools):
        for right in rights:
            for place in places.distinct(*needed.get(right, (places.elastic,))):
                for condition in _conditions(spec, right):
                    yield _allow(feature, subject, right, place, condition)
    if any(pool.image.listing for pool in pools):
        yield _allow("images of a Marketplace listing", subject, permissions.LISTINGS, "in tenancy")
    if _defined_tags(spec):
        yield _allow("defined tags of new nodes", subject, permissions.TAG_NAMESPACES, "in tenancy", _of_tags(spec))
    if spec.reports_hosts:
        for condition in _conditions(spec, permissions.REPORT_HOSTS):
            yield _allow(_REPORTS, subject, permissions.REPORT_HOSTS, places.elastic, condition)
        yield _allow(_REPORTS, subject, permissions.TAG_NAMESPACES, "in tenancy", _OF_HOST_ACTIONS)


def _for_nodes(pools: tuple[PoolSpec, ...]) -> Iterator[tuple[str, tuple[Right, ...]]]:
    yield (
        "elastic nodes: launch, list, terminate",
        (permissions.INSTANCES, permissions.READ_CONFIGURATIONS, permissions.LAUNCH_CONFIGURATIONS, permissions.IMAGES),
    )
    yield "their network interfaces", (permissions.VNICS, permissions.VNIC_ATTACHMENTS, permissions.SUBNETS)
    yield "terminating a node with volumes", (permissions.VOLUMES, permissions.VOLUME_ATTACHMENTS)
    yield "the reason of a failed launch", (permissions.WORK_REQUESTS,)
    yield "the console of a node that does not join", (permissions.CONSOLE,)
    if any(pool.kind == "compute_cluster" for pool in pools):
        yield "elastic RDMA nodes", (permissions.COMPUTE_CLUSTERS,)
    if any(pool.capacity_reservation_id for pool in pools):
        yield "capacity reservations", (permissions.CAPACITY_RESERVATIONS,)


def _conditions(spec: ClusterSpec, right: Right) -> list[str]:
    """The conditions of a right, one for each statement; empty for a right without any.

    A tag can be compared only where the request names a resource that exists: so not for INSTANCE_CREATE, nor for lists
    (docs: "Using Tags to Manage Access"). The variables of Compute have neither the instance configuration nor the
    subnet of a launch (docs: "Details for the Core Services", Supported Variables).
    """
    if spec.iam.tag is None:
        return [right.condition]
    tag = f"target.resource.tag.{spec.iam.tag} = '{spec.name}'"
    if right == permissions.INSTANCES:
        launching = permissions.LAUNCHING_PREEMPTIBLE if _has_preemptible(spec) else permissions.LAUNCHING
        launch = "" if spec.iam.any_launch else any_of("request.operation", launching)
        return [
            any_of("request.permission", permissions.SEE_INSTANCES),
            all_of(any_of("request.permission", permissions.CREATE_INSTANCES), launch),
            all_of(any_of("request.permission", permissions.END_INSTANCES), tag),
        ]
    if right in (permissions.LAUNCH_CONFIGURATIONS, permissions.REPORT_HOSTS):
        return [all_of(right.condition, tag)]
    # The subnet of an existing network is not ours to tag.
    return [tag] if right == permissions.SUBNETS and spec.network.vcn_id is None else [right.condition]


def _has_preemptible(spec: ClusterSpec) -> bool:
    return any(pool.preemptible for pool in spec.elastic_pools.values())


def _defined_tags(spec: ClusterSpec) -> list[str]:
    return [*spec.cloud.defined_tags, *([spec.iam.tag] if spec.iam.tag else [])]


def _of_tags(spec: ClusterSpec) -> str:
    """The condition on namespaces. A tag namespace is in a parent compartment, most often in the tenancy."""
    return any_of("target.tag-namespace.name", sorted({name.partition(".")[0] for name in _defined_tags(spec)}))


def _of_maintenance(spec: ClusterSpec, subject: str, places: _Places) -> Iterator[_Placed]:
    """The events of maintenance. Their permissions belong to no verb, so they are named."""
    moves = permissions.MOVE_MAINTENANCE if spec.maintenance.early else ()
    named = ", ".join((*permissions.READ_MAINTENANCE, *moves))
    where = (places.own, places.elastic) if spec.elastic_pools else (places.own,)
    for place in places.distinct(*where):
        yield Statement("maintenance that Oracle announces", f"Allow {subject} to {{{named}}} {place}"), place


def _of_failover(spec: ClusterSpec, subject: str, places: _Places) -> Iterator[_Placed]:
    """What lets the standby stop the controller, and take its volume and its address over. Both hosts have it: they
    change places."""
    feature = "the standby goes on by itself"
    tag = "" if spec.iam.tag is None else f"target.resource.tag.{spec.iam.tag} = '{spec.name}'"
    yield _allow(feature, subject, permissions.SEE_HOSTS, places.own)
    for right in (permissions.FENCE, permissions.HOLD):
        yield _allow(feature, subject, right, places.own, all_of(right.condition, tag))
    for right in (
        permissions.TAKE_VOLUME,
        permissions.VOLUMES,
        permissions.MOVE_VOLUME,
        permissions.VNIC_ATTACHMENTS,
        permissions.VNICS,
        permissions.MOVE_ADDRESS,
        permissions.SUBNETS,
    ):
        yield _allow(feature, subject, right, places.own)


# --- Kubernetes Engine -----


def _administers(subject: str, places: _Places) -> _Placed:
    """What lets the controller's programs create the cluster's objects in Kubernetes."""
    named = ", ".join(permissions.CLUSTER_ADMINISTRATION)
    text = f"Allow dynamic-group {subject} to {{{named}}} {places.own} where {_OF_CLUSTER}"
    return Statement("objects of the cluster in Kubernetes", text), places.own


def _joins(spec: ClusterSpec) -> bool:
    """Whether instances of the cluster join a control plane of Kubernetes Engine."""
    return has_kubernetes_engine(spec) and bool(spec.host_pools)


def _node_rule(spec: ClusterSpec, compartment_id: str) -> str:
    # A rule can't name the members of a cluster network, which OCI makes. It can name what they are tagged with.
    tag = "" if spec.iam.tag is None else f"tag.{spec.iam.tag}.value = '{spec.name}'"
    return all_of(f"instance.compartment.id = '{compartment_id}'", tag)


def _join(group: str, places: _Places) -> Statement:
    text = f"Allow dynamic-group {group} to {{{permissions.CLUSTER_JOIN}}} {places.own} where {_OF_CLUSTER}"
    return Statement("nodes join the control plane", text)


# --- the operator -----


def _who_runs(spec: ClusterSpec) -> tuple[str, str]:
    """The subject of the operator's statements, and a condition that each of them gets.

    A workload of OKE is in no dynamic group: its statements name the cluster, the namespace and the service account
    (docs: "Granting Workloads Access to OCI Resources"). The user of a session (`oidc`) is in a group.
    """
    if spec.cloud.auth in ("instance_principal", "resource_principal"):
        return f"dynamic-group {RUNNERS}", ""
    if spec.cloud.auth == "workload_identity":
        names = ("cluster_id", "namespace", "service_account")
        pod = (f"request.principal.{name} = '{value}'" for name, value in zip(names, _POD, strict=True))
        return "any-user", all_of("request.principal.type = 'workload'", *pod)
    return f"group {OPERATORS}", ""


def _only(placed: _Placed, subject: str, condition: str) -> _Placed:
    """A statement of the operator's with one more condition."""
    statement, place = placed
    if not condition or not statement.text.startswith(f"Allow {subject} "):
        return placed
    text, _, present = statement.text.partition(" where ")
    return Statement(statement.feature, f"{text} where {all_of(present, condition)}"), place


def _runner_rule(spec: ClusterSpec, compartment_id: str) -> str:
    if spec.cloud.auth == "instance_principal":
        return f"instance.id = '{RUNNER}'"
    if spec.cloud.auth == "resource_principal":
        # docs: "DevOps IAM Policies", Build Pipeline Policies.
        return all_of("resource.type = 'devopsbuildpipeline'", f"resource.compartment.id = '{compartment_id}'")
    return ""


_NETWORK_TYPES = (
    "vcns", "subnets", "route-tables", "security-lists", "dhcp-options", "internet-gateways", "nat-gateways",
    "service-gateways",
)  # fmt: skip


def _operator(spec: ClusterSpec, subject: str, places: _Places) -> Iterator[_Placed]:
    for feature, rights, place in (
        *_preflight(),
        *(each for at in places.distinct(places.own, places.elastic) for each in _compute(spec, at)),
        *_network(spec, places),
        *_storage(spec, places.own),
        *_kubernetes_engine(spec, places.own),
        *_identity(spec, places),
    ):
        for right in rights:
            yield _allow(feature, subject, right, place)
    if _defined_tags(spec):
        yield _allow("defined tags", subject, permissions.TAG_NAMESPACES, "in tenancy", _of_tags(spec))
    if spec.pools:
        yield _allow(_REPORTS, subject, permissions.TAG_NAMESPACES, "in tenancy", _OF_HOST_ACTIONS)
    if spec.state.backend == "oci" and isinstance(bucket := spec.state.config.get("bucket"), str):
        condition = f"target.bucket.name = '{bucket}'"
        for right in (Right("read", "buckets"), Right("manage", "objects")):
            yield _allow("Terraform's state in Object Storage", subject, right, "in tenancy", condition)
    if any(pool.capacity_reservation_id and pool.kind == "cluster_network" for pool in spec.pools.values()):
        # docs: "Managing Cluster Networks with Instance Pools": the service launches the instances, not the operator.
        feature = "capacity reservations of a cluster network"
        yield _allow(feature, "service compute_management", permissions.CAPACITY_RESERVATIONS, "in tenancy")


_OF_FABRICS = (
    "compute-gpu-memory-fabrics", "compute-hpc-islands", "compute-network-blocks", "compute-local-blocks",
    "compute-bare-metal-hosts",
)  # fmt: skip
_Needed = tuple[str, tuple[Right, ...], str]


def _preflight() -> Iterator[_Needed]:
    yield "preflight: compartments, domains, the home region", (
        Right("inspect", "compartments"), Right("inspect", "tenancies"),
    ), "in tenancy"  # fmt: skip
    yield "preflight: limits and capacity", (
        Right("inspect", "limits"), Right("read", "resource-availability"), Right("manage", "compute-capacity-reports"),
    ), "in tenancy"  # fmt: skip


def _compute(spec: ClusterSpec, own: str) -> Iterator[_Needed]:
    pools = spec.pools.values()
    kinds = {pool.kind for pool in pools}
    yield "controller and nodes", (
        Right("manage", "instances"), permissions.VOLUMES, permissions.VOLUME_ATTACHMENTS,
        permissions.WORK_REQUESTS,
    ), own  # fmt: skip
    if spec.controller.has_state_volume:
        yield "the volume with the controller's state", (
            Right("manage", "volumes"), Right("manage", "volume-attachments"),
        ), own  # fmt: skip
    changes = spec.elastic_pools or any(machine.image.make_compatible for machine in spec.machines)
    yield "images (baked ones are created and deleted)" if changes else "images", (
        Right("manage" if changes else "read", "instance-images"),
    ), own  # fmt: skip
    if any(machine.image.listing for machine in spec.machines):
        yield "images of a Marketplace listing", (Right("manage", "app-catalog-listing"),), "in tenancy"
    if spec.elastic_pools or kinds & {"cluster_network", "gpu_memory_cluster"}:
        yield "instance configurations of nodes", (Right("manage", "instance-configurations"),), own
    if "cluster_network" in kinds:
        yield "cluster networks", (Right("manage", "cluster-networks"), Right("manage", "instance-pools")), own
    if "gpu_memory_cluster" in kinds:
        yield "GPU memory clusters", (Right("manage", "compute-gpu-memory-clusters"),), own
        # Fabrics and hosts are in the root compartment (docs: "Creating GPU Memory Clusters"); the types are those of
        # oci-hpc's page Prerequisites ("For the GB series GPU").
        yield "GPU memory fabrics", tuple(Right("use", each) for each in _OF_FABRICS), "in tenancy"
    if kinds & {"compute_cluster", "gpu_memory_cluster"}:
        yield "compute clusters", (Right("manage", "compute-clusters"),), own
    if any(pool.capacity_reservation_id for pool in pools):
        yield "capacity reservations", (permissions.CAPACITY_RESERVATIONS,), own


def _kubernetes_engine(spec: ClusterSpec, own: str) -> Iterator[_Needed]:
    # docs: "Policy Configuration for Cluster Creation and Deployment"; the network's rights are in _network.
    if has_kubernetes_engine(spec):
        public = spec.kubernetes.oke.endpoint == "public"
        yield "control plane of Kubernetes Engine", (
            Right("manage", "clusters"), Right("read", "cluster-work-requests"), Right("use", "private-ips"),
            *([Right("manage", "public-ips")] if public else []),
        ), own  # fmt: skip
        if spec.managed_pools:
            yield "node pools of Kubernetes Engine", (Right("manage", "cluster-node-pools"),), own


def _network(spec: ClusterSpec, places: _Places) -> Iterator[_Needed]:
    own, network = places.own, places.network
    if spec.network.vcn_id is None:
        yield "network", tuple(Right("manage", kind) for kind in _NETWORK_TYPES), own
    else:
        yield "existing network", (
            *(Right("read", kind) for kind in _NETWORK_TYPES if kind != "subnets"), permissions.SUBNETS,
        ), network  # fmt: skip
    for place in places.distinct(own, network, places.elastic):
        yield (
            "network interfaces",
            (permissions.VNICS, permissions.VNIC_ATTACHMENTS, Right("use", "private-ips")),
            place,
        )
    if spec.network.access == "bastion":
        yield "bastion", (Right("manage", "bastion"), Right("manage", "bastion-session")), own


def _storage(spec: ClusterSpec, own: str) -> Iterator[_Needed]:
    storage = spec.storage
    if not storage.mount_targets:
        return
    systems = Right("manage" if storage.created_file_systems else "use", "file-systems")
    feature = "shares" if storage.exported_shares else "home share"
    yield feature, (systems, Right("manage", "mount-targets"), Right("manage", "export-sets")), own


def _identity(spec: ClusterSpec, places: _Places) -> Iterator[_Needed]:
    if spec.iam.creates_compartment:
        yield "the compartment of elastic nodes", (Right("manage", "compartments"),), places.own
    if spec.iam.create and has_kubernetes_engine(spec):
        feature = "permissions of the controller and the nodes"
        yield feature, (Right("manage", "dynamic-groups"),), "in tenancy"
        yield feature, (Right("manage", "policies"),), places.own
    if not spec.asks_cloud or not spec.iam.create:
        return
    outside = any(pool.image.listing for pool in spec.elastic_pools.values()) or bool(_defined_tags(spec))
    outside = outside or not (places.elastic == places.own or places.inside)
    yield "permissions of the controller", (Right("manage", "dynamic-groups"),), "in tenancy"
    yield "permissions of the controller", (Right("manage", "policies"),), "in tenancy" if outside else places.own


# --- as text -----


def _notes(spec: ClusterSpec, elastic: tuple[PoolSpec, ...], network_compartment_id: str | None) -> Iterator[str]:
    granted = spec.asks_cloud or has_kubernetes_engine(spec)
    if granted and spec.iam.create and (spec.iam.identity_domain or DEFAULT_DOMAIN) != DEFAULT_DOMAIN:
        yield (
            f"The identity domain {spec.iam.identity_domain} is not the default one: gpucluster does not create the "
            "dynamic group and the policies. Create them by hand."
        )
    if _joins(spec) and spec.iam.tag is None:
        yield (
            "Every instance in the cluster's compartment may join the control plane as a node. If others launch "
            "instances there, set iam.tag or give the cluster a compartment of its own."
        )
    if spec.iam.creates_compartment and not spec.iam.create:
        yield (
            f"The first apply creates the compartment {elastic_compartment(spec.name)}. OCI accepts statements that "
            "name it from then on."
        )
    if spec.controller.automatic_failover and spec.iam.tag is None:
        yield (
            "The controller and its standby may stop every instance in the cluster's compartment: a policy of OCI "
            "can't name one. Set iam.tag, or give the cluster a compartment of its own."
        )
    if _has_preemptible(spec) and spec.iam.tag is not None and not spec.iam.any_launch:
        yield (
            "An instance configuration launches no preemptible instance: the controller may launch instances with "
            "user data of its choice. Give elastic nodes a compartment of their own: iam.elastic_compartment."
        )
    if spec.network.vcn_id is not None and network_compartment_id is None:
        yield (
            "The network exists already. If its subnets are in another compartment, add the statements about subnets, "
            "vnics and private-ips to a policy there, too."
        )
    if any(pool.capacity_reservation_id for pool in spec.pools.values()):
        yield "If a capacity reservation is in another compartment, add the statement about it to a policy there."
    if any(pool.image.ocid for pool in spec.pools.values()):
        yield "If an image is in another compartment, add the statement about instance-images to a policy there, too."


def text(needed: Policies) -> str:
    """The permissions as text for an administrator: statements can be copied, `#` begins a comment."""
    lines = [f"# Permissions for the cluster {needed.cluster}, compartment {needed.compartment_id}"]
    lines += [f"# {note}" for note in needed.notes]
    lines += [
        "",
        *(_controller_text(needed) or [f"# No pool is elastic, {_NO_OTHERS}: the controller needs no permissions."]),
        *_node_text(needed),
        "",
        *_runner_text(needed),
        *_policy_text("in the cluster's compartment", needed.operator),
        *_policy_text("in the tenancy (root compartment)", needed.operator_tenancy),
    ]
    return "\n".join(lines)


def _runner_text(needed: Policies) -> list[str]:
    """Who gets the statements of the operator, and what to replace in them."""
    if needed.runner_rule:
        return [
            "# --- for the runners that run gpucluster: an administrator creates these ---",
            f"# Dynamic group {RUNNERS} (replace it with a name of yours), matching rule:",
            needed.runner_rule,
        ]
    if any("Allow any-user" in statement.text for statement in needed.operator):
        return [
            "# --- for the pods that run gpucluster: an administrator creates these ---",
            f"# Replace {', '.join(_POD)} with those of the runner's pod in OKE.",
        ]
    return [
        "# --- for the users who run gpucluster: an administrator creates these ---",
        f"# Replace {OPERATORS} with the name of your group, with its domain if that is not the default one.",
    ]


def _controller_text(needed: Policies) -> list[str]:
    if not needed.controller:
        return []
    how = "Terraform creates these" if needed.created else "an administrator creates these by hand"
    lines = [
        f"# --- for the controller: {how} ---",
        f"# Dynamic group {needed.dynamic_group}, identity domain {needed.domain}, matching rule:",
        needed.matching_rule,
    ]
    if CONTROLLER in needed.matching_rule:
        lines += [
            f"# {CONTROLLER} is known after the first apply: `gpucluster output` shows it as cluster.controller.id.",
            "# A replaced controller has another OCID: change the rule then.",
        ]
    if STANDBY in needed.matching_rule:
        lines.append(f"# {STANDBY} is there as cluster.standby.id.")
    return [
        *lines,
        *_policy_text(f"{needed.dynamic_group} in the cluster's compartment", needed.controller),
        *_policy_text(f"{needed.dynamic_group}-tenancy in the tenancy (root compartment)", needed.controller_tenancy),
    ]


def _node_text(needed: Policies) -> list[str]:
    if not needed.nodes:
        return []
    how = "Terraform creates these" if needed.created else "an administrator creates these by hand"
    return [
        "",
        f"# --- for the nodes that join Kubernetes Engine: {how} ---",
        f"# Dynamic group {needed.node_group}, identity domain {needed.domain}, matching rule:",
        needed.node_rule,
        f"# {ENGINE_CLUSTER} is known after the first apply: `gpucluster output` shows it as oke.id.",
        *_policy_text(f"{needed.node_group} in the cluster's compartment", needed.nodes),
    ]


def _policy_text(name: str, statements: Iterable[Statement]) -> list[str]:
    features: dict[str, list[str]] = {}
    for statement in statements:
        features.setdefault(statement.feature, []).append(statement.text)
    lines = ["", f"# Policy {name}"] if features else []
    for feature, texts in features.items():
        lines += [f"# {feature}", *texts]
    return lines
