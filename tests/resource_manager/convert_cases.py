"""Stacks in which each variable that has a key decides it; what each of them becomes is in test_convert.py."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpucluster.resource_manager.convert import convert
from gpucluster.resource_manager.draft import Draft
from gpucluster.resource_manager.stack import Stack
from tests.resource_manager.stacks import IMAGE, stack

VCN = {
    "use_existing_vcn": "true",
    "vcn_id": "ocid1.vcn.oc1.iad.examplevcn",
    "public_subnet_id": "ocid1.subnet.oc1.iad.examplepublic",
    "private_subnet_id": "ocid1.subnet.oc1.iad.exampleprivate",
}

#: By name: values of a release, with changes.
CASES: Mapping[str, Mapping[str, str]] = {
    "3.1": stack("3.1.0", slurm=True, enroot=True, pyxis=True, cluster_monitoring=True, alerting=True),
    "3.1 with names of its own": stack(
        "3.1.0", slurm=True, use_custom_name=True, cluster_name="Vision-Training-2026", queue="default",
        controller_ad="Uocm:US-ASHBURN-AD-1",
    ),
    "3.1 in an existing network": stack("3.1.0", slurm=True, **VCN),
    "3.1 private": stack("3.1.0", slurm=True, private_deployment=True, **VCN),
    "3.1 with images of its own": stack(
        "3.1.0", slurm=True, use_marketplace_image=False, unsupported=True, image_ocid=IMAGE,
        use_marketplace_image_controller=False, custom_controller_image=IMAGE, compute_username="ubuntu",
        controller_username="ubuntu",
    ),
    "3.1 with other images of its own": stack(
        "3.1.0", slurm=True, use_marketplace_image=False, image=IMAGE.replace("example", "other"),
        use_marketplace_image_controller=False, unsupported_controller=True, unsupported_controller_image=IMAGE,
    ),
    "3.1 with GPU images": stack(
        "3.1.0", slurm=True, marketplace_listing="GPU_OL8_NV570",
        marketplace_version_id='{"GPU_OL8_NV570": "Oracle-Linux-8.10-GPU-570"}',
        marketplace_listing_controller="GPU_OL8_NV570",
        marketplace_listing_id_GPU="ocid1.appcataloglisting.oc1..examplegpu",
        marketplace_listing_id_HPC="ocid1.appcataloglisting.oc1..examplehpc",
    ),
    "3.1 of a rack": stack(
        "3.1.0", slurm=True, cluster_network_shape="BM.GPU.GB200.4",
        memory_fabric_id="ocid1.computegpumemoryfabric.oc1.iad.exampleuniqueid",
    ),
    "3.1 on demand": stack("3.1.0", slurm=True, ondemand_partition=True, ondemand_partition_count=20, node_count=0),
    "3.1 without RDMA": stack(
        "3.1.0", slurm=True, rdma_enabled=False, instance_pool_custom_memory=True, instance_pool_memory=100,
        instance_pool_ocpus=8, controller_custom_memory=True, controller_memory=48, login_custom_memory=True,
        login_memory=24, monitoring_node=True, cluster_monitoring=True,
    ),
    "3.1 of small machines": stack("3.1.0", slurm=True, rdma_enabled=False),
    "3.1 without the RDMA of its shape": stack(
        "3.1.0", slurm=True, rdma_enabled=False, instance_pool_shape="BM.GPU4.8"
    ),
    "3.1 with firmware": stack("3.1.0", slurm=True, BIOS=True, SMT=False, numa_nodes_per_socket="NPS4"),
    "3.1 without threads": stack("3.1.0", slurm=True, hyperthreading=False, slurm_ha=True),
    "3.1 with homes on an existing share": stack(
        "3.1.0", slurm=True, add_nfs=True, create_fss="existing", shared_home="fss", nfs_source_IP="10.1.2.3",
        nfs_source_path="/fss",
    ),
    "3.1 with an existing share": stack(
        "3.1.0", slurm=True, add_nfs=True, create_fss="existing", nfs_source_IP="10.1.2.3"
    ),
    "2.11": stack(
        "2.11.3", slurm=True, autoscaling=True, use_compute_agent=False, monitoring=True, home_fss=True,
        cluster_network_shape="BM.GPU4.8", pam=True,
    ),
    "2.11 with login images": stack(
        "2.11.3", cluster_network=False, instance_pool_shape="BM.GPU4.8", use_marketplace_image_login=False,
        custom_login_image=IMAGE, login_username="ubuntu",
    ),
    "2.11 with other login images": stack(
        "2.11.3", use_marketplace_image_login=False, unsupported_login=True, unsupported_login_image=IMAGE
    ),
    "2.11 with a GPU image on the login node": stack("2.11.3", marketplace_listing_login="GPU_OL8_NV550"),
    "2.11 with a monitoring host alone": stack(
        "2.11.3", login_node=False, monitoring_node=True, cluster_monitoring=True, slurm=True
    ),
    "2.10": stack("2.10.4", slurm=True, bastion_ad="Uocm:US-ASHBURN-AD-1", use_marketplace_image_bastion=True),
    "2.10 with a platform image": stack(
        "2.10.3", use_standard_image=False, custom_bastion_image=IMAGE, use_standard_image_login=False,
        use_marketplace_image_login=False, custom_login_image=IMAGE, bastion_custom_memory=True, bastion_memory=64,
    ),
    "2.9": stack(
        "2.9.2", unsupported_bastion=True, unsupported_bastion_image=IMAGE, use_standard_image=False,
    ),
    "2.8 with an old name of its image": stack("2.8.0"),
    "2.8": stack("2.8.0", add_nfs=True, create_ffs=True),
}  # fmt: skip


def draft_of(values: Mapping[str, str]) -> Draft:
    made = Stack(values)
    draft = convert(made, "lab")
    assert made.faults == {}
    return draft


def used_keys(cases: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    """By variable, the keys that it has decided in one of the cases, with NAME for the name of a pool."""
    used: dict[str, set[str]] = {}
    for values in cases.values():
        for name, key in draft_of(values).sources():
            used.setdefault(name, set()).add(re.sub(r"^pools\.[a-z0-9-]+", "pools.NAME", key))
    return used
