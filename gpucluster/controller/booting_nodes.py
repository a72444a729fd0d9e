"""Which elastic nodes boot from a baked image now, by address: a file that the autoscaler writes on the controller.

The autoscaler has launched the instance of a node, and asks the cloud for its address. No other program knows that
before the node's slurmd has registered. The file has a node only from the moment at which its instance runs until its
slurmd registers, and no file is there while the autoscaler does not run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpucluster.node_agent import bounded
from gpucluster.node_agent.foreign_folder import Folder

FILE = Path("/run/gpucluster-booting/nodes.json")
_LARGEST = 1 << 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_OCID = re.compile(r"[A-Za-z0-9._-]{1,255}")


@dataclass(frozen=True)
class BootingNode:
    """A node whose instance runs, and whose slurmd has not registered yet. `instance`: its OCID."""

    node: str
    instance: str


def find(address: str, file: Path = FILE) -> BootingNode | None:
    """The node that boots at an address; None if there is none, or if the file has nothing that can be used."""
    try:
        # The autoscaler's user, which is not root, can put anything in its place.
        with Folder.open(file.parent) as folder:
            raw = bounded.loads(folder.read(file.name, _LARGEST))
        entry = raw["nodes"][address]
        node, instance = entry["node"], entry["instance"]
        good = bool(_NAME.fullmatch(node) and _OCID.fullmatch(instance))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return BootingNode(node, instance) if good else None


def content(nodes: Iterable[tuple[str, BootingNode]]) -> dict[str, dict[str, dict[str, str]]]:
    """What the file has of these addresses. One that two nodes have is left out."""
    listed = list(nodes)
    number = Counter(address for address, _node in listed)
    return {
        "nodes": {
            address: {"node": each.node, "instance": each.instance}
            for address, each in sorted(listed, key=lambda pair: pair[0])
            if number[address] == 1
        }
    }
