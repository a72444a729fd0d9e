"""The making of baked images: an instance is launched, configured as a node that is switched off, and made an image of.

The instance is called the builder. It stands only while an image is baked; a run that was killed may leave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster import handover
from gpucluster.cloud.baked_images import BakedImage, newest, superseded
from gpucluster.cloud.members import Member
from gpucluster.configuration.runner import write_inventory
from gpucluster.errors import InputError, ToolError
from gpucluster.lifecycle.hosts import BOOT_DEADLINE, Hosts, Landscape
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.ssh import Host
from gpucluster.workspace.run import Run


class Baking:
    """Baked images of the elastic pools of one cluster: which fit, how new ones are made, when old ones go."""

    def __init__(self, tools: Toolbox, hosts: Hosts) -> None:
        self._tools = tools
        self._hosts = hosts

    def fitting(self, outputs: Mapping[str, Any]) -> dict[str, BakedImage]:
        """By elastic pool, the newest image that fits to what stands now; a pool without one is left out.

        Args:
            outputs: Terraform's.
        """
        spec = self._tools.spec
        if not spec.elastic_pools or not outputs:
            return {}
        made, listed = handover.Outputs.parse(outputs), self._tools.images().all()
        found = {}
        for pool in spec.elastic_pools:
            image = newest(listed, pool, handover.node_fingerprint(spec, made, pool))
            if image:
                found[pool] = image
            elif any(other.pool == pool and other.state == "AVAILABLE" for other in listed):
                words = f"the baked image of pool {pool} is for another controller, share or image, and is not used"
                self._tools.warn(f"{words}. Bake it again: gpucluster image bake {pool}", once=True)
        return found

    def check_pool(self, name: str) -> None:
        """Refuse a pool that needs no image.

        Raises:
            InputError: there is no such pool, or its nodes do not come and go.
        """
        spec = self._tools.spec
        if name in spec.elastic_pools:
            return
        if name not in spec.pools:
            raise InputError(f"there is no pool {name}", hint=f"The pools are {', '.join(spec.pools)}")
        raise InputError(
            f"the nodes of pool {name} stay, and need no image",
            hint="Images are for pools whose max_count is above their count",
        )

    def clear(self, pool: str, run: Run) -> None:
        """Remove what a run that was killed left half made."""
        with run.phase("left from before"):
            self._remove_builder(pool)
            images = self._tools.images()
            images.remove([image for image in images.all() if image.pool == pool and image.state != "AVAILABLE"])

    def bake(self, pool: str, landscape: Landscape, run: Run) -> BakedImage:
        """Make an image for the elastic nodes of a pool.

        Raises:
            GpuClusterError: see `errors`; the builder is gone, unless the cloud refused that, too.
        """
        try:
            builder = self._configured_builder(pool, landscape, run)
            with run.phase("image"):
                fingerprint = handover.node_fingerprint(self._tools.spec, landscape.outputs, pool)
                return self._tools.images().create(pool, fingerprint, builder.id)
        finally:
            # On the real cloud it costs as much as a node.
            with run.phase("remove the builder"):
                self._remove_builder(pool)

    def retire(self, pool: str, present: BakedImage) -> None:
        """Remove the images of a pool that nobody will go back to."""
        images = self._tools.images()
        images.remove(superseded(images.all(), pool, present.id))

    def retire_all(self) -> None:
        """Remove every image of the cluster, half-made ones included."""
        images = self._tools.images()
        images.remove(images.all())

    def _remove_builder(self, pool: str) -> None:
        self._tools.elastic().remove(lambda one: one.builder and one.pool == pool)

    def _configured_builder(self, pool: str, landscape: Landscape, run: Run) -> Member:
        """Launch the instance that is to become the image, and make a node of it that is switched off."""
        made = landscape.outputs.pools.get(pool)
        if made is None or not (made.instance_configuration_id and made.image_id):
            raise ToolError(f"pool {pool} is not built yet as cluster.yml has it", hint="Run: gpucluster apply")
        with run.phase("builder"):
            builder = self._launched(pool, made.instance_configuration_id, made.image_id, landscape)
        with run.phase("ansible"):
            plain = self._hosts.inventory(landscape)
            inventory = handover.builder_inventory(plain, self._tools.spec, pool, builder)
            file = write_inventory(self._tools.paths, inventory, self._tools.paths.ansible / "builder.yml")
            self._tools.ansible().run("bake.yml", file, run_id=run.id)
        return builder

    def _launched(self, pool: str, instance_configuration_id: str, image_id: str, landscape: Landscape) -> Member:
        name = handover.builder_name(pool)
        launched = self._tools.elastic().launch_builder(pool, name, instance_configuration_id, image_id)
        builder = self._tools.instances().member(launched)
        user = self._tools.spec.pools[pool].image.login_user
        host = Host(name, builder.private_ip, user, builder.id, jump=landscape.controller.name)
        route = self._tools.route()
        route.write([*landscape.hosts, host])
        route.wait([host], BOOT_DEADLINE)
        return builder
