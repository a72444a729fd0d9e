"""The handover as files: from cluster.yml and Terraform's outputs to variables and inventory.

Each folder next to this file is a case. UPDATE_GOLDEN=1 writes the expected files again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.cloud.members import PoolMember
from gpucluster.cloud.providers import ControllerAccess
from gpucluster.spec import load

AUTOSCALING = handover.Autoscaling(
    ControllerAccess({"method": "instance_principal"}), frozenset({"h100-elastic"}), Path("/wheels")
)
IAM = {
    "dynamic_group": "of-the-controller",
    "compartment_statements": ["Allow dynamic-group of-the-controller to read instances in compartment id c"],
    "tenancy_statements": [],
}
SOFTWARE = ReleaseSet(None, ())
CASES = sorted(folder for folder in Path(__file__).parent.iterdir() if (folder / "cluster.yml").exists())


def _compare(file: Path, found: Any) -> None:
    text = json.dumps(found, indent=2, sort_keys=True) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert json.loads(file.read_text()) == json.loads(text), f"{file} differs; UPDATE_GOLDEN=1 writes it again"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_variables(case: Path) -> None:
    spec = load(case / "cluster.yml")
    found = handover.tfvars(
        spec,
        tenancy_id="ocid1.tenancy.test..t",
        compartment_id="ocid1.compartment.test..c",
        ssh_authorized_keys=["ssh-ed25519 AAAA operator"],
        baked_images={pool: f"ocid1.image.test..{pool}" for pool in spec.pools},
        home_region="" if spec.cloud.traits.only_region else "us-phoenix-1",
        user_data={name: f"#cloud-config\n# of {name}\n" for name in ("controller", *spec.pools)},
        iam=IAM if spec.elastic_pools and spec.iam.create else None,
    )
    _compare(case / "tfvars.json", found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inventory(case: Path) -> None:
    spec = load(case / "cluster.yml")
    outputs = handover.Outputs.parse(json.loads((case / "outputs.json").read_text()))
    raw = json.loads((case / "members.json").read_text())
    members = {pool: [PoolMember(**member) for member in listed] for pool, listed in raw.items()}
    found = handover.inventory(
        spec,
        outputs,
        members,
        person_keys={person.name: person.ssh_keys or ("ssh-ed25519 AAAA made",) for person in spec.users.people},
        operator_keys=spec.ssh.authorized_keys,
        software=SOFTWARE,
        hardware_emulated=spec.cloud.traits.hardware_emulated,
        autoscaling=AUTOSCALING if spec.elastic_pools else None,
    )
    _compare(case / "inventory.json", found)
    hosts = handover.hosts(spec, outputs.controller, members, login=outputs.login, bastion_id=outputs.bastion_id)
    _compare(case / "hosts.json", [vars(host) for host in hosts])
