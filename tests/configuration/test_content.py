"""What a run works from, as one digest."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucluster.configuration import content
from gpucluster.paths import ansible_dir, import_root


@pytest.fixture
def inventory(tmp_path: Path) -> dict[str, Any]:
    """A small inventory, with a folder of wheels and one of release files."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "click-8.1-py3-none-any.whl").write_bytes(b"click")
    variables = {"timezone": "UTC", "software_directory": "/a/software", "autoscaler_wheels": str(tmp_path / "wheels")}
    group = {"hosts": {"compute-1": {"private_ip": "10.0.1.2"}}, "vars": {"node_expectation": None}}
    return {"all": {"vars": variables, "children": {"compute": group}}}


def test_the_same_inventory_has_the_same_digest(inventory: dict[str, Any]) -> None:
    first = content.inputs(inventory)
    reordered = {
        "all": {"children": inventory["all"]["children"], "vars": dict(reversed(inventory["all"]["vars"].items()))}
    }
    assert content.inputs(reordered) == first
    assert inventory["all"]["vars"]["software_directory"] == "/a/software"


def test_another_value_host_or_group_is_another_digest(inventory: dict[str, Any]) -> None:
    first = content.inputs(inventory)
    changes: list[Callable[[dict[str, Any]], None]] = [
        lambda every: every["vars"].update(timezone="Asia/Tokyo"),
        lambda every: every["children"]["compute"]["hosts"].update({"compute-2": {"private_ip": "10.0.1.3"}}),
        lambda every: every["children"]["compute"]["hosts"]["compute-1"].update(private_ip="10.0.1.9"),
        lambda every: every["children"].update(login={"hosts": {}}),
    ]
    for change in changes:
        changed = copy.deepcopy(inventory)
        change(changed["all"])
        assert content.inputs(changed) != first


def test_folders_of_this_machine_count_by_what_is_in_them(inventory: dict[str, Any], tmp_path: Path) -> None:
    first = content.inputs(inventory)
    variables = inventory["all"]["vars"]
    (tmp_path / "wheels").rename(tmp_path / "elsewhere")
    variables.update(software_directory="/b/software", autoscaler_wheels=str(tmp_path / "elsewhere"))
    assert content.inputs(inventory) == first
    (tmp_path / "elsewhere" / "click-8.1-py3-none-any.whl").write_bytes(b"click of today")
    assert content.inputs(inventory) != first


def test_other_roles_are_another_digest(inventory: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = content.inputs(inventory)
    monkeypatch.setattr(content, "digest", lambda: "of another version")
    assert content.inputs(inventory) != first


def test_what_plugins_of_ansible_take_from_the_library_is_in_the_digest() -> None:
    elsewhere = {"errors", "artifacts"}  # what is raised; what packs the agent, whose files count themselves
    plugins = [file.read_text() for kind in ("lookup", "filter", "action") for file in _plugins(kind)]
    packages = {name for text in plugins for name in re.findall(r"from gpucluster\.(\w+)", text)}
    packages |= {name for text in plugins for name in re.findall(r"from gpucluster import (\w+)", text)}
    assert packages - elsewhere - set(content.READ_BY_ROLES) == set()
    assert all(any((import_root() / "gpucluster" / each).glob("*.py")) for each in content.READ_BY_ROLES)


def _plugins(kind: str) -> list[Path]:
    return sorted((ansible_dir() / f"{kind}_plugins").glob("*.py"))


def test_a_new_password_of_a_directory_that_exists_is_another_digest(inventory: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "directory.password"
    file.write_text("first\n")
    inventory["all"]["vars"]["users_directory"] = {"bind_password_file": str(file)}
    first = content.inputs(inventory)
    assert content.inputs(inventory) == first
    file.write_text("second\n")
    assert content.inputs(inventory) != first
