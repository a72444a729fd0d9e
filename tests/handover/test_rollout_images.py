"""What Terraform is told of a rollout: the image of each node, and that of new elastic ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.rollout.record import RolloutRecord, begin, with_outcomes, with_request
from gpucluster.spec import ClusterSpec, load

HEAD = """\
version: 1
name: demo
cloud: {provider: local}
network:
  vcn_cidr: 10.77.0.0/16
  public_subnet_cidr: 10.77.0.0/24
  private_subnet_cidr: 10.77.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}
pools:
"""
VM = "  cpu: {shape: VM.Standard.E5.Flex, ocpus: 8, memory_gb: 64, count: 2"
RECORD = with_outcomes(
    with_request(begin({"cpu-1": "old", "cpu-2": "old", "cpu-9": "old"}, "new"), {"cpu-1": "new"}), {"cpu-1": ""}
)


def variables(tmp_path: Path, pool: str, record: RolloutRecord | None) -> dict[str, Any]:
    file = tmp_path / "cluster.yml"
    file.write_text(HEAD + pool + "\n")
    spec: ClusterSpec = load(file)
    (name,) = spec.pools
    of_pool = {name: record} if record else {}
    made = handover.tfvars(
        spec, tenancy_id="t", compartment_id="c", ssh_authorized_keys=["k"], baked_images={}, rollouts=of_pool
    )
    assert made["rollouts"] == {pool: each.to_json() for pool, each in of_pool.items()}
    found: dict[str, Any] = made["pools"][name]
    return {name: found[name] for name in ("node_images", "launch_image_id")}


@pytest.mark.parametrize("record", [None, begin({}, "new")])
def test_without_a_rollout_all_nodes_have_the_image_of_the_pool(tmp_path: Path, record: RolloutRecord | None) -> None:
    assert variables(tmp_path, f"{VM}}}", record) == {"node_images": {}, "launch_image_id": None}


def test_each_node_keeps_its_image_and_those_that_cluster_yml_does_not_have_are_left_out(tmp_path: Path) -> None:
    found = variables(tmp_path, f"{VM}}}", RECORD)
    assert found == {"node_images": {"cpu-1": "new", "cpu-2": "old"}, "launch_image_id": None}
    back = replace(RECORD, reverted=("cpu-1",), taking_back="it is bad")
    assert variables(tmp_path, f"{VM}}}", back)["node_images"] == {"cpu-1": "old", "cpu-2": "old"}


def test_new_elastic_nodes_boot_the_old_image_until_the_new_one_is_proven(tmp_path: Path) -> None:
    assert variables(tmp_path, f"{VM}, max_count: 4}}", RECORD)["launch_image_id"] == "old"


def test_a_cluster_network_launches_its_members_itself(tmp_path: Path) -> None:
    record = begin({"gpu-1": "old"}, "new")
    found = variables(tmp_path, "  gpu: {shape: BM.GPU4.8, count: 2}", record)
    assert found == {"node_images": {}, "launch_image_id": None}


def test_records_are_read_from_the_output_and_a_damaged_one_is_left_out() -> None:
    output = {"cpu": RECORD.to_json(), "gpu": "{", "old": json.dumps({"format": 0})}
    assert handover.rollouts({"rollouts": output}) == {"cpu": RECORD}
    assert handover.rollouts({}) == {}
