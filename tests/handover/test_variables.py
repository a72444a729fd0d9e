"""Variables for Terraform."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.handover import iam
from gpucluster.kubernetes.manifests.gpus import on_hosts
from gpucluster.spec import ClusterSpec, loads
from tests.handover.test_oke import FILE, operator_rights, policies, with_oke


def variables(spec: ClusterSpec) -> dict[str, Any]:
    return handover.tfvars(spec, tenancy_id="t", compartment_id="c", ssh_authorized_keys=["k"], baked_images={})


@pytest.mark.parametrize("endpoint", ["private", "public"])
def test_terraform_gets_the_version_as_oke_writes_it(endpoint: str) -> None:
    made = variables(with_oke(("endpoint: private", f"endpoint: {endpoint}")))["oke"]
    assert {key: value for key, value in made.items() if key != "node_pools"} == {
        "kubernetes_version": "v1.34.1",
        "endpoint": endpoint,
        "pod_cidr": "10.244.0.0/16",
        "service_cidr": "10.96.0.0/16",
        "addons": {"CertManager": "v1.17.2", "CoreDNS": None, "NvidiaGpuPlugin": None},
        "addon_affinity": {"NvidiaGpuPlugin": json.dumps(on_hosts(ours=False))},
    }


def test_managed_pools_are_node_pools_and_no_instances() -> None:
    made = variables(with_oke())
    assert set(made["pools"]) == {"gpu"}
    cpu, a10 = made["oke"]["node_pools"]["cpu"], made["oke"]["node_pools"]["a10"]
    assert (cpu["shape"], cpu["ocpus"], cpu["memory_gb"], cpu["count"]) == ("VM.Standard.E5.Flex", 4, 32, 3)
    assert made["images"]["pool/cpu"]["operating_system"] == "Debian"
    assert cpu["labels"] == {
        "gpucluster.io/pool": "cpu",
        "gpucluster.io/shape": "VM.Standard.E5.Flex",
        "gpucluster.io/elastic": "false",
    }
    assert cpu["user_data"] is None, "OKE's own script joins them"
    assert a10["boot_volume_gb"] == 100
    assert a10["labels"]["gpucluster.io/gpu-type"] == "a10"
    # The hardware of the local cloud is emulated, and a node reports it.
    assert a10["labels"]["gpucluster.io/emulated"] == "true"
    assert "--register-with-taints=nvidia.com/gpu=present:NoSchedule" in a10["user_data"]
    assert a10["user_data"].startswith("#!/bin/bash\n")


def test_without_oke_there_is_neither_a_control_plane_nor_a_right_for_it() -> None:
    plain = loads(FILE)
    for spec in (plain, plain.model_copy(update={"scheduler": "kubernetes"})):
        assert variables(spec)["oke"] is None
        needed = policies(spec)
        assert (needed.nodes, needed.node_group, iam.node_tfvars(needed)) == ((), "", None)
        assert "clusters in" not in operator_rights(spec).replace("compute-clusters in", "")
        assert "CLUSTER_JOIN" not in iam.text(needed)
