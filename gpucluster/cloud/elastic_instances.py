"""Elastic nodes and builders as the operator's side sees them: listed by their tags, launched (builders) and removed.

The autoscaler on the controller owns elastic nodes (docs/adr/0008-elastic-nodes.md). This module serves the cases in
which it can't do its work: the cluster is destroyed, a pool is removed, or the controller does not exist any more.
"""

from __future__ import annotations

import http
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals, unless_refused
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci import tags
from gpucluster.oci.states import LifecycleState
from gpucluster.waiting import wait_until

_POLL = 1.0
# Bare metal is wiped when an instance ends.
_TERMINATION_TIMEOUT = 60 * 60.0
_LAUNCH_TIMEOUT = 60 * 60.0
_WORKERS = 8


@dataclass(frozen=True)
class ElasticInstance:
    """An instance that Terraform did not create.

    Args:
        node: the name of the node, as tagged; for a builder, its display name.
        builder: whether it exists to bake an image.
        created: seconds since 1970; 0 if the cloud does not report it.
    """

    id: str
    node: str
    pool: str
    state: str
    builder: bool = False
    created: float = 0.0


class ElasticInstances:
    """The elastic nodes and builders of one cluster.

    Args:
        cluster: its name. Only instances with the tags of an elastic node or a builder of this cluster are ever
            changed.
        identity: that of the cluster, where it was proven: those of another cluster of this name are left alone.
    """

    def __init__(self, access: CloudAccess, cluster: str, on_event: Sink, *, identity: str = "") -> None:
        self._access = access
        self._cluster = cluster
        self._identity = identity
        self._on_event = on_event

    def instances(self) -> tuple[ElasticInstance, ...]:
        """The instances that are not terminated, sorted by name."""
        with refusals("listing the elastic nodes"):
            call = self._client().list_instances
            listed = [each for place in self._access.compartments() for each in all_pages(call, place)]
        own = [_elastic(instance) for instance in listed if self._ours(instance)]
        return tuple(sorted(own, key=lambda instance: (instance.pool, len(instance.node), instance.node)))

    def remove(self, selected: Callable[[ElasticInstance], bool] = lambda _: True) -> int:
        """Terminate the instances for which `selected` is true, and wait until that has ended. Returns their number.

        The listing is read again at the end: what was launched in the meantime is removed as well.

        Raises:
            CloudError: the cloud refused, or an instance does not end.
        """
        # The listing may lag behind the answer to a request for one instance.
        ended: set[str] = set()
        deadline = time.monotonic() + _TERMINATION_TIMEOUT
        while time.monotonic() < deadline:
            present = [each for each in self.instances() if selected(each) and each.id not in ended]
            if not present:
                return len(ended)
            with ThreadPoolExecutor(max_workers=_WORKERS) as workers:
                list(workers.map(lambda instance: self._terminate(instance, deadline), present))
            ended |= {instance.id for instance in present}
        raise CloudError(
            "new elastic nodes are launched as fast as they are removed",
            hint="Stop the autoscaler: gpucluster ssh -- sudo systemctl stop gpucluster-autoscaler",
        )

    def launch_builder(self, pool: str, name: str, instance_configuration_id: str, image_id: str) -> str:
        """Launch the instance that an image is baked on, and wait until it runs. Returns its OCID.

        Args:
            image_id: the platform image; the instance configuration may name a baked image.
        """
        management = self._access.client("core", "ComputeManagementClient")
        with refusals(f"launching {name}"):
            template = management.get_instance_configuration(
                instance_configuration_id
            ).data.instance_details.launch_details
            details = model(
                "core",
                "InstanceConfigurationLaunchInstanceDetails",
                display_name=name,
                # A map or a nested object replaces that of the configuration as a whole.
                freeform_tags=tags.fitting(
                    {
                        **(template.freeform_tags or {}),
                        tags.CLUSTER: self._cluster,
                        tags.POOL: pool,
                        tags.BUILDER: pool,
                    }
                ),
                source_details=model(
                    "core",
                    "InstanceConfigurationInstanceSourceViaImageDetails",
                    image_id=image_id,
                    boot_volume_size_in_gbs=getattr(template.source_details, "boot_volume_size_in_gbs", None),
                ),
                create_vnic_details=model(
                    "core",
                    "InstanceConfigurationCreateVnicDetails",
                    subnet_id=template.create_vnic_details.subnet_id,
                    assign_public_ip=False,
                    display_name=name,
                    hostname_label=name,
                ),
            )
            body = model("core", "ComputeInstanceDetails", launch_details=details)
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "creating"))
            # The SDK repeats a request whose answer was lost. The token keeps OCI from launching a second instance.
            launched = management.launch_instance_configuration(
                instance_configuration_id, body, opc_retry_token=uuid.uuid4().hex
            ).data
            self._await_running(launched.id, name)
        self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "created", data={"id": launched.id}))
        return str(launched.id)

    def _client(self) -> Any:
        return self._access.client("core", "ComputeClient")

    def _ours(self, instance: Any) -> bool:
        ended = instance.lifecycle_state == LifecycleState.TERMINATED
        return tags.elastic_or_builder(instance.freeform_tags, self._cluster, self._identity) and not ended

    def _terminate(self, instance: ElasticInstance, deadline: float) -> None:
        name = f"instance {instance.node}"
        self._on_event(Event(EventKind.RESOURCE, name, "deleting", data={"id": instance.id}))
        begun = time.monotonic()
        with refusals(f"terminating {instance.node}"):
            if instance.state != LifecycleState.TERMINATING:
                unless_refused(
                    lambda: self._client().terminate_instance(instance.id, preserve_boot_volume=False),
                    http.HTTPStatus.NOT_FOUND,
                )
            if not wait_until(lambda: self._terminated(instance.id), deadline - time.monotonic(), _POLL):
                raise CloudError(
                    f"{instance.node} is not terminated in time", where=instance.id, hint="Run the same command again"
                )
        self._on_event(Event(EventKind.RESOURCE, name, "deleted", elapsed=time.monotonic() - begun))

    def _terminated(self, instance_id: str) -> bool:
        return self._state(instance_id) in (LifecycleState.TERMINATED, "")

    def _state(self, instance_id: str) -> str:
        """Its lifecycle state; empty if OCI does not know it any more."""
        response = unless_refused(lambda: self._client().get_instance(instance_id), http.HTTPStatus.NOT_FOUND)
        return str(response.data.lifecycle_state) if response else ""

    def _await_running(self, instance_id: str, name: str) -> None:
        state = wait_until(lambda: self._launched(instance_id), _LAUNCH_TIMEOUT, _POLL)
        if state != LifecycleState.RUNNING:
            raise CloudError(
                f"{name} is {self._state(instance_id) or 'gone'} and does not run",
                where=instance_id,
                hint="Read its work requests in the console for the reason, such as no capacity, and run the same "
                "command again",
            )

    def _launched(self, instance_id: str) -> str | None:
        """The state in which the launch ended; None as long as it continues."""
        state = self._state(instance_id)
        return None if state in (LifecycleState.PROVISIONING, LifecycleState.STARTING) else state or "gone"


def _elastic(instance: Any) -> ElasticInstance:
    own = instance.freeform_tags
    builder = tags.NODE not in own
    name = instance.display_name if builder else own[tags.NODE]
    created = instance.time_created.timestamp() if instance.time_created else 0.0
    return ElasticInstance(instance.id, name, own.get(tags.POOL, ""), instance.lifecycle_state, builder, created)
