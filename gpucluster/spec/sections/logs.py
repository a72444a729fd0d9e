"""Section `logs`: journals of all hosts that the controller keeps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpucluster.spec.sections.fields import SpecPart

KeepDays = Annotated[int, Field(ge=0, le=3650)]
MaxGigabytes = Annotated[int, Field(ge=1, le=1000)]


class Logs(SpecPart):
    """Journals of all hosts, kept on the controller."""

    keep_days: KeepDays = Field(
        default=0,
        description="For how many days the controller keeps the journals of all hosts. Every five minutes it reads "
        "their new lines by ssh, and `gpucluster logs` shows them when the host is gone. 0: none are kept.",
        examples=[30],
    )
    max_gb: MaxGigabytes = Field(
        default=5,
        description="What these lines may take on the controller's disk, in gigabytes of compressed text. Above it, "
        "the oldest days go.",
    )
