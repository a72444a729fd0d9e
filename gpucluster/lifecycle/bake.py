"""Bake images for elastic nodes: launch an instance, configure it as a node that is switched off, make an image of it.

The instance is called the builder. It exists only while an image is baked; a run that was killed may leave it behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpucluster import handover
from gpucluster.cloud.baked_images import BakedImage, BakedImages, newest, superseded
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.members import PoolMember, PoolMembers
from gpucluster.configuration.runner import Ansible, write_inventory
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Sink, warn
from gpucluster.lifecycle.hosts import BOOT_DEADLINE, Deployment
from gpucluster.oci.states import LifecycleState
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import Host, SshClient
from gpucluster.workspace.run import Run


class Baking:
    """The baked images of one cluster's elastic pools: which fit, how new ones are made, when old ones are deleted.

    Args:
        images, elastic, pool_members, ssh_client: make the clients of the started cloud.
        ansible: makes the runner of our playbooks.
        inventory: the Ansible inventory of the whole cluster.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        paths: ClusterPaths,
        images: Callable[[], BakedImages],
        elastic: Callable[[], ElasticInstances],
        pool_members: Callable[[], PoolMembers],
        ssh_client: Callable[[], SshClient],
        ansible: Callable[[], Ansible],
        inventory: Callable[[Deployment], dict[str, Any]],
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._paths = paths
        self._images = images
        self._elastic = elastic
        self._pool_members = pool_members
        self._ssh_client = ssh_client
        self._ansible = ansible
        self._inventory = inventory
        self._on_event = on_event
        self._warned: set[str] = set()

    def fitting(self, outputs: Mapping[str, Any]) -> dict[str, BakedImage]:
        """By elastic pool, the newest image that fits the present deployment; a pool without one is left out.

        Args:
            outputs: Terraform's.
        """
        if not self._spec.elastic_pools or not outputs:
            return {}
        deployed, listed = handover.Outputs.parse(outputs), self._images().all()
        fitting = {}
        for pool in self._spec.elastic_pools:
            image = newest(listed, pool, handover.node_fingerprint(self._spec, deployed, pool))
            if image:
                fitting[pool] = image
            elif any(other.pool == pool and other.state == LifecycleState.AVAILABLE for other in listed):
                self._warn_unused(pool)
        return fitting

    def check_pool(self, name: str) -> None:
        """Refuse a pool that needs no image.

        Raises:
            InputError: there is no such pool, or its nodes are permanent.
        """
        if name in self._spec.elastic_pools:
            if self._spec.users.directory is not None:
                raise InputError(
                    "an image would hold the password of the directory that exists",
                    where=str(self._spec.file),
                    hint="Nothing to do: elastic nodes need no image, the controller configures each",
                )
            if self._spec.scheduler == "kubernetes":
                raise InputError(
                    f"nodes of pool {name} boot from no baked image: with Kubernetes the controller configures each",
                    where=str(self._spec.file),
                    hint="Nothing to do: elastic nodes need no image",
                )
            return
        if name not in self._spec.pools:
            raise InputError(f"there is no pool {name}", hint=f"The pools are {', '.join(self._spec.pools)}")
        raise InputError(
            f"the nodes of pool {name} are permanent, and need no image",
            hint="Images are for pools whose max_count is above their count",
        )

    def clear(self, pool: str, run: Run) -> None:
        """Remove the unfinished builder and images of a run that was killed."""
        with run.phase("clear leftovers"):
            self._remove_builder(pool)
            images = self._images()
            images.remove(
                [image for image in images.all() if image.pool == pool and image.state != LifecycleState.AVAILABLE]
            )

    def bake(self, pool: str, deployment: Deployment, run: Run) -> BakedImage:
        """Make an image for the elastic nodes of a pool.

        Raises:
            GpuClusterError: see `errors`; the builder is removed, unless the cloud refused that, too.
        """
        try:
            builder = self._configured_builder(pool, deployment, run)
            with run.phase("image"):
                fingerprint = handover.node_fingerprint(self._spec, deployment.outputs, pool)
                return self._images().create(pool, fingerprint, builder.id)
        finally:
            # On OCI it costs as much as a node.
            with run.phase("remove the builder"):
                self._remove_builder(pool)

    def retire(self, pool: str, present: BakedImage) -> None:
        """Remove the older images of a pool that are not used any more."""
        images = self._images()
        images.remove(superseded(images.all(), pool, present.id))

    def retire_all(self) -> None:
        """Remove every image of the cluster, unfinished ones included."""
        images = self._images()
        images.remove(images.all())

    def _warn_unused(self, pool: str) -> None:
        """One run asks for fitting images several times: warn only the first time."""
        message = f"the baked image of pool {pool} is for another controller, share or image, and is not used"
        if message not in self._warned:
            self._warned.add(message)
            warn(self._on_event, "cluster", f"{message}. Bake it again: gpucluster image bake {pool}")

    def _remove_builder(self, pool: str) -> None:
        self._elastic().remove(lambda instance: instance.builder and instance.pool == pool)

    def _configured_builder(self, pool: str, deployment: Deployment, run: Run) -> PoolMember:
        """Launch the instance that is to become the image, and configure it as a node that is switched off."""
        output = deployment.outputs.pools.get(pool)
        if output is None or not (output.instance_configuration_id and output.image_id):
            raise ToolError(
                f"pool {pool} is not built yet with the settings of cluster.yml", hint="Run: gpucluster apply"
            )
        with run.phase("builder"):
            builder = self._launched(pool, output.instance_configuration_id, output.image_id, deployment)
        with run.phase("ansible"):
            inventory = handover.builder_inventory(self._inventory(deployment), self._spec, pool, builder)
            file = write_inventory(self._paths, inventory, self._paths.ansible / "builder.yml")
            run.tasks["ansible"] = self._ansible().run("bake.yml", file, run_id=run.id).tasks
        return builder

    def _launched(self, pool: str, instance_configuration_id: str, image_id: str, deployment: Deployment) -> PoolMember:
        name = handover.builder_name(pool)
        launched = self._elastic().launch_builder(pool, name, instance_configuration_id, image_id)
        builder = self._pool_members().member(launched)
        user = self._spec.pools[pool].image.login_user
        host = Host(name, builder.private_ip, user, builder.id, jump=deployment.controller.name)
        ssh_client = self._ssh_client()
        ssh_client.write([*deployment.with_standby, host], new={host.instance_id})
        ssh_client.wait([host], BOOT_DEADLINE, self._on_event)
        return builder
