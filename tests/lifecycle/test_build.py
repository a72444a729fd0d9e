"""After a configuration: the directory has kept the key that another machine made, and Terraform's state gets it.

Terraform is a double that holds the output `identity`. The directory's part is met in tests/controller/users, and two
machines with one state in tests/workspace/test_login_keys.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.cluster import Cluster
from gpucluster.events import Event
from gpucluster.lifecycle.ownership import Ownership
from gpucluster.spec import load
from tests.doubles.terraform import TerraformDouble
from tests.spec.spec_texts import KEY, LOCAL


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yml"
    file.write_text(LOCAL)
    return file


def _keep(file: Path, state: Mapping[str, str], directory: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    events: list[Event] = []
    terraform = TerraformDouble({"id": "ab12", "login_keys": dict(state)})
    cluster = Cluster(load(file), on_event=events.append)
    monkeypatch.setattr(Ownership, "outputs", lambda _: terraform.outputs())
    cluster._parts.phases.building._keep_login_keys(terraform, {"bob": [directory], "alice": [KEY]})  # type: ignore[arg-type]
    return terraform.identity, "\n".join(event.message for event in events)


def test_the_key_of_another_machine_stays_and_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = f"{KEY.split()[0]} {KEY.split()[1][:-4]}AAAA bob@demo generated on laptop"
    theirs = f"{' '.join(KEY.split()[:2])} bob@demo generated on desk"
    identity, said = _keep(file, {"bob": ours, "carol": ours}, theirs, monkeypatch)
    assert identity == {"contract_version": 1, "id": "ab12", "login_keys": {"bob": theirs, "carol": ours}}
    assert "the key of bob was not changed" in said
    assert "another machine (desk)" in said
    assert "gpucluster user key bob --replace" in said


def test_nothing_is_reported_or_written_where_both_have_the_same_key(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{' '.join(KEY.split()[:2])} bob@demo generated on desk"
    identity, said = _keep(file, {"bob": key}, key, monkeypatch)
    assert identity["login_keys"] == {"bob": key}
    assert said == ""
