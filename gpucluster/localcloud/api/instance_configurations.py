"""Instance configurations and compute clusters."""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.instances import launch_once
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.compute import preemptible
from gpucluster.localcloud.compute.image_catalogue import check_fits
from gpucluster.localcloud.compute.memory_fabrics import MEMORY_CLUSTER
from gpucluster.localcloud.compute.shape_config import check_platform, known_shape
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    conflict,
    invalid,
)  # fmt: skip

# Maps that an override replaces completely; other nested details are merged by member.
_REPLACED = ("metadata", "extendedMetadata", "freeformTags", "definedTags", "securityAttributes")


def _prepare_configuration(cloud: CloudState, body: Json) -> Json:
    if body.pop("source", "NONE") != "NONE":
        raise invalid("The local cloud makes instance configurations from details only (source NONE)")
    details: Json = body.get("instanceDetails") or {}
    if details.get("instanceType") != "compute":
        raise invalid("instanceDetails.instanceType must be compute")
    launch: Json = details.get("launchDetails") or {}
    if launch.get("shape") is not None:
        _check_shape(cloud, launch)
    return {**body, "deferredFields": []}


def _check_shape(cloud: CloudState, launch: Json) -> None:
    """Checks that OCI makes when a configuration is created, and not only at its first launch."""
    preemptible.check_configuration(launch)
    shape = known_shape(launch["shape"]).name
    check_platform(shape, launch.get("platformConfig"))
    image = (launch.get("sourceDetails") or {}).get("imageId")
    if image is not None:
        check_fits(cloud.related("image", image), shape, wording="is incompatible with")


def _configuration_unused(cloud: CloudState, configuration: Resource) -> None:
    if cloud.store.count("instancepool", {"instanceConfigurationId": configuration.id}):
        raise conflict(f"The Instance Configuration {configuration.id} is associated to one or more Instance Pools.")
    if cloud.store.count(MEMORY_CLUSTER, {"instanceConfigurationId": configuration.id}):
        raise conflict(f"The Instance Configuration {configuration.id} is associated to a GPU memory cluster.")


def _configuration_summary(row: Resource) -> Json:
    return {name: value for name, value in row.body.items() if name not in ("instanceDetails", "deferredFields")}


def _cluster_empty(cloud: CloudState, cluster: Resource) -> None:
    for memory_cluster in cloud.store.find(MEMORY_CLUSTER, computeClusterId=cluster.id):
        raise conflict(f"The compute cluster {cluster.id} still has the GPU memory cluster {memory_cluster.id}")
    for instance in cloud.store.find("instance"):
        if instance.hidden["compute_cluster"] == cluster.id:
            raise conflict(f"The compute cluster {cluster.id} still has the instance {instance.id}")


CONFIGURATION = ResourceKind(
    "instanceconfiguration", f"{CORE}/instanceConfigurations", "InstanceConfiguration", "InstanceConfigurations",
    "instanceConfigurationId", fields=("instanceDetails", "source"), filters=("compartmentId",),
    initial=None, ready=None,
    prepare=_prepare_configuration, check_delete=_configuration_unused, summary=_configuration_summary,
)  # fmt: skip
COMPUTE_CLUSTER = ResourceKind(
    "computecluster", f"{CORE}/computeClusters", "ComputeCluster", "ComputeClusters", "computeClusterId",
    required=("compartmentId", "availabilityDomain"), fields=("availabilityDomain", "placementConstraintDetails"),
    filters=("compartmentId", "availabilityDomain", "displayName"), zoned=True,
    collection=True, initial=LifecycleState.ACTIVE, ready=LifecycleState.ACTIVE, ending=LifecycleState.DELETED,
    gone=LifecycleState.DELETED, check_delete=_cluster_empty,
)  # fmt: skip


def merged(base: Json, override: Json) -> Json:
    """Launch details with the overrides of the caller of a launch."""
    result = dict(base)
    for name, value in override.items():
        old = result.get(name)
        both = isinstance(old, dict) and isinstance(value, dict) and name not in _REPLACED
        result[name] = merged(old, value) if both and old is not None else value
    return result


def _launch_configuration(cloud: CloudState, call: Call) -> Reply:
    details = _details_of_launch(cloud, call)
    return launch_once(cloud, call, details, call.headers.get("opc-compute-cluster-id", ""))


def _details_of_launch(cloud: CloudState, call: Call) -> Json:
    """LaunchInstanceDetails: those of the configuration, with the overrides of the request."""
    configuration = cloud.live(CONFIGURATION.name, call.path["instanceConfigurationId"])
    base: Json = configuration.body["instanceDetails"].get("launchDetails") or {}
    details = merged(base, call.body().get("launchDetails") or {})
    details.setdefault("compartmentId", configuration.body["compartmentId"])
    details["instanceConfigurationId"] = configuration.id
    return details


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Instance configurations and compute clusters."""
    launch = f"{CONFIGURATION.path}/{{instanceConfigurationId}}/actions/launch"
    return [
        *kinds.routes(cloud, CONFIGURATION),
        *kinds.routes(cloud, COMPUTE_CLUSTER),
        ApiRoute(
            "POST",
            launch,
            "LaunchInstanceConfiguration",
            partial(_launch_configuration, cloud),
            partial(_details_of_launch, cloud),
        ),
    ]
