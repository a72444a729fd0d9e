"""What releases have stored, read by this one. The examples are recorded: see tests/lifecycle/recorded_release.py."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.handover import earlier_formats

RELEASES = Path(__file__).parents[1] / "lifecycle" / "releases"
FOLDERS = sorted(folder for folder in RELEASES.iterdir() if folder.is_dir())
OLDEST = RELEASES / "0.1.0"


def stored_outputs(folder: Path) -> dict[str, Any]:
    state = json.loads((folder / "terraform.tfstate").read_text())
    return {name: output["value"] for name, output in state["outputs"].items()}


def stored_variables(folder: Path) -> dict[str, Any]:
    variables: dict[str, Any] = json.loads((folder / "terraform" / "cluster" / "terraform.tfvars.json").read_text())
    return variables


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_outputs_of_a_release_are_read(folder: Path) -> None:
    stored = stored_outputs(folder)
    untouched = copy.deepcopy(stored)
    parsed, identity = handover.Outputs.parse(stored), handover.Identity.parse(stored)
    assert (parsed.name, parsed.controller.name, [one.name for one in parsed.login]) == (
        "demo", "demo-controller", ["demo-login-1"],
    )  # fmt: skip
    assert [one.name for one in parsed.pools["cpu"].instances] == ["cpu-1", "cpu-2"]
    assert (parsed.standby, parsed.state_volume_id) == (None, "")
    assert identity.release == folder.name
    assert identity.recorded["host_keys"].keys() >= {parsed.controller.id}
    assert identity.recorded["secrets"] == {"munge": "1"}
    assert identity.recorded["reported_hosts"] == {}
    assert stored == untouched


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_is_of_the_format_of_now_stays_as_it_is(folder: Path) -> None:
    once = earlier_formats.outputs(stored_outputs(folder))
    assert earlier_formats.outputs(once) == once
    variables = earlier_formats.variables(stored_variables(folder))
    assert earlier_formats.variables(variables) == variables


def test_the_example_of_format_1_has_what_the_step_is_for() -> None:
    """An example that were recorded again by a later release would prove nothing."""
    stored = stored_outputs(OLDEST)
    assert stored["cluster"]["contract_version"] == stored["identity"]["contract_version"] == 1
    assert not {"standby", "state_volume_id"} & stored["cluster"].keys()
    assert not {"release", "physical_hosts", "reported_hosts"} & stored["identity"].keys()
    assert "images" not in stored_variables(OLDEST)
    assert not (OLDEST / "release.json").exists()


def test_images_are_variables_of_their_own() -> None:
    stored = stored_variables(OLDEST)
    found = earlier_formats.variables(stored)
    assert found["images"].keys() == {"controller", "login", "pool/rdma", "pool/cpu", "pool/burst"}
    assert found["images"]["pool/rdma"] == stored["pools"]["rdma"]["image"]
    machines = [found["controller"], found["login"], *found["pools"].values()]
    assert not any("image" in machine for machine in machines)
    assert found["pools"]["cpu"]["node_names"] == ["cpu-1", "cpu-2"]


def test_node_pools_of_kubernetes_engine_have_images_too_and_an_absent_login_has_none() -> None:
    stored = {**stored_variables(OLDEST), "login": None, "oke": {"node_pools": {"gpu": {"image": {"ocid": "o"}}}}}
    found = earlier_formats.variables(stored)
    assert found["oke"] == {"node_pools": {"gpu": {}}}
    assert found["images"]["pool/gpu"] == {"ocid": "o"}
    assert "login" not in found["images"]
    assert earlier_formats.variables({}) == {}
