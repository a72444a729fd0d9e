"""Section `checks`: the checks of nodes, and what follows when one fails."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpucluster.spec.sections.fields import SpecPart

CHECK_PATTERN = r"^[a-z][a-z0-9_]{0,59}$"
CheckName = Annotated[str, Field(pattern=CHECK_PATTERN)]
Interval = Annotated[int, Field(ge=10, le=86_400)]
Percent = Annotated[int, Field(ge=1, le=100)]
Repair = Literal["none", "reboot"]


class Checks(SpecPart):
    """The checks of nodes, and what follows when one fails."""

    enabled: bool = Field(
        default=True,
        description="Whether nodes check themselves at boot, before and after each job and every `interval`, and nodes "
        "that fail are drained. It needs Slurm or Kubernetes. `false`: only `gpucluster verify` checks.",
    )
    off: tuple[CheckName, ...] = Field(
        default=(),
        max_length=100,
        description="Names of checks of nodes that are not made, in `verify` neither.",
        examples=[["gpu_clocks"]],
    )
    interval: Interval = Field(default=300, description="Seconds between two checks of a node that runs.")
    shadow: bool = Field(
        default=False, description="Whether it is only reported what would be done: no node is drained or undrained."
    )
    max_drained_percent: Percent = Field(
        default=20,
        description="How many nodes of a pool failed checks may drain within an hour, in percent of its nodes; one "
        "node always. Beyond that an operator decides.",
    )
    repair: Repair = Field(
        default="none",
        description="What is tried before a node that failed checks is left to be replaced. `reboot`: a drained node "
        "is rebooted once when no job has it, where that may fix what failed, or where Slurm could not end a process "
        "of a job (`Kill task failed`). It needs `scheduler: slurm` and `enabled`.",
    )
    report_hosts: bool = Field(
        default=False,
        description="Whether the autoscaler reports the physical host of an elastic node to Oracle, when checks of its "
        "hardware failed and its instance is terminated. The controller may then update elastic instances. An "
        "administrator makes the tag namespace once. It needs elastic pools and `enabled`.",
    )
