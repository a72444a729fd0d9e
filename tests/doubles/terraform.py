"""A Terraform whose state holds the output `identity` and nothing else. It does not prove what Terraform accepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.terraform.plan import TerraformPlan


class TerraformDouble:
    """Keeps what is written into the output `identity`, and the variables.

    Args:
        identity: the content of the output at the beginning.
        variables: those of the last apply.
    """

    def __init__(self, identity: Mapping[str, Any], variables: Mapping[str, Any] | None = None) -> None:
        self.identity: dict[str, Any] = {"contract_version": 1, **identity}
        self.variables: dict[str, Any] = dict(variables or {})
        self.written: list[dict[str, Any]] = []

    def outputs(self) -> dict[str, Any]:
        """As Terraform has them."""
        return {"identity": self.identity}

    def set_variables(self, variables: dict[str, Any]) -> None:
        """The variables of the next plan."""
        self.variables = variables

    def set_output(self, name: str, value: dict[str, Any]) -> None:
        """Replace the output."""
        assert name == "identity"
        self.identity = value
        self.written.append(value)

    def plan(self, **_options: object) -> TerraformPlan:
        """A plan without changes."""
        return TerraformPlan((), Path("another plan"))
