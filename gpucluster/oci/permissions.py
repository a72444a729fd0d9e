"""The operations of OCI's API that the autoscaler uses, and the rights that each of them needs.

This table has one copy: `handover.iam` writes policies from it, and the autoscaler names from it what may be missing
when a request is refused. A right is a verb on a resource-type of OCI's policy language, narrowed to permissions where
the verb gives much more than is needed.

Source: Oracle's policy reference, "Details for the Core Services", tables "Details for Verb + Resource-Type
Combinations" and "Permissions Required for Each API Operation". `request.permission` is one of its general variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PREFIX = "gpucluster"


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource-type.

    Args:
        permissions: those of the verb's permissions that are needed; empty is all of them.
    """

    verb: str
    resource: str
    permissions: tuple[str, ...] = ()

    @property
    def condition(self) -> str:
        """The permissions as a condition of a policy statement; empty if there are none."""
        return any_of("request.permission", self.permissions)

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def any_of(variable: str, values: Sequence[str]) -> str:
    """A condition of a policy statement: the variable has one of these values; empty without any."""
    tests = [f"{variable} = '{value}'" for value in values]
    return tests[0] if len(tests) == 1 else f"any {{{', '.join(tests)}}}" if tests else ""


def all_of(*conditions: str) -> str:
    """All of these conditions that are not empty."""
    tests = [condition for condition in conditions if condition]
    return tests[0] if len(tests) == 1 else f"all {{{', '.join(tests)}}}"


SEE_INSTANCES = ("INSTANCE_INSPECT", "INSTANCE_READ")
CREATE_INSTANCES = ("INSTANCE_CREATE",)
END_INSTANCES = ("INSTANCE_DELETE", "INSTANCE_DETACH_VOLUME")
# The operations for which INSTANCE_CREATE is needed; the last asks for the rights of the launch that it is about.
LAUNCHING = ("LaunchInstanceConfiguration", "ListWorkRequestErrors")
# An instance configuration launches no preemptible instance.
LAUNCHING_PREEMPTIBLE = ("LaunchInstance", *LAUNCHING)

# `manage instances` alone would also allow to change instances, to power them off and to make images of them.
INSTANCES = Right("manage", "instances", (*SEE_INSTANCES, *CREATE_INSTANCES, *END_INSTANCES))
READ_CONFIGURATIONS = Right("read", "instance-configurations")
LAUNCH_CONFIGURATIONS = Right("manage", "instance-configurations", ("INSTANCE_CONFIGURATION_LAUNCH",))
IMAGES = Right("read", "instance-images")
VNICS = Right("use", "vnics")
VNIC_ATTACHMENTS = Right("inspect", "vnic-attachments")
SUBNETS = Right("use", "subnets")
WORK_REQUESTS = Right("inspect", "work-requests")
# To terminate an instance its volumes are detached, which needs rights of its own.
VOLUMES = Right("use", "volumes")
VOLUME_ATTACHMENTS = Right("manage", "volume-attachments", ("VOLUME_ATTACHMENT_DELETE",))
CONSOLE = Right(
    "manage", "console-histories", ("CONSOLE_HISTORY_INSPECT", "CONSOLE_HISTORY_READ", "CONSOLE_HISTORY_CREATE")
)
# Only where physical hosts are reported: a tag of the instance is changed.
REPORT_HOSTS = Right("use", "instances", ("INSTANCE_UPDATE",))
# Only where a pool uses them.
COMPUTE_CLUSTERS = Right("use", "compute-clusters")
CAPACITY_RESERVATIONS = Right("use", "compute-capacity-reservations")
LISTINGS = Right("read", "app-catalog-listing")
TAG_NAMESPACES = Right("use", "tag-namespaces")

# What the standby needs to go on by itself. OCI has no variable for the OCID of an instance: a condition on a tag is
# what there is (docs: "Details for the Core Services", Supported Variables).
SEE_HOSTS = Right("read", "instances", SEE_INSTANCES)
FENCE = Right("use", "instances", ("INSTANCE_POWER_ACTIONS",))
# An attachment is about two resources: a condition on a tag of one of them is not documented for it.
TAKE_VOLUME = Right("use", "instances", ("INSTANCE_ATTACH_VOLUME", "INSTANCE_DETACH_VOLUME"))
MOVE_VOLUME = Right(
    "manage",
    "volume-attachments",
    ("VOLUME_ATTACHMENT_INSPECT", "VOLUME_ATTACHMENT_CREATE", "VOLUME_ATTACHMENT_DELETE"),
)
MOVE_ADDRESS = Right("use", "private-ips")
# The tag that names the run that holds the cluster.
HOLD = Right("manage", "vcns", ("VCN_READ", "VCN_UPDATE"))

#: The permission that an instance needs to become a node of Kubernetes Engine. No verb includes it.
CLUSTER_JOIN = "CLUSTER_JOIN"
#: Those of an administrator of the Kubernetes behind it, who can neither change nor delete the resource of OCI.
CLUSTER_ADMINISTRATION = ("CLUSTER_USE", "CLUSTER_MANAGE")

#: Oracle's table of operations names these permissions, and no table of verbs has them: a policy grants them by name.
#: A list has all of an event that is needed; to read one would need INSTANCE_MAINTENANCE_EVENT_READ.
READ_MAINTENANCE = ("INSTANCE_MAINTENANCE_EVENT_INSPECT",)
MOVE_MAINTENANCE = ("INSTANCE_MAINTENANCE_EVENT_UPDATE",)

_LAUNCH = (INSTANCES, IMAGES, VNICS, SUBNETS)
SOME_LAUNCHES = (COMPUTE_CLUSTERS, CAPACITY_RESERVATIONS, LISTINGS, TAG_NAMESPACES)

# By the SDK's name of each operation that `gpucluster.autoscaler.daemon.oci` uses.
NEEDED: Mapping[str, tuple[Right, ...]] = {
    "list_instances": (INSTANCES,),
    "get_instance": (INSTANCES,),
    "get_instance_configuration": (READ_CONFIGURATIONS,),
    "launch_instance_configuration": (LAUNCH_CONFIGURATIONS, *_LAUNCH, *SOME_LAUNCHES),
    "launch_instance": (*_LAUNCH, *SOME_LAUNCHES),
    "terminate_instance": (INSTANCES, VNICS, SUBNETS, VOLUMES, VOLUME_ATTACHMENTS),
    "update_instance": (REPORT_HOSTS, TAG_NAMESPACES),
    "list_vnic_attachments": (VNIC_ATTACHMENTS, INSTANCES),
    "get_vnic": (VNICS,),
    "list_work_requests": (WORK_REQUESTS,),
    # The rights of the operation that the work request belongs to: the launch of the node.
    "list_work_request_errors": _LAUNCH,
    "capture_console_history": (CONSOLE, INSTANCES, IMAGES),
    "get_console_history": (CONSOLE, INSTANCES),
    "get_console_history_content": (CONSOLE, INSTANCES, IMAGES),
}


# The same for the operations that need permissions without a verb.
NEEDED_BY_NAME: Mapping[str, tuple[str, ...]] = {
    "list_instance_maintenance_events": READ_MAINTENANCE,
    "update_instance_maintenance_event": MOVE_MAINTENANCE,
}


def dynamic_group(cluster: str) -> str:
    """The name of the dynamic group of a cluster's controller. Its policies have the same name."""
    return f"{PREFIX}-{cluster}"


def node_group(cluster: str) -> str:
    """The name of the dynamic group of the instances that join a control plane of Kubernetes Engine."""
    return f"{dynamic_group(cluster)}-nodes"


def advice(operation: str, cluster: str) -> str:
    """What to do after NotAuthorizedOrNotFound; empty for an operation that is not in the table.

    OCI does not tell whether the resource is gone or a right is missing, nor which right. So all of them are named.
    """
    needed = NEEDED.get(operation, ())
    by_name = NEEDED_BY_NAME.get(operation, ())
    if not needed and not by_name:
        return ""
    if by_name:
        return _advice(operation, cluster, f"`{{{', '.join(by_name)}}}`")
    always = ", ".join(f"`{right}`" for right in needed if right not in SOME_LAUNCHES)
    some = ", ".join(f"`{right}`" for right in needed if right in SOME_LAUNCHES)
    where = f" (and, where a pool has such, {some})" if some else ""
    return _advice(operation, cluster, f"{always}{where}")


def _advice(operation: str, cluster: str, needed: str) -> str:
    return (
        f"What it asks for is gone, or the controller lacks a right: {operation} needs {needed} for the dynamic "
        f"group {dynamic_group(cluster)}. Compare the tenancy's policies with the output of: gpucluster policies"
    )
