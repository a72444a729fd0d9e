"""validate.yml with invalid inventories: each fault must be named."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.loading import ANSIBLE
from tests.ansible.render import CONTROLLER, ELASTIC, INVENTORY, NODES

pytestmark = pytest.mark.slow


def inventory() -> dict[str, Any]:
    """An inventory as handover writes it."""
    return {
        "all": {
            "vars": copy.deepcopy(INVENTORY),
            "children": {
                "controller": {"hosts": {CONTROLLER: {"ansible_user": "debian"}}},
                "compute": {
                    "children": {"pool_compute": {"hosts": {name: {"ansible_user": "debian"} for name in NODES}}}
                },
            },
        }
    }


def validate(tmp_path: Path, content: dict[str, Any]) -> tuple[int, str]:
    file = tmp_path / "inventory.yml"
    file.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", file, ANSIBLE / "validate.yml"],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_good_inventory_passes(tmp_path: Path) -> None:
    status, said = validate(tmp_path, inventory())
    assert status == 0, said


def test_an_inventory_with_elastic_pools_passes(tmp_path: Path) -> None:
    content = inventory()
    content["all"]["vars"] |= ELASTIC
    status, said = validate(tmp_path, content)
    assert status == 0, said


def test_an_inventory_with_kubernetes_passes(tmp_path: Path) -> None:
    content = json.loads((ANSIBLE.parent / "tests/golden/local_kubernetes/inventory.json").read_text())
    status, said = validate(tmp_path, content)
    assert status == 0, said


def without_controller(content: dict[str, Any]) -> None:
    content["all"]["children"]["controller"]["hosts"] = {}


def with_text_for_a_number(content: dict[str, Any]) -> None:
    content["all"]["vars"]["users_gid"] = "many"


def with_one_address_twice(content: dict[str, Any]) -> None:
    content["all"]["vars"]["gpucluster_hosts"][2]["address"] = "10.0.1.2"


def with_a_node_in_no_pool(content: dict[str, Any]) -> None:
    content["all"]["vars"]["slurm_pools"][0]["nodes"] = ["compute-1"]


def with_two_defaults(content: dict[str, Any]) -> None:
    content["all"]["vars"]["slurm_partitions"][1]["default"] = True


def with_a_pool_in_no_partition(content: dict[str, Any]) -> None:
    content["all"]["vars"]["slurm_partitions"][1]["pools"] = []


def with_an_elastic_pool_and_no_autoscaler(content: dict[str, Any]) -> None:
    content["all"]["vars"] |= ELASTIC | {"autoscaler_policy": None}


def with_an_autoscaler_for_nothing(content: dict[str, Any]) -> None:
    content["all"]["vars"]["slurm_power"] = ELASTIC["slurm_power"]


def with_an_elastic_pool_and_no_accounting(content: dict[str, Any]) -> None:
    content["all"]["vars"] |= ELASTIC | {"slurm_accounting": False}


def with_an_elastic_partition_without_a_time(content: dict[str, Any]) -> None:
    content["all"]["vars"] |= copy.deepcopy(ELASTIC)
    content["all"]["vars"]["slurm_partitions"][0]["idle_timeout"] = None


def with_two_schedulers(content: dict[str, Any]) -> None:
    content["all"]["vars"]["scheduler"] = "kubernetes"


def with_kubernetes_and_no_labels(content: dict[str, Any]) -> None:
    content["all"]["vars"] |= {"scheduler": "kubernetes", "slurm_enabled": False}


def with_a_pool_of_kubernetes_without_labels(content: dict[str, Any]) -> None:
    content["all"]["vars"]["kubernetes_system"] = {"pools": [{"nodes": ["a"]}]}


def with_a_gpu_too_few(content: dict[str, Any]) -> None:
    content["all"]["vars"]["slurm_pools"][0]["gpu_device_files"].pop()


def with_a_relative_share(content: dict[str, Any]) -> None:
    content["all"]["vars"]["home_mount_path"] = "mnt/../home"


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (without_controller, "exactly one host"),
        (with_text_for_a_number, "users_gid"),
        (with_one_address_twice, "an address of its own"),
        (with_a_node_in_no_pool, "the union of slurm_pools"),
        (with_two_defaults, "exactly one partition must be the default"),
        (with_a_pool_in_no_partition, "every pool must be in one partition"),
        (with_an_elastic_pool_and_no_autoscaler, "Its elastic pools are compute, second, elastic"),
        (with_an_autoscaler_for_nothing, "Its elastic pools are none"),
        (with_an_elastic_pool_and_no_accounting, "must have slurm_power, autoscaler_policy"),
        (with_an_elastic_partition_without_a_time, "the partitions elastic have an idle_timeout"),
        (with_two_schedulers, "slurm_enabled is True"),
        (with_kubernetes_and_no_labels, "without labels: compute-1, compute-2"),
        (with_a_pool_of_kubernetes_without_labels, "emulated, labels, taints found in kubernetes_system"),
        (with_a_gpu_too_few, "pool compute:"),
        (with_a_relative_share, "must be an absolute path"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, fault: Callable[[dict[str, Any]], None], word: str) -> None:
    content = inventory()
    fault(content)
    status, said = validate(tmp_path, content)
    assert status != 0
    assert word in said
