"""Where the state lies: real Terraform, a root that needs no provider, and doubles for the places (state_doubles)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError, LockedError, TerraformError
from tests.terraform.small_root import ADDRESSES, PASSWORD, Machine, http_config, s3_config
from tests.terraform.state_doubles import serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_root")]


def test_a_state_over_http_is_read_by_another_machine_that_never_ran_init(machine: Machine, tmp_path: Path) -> None:
    with serving() as double:
        assert machine.terraform("http", http_config(double)).outputs() == {}
        assert machine.apply("http", http_config(double)) == 2
        assert not machine.paths.terraform_state.exists()
        assert double.locks == {}
        other = Machine(tmp_path / "there").terraform("http", http_config(double))
        assert other.outputs()["cluster"]["name"] == "demo"
        assert other.addresses() == ADDRESSES
        assert machine.apply("http", http_config(double)) == 0
        assert len(double.authorizations) == 1
        assert "" not in double.authorizations


def test_no_secret_of_a_backend_is_written_and_what_is_written_is_private(machine: Machine) -> None:
    with serving() as http, serving(s3=True) as s3:
        machine.apply("http", http_config(http))
        machine.apply("s3", s3_config(s3))
    assert machine.paths.root.stat().st_mode & 0o777 == 0o700
    for file in machine.files():
        assert PASSWORD.encode() not in file.read_bytes(), file
    private = [*machine.copies(), machine.paths.root / "backend.json"]
    private.append(machine.paths.terraform / "cluster" / "backend.tf.json")
    assert len(private) == 3
    assert {file.stat().st_mode & 0o777 for file in private} == {0o600}
    assert "hush-hush-4711" not in str(machine.events)


def test_a_state_moves_to_a_new_backend_and_back_and_a_copy_is_kept_each_time(machine: Machine) -> None:
    machine.apply()
    with serving() as double:
        assert machine.apply("http", http_config(double)) == 0
        assert not machine.paths.terraform_state.exists()
        assert "/demo" in double.objects
        assert machine.terraform("local").addresses() == ADDRESSES, "it is read where it is, not where it should be"
        assert machine.apply() == 0
        assert machine.paths.terraform_state.stat().st_mode & 0o777 == 0o600
    assert [json.loads(copy.read_text())["outputs"]["cluster"]["value"]["name"] for copy in machine.copies()] == [
        "demo",
        "demo",
    ]
    moves = [event.message for event in machine.events if "the state is in" in event.message]
    assert len(moves) == 2
    machine.terraform().forget()
    left = {file.name for file in machine.files()}
    assert left <= {".gitignore", "provider-question"} | {file.name for file in machine.paths.runs.iterdir()}


def test_a_working_copy_that_is_gone_loses_nothing(machine: Machine) -> None:
    with serving() as double:
        machine.apply("http", http_config(double))
        shutil.rmtree(machine.paths.terraform)
        assert machine.apply() == 0, "the state was found where it lay, and moved"
        assert machine.apply("http", http_config(double)) == 0


def test_a_damaged_note_of_where_the_state_is_heals(machine: Machine) -> None:
    with serving() as double:
        machine.apply("http", http_config(double))
        note = machine.paths.root / "backend.json"
        good = note.read_text()
        for content in ("", "{}", "[]", '{"backend": "http", "config": {}}', "\x00"):
            note.write_text(content)
            assert machine.terraform("http", http_config(double)).addresses() == ADDRESSES
        assert machine.apply("http", http_config(double)) == 0
        assert note.read_text() == good


def test_a_move_that_was_killed_after_the_copy_is_done_again(machine: Machine) -> None:
    machine.apply()
    before = {file: file.read_bytes() for file in (machine.paths.terraform_state, machine.paths.root / "backend.json")}
    with serving() as double:
        machine.apply("http", http_config(double))
        for file, content in before.items():
            file.write_bytes(content)
        assert machine.apply("http", http_config(double)) == 0


def test_a_move_that_fails_leaves_the_state_where_it_was(machine: Machine) -> None:
    machine.apply()
    with serving() as double:
        double.failing = True
        with pytest.raises(TerraformError) as caught:
            machine.apply("http", http_config(double))
        assert "the state can't be read or written" in str(caught.value)
        assert machine.apply() == 0
        double.failing = False
        double.lock("/demo")
        with pytest.raises(LockedError, match="0a1b2c3d-held"):
            machine.apply("http", http_config(double))
        double.locks.clear()
        assert machine.apply("http", http_config(double)) == 0
    with pytest.raises(TerraformError, match="connection refused") as caught:
        machine.terraform("http", http_config(double)).outputs()
    assert "gpucluster apply" in str(caught.value)


def test_a_state_that_is_there_already_is_never_overwritten(machine: Machine, tmp_path: Path) -> None:
    machine.apply()
    with serving() as double:
        Machine(tmp_path / "there").apply("http", http_config(double))
        kept = double.objects["/demo"]
        with pytest.raises(InputError, match="another one already, with 2 resources"):
            machine.apply("http", http_config(double))
        assert double.objects["/demo"] == kept
        newer = {**json.loads(machine.paths.terraform_state.read_text()), "serial": 99, "outputs": {}}
        double.objects["/demo"] = json.dumps(newer).encode()
        with pytest.raises(InputError, match="a newer one of this cluster"):
            machine.apply("http", http_config(double))
        assert machine.apply() == 0


def test_the_state_of_another_cluster_is_refused(machine: Machine, tmp_path: Path) -> None:
    with serving() as double:
        machine.apply("http", http_config(double))
        with pytest.raises(InputError, match="belongs to the cluster demo, and not to other"):
            Machine(tmp_path / "there", "other").apply("http", http_config(double))


def test_an_address_that_is_a_secret_comes_from_the_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as double:
        monkeypatch.setenv("TF_HTTP_ADDRESS", f"{double.url}/p/{PASSWORD}/n/space/b/states/o/demo")
        machine.apply("http")
        assert len(double.objects) == 1
        for file in machine.files():
            assert PASSWORD.encode() not in file.read_bytes(), file
        monkeypatch.setenv("TF_HTTP_ADDRESS", f"{double.url}/another")
        with pytest.raises(InputError, match="TF_HTTP_ADDRESS"):
            machine.apply("http")


def test_a_state_in_s3_of_another_maker(machine: Machine) -> None:
    with serving(s3=True) as double:
        assert machine.apply("s3", s3_config(double)) == 2
        assert list(double.objects) == ["/states/gpucluster/demo/terraform.tfstate"]
        assert machine.terraform("s3", s3_config(double)).addresses() == ADDRESSES
        assert machine.apply("s3", s3_config(double)) == 0
        trailing = [seen for seen in double.headers_seen if "x-amz-trailer" in seen or "aws-chunked" in str(seen)]
        assert not trailing, "Object Storage refuses these"


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("s3", {"bucket": "states", "namespace": "space"}),
        ("s3", {"bucket": "states", "use_lockfile": True}),
        ("http", {"address": "https://example.org/demo", "retry_max": 5}),
    ],
)
def test_what_is_written_is_accepted_by_terraform(machine: Machine, kind: str, config: Mapping[str, Any]) -> None:
    machine.terraform(kind, config).prepare()
    root = machine.paths.terraform / "cluster"
    for words in (["init", "-backend=false"], ["validate"]):
        subprocess.run(["terraform", *words], cwd=root, check=True, capture_output=True)
