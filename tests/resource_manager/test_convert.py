"""What becomes of the variables of a stack, by the keys of cluster.yml."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.resource_manager.migration import Migration, migrate
from tests.resource_manager import oci_hpc
from tests.resource_manager.convert_cases import CASES, VCN, draft_of
from tests.resource_manager.stacks import IMAGE, stack
from tests.spec.spec_texts import KEY


def made(values: dict[str, str], **settings: str) -> Migration:
    return migrate(values, file="variables.json", target="cluster.yml", folder="Vision Lab", settings=settings)


def values(release: str = "3.1.0", **changes: Any) -> dict[str, str]:
    return stack(release, **{"slurm": True, **changes})


@pytest.mark.parametrize("release", oci_hpc.releases())
def test_what_nobody_changed_makes_a_valid_file_in_every_release(release: str) -> None:
    migration = made(stack(release))
    assert migration.spec.name == "vision-lab"
    assert not migration.unknown


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_valid(name: str) -> None:
    made(dict(CASES[name]))


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({}, "cloud.region", "us-ashburn-1"),
        ({}, "ssh.public_keys", [KEY]),
        ({"ssh_key": f"{KEY}\n{KEY}2\n"}, "ssh.public_keys", [KEY, f"{KEY}2"]),
        ({"use_custom_name": True, "cluster_name": "Vision"}, "name", "vision"),
        ({"cluster_name": "vision", "use_custom_name": False}, "name", "lab"),
        ({}, "network.ssh_allowed_cidrs", ["203.0.113.0/24"]),
        ({"ssh_cidr": "128.0.0.0/1"}, "network.ssh_allowed_cidrs", ["203.0.113.0/24"]),
        ({"ssh_cidr": "198.51.100.0/24"}, "network.ssh_allowed_cidrs", ["198.51.100.0/24"]),
        ({"private_deployment": True}, "network.access", "bastion"),
        ({"private_deployment": True}, "network.public_subnet_cidr", None),
        ({"private_deployment": True, **VCN}, "network.public_subnet_id", None),
        (VCN, "network.public_subnet_id", VCN["public_subnet_id"]),
        ({"controller_ocpus": 8}, "controller.memory_gb", 128),
        ({"controller_custom_memory": True, "controller_memory": 20}, "controller.memory_gb", 20),
        ({"controller_shape": "VM.Standard2.4"}, "controller.shape", "VM.Standard.E5.Flex"),
        ({"boot_volume_size": 46}, "pools.compute.boot_volume_gb", 50),
        ({"slurm_ha": True}, "controller.state_volume_gb", 256),
        ({"login_node": False}, "login.count", None),
        ({"node_count": "10"}, "pools.compute.count", 10),
        ({"node_count": 0}, "pools.compute.max_count", 1),
        ({"queue": "GPU nodes"}, "pools.gpu-nodes.partition", "gpu-nodes"),
        ({"queue": "default"}, "pools.default-pool.count", 2),
        ({"rdma_enabled": False}, "pools.compute.shape", "VM.Standard.E5.Flex"),
        ({"rdma_enabled": False}, "pools.compute.rdma", None),
        ({"rdma_enabled": False, "instance_pool_shape": "BM.GPU4.8"}, "pools.compute.rdma", False),
        ({"ondemand_partition": True}, "pools.ondemand.max_count", 100),
        ({"ondemand_partition": True, "queue": "ondemand"}, "pools.ondemand-2.max_count", 100),
        ({"BIOS": True, "numa_nodes_per_socket": "Default"}, "pools.compute.platform.numa_nodes_per_socket", None),
        ({"hyperthreading": False}, "pools.compute.platform.smt", False),
        ({"rdma_enabled": False, "hyperthreading": False}, "pools.compute.platform.smt", None),
        ({"marketplace_listing": "GPU_OL8_NV570"}, "pools.compute.image.listing_version", "*-GPU-570-*"),
        ({"marketplace_listing": "GPU_OL8_AMD632"}, "pools.compute.image.listing_version", "*-AMD-ROCM-632-*"),
        ({"use_marketplace_image": False, "image": IMAGE}, "pools.compute.image.ocid", IMAGE),
        ({"use_marketplace_image": False, "image": IMAGE}, "pools.compute.image.make_compatible", True),
        ({"use_marketplace_image": False}, "pools.compute.image.ocid", None),
        ({"slurm": False}, "scheduler", "none"),
        ({"slurm_version": "25.11.5-1"}, "slurm.release", "25.11"),
        ({"slurm_version": "24.05.1-1"}, "slurm.release", None),
        ({"pyxis": True}, "containers.runtimes", ["enroot"]),
        ({"slurm": False, "pyxis": True}, "containers.runtimes", None),
        ({"cluster_monitoring": True, "monitoring_node": True}, "monitoring.host", "login-1"),
        ({"monitoring_node": True}, "monitoring.host", None),
        ({"privilege_sudo": False}, "users.privilege_group", None),
        ({"add_nfs": True, "create_fss": "existing", "shared_home": "fss", "nfs_source_IP": "10.0.0.9"},
         "storage.home.export_path", "/fss/home"),
        ({"add_nfs": True, "create_fss": "existing", "nfs_source_IP": "10.0.0.9", "nfs_target_path": "/data"},
         "storage.shares.fss.mount_path", "/data"),
        ({"add_nfs": True, "create_fss": "existing", "nfs_source_IP": "10.0.0.9"},
         "storage.shares.fss.server", "10.0.0.9"),
        ({"add_nfs": True, "create_fss": "new"}, "storage.shares.fss.mount_path", "/fss"),
        ({"add_nfs": True, "create_fss": "new"}, "storage.shares.fss.server", None),
        ({"add_nfs": True, "create_fss": "new", "shared_home": "fss"}, "storage.shares.fss.mount_path", None),
    ],
)  # fmt: skip
def test_a_key_follows_from_its_variables(changes: dict[str, Any], key: str, expected: Any) -> None:
    assert draft_of(values(**changes)).value(key) == expected


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"cluster_name": "a-name-that-is-too-long", "use_custom_name": True}, {"name"}),
        ({"ssh_cidr": "198.51.100.0/24"}, {"name"}),
        ({"controller_ad": "Uocm:US-ASHBURN-AD-2"}, {"cloud.availability_domain"}),
        (VCN, {"network.vcn_cidr", "network.public_subnet_cidr", "network.private_subnet_cidr"}),
        ({"cluster_monitoring": True, "alerting": True}, {"monitoring.alertmanager_file"}),
        ({"use_marketplace_image": False}, {"pools.compute.image"}),
        ({"add_nfs": True, "create_fss": "existing"}, {"storage.shares"}),
        ({"shared_home": "none"}, {"storage.home.enabled"}),
    ],
)
def test_what_the_variables_do_not_settle_is_left_to_decide(changes: dict[str, Any], keys: set[str]) -> None:
    assert keys <= set(draft_of(values(**changes)).decisions)


def test_the_autoscaler_of_2_becomes_an_elastic_pool_with_a_limit_to_decide() -> None:
    draft = draft_of(values("2.11.3", autoscaling=True))
    assert draft.value("pools.compute.max_count") == 50
    assert "pools.compute.max_count" in draft.decisions


def test_ssh_from_named_networks_needs_no_decision() -> None:
    assert "network.ssh_allowed_cidrs" not in draft_of(values(ssh_cidr="198.51.100.0/24")).decisions
