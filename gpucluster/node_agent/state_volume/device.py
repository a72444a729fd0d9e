"""Whether a device is the volume of this cluster, is blank, or holds something else. Pure.

A device is formatted only if blkid knows nothing on it and its beginning and its end are zeros: what no program
recognizes may still be data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpucluster.node_agent.errors import Refused

#: The label of the file system. One label for all clusters: the name of the cluster is in the file system.
LABEL = "gpucluster-state"
FSTYPE = "ext4"


@dataclass(frozen=True)
class Probe:
    """What a device holds.

    Args:
        values: of blkid, such as TYPE and LABEL; empty if it recognizes nothing.
        zeros: whether the sampled parts of the device are zeros.
    """

    values: Mapping[str, str]
    zeros: bool


def parse(text: str) -> dict[str, str]:
    """The output of `blkid --output export`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def needs_format(device: str, probe: Probe) -> bool:
    """Whether the device is blank; False if it has a file system of gpucluster.

    Raises:
        Refused: it has something else.
    """
    values = {name: value for name, value in probe.values.items() if name != "DEVNAME"}
    if values.get("TYPE") == FSTYPE and values.get("LABEL") == LABEL:
        return False
    if not values and probe.zeros:
        return True
    what = values.get("TYPE") or values.get("PTTYPE")
    label = f" with the label {values['LABEL']!r}" if values.get("LABEL") else ""
    found = f"{what}{label}" if what else "data of an unknown kind"
    raise Refused(
        f"{device} holds {found}, which gpucluster has not made: it is not formatted",
        "Attach the volume of this cluster, or a blank one. If nothing on it is needed, clear it on the controller: "
        f"sudo wipefs --all {device} && sudo blkdiscard --zeroout {device}",
    )


def require_cluster(marker: Mapping[str, str], cluster: str, device: str) -> None:
    """Refuse the volume of another cluster.

    Args:
        marker: what the volume states of itself; empty for a new one.

    Raises:
        Refused: with both names.
    """
    name = marker.get("cluster", cluster)
    if name != cluster:
        raise Refused(
            f"{device} is the volume of the cluster {name}, and this is {cluster}: nothing was changed",
            "Detach it in the console of the cloud, then run the same command again",
        )
