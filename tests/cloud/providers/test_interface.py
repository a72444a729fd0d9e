"""The interface of a cloud: every provider takes its calls, and where elastic nodes are."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gpucluster.cloud.providers.interface import CloudProvider, elastic_compartment
from gpucluster.cloud.providers.local import LocalCloudProvider
from gpucluster.cloud.providers.oci import OciCloudProvider
from gpucluster.spec import load
from tests.spec.spec_texts import KEY, OCI


@pytest.mark.parametrize("provider", [LocalCloudProvider, OciCloudProvider])
def test_every_provider_takes_the_calls_of_the_interface(provider: type) -> None:
    names = [name for name in vars(CloudProvider) if not name.startswith("_")]
    assert len(names) > 10
    for name in names:
        asked, own = inspect.getattr_static(CloudProvider, name), inspect.getattr_static(provider, name)
        assert isinstance(own, property) == isinstance(asked, property), name
        if inspect.isfunction(asked):
            assert list(inspect.signature(own).parameters) == list(inspect.signature(asked).parameters), name


@pytest.mark.parametrize(
    ("iam", "compartment"),
    [
        ("", ""),
        ("iam:\n  elastic_compartment: create\n", "gpucluster-demo"),
        ("iam:\n  elastic_compartment: ocid1.compartment.oc1..aaaa\n", "ocid1.compartment.oc1..aaaa"),
    ],
)
def test_the_compartment_of_elastic_nodes_is_created_named_or_none(tmp_path: Path, iam: str, compartment: str) -> None:
    (tmp_path / "operator.pub").write_text(KEY)
    (tmp_path / "cluster.yml").write_text(OCI + iam)
    spec = load(tmp_path / "cluster.yml")
    assert elastic_compartment(spec) == compartment.replace("demo", spec.name)
