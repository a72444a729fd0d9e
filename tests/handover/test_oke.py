"""What a control plane of Kubernetes Engine hands over to Terraform, and the rights to create it."""

from __future__ import annotations

import pytest

from gpucluster import handover
from gpucluster.handover import iam
from gpucluster.spec import ClusterSpec, loads

FILE = """
version: 1
name: demo
cloud: {provider: local}
network:
  vcn_cidr: 10.93.0.0/16
  public_subnet_cidr: 10.93.0.0/24
  private_subnet_cidr: 10.93.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
pools:
  gpu: {shape: BM.GPU4.8, count: 2}
"""


def with_oke(endpoint: str = "private") -> ClusterSpec:
    """A cluster whose control plane is OKE's. Files with it are refused as yet, so the values are set in the spec."""
    spec = loads(FILE)
    oke = spec.kubernetes.oke.model_copy(update={"endpoint": endpoint})
    changes = {"control_plane": "oke", "release": "1.34.1", "oke": oke}
    return spec.model_copy(update={"scheduler": "kubernetes", "kubernetes": spec.kubernetes.model_copy(update=changes)})


def oke_variable(spec: ClusterSpec) -> object:
    values = handover.tfvars(spec, tenancy_id="t", compartment_id="c", ssh_authorized_keys=["k"], baked_images={})
    return values["oke"]


def operator_rights(spec: ClusterSpec) -> str:
    return str(iam.policies(spec, compartment_id="ocid1.compartment.oc1..c", controller_id=None).operator)


@pytest.mark.parametrize("endpoint", ["private", "public"])
def test_terraform_gets_the_version_as_oke_writes_it(endpoint: str) -> None:
    assert oke_variable(with_oke(endpoint)) == {
        "kubernetes_version": "v1.34.1",
        "endpoint": endpoint,
        "pod_cidr": "10.244.0.0/16",
        "service_cidr": "10.96.0.0/16",
    }


def test_without_oke_there_is_neither_a_control_plane_nor_a_right_for_it() -> None:
    plain = loads(FILE)
    assert oke_variable(plain) is None
    assert oke_variable(plain.model_copy(update={"scheduler": "kubernetes"})) is None
    assert "clusters in" not in operator_rights(plain).replace("compute-clusters in", "")


def test_the_operator_may_create_the_control_plane() -> None:
    private, public = operator_rights(with_oke()), operator_rights(with_oke("public"))
    for right in ("manage clusters in", "read cluster-work-requests in", "use private-ips in"):
        assert right in private
        assert right in public
    assert "manage public-ips in" in public
    assert "manage public-ips in" not in private
