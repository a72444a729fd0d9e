"""One GPU memory cluster through the SDK, as `ClusterNetwork` has a cluster network: a rack whose instances OCI
launches and names.

Sources: the SDK's docstrings of ComputeGpuMemoryCluster and of its operations; Oracle's page "Reserving Private IPs for
GPU Memory Clusters" (instances are replaced and repaired). Whether OCI launches another instance for one that was
terminated by itself is not documented. Both are right here: what is missing afterwards, Terraform asks for by the size.
"""

from __future__ import annotations

import uuid
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals
from gpucluster.cloud.cluster_network import ClusterNetwork, NetworkStatus
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci.states import GONE, LifecycleState

_OCID = "ocid1.computegpumemorycluster."


def launched_together(access: CloudAccess, ocid: str, on_event: Sink) -> ClusterNetwork:
    """The cluster network or GPU memory cluster with this OCID."""
    kind = GpuMemoryCluster if ocid.startswith(_OCID) else ClusterNetwork
    return kind(access, ocid, on_event)


class GpuMemoryCluster(ClusterNetwork):
    """One GPU memory cluster, by its OCID."""

    noun = "GPU memory cluster"

    def status(self) -> NetworkStatus:
        """Read the cluster and its instances. A cluster that OCI does not change is RUNNING here.

        Raises:
            CloudError: the cloud refused, or there is no such cluster.
        """
        with refusals(f"reading a {self.noun}"):
            cluster = self._compute().get_compute_gpu_memory_cluster(self.id).data
            listed: list[Any] = []
            if cluster.lifecycle_state not in GONE:
                listed = all_pages(self._compute().list_compute_gpu_memory_cluster_instances, self.id)
        state, active = cluster.lifecycle_state, LifecycleState.ACTIVE
        present = [each for each in listed if each.lifecycle_state != LifecycleState.TERMINATED]
        return NetworkStatus(
            cluster.display_name,
            LifecycleState.RUNNING if state == active else state,
            int(cluster.size),
            self.id,
            {each.id: each.display_name for each in present},
            frozenset(each.id for each in present if each.lifecycle_state == LifecycleState.RUNNING),
        )

    def refill(self, size: int) -> None:
        """Ask OCI again to launch the instances that are missing."""
        name = self.status().name
        self._on_event(Event(EventKind.RESOURCE, f"{self.noun} {name}", "updating", "members are missing"))
        details = model("core", "UpdateComputeGpuMemoryClusterDetails", size=size)
        with refusals(f"asking for the missing members of a {self.noun}"):
            self._compute().update_compute_gpu_memory_cluster(self.id, details, opc_retry_token=uuid.uuid4().hex)

    def _end(self, status: NetworkStatus, instance_id: str, *, shrink: bool) -> None:
        """Terminate an instance. The cluster has no operation for this, whatever its size should be."""
        del status, shrink
        self._compute().terminate_instance(instance_id)

    def _compute(self) -> Any:
        return self._access.client("core", "ComputeClient")
