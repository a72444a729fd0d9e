"""A node with divided GPUs, as `gpucluster-agent mig apply` leaves it: its links, and what the driver shows in /proc.

nvidia-smi is the double of smi.py. GPU 1 of nvidia-smi is /dev/nvidia2, and GPU 2, which is whole, is /dev/nvidia1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpucluster.node_agent.gpu_numbers import Numbers
from gpucluster.node_agent.rules import mig
from tests.node_agent.mig.test_apply import PARTS, Place


class Divided:
    """The node, below a folder."""

    def __init__(self, root: Path, parts: Sequence[str] = PARTS) -> None:
        self.root = root
        self.place = Place(root)
        for index, card in enumerate(self.place.smi.cards):
            folder = root / f"proc/driver/nvidia/gpus/0000:0{index + 1}:00.0"
            folder.mkdir(parents=True)
            uuid = f"GPU-0000000{card.minor}"
            (folder / "information").write_text(f"GPU UUID: \t {uuid}\nDevice Minor: \t {card.minor}\n")
        self.place.apply(parts)

    @property
    def proc(self) -> str:
        return f"{self.root}/proc"

    @property
    def links(self) -> str:
        return f"{self.root}{mig.FOLDER}"

    def numbers(self) -> Numbers:
        return Numbers(self.proc, self.links)
