"""What a run finds of an earlier one: a compartment, and hosts whose key changes with their disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.errors import EnvironmentFault
from gpucluster.events import ignore
from gpucluster.paths import ClusterPaths
from gpucluster.workspace.run import Run
from tests.lifecycle.test_provision import _provisioning


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path)
    made.create()
    return made


@pytest.mark.parametrize(("keep_variables", "asked"), [(True, False), (False, True)], ids=["destroy", "apply"])
def test_the_addresses_of_a_cluster_that_was_never_built_matter_only_to_those_who_build_it(
    paths: ClusterPaths, keep_variables: bool, asked: bool
) -> None:
    called = []

    def access() -> CloudAccess:
        raise EnvironmentFault("enough")

    cloud = SimpleNamespace(
        check=lambda: None,
        check_gpus=lambda: called.append("gpus") if asked else None,
        start=lambda **_: None,
        check_network=lambda: called.append("network"),
        access=access,
    )
    with pytest.raises(EnvironmentFault):
        _provisioning(paths, cloud).prepare(Run("destroy", paths, ignore), keep_variables=keep_variables)
    assert bool(called) is asked


def test_a_compartment_that_a_destroy_left_is_used_and_one_of_the_state_stays_terraforms(paths: ClusterPaths) -> None:
    access = SimpleNamespace(elastic_compartment=lambda: "ocid1.compartment.left")
    provisioning = _provisioning(paths, SimpleNamespace(access=lambda: access))
    for setting, addresses, standing in (
        ("create", ("module.network.oci_core_vcn.this[0]",), "ocid1.compartment.left"),
        ("create", ("oci_identity_compartment.elastic[0]",), ""),
        (None, (), ""),
    ):
        iam = provisioning._spec.iam.model_copy(update={"elastic_compartment": setting})
        provisioning._spec = provisioning._spec.model_copy(update={"iam": iam})
        terraform: Any = SimpleNamespace(addresses=lambda addresses=addresses: addresses)
        assert provisioning._standing_compartment(terraform) == standing
