"""Section `state`: where Terraform stores its state."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gpucluster.spec.sections.fields import SpecPart


class StateSpec(SpecPart):
    """Where Terraform stores its state."""

    backend: Literal["local", "oci", "s3", "http"] = Field(
        default="local",
        description="Terraform's backend. `local`: a file next to gpucluster's other files, for one operator.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        max_length=50,
        description="Settings of the backend, under Terraform's names. Secrets are refused: they come from the "
        "environment.",
        examples=[{"bucket": "terraform", "namespace": "exampletenancy"}],
    )
