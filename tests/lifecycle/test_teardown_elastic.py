"""A network that goes waits for no node that was launched meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpucluster.errors import TerraformError
from gpucluster.lifecycle.teardown import destroy_resources
from gpucluster.terraform.plan import TerraformPlan
from tests.lifecycle.test_cluster_elastic import ElasticDouble, _node


class RefusingTerraform:
    """Stands for `Terraform`: fails as often as it is told to."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.applied = 0

    def plan(self, *, destroy: bool = False, only: Sequence[str] = ()) -> TerraformPlan:
        assert destroy
        assert not only
        return TerraformPlan((), Path("none"))

    def apply(self, _plan: TerraformPlan) -> None:
        self.applied += 1
        if self.applied <= self.failures:
            raise TerraformError("the compute cluster is in use")


def test_a_node_that_was_launched_meanwhile_does_not_hold_the_network() -> None:
    double = ElasticDouble(_node("cpu-e3", "cpu"))
    terraform = RefusingTerraform(failures=1)
    destroy_resources(terraform, lambda: double)  # type: ignore[arg-type, return-value]
    assert (terraform.applied, double.present) == (2, [])
    # Where there is none, the failure is Terraform's own.
    with pytest.raises(TerraformError):
        destroy_resources(RefusingTerraform(failures=1), lambda: double)  # type: ignore[arg-type, return-value]
