"""Settings of the nodes of a pool, and fingerprints of a node and its image."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gpucluster.artifacts import catalogue
from gpucluster.handover.names import monitoring_host, pool_group
from gpucluster.handover.outputs import Outputs
from gpucluster.handover.shares import share_mounts
from gpucluster.spec import ClusterSpec, Image, PoolSpec

# Increased when a change of the roles makes images that were baked before incompatible with the controller.
_NODE_CONFIGURATION = 7


def container_storage(spec: ClusterSpec) -> str:
    """The directory of containers on a host: on its own drives if it has some, because NFS can't hold their files."""
    disk = spec.storage.local_disk
    return f"{disk.mount_path}/containers" if disk.enabled else "/var/lib/gpucluster/containers"


def nccl(pool: PoolSpec) -> dict[str, str]:
    """NCCL's settings; none if the shape has RDMA devices that the pool does not use."""
    shape = pool.hardware
    return dict(shape.nccl_environment) if pool.uses_rdma or not shape.rdma else {}


def node_fingerprint(spec: ClusterSpec, outputs: Outputs, pool: str) -> str:
    """A hash of everything in a pool's baked image that must be the same when a node boots from it.

    A replaced controller has other keys and another directory; another share has other home directories.
    """
    facts = {
        # With a standby it is the same controller on another host: its keys and its directory move with the volume.
        "controller": [outputs.identity if outputs.standby else outputs.controller.id, outputs.controller_address],
        "home": [outputs.home_server, outputs.home_export_path, spec.storage.home.mount_path],
        "slurm": spec.slurm.cluster_name,
        **_shares_fingerprint(spec, outputs, pool),
        **_monitoring_fingerprint(spec, outputs),
        **_software_fingerprint(spec, spec.pools[pool]),
        **_site_fingerprint(spec),
        "image": image_fingerprint(spec.pools[pool].image),
        "shape": spec.pools[pool].shape,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _shares_fingerprint(spec: ClusterSpec, outputs: Outputs, pool: str) -> dict[str, Any]:
    """The further shares that a node mounts. Left out without them: images that were baked before stay valid."""
    mounts = [mount for mount in share_mounts(spec, outputs) if pool_group(pool) in mount["groups"]]
    return {"shares": [{**mount, "groups": []} for mount in mounts]} if mounts else {}


def _monitoring_fingerprint(spec: ClusterSpec, outputs: Outputs) -> dict[str, Any]:
    """Exporters answer the host of Prometheus only. Left out where that is the controller, whose address is there."""
    name = monitoring_host(spec) if spec.monitoring.enabled else None
    addresses = [host.private_ip for host in outputs.login if host.name == name]
    return {"monitoring_host": addresses} if addresses else {}


def _software_fingerprint(spec: ClusterSpec, pool: PoolSpec) -> dict[str, Any]:
    """What the roles install on a node, and how."""
    needed = catalogue.needed_by(spec, hardware_emulated=False)
    return {
        "configuration": _NODE_CONFIGURATION,
        # A key that is not set is left out: images that were baked before the key existed stay valid.
        "containers": spec.containers.model_dump(mode="json", exclude_none=True),
        "nccl": nccl(pool),
        "nvidia": {
            key: value for key, value in spec.nvidia.model_dump(mode="json").items() if value or key != "repositories"
        },
        # Who logs in to a node, and what users see there.
        "logins": [spec.slurm.login_needs_job, spec.users.hide_processes],
        "privilege": [spec.users.privilege_group, spec.users.privilege_gid],
        "releases": {artifact.component: artifact.version for artifact in needed},
        "storage": container_storage(spec),
        **({"checks_off": sorted(spec.checks.off)} if spec.checks.off else {}),
        **({"denied_modules": sorted(spec.software.denied_modules)} if spec.software.denied_modules else {}),
        # Without monitoring nothing of it is on a node, and images of before stay valid.
        **({"monitoring": True} if spec.monitoring.enabled else {}),
    }


def _site_fingerprint(spec: ClusterSpec) -> dict[str, Any]:
    """The site's certificates and proxy. Left out where they are not set: images that were baked before stay valid."""
    software = spec.software
    site = {"certificates": software.trusted_certificates, "proxy": software.proxy, "no_proxy": software.no_proxy}
    return {"site": site} if software.trusted_certificates or software.proxy else {}


def image_fingerprint(image: Image) -> dict[str, str | None]:
    """The keys that identify an image. The last three are left out where they are not set, so that images that were
    baked before these keys existed stay valid."""
    always = {"ocid": image.ocid, "operating_system": image.operating_system, "version": image.version}
    if_set = {"name": image.name, "listing": image.listing, "listing_version": image.listing_version}
    return {**always, **{key: value for key, value in if_set.items() if value is not None}}
