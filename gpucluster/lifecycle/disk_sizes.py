"""Sizes of disks in a plan. Pure.

OCI makes volumes larger and never smaller (Block Volume, "Resizing a Volume"), and the provider finds that out while it
applies: after other changes were made.
"""

from __future__ import annotations

from gpucluster.errors import InputError
from gpucluster.terraform.plan import TerraformPlan

_SIZES = frozenset({"source_details.boot_volume_size_in_gbs", "size_in_gbs"})


def refuse_smaller(plan: TerraformPlan) -> None:
    """Refuse a plan that makes a disk smaller which stays.

    Raises:
        InputError: with the disks and both sizes.
    """
    smaller = [
        f"{change.address} ({before} GB, and {after} GB in cluster.yml)"
        for change in plan.changes
        if change.action == "update"
        for name, (before, after) in change.values.items()
        if name in _SIZES and 0 < _gigabytes(after) < _gigabytes(before)
    ]
    if smaller:
        raise InputError(
            f"OCI makes no disk smaller: {', '.join(smaller)}",
            hint="Write the present size, or a larger one, into cluster.yml (boot_volume_gb, state_volume_gb)",
        )


def _gigabytes(value: object) -> int:
    """A size, which the provider has as a number or as text; 0 where it is not known yet."""
    return int(text) if (text := str(value)).isdecimal() else 0
