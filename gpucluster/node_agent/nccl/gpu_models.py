"""What NVLink carries between GPUs, by the name that CUDA gives them.

PCIe cards of the same chip have other names ("NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA A100 80GB PCIe") and no
NVLink, or bridges between two of them. Source of the names: the list of GPUs in the README of
NVIDIA/open-gpu-kernel-modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpucluster.node_agent.nccl.shape_limits import SHAPES

#: Names, and the model as the shapes have it.
_NAMES = (
    (re.compile(r"\bA100-SXM4"), "a100"),
    (re.compile(r"\bH100 80GB HBM3$"), "h100"),
    (re.compile(r"\bH200$"), "h200"),
    (re.compile(r"\bB200$"), "b200"),
    (re.compile(r"\bB300 SXM6"), "b300"),
    (re.compile(r"\bGB200$"), "gb200"),
    (re.compile(r"\bGB300$"), "gb300"),
)
#: NVSwitches of Hopper and later add up what GPUs send (NVLS).
_ADDED_BY_SWITCHES = frozenset(("h100", "h200", "b200", "b300", "gb200", "gb300"))


def model(names: Iterable[str]) -> str:
    """The model of all these GPUs; "" where they are not alike, or not known."""
    models = {next((model for name, model in _NAMES if name.search(each)), "") for each in names}
    return models.pop() if len(models) == 1 else ""


def nvlink(model: str) -> float:
    """What all NVLink links of a GPU carry in one direction, in GB/s; 0 where that is not known."""
    return max((shape.nvlink for shape in SHAPES.values() if model and shape.model == model), default=0.0)


def added_by_switches(model: str) -> bool:
    """Whether NVSwitches can add up what these GPUs send."""
    return model in _ADDED_BY_SWITCHES
