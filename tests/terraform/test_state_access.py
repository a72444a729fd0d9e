"""How a state is read and written, with the real Terraform: at once, by many, and while a run holds it."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpucluster.errors import TerraformError
from gpucluster.terraform.lock import StateLock
from gpucluster.terraform.state import StateContents
from tests.terraform.small_root import ADDRESSES, Machine
from tests.terraform.state_doubles import serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_root")]


def test_the_contents_of_a_state_are_read_at_once_from_a_file_and_over_http(machine: Machine, tmp_path: Path) -> None:
    assert machine.terraform().contents() == StateContents({})
    machine.apply()
    local = machine.terraform().contents()
    assert (local.outputs["cluster"]["name"], len(local.ids)) == ("demo", len(ADDRESSES))
    with serving() as server:
        machine.apply("http", {"address": server.url})
        other = Machine(tmp_path / "other").terraform("http", {"address": server.url})
        assert other.contents() == local


def test_a_remote_state_is_read_by_any_number_of_threads_and_commands_at_once(tmp_path: Path) -> None:
    """`gpucluster status` asks twice at the same time, and no reader holds the cluster."""
    machine = Machine(tmp_path / "here")
    with serving() as double:
        config = {"address": f"{double.url}/state/demo"}
        machine.apply("http", config)
        shutil.rmtree(machine.paths.terraform)
        readers = 12
        start = threading.Barrier(readers)

        def read(_: int) -> StateContents:
            terraform = machine.terraform("http", config)
            start.wait()
            return terraform.contents()

        with ThreadPoolExecutor(readers) as threads:
            found = list(threads.map(read, range(readers)))
    assert {each.addresses for each in found} == {ADDRESSES}
    assert len(list((machine.paths.terraform / "state").iterdir())) == 1


@pytest.mark.parametrize("kind", ["local", "http"])
def test_what_the_hosts_reported_is_written_without_a_plan_and_the_next_plan_comes_to_the_same(
    machine: Machine, tmp_path: Path, kind: str
) -> None:
    said = {"ocid1.c": "ssh-ed25519 AAAA"}
    with serving() as server:
        config = {"address": server.url} if kind == "http" else {}
        machine.apply(kind, config)
        terraform = machine.terraform(kind, config)
        with terraform.hold_state():
            terraform.prepare()
            terraform.init()
            before = terraform.contents()
            terraform.set_output("identity", {"contract_version": 1, "host_keys": said})
            assert terraform.outputs()["identity"]["host_keys"] == said
            assert terraform.contents().entries == before.entries
        assert not list(machine.paths.root.glob("*.next"))
        _, plan = machine.plan(kind, config, recorded=said)
        assert (plan.changes, plan.changes_outputs) == ((), False)


def test_the_state_gets_an_output_that_the_last_apply_did_not_have(machine: Machine) -> None:
    machine.apply("local", {})
    terraform = machine.terraform("local", {})
    with terraform.hold_state():
        terraform.prepare()
        terraform.init()
        with pytest.raises(TerraformError):
            terraform.set_output("rollouts", {"cpu": "{}"})
        for value in ({"cpu": "{}"}, {}):
            terraform.set_output("rollouts", value, ("map", "string"))
            assert terraform.outputs()["rollouts"] == value


def test_a_run_that_holds_the_state_reads_it_once_and_again_after_it_has_written(machine: Machine) -> None:
    with serving() as server:
        config = {"address": server.url, "lock_address": server.url}
        machine.apply("http", config)
        lock = StateLock()
        terraform = machine.terraform("http", config, lock)
        with terraform.hold_state():
            terraform.prepare()
            terraform.init()
            terraform.set_variables({"cluster_name": "demo", "note": "other"})
            plan = terraform.plan()
            lock.forget()
            reads = server.reads
            assert terraform.outputs()["cluster"]["name"] == "demo"
            assert terraform.addresses() == terraform.contents().addresses == ADDRESSES
            assert machine.terraform("http", config, lock).outputs() == terraform.outputs()
            assert server.reads == reads + 1
            terraform.apply(plan)
            reads = server.reads
            assert "identity" in terraform.outputs()
            assert server.reads == reads + 1
        terraform.outputs()
        terraform.outputs()
        assert server.reads == reads + 3


@pytest.mark.parametrize("left", ["", '{"version": 4, "terra'], ids=["nothing", "a part"])
def test_a_kill_while_terraform_writes_the_state_costs_its_last_command_only(machine: Machine, left: str) -> None:
    machine.apply(note="first")
    machine.apply(note="second")
    file = machine.paths.terraform_state
    assert machine.terraform().restore_state()  # sound: nothing is touched
    file.write_text(left)
    terraform = machine.terraform()
    assert terraform.restore_state()
    assert len(terraform.contents().ids) == len(ADDRESSES)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.read_text() for each in machine.paths.root.glob("terraform.tfstate.damaged-*")] == [left]


@pytest.mark.parametrize("backup", [None, "", '{"version": 4, "terra'], ids=["none", "an empty one", "a part"])
def test_without_a_sound_copy_a_damaged_state_stays(machine: Machine, backup: str | None) -> None:
    machine.apply()
    file = machine.paths.terraform_state
    file.write_text("")
    copy = file.with_name("terraform.tfstate.backup")
    copy.unlink(missing_ok=True)
    if backup is not None:
        copy.write_text(backup)
    assert not machine.terraform().restore_state()
    assert file.read_text() == ""


@pytest.mark.parametrize("text", ["{", "7", '{"version": 3}', '{"version": 4, "resources": [{}]}'])
def test_a_state_that_is_damaged_is_an_error_and_not_an_empty_one(machine: Machine, text: str) -> None:
    machine.paths.terraform_state.write_text(text)
    with pytest.raises(TerraformError, match=r"the state can't be read|is damaged"):
        machine.terraform().contents()
