"""Section `maintenance`: what follows when Oracle announces maintenance of a host."""

from __future__ import annotations

from pydantic import Field

from gpucluster.spec.sections.fields import SpecPart


class MaintenanceSpec(SpecPart):
    """What follows when Oracle announces maintenance of a host."""

    enabled: bool = Field(
        default=False,
        description="Whether the controller reads the events that Oracle announces, reserves the nodes in Slurm for "
        "that time, and tells the owners of jobs. It needs `scheduler: slurm` and `checks.enabled`. Default: `true` "
        "with elastic pools, whose controller may ask the cloud anyway. In other clusters it gives the controller that "
        "right.",
    )
    early: bool = Field(
        default=False,
        description="Whether a node without jobs gets its maintenance at once, where Oracle allows it, instead of at "
        "the announced time. At most `checks.max_drained_percent` of the nodes of a pool are away for this.",
    )
