"""`cluster.images`: the images that elastic nodes boot from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpucluster.cloud.baked_images import BakedImage
from gpucluster.cluster.composition import Parts
from gpucluster.lifecycle.result import RunResult


class ImageOperations:
    """Bakes images for the elastic nodes of one cluster. For the images of jobs see `cluster.container_images`.

    Args:
        apply: what `bake` ends with.
    """

    def __init__(self, parts: Parts, apply: Callable[[], RunResult]) -> None:
        self._parts = parts
        self._apply = apply

    def bake(self, pool: str) -> RunResult:
        """Bake an image for the elastic nodes of a pool, and let them boot from it: then they need no configuration.

        An instance is launched for it and removed afterwards. Ends with an apply. May be killed at any point and run
        again: what was left unfinished is removed first.

        Raises:
            InputError: there is no such pool, or its nodes are permanent.
            GpuClusterError: see `errors`.
        """
        baking = self._parts.phases.baking
        baking.check_pool(pool)
        with self._parts.identity.runs.run("image bake", prepares=True) as run:
            self._parts.phases.provisioning.prepare(run, keep_variables=True)
            baking.clear(pool, run)
            deployment = self._parts.connections.hosts.reach(run)
            image = baking.bake(pool, deployment, run)
            baked = dict(run.phases)
        result = self._apply()
        baking.retire(pool, image)
        phases = {**{f"bake: {name}": seconds for name, seconds in baked.items()}, **result.phases}
        return replace(result, command="image bake", phases=phases, elapsed=run.elapsed)

    def list(self) -> tuple[BakedImage, ...]:
        """The baked images of this cluster, the newest first. Reads only, except that the local cloud is started."""
        self._parts.cloud.start(to_build=False)
        return self._parts.clients.baked_images().all()
