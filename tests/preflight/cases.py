"""Cases of preflight: how facts are changed, and that a case is reported once, as it must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster.preflight.evaluate import evaluate
from gpucluster.preflight.facts import (
    ExistingInstance,
    Limit,
    Unknown,
)
from tests.preflight.preflight_facts import (
    AD1,
    CONTROLLER_SHAPE,
    CORES,
    EXISTING,
    GPU_SHAPE,
    GPUS,
    MEMORY,
    desired,
    good,
)

Changes = tuple[tuple[str, str], ...]

KEY = Path("/home/me/.oci/key.pem")

SSH = Path("/home/me/.ssh/id")

GPU = ExistingInstance("h100-1", GPU_SHAPE, AD1, pool="h100")

CONTROLLER = ExistingInstance("controller", CONTROLLER_SHAPE, AD1, 4, 32)

SUBNETS: Mapping[str, Any] = good(*EXISTING).subnets

UBUNTU: Any = good().images["h100"]

LISTED_VERSION = "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-GPU-570-OPEN-CUDA-12.8-2025.07.18-0"


def subnet_fact(name: str, **changes: Any) -> dict[str, Any]:
    return {"subnets": {**SUBNETS, name: replace(SUBNETS[name], **changes)}}


def image_fact(**changes: Any) -> dict[str, Any]:
    return {"images": {"controller": UBUNTU, "h100": replace(UBUNTU, **changes)}}


def limits_fact(**left: Limit | Unknown) -> dict[str, Any]:
    keys = {"gpus": GPUS, "cores": CORES, "memory": MEMORY}
    return {"limits": {**good().limits, **{keys[name]: one for name, one in left.items()}}}


Case = tuple[Changes, dict[str, Any], str, str, str]


def reported(case: Case, folder: Path) -> None:
    """Check a case: what is changed, what is so, and what must be reported of it: level, check, a passage."""
    changes, facts, level, check, passage = case
    found = evaluate(desired(folder, *changes), good(*changes, **facts))
    fitting = [one for one in found if one.level == level and one.check == check and passage in one.reason]
    assert len(fitting) == 1, "\n".join(map(str, found)) or "nothing was found"
    assert fitting[0].action or level == "note"
    # One cause, one finding: what follows from it is not told again.
    assert [one for one in found if one.level == "error" and one not in fitting] == []
