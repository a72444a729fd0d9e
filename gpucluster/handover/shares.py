"""The further shares as hosts mount them: pure, from the spec and what Terraform has created."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpucluster.handover.names import LOGIN, pool_group
from gpucluster.handover.outputs import Outputs
from gpucluster.spec import ClusterSpec, Share

#: The home share among the shares, by its name.
HOME_SHARE = "home"
_CONTROLLER = "controller"
_MOUNT_TARGET = re.compile(r'module\.(?:home\[0\]|share\["([^"]+)"\])\.oci_file_storage_mount_target\.this')


def mount_targets(addresses: Iterable[str]) -> frozenset[str]:
    """The names of the shares whose mount targets are in Terraform's state.

    Args:
        addresses: of the state.
    """
    found = filter(None, map(_MOUNT_TARGET.match, addresses))
    return frozenset(match[1] or HOME_SHARE for match in found)


def share_mounts(spec: ClusterSpec, outputs: Outputs) -> list[dict[str, Any]]:
    """The further shares, as the role `nfs` takes them. One that no apply has made yet is left out."""
    return [
        {
            "name": name,
            "server": outputs.shares[name].server,
            "export_path": outputs.shares[name].export_path,
            "mount_path": share.mount_path,
            "read_only": share.read_only,
            # Its top directory belongs to root until an administrator sets its mode: users could not write into it.
            "created": share.server is None and share.file_system_id is None,
            "groups": _groups(spec, share),
        }
        for name, share in spec.storage.shares.items()
        if name in outputs.shares
    ]


def _groups(spec: ClusterSpec, share: Share) -> list[str]:
    """The Ansible groups of the hosts that mount it."""
    groups = {_CONTROLLER: _CONTROLLER, LOGIN: LOGIN, **{pool: pool_group(pool) for pool in spec.pools}}
    return [group for name, group in groups.items() if share.is_mounted_by(name)]
