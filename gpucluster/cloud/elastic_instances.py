"""Elastic nodes and builders as the operator's side sees them: listed by their tags, launched (builders) and removed.

The autoscaler on the controller owns elastic nodes (docs/adr/0008-elastic-nodes.md). This module serves the cases in
which it can't do its work: the cluster is destroyed, a pool is removed, or the controller does not exist any more.
"""

from __future__ import annotations

import http
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import Access, everything, model, refusals
from gpucluster.errors import CloudError
from gpucluster.events import Event, Sink
from gpucluster.oci.states import LifecycleState
from gpucluster.oci.tags import BUILDER, NODE, POOL, elastic_or_builder
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
    """

    id: str
    node: str
    pool: str
    state: str
    builder: bool = False


class ElasticInstances:
    """The elastic nodes and builders of one cluster.

    Args:
        tag: the key and the value that mark this cluster's resources. Only instances that have it, and a tag `node`
            or `builder` as well, are ever changed.
    """

    def __init__(self, access: Access, tag: tuple[str, str], on_event: Sink) -> None:
        self._access = access
        self._tag = tag
        self._on_event = on_event

    def instances(self) -> tuple[ElasticInstance, ...]:
        """Those that are not terminated, sorted by name."""
        with refusals("listing the elastic nodes"):
            listed = everything(self._client().list_instances, self._access.compartment_id)
        found = [_elastic(instance) for instance in listed if self._ours(instance)]
        return tuple(sorted(found, key=lambda one: (one.pool, len(one.node), one.node)))

    def remove(self, wanted: Callable[[ElasticInstance], bool] = lambda _: True) -> int:
        """Terminate those for which `wanted` is true and wait until they are gone. Returns how many there were.

        The listing is read again at the end: what was launched in the meantime is removed as well.

        Raises:
            CloudError: the cloud refused, or an instance does not end.
        """
        # The listing may lag behind what a request for one instance already tells.
        ended: set[str] = set()
        deadline = time.monotonic() + _TERMINATION_TIMEOUT
        while time.monotonic() < deadline:
            present = [one for one in self.instances() if wanted(one) and one.id not in ended]
            if not present:
                return len(ended)
            with ThreadPoolExecutor(max_workers=_WORKERS) as workers:
                list(workers.map(lambda one: self._end(one, deadline), present))
            ended |= {one.id for one in present}
        raise CloudError(
            "new elastic nodes are launched as fast as they are removed",
            hint="Stop the autoscaler: gpucluster ssh -- sudo systemctl stop gpucluster-autoscaler",
        )

    def launch_builder(self, pool: str, name: str, instance_configuration_id: str, image_id: str) -> str:
        """Launch the instance that an image is baked on, and wait until it runs. Returns its OCID.

        Args:
            image_id: the platform's image; the instance configuration may name a baked one.
        """
        management = self._access.client("core", "ComputeManagementClient")
        with refusals(f"launching {name}"):
            template = management.get_instance_configuration(
                instance_configuration_id
            ).data.instance_details.launch_details
            key, value = self._tag
            details = model(
                "core",
                "InstanceConfigurationLaunchInstanceDetails",
                display_name=name,
                # A map or a nested object replaces that of the configuration as a whole.
                freeform_tags={**(template.freeform_tags or {}), key: value, POOL: pool, BUILDER: pool},
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
            self._on_event(Event("resource", f"instance {name}", "creating"))
            # The SDK repeats a request whose answer was lost. The token keeps OCI from launching a second instance.
            launched = management.launch_instance_configuration(
                instance_configuration_id, body, opc_retry_token=uuid.uuid4().hex
            ).data
            self._await_running(launched.id, name)
        self._on_event(Event("resource", f"instance {name}", "created", data={"id": launched.id}))
        return str(launched.id)

    def _client(self) -> Any:
        return self._access.client("core", "ComputeClient")

    def _ours(self, instance: Any) -> bool:
        _, cluster = self._tag
        return (
            elastic_or_builder(instance.freeform_tags, cluster)
            and instance.lifecycle_state != LifecycleState.TERMINATED
        )

    def _end(self, one: ElasticInstance, deadline: float) -> None:
        name = f"instance {one.node}"
        self._on_event(Event("resource", name, "deleting", data={"id": one.id}))
        begun = time.monotonic()
        with refusals(f"terminating {one.node}"):
            if one.state != LifecycleState.TERMINATING:
                self._unless_gone(lambda: self._client().terminate_instance(one.id, preserve_boot_volume=False))
            if not wait_until(lambda: self._terminated(one.id), deadline - time.monotonic(), _POLL):
                raise CloudError(f"{one.node} does not end", where=one.id, hint="Run the same command again")
        self._on_event(Event("resource", name, "deleted", elapsed=time.monotonic() - begun))

    def _terminated(self, instance_id: str) -> bool:
        return self._state(instance_id) in (LifecycleState.TERMINATED, "")

    def _state(self, instance_id: str) -> str:
        """Its lifecycle state; empty if OCI does not know it any more."""
        found = self._unless_gone(lambda: self._client().get_instance(instance_id))
        return str(found.data.lifecycle_state) if found else ""

    @staticmethod
    def _unless_gone(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            if getattr(error, "status", None) == http.HTTPStatus.NOT_FOUND:
                return None
            raise

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
        """The state in which the launch ended; None while it goes on."""
        state = self._state(instance_id)
        return None if state in (LifecycleState.PROVISIONING, LifecycleState.STARTING) else state or "gone"


def counts(instances: Iterable[ElasticInstance]) -> dict[str, dict[str, int]]:
    """The number of instances in each state, by pool. Builders are not counted."""
    found: dict[str, dict[str, int]] = {}
    for one in instances:
        if not one.builder:
            states = found.setdefault(one.pool, {})
            states[one.state] = states.get(one.state, 0) + 1
    return found


def _elastic(instance: Any) -> ElasticInstance:
    tags = instance.freeform_tags
    builder = NODE not in tags
    name = instance.display_name if builder else tags[NODE]
    return ElasticInstance(instance.id, name, tags.get(POOL, ""), instance.lifecycle_state, builder)
