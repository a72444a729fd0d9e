"""Further shares: what Terraform gets, what hosts mount, and what follows for images, checks and rights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster import handover
from gpucluster.handover.adoption import HOME_MOUNT_TARGET, desired
from gpucluster.handover.expectations import node_expectation
from gpucluster.handover.shares import mount_targets, share_mounts
from gpucluster.spec import ClusterSpec, load

GOLDEN = Path(__file__).parents[1] / "golden" / "oci_three_kinds"
SPEC = load(GOLDEN / "cluster.yml")
OUTPUTS = handover.Outputs.parse(json.loads((GOLDEN / "outputs.json").read_text()))


def _with(**shares: Any) -> ClusterSpec:
    """The cluster with other shares; None leaves one out."""
    kept = {name: share for name, share in {**SPEC.storage.shares, **shares}.items() if share is not None}
    return SPEC.model_copy(update={"storage": SPEC.storage.model_copy(update={"shares": kept})})


def test_hosts_mount_what_their_group_has() -> None:
    mounts = {each["name"]: each for each in share_mounts(SPEC, OUTPUTS)}
    assert mounts["data"]["groups"] == ["controller", "login", "pool_h100", "pool_h100_elastic", "pool_a10"]
    assert mounts["scratch"]["groups"] == ["login", "pool_h100_elastic"]
    assert (mounts["scratch"]["server"], mounts["scratch"]["export_path"]) == ("10.0.16.5", "/scratch")
    models = mounts["models"]
    assert (models["server"], models["export_path"], models["read_only"]) == ("10.0.3.7", "/exports/models", True)
    assert [each["created"] for each in mounts.values()] == [True, True, False]


def test_a_share_that_no_apply_has_made_is_not_mounted() -> None:
    assert share_mounts(SPEC, replace(OUTPUTS, shares={})) == []
    assert OUTPUTS.file_system_ids == (
        "ocid1.filesystem.test..f", "ocid1.filesystem.test..d", "ocid1.filesystem.test..s",
    )  # fmt: skip


def test_checks_of_a_host_look_at_its_shares() -> None:
    def mounts(group: str) -> list[str]:
        machine = SPEC.controller if group == "controller" else SPEC.pools[group]
        found: list[str] = node_expectation(SPEC, machine, hardware_emulated=True, group=group)["mounts"]
        return found

    assert mounts("controller") == ["/mnt/home", "/mnt/data", "/mnt/models"]
    assert mounts("h100") == ["/mnt/home", "/mnt/data", "/mnt/models"]
    assert mounts("h100-elastic") == ["/mnt/home", "/mnt/data", "/mnt/scratch", "/mnt/models"]


def test_an_image_is_baked_for_the_shares_of_its_pool() -> None:
    def fingerprints(spec: ClusterSpec, outputs: handover.Outputs = OUTPUTS) -> dict[str, str]:
        return {pool: handover.node_fingerprint(spec, outputs, pool) for pool in spec.pools}

    before, without = fingerprints(SPEC), fingerprints(_with(scratch=None))
    assert {pool for pool in before if before[pool] != without[pool]} == {"h100-elastic"}
    elsewhere = {**OUTPUTS.shares, "data": replace(OUTPUTS.shares["data"], server="10.0.16.9")}
    moved = fingerprints(SPEC, replace(OUTPUTS, shares=elsewhere))
    assert all(before[pool] != moved[pool] for pool in before)
    # The hosts of a pool do not change with those of others.
    others = SPEC.storage.shares["scratch"].model_copy(update={"hosts": ("h100-elastic",)})
    assert fingerprints(_with(scratch=others)) == before


def test_what_a_lost_state_has_left_is_adopted() -> None:
    variables = json.loads((GOLDEN / "tfvars.json").read_text())
    found = {each.address: each for each in desired(variables) if each.address.startswith("module.share")}
    data, scratch = 'module.share["data"].oci_file_storage', 'module.share["scratch"].oci_file_storage'
    assert set(found) == {
        f"{data}_file_system.this[0]", f"{data}_export.this",
        f"{scratch}_file_system.this[0]", f"{scratch}_mount_target.this[0]", f"{scratch}_export.this",
    }  # fmt: skip
    assert found[f"{data}_file_system.this[0]"].name == "three-kinds-data"
    assert found[f"{data}_export.this"].parent == HOME_MOUNT_TARGET
    assert found[f"{scratch}_export.this"].parent == f"{scratch}_mount_target.this[0]"


def test_only_a_mount_target_that_exists_gets_its_throughput() -> None:
    fast = SPEC.storage.shares["scratch"].model_copy(update={"throughput_gbps": 40})
    spec = _with(scratch=fast)
    spec = spec.model_copy(
        update={
            "storage": spec.storage.model_copy(
                update={"home": spec.storage.home.model_copy(update={"throughput_gbps": 20})}
            )
        }
    )

    def given(*addresses: str) -> tuple[Any, Any]:
        variables = handover.tfvars(
            spec, tenancy_id="t", compartment_id="c", ssh_authorized_keys=(), baked_images={}, user_data={},
            mount_targets=mount_targets(addresses),
        )  # fmt: skip
        return variables["home"]["throughput_gbps"], variables["shares"]["scratch"]["throughput_gbps"]

    home, scratch = "module.home[0].oci_file_storage_mount_target.this", 'module.share["scratch"].oci_file_storage_'
    assert given("module.home[0].oci_file_storage_file_system.this[0]") == (None, None)
    assert given(home) == (20, None)
    assert given(home, f"{scratch}mount_target.this[0]", f"{scratch}export.this") == (20, 40)
