"""What is on the nodes of a pool, and what stands for all of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gpucluster.artifacts import catalogue
from gpucluster.handover.outputs import Outputs
from gpucluster.spec import ClusterSpec, Image, Pool

# Raised when the roles make another node of the same wish: an image that was baked before would not fit the controller.
_NODE_CONFIGURATION = 2


def container_storage(spec: ClusterSpec) -> str:
    """Where containers lie on a host: on its own drives where it has some, for a share can't hold their files."""
    disk = spec.storage.local_disk
    return f"{disk.mount_path}/containers" if disk.enabled else "/var/lib/gpucluster/containers"


def nccl(pool: Pool) -> dict[str, str]:
    """NCCL's settings. A pool that is kept out of its shape's RDMA network must not be told its devices."""
    shape = pool.hardware
    return dict(shape.nccl_environment) if pool.uses_rdma or not shape.rdma else {}


def node_fingerprint(spec: ClusterSpec, outputs: Outputs, pool: str) -> str:
    """Stands for everything that is in a pool's baked image and must still be so where it boots.

    A controller that was made anew has other keys and another directory; a share at another place has other homes.
    """
    facts = {
        "controller": [outputs.controller.id, outputs.controller.private_ip],
        "home": [outputs.home_server, outputs.home_export_path, spec.storage.home.mount_path],
        "slurm": spec.slurm.cluster_name,
        **_software_fingerprint(spec, spec.pools[pool]),
        "image": image_fingerprint(spec.pools[pool].image),
        "shape": spec.pools[pool].shape,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _software_fingerprint(spec: ClusterSpec, pool: Pool) -> dict[str, Any]:
    """What roles install on a node, and how."""
    wanted = catalogue.wanted_by(spec, hardware_emulated=False)
    return {
        "configuration": _NODE_CONFIGURATION,
        "containers": spec.containers.model_dump(mode="json"),
        "nccl": nccl(pool),
        "nvidia": spec.nvidia.model_dump(mode="json"),
        "privilege": [spec.users.privilege_group, spec.users.privilege_gid],
        "releases": {artifact.component: artifact.version for artifact in wanted},
        "storage": container_storage(spec),
    }


def image_fingerprint(image: Image) -> dict[str, str | None]:
    """What says which image it is. Only what was said, but for the first three: images that were baked before the
    others came still fit."""
    found = {"ocid": image.ocid, "operating_system": image.operating_system, "version": image.version}
    later = {"name": image.name, "listing": image.listing, "listing_version": image.listing_version}
    return {**found, **{key: value for key, value in later.items() if value is not None}}
