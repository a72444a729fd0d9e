"""Where the state lies: real Terraform, a root that needs no provider, and doubles for the places (state_doubles)."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import EnvironmentFault, InputError, LockedError, TerraformError
from gpucluster.events import Event
from gpucluster.paths import ClusterPaths
from gpucluster.terraform import backends, lock
from gpucluster.terraform.lock import StateLock
from gpucluster.terraform.plan import TerraformPlan
from gpucluster.terraform.runner import Terraform
from gpucluster.terraform.state import StateContents
from tests.terraform.state_doubles import StateDouble, serving
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

PASSWORD = "sesame-opens-9f"
ROOT = """
variable "cluster_name" { type = string }
variable "note" {
  type    = string
  default = ""
}
variable "reads" {
  type    = string
  default = ""
}
resource "terraform_data" "network" { input = "${var.cluster_name} ${var.note}" }
resource "terraform_data" "slow" {
  count = var.reads == "" ? 0 : 1
  provisioner "local-exec" { command = "exec cat '${var.reads}'" }
}
resource "terraform_data" "secret" { input = sensitive("hush-hush-4711") }
variable "recorded" {
  type    = map(string)
  default = {}
}
output "identity" { value = { contract_version = 1, host_keys = var.recorded } }
output "cluster" { value = { name = var.cluster_name, contract_version = 1 } }
"""
ADDRESSES = ("terraform_data.network", "terraform_data.secret")


@pytest.fixture(autouse=True)
def _a_small_root(tmp_path: Path, terraform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root" / "cluster"
    root.mkdir(parents=True)
    (root / "main.tf").write_text(ROOT)
    monkeypatch.setattr("gpucluster.terraform.runner.terraform_dir", lambda: tmp_path / "root")
    monkeypatch.setenv("TF_HTTP_USERNAME", "gpucluster")
    monkeypatch.setenv("TF_HTTP_PASSWORD", PASSWORD)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    for name in ("TF_HTTP_ADDRESS", "AWS_PROFILE", "AWS_CA_BUNDLE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


class Machine:
    """One operator's machine: a folder, and Terraform as a run of ours uses it."""

    def __init__(self, folder: Path, cluster: str = "demo") -> None:
        folder.mkdir(exist_ok=True)
        self.cluster = cluster
        self.paths = ClusterPaths.of(folder / "cluster.yml")
        self.paths.create()
        self.events: list[Event] = []

    def terraform(
        self, kind: str = "local", config: Mapping[str, Any] | None = None, lock: StateLock | None = None
    ) -> Terraform:
        backend = backends.desired(
            kind,
            config or {},
            cluster=self.cluster,
            local_file=self.paths.terraform_state,
            region="us-ashburn-1",
            profile="DEFAULT",
        )
        program = Path(shutil.which("terraform") or "")
        waits: dict[str, Any] = {"lock_timeout": "0s", "lock_wait": 0}
        return Terraform(self.paths, program, {}, self.events.append, backend=backend, state_lock=lock, **waits)

    def plan(
        self, kind: str = "local", config: Mapping[str, Any] | None = None, **variables: Any
    ) -> tuple[Terraform, TerraformPlan]:
        """As a run does it."""
        terraform = self.terraform(kind, config)
        terraform.prepare()
        terraform.init()
        terraform.set_variables({"cluster_name": self.cluster, **variables})
        return terraform, terraform.plan()

    def apply(self, kind: str = "local", config: Mapping[str, Any] | None = None, **variables: Any) -> int:
        """As a run does it; returns the number of changes."""
        terraform, plan = self.plan(kind, config, **variables)
        terraform.apply(plan)
        return len(plan.changes)

    def copies(self) -> list[Path]:
        return sorted(self.paths.root.glob("terraform.tfstate.before-*"))

    def files(self) -> list[Path]:
        return [file for file in self.paths.root.rglob("*") if file.is_file() and not file.is_symlink()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here")


def _http(double: StateDouble, name: str = "demo") -> dict[str, str]:
    return {"address": f"{double.url}/{name}", "lock_address": f"{double.url}/{name}"}


def test_a_state_over_http_is_read_by_another_machine_that_never_ran_init(machine: Machine, tmp_path: Path) -> None:
    with serving() as double:
        assert machine.terraform("http", _http(double)).outputs() == {}
        assert machine.apply("http", _http(double)) == 2
        assert not machine.paths.terraform_state.exists()
        assert double.locks == {}
        other = Machine(tmp_path / "there").terraform("http", _http(double))
        assert other.outputs()["cluster"]["name"] == "demo"
        assert other.addresses() == ADDRESSES
        assert machine.apply("http", _http(double)) == 0
        assert len(double.authorizations) == 1
        assert "" not in double.authorizations


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


def test_what_earlier_settings_and_killed_commands_left_goes_with_the_next_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "here")
    with serving() as double:
        machine.apply("http", {**_http(double), "retry_max": 1})
        (kept,) = (machine.paths.terraform / "state").iterdir()
        killed = kept.with_name("next-killed")
        killed.mkdir()
        young = kept.with_name("next-works")
        young.mkdir()
        for old in (kept, killed):
            os.utime(old, (0, 0))
        with machine.terraform("http", _http(double)).hold_state():
            pass
    assert not kept.exists()
    assert not killed.exists()
    assert young.exists()


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


@pytest.mark.parametrize("text", ["{", "7", '{"version": 3}', '{"version": 4, "resources": [{}]}'])
def test_a_state_that_is_damaged_is_an_error_and_not_an_empty_one(machine: Machine, text: str) -> None:
    machine.paths.terraform_state.write_text(text)
    with pytest.raises(TerraformError, match=r"the state can't be read|is damaged"):
        machine.terraform().contents()


def test_an_output_of_a_later_release_is_applied_though_no_resource_changes(machine: Machine, tmp_path: Path) -> None:
    machine.apply()
    _, plan = machine.plan()
    assert (plan.changes, plan.changes_outputs) == ((), False)

    later = ROOT.replace("contract_version = 1", 'contract_version = 1, private_subnet_domain_name = "there"')
    (tmp_path / "root" / "cluster" / "main.tf").write_text(later)
    terraform, plan = machine.plan()
    assert (plan.changes, plan.changes_outputs) == ((), True)
    terraform.apply(plan)
    assert terraform.outputs()["cluster"]["private_subnet_domain_name"] == "there"
    _, plan = machine.plan()
    assert (plan.changes, plan.changes_outputs) == ((), False)


def test_no_secret_of_a_backend_is_written_and_what_is_written_is_private(machine: Machine) -> None:
    with serving() as http, serving(s3=True) as s3:
        machine.apply("http", _http(http))
        machine.apply("s3", _s3(s3))
    assert machine.paths.root.stat().st_mode & 0o777 == 0o700
    for file in machine.files():
        assert PASSWORD.encode() not in file.read_bytes(), file
    private = [*machine.copies(), machine.paths.root / "backend.json"]
    private.append(machine.paths.terraform / "cluster" / "backend.tf.json")
    assert len(private) == 3
    assert {file.stat().st_mode & 0o777 for file in private} == {0o600}
    assert "hush-hush-4711" not in str(machine.events)


def test_two_machines_at_once_the_second_is_told_what_to_type_and_it_works(machine: Machine) -> None:
    with serving() as double:
        machine.apply("http", _http(double))
        double.lock("/demo")
        with pytest.raises(LockedError, match="0a1b2c3d-held") as caught:
            machine.apply("http", _http(double))
        assert caught.value.exit_code == 4
        command = caught.value.hint.partition(": ")[2]
        assert command.endswith("force-unlock 0a1b2c3d-held")
        subprocess.run(_forced(command), check=True, capture_output=True, stdin=subprocess.DEVNULL)
        assert machine.apply("http", _http(double)) == 0


def _forced(command: str) -> list[str]:
    """The same without the question that a user is asked."""
    *words, lock = shlex.split(command)
    return [*words, "-force", lock]


def test_who_holds_a_state_and_since_when_is_told_where_the_backend_tells_it(machine: Machine, tmp_path: Path) -> None:
    machine.apply()
    terraform = machine.terraform()
    gate = tmp_path / "gate"
    os.mkfifo(gate)  # no program writes to it
    terraform.set_variables({"cluster_name": "demo", "reads": str(gate)})
    argv = [shutil.which("terraform") or "", "apply", "-auto-approve", "-input=false"]
    root = machine.paths.terraform / "cluster"
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert any("Creating..." in line for line in other.stdout)
        with pytest.raises(LockedError, match=r"held by \S+@\S+ since 20\d\d-\d\d-\d\d") as caught:
            terraform.plan()
        other.send_signal(2)
        other.stdout.read()
    assert "ends with the process" in caught.value.hint
    assert machine.apply() == 1, "the one that was interrupted goes"


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_run_holds_the_state_from_its_beginning_to_its_end(tmp_path: Path, kind: str) -> None:
    here, there = Machine(tmp_path / "here"), Machine(tmp_path / "there")
    with serving(s3=kind == "s3") as double:
        config = _http(double) if kind == "http" else {**_s3(double), "use_lockfile": True}
        run = here.terraform(kind, config)
        with run.hold_state():
            for wanted in ("demo", "other"):  # the first creates the state, the second changes it
                run.prepare()
                run.init()
                run.set_variables({"cluster_name": "demo", "note": wanted})
                run.apply(run.plan())
            run.remove_from_state(ADDRESSES[:1])
            assert run.addresses() == ADDRESSES[1:]
            with pytest.raises(LockedError) as caught, there.terraform(kind, config).hold_state():
                pytest.fail("two runs at once")
            with pytest.raises(LockedError):
                there.plan(kind, config)
            said = str(caught.value)
            assert f"{getpass.getuser()}@{socket.gethostname()}" in said
            assert re.search(r"since 20\d\d-", said)
            assert "force-unlock" in said
        with there.terraform(kind, config).hold_state():
            pass
        assert there.apply(kind, config, note="other") == 1


def _locks(double: Any) -> list[str]:
    return [*double.locks, *(name for name in double.objects if name.endswith(".tflock"))]


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_stop_while_the_console_waits_for_us_leaves_no_lock(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock, and reads the pipe by which it reports the lock: it does not see the end of its input there."""

    def stop(_console: process.InputProgram, pipe: int) -> None:
        wait_for("the console reads the pipe", lambda: lock._is_read(pipe))
        assert _locks(double)
        raise KeyboardInterrupt

    with serving(s3=kind == "s3") as double:
        config = _http(double) if kind == "http" else {**_s3(double), "use_lockfile": True}
        monkeypatch.setattr("gpucluster.terraform.lock._refusal", stop)
        with pytest.raises(KeyboardInterrupt), Machine(tmp_path / "here").terraform(kind, config).hold_state():
            pytest.fail("the stop was lost")
        assert _locks(double) == []


# A run that is killed when a console has begun, or when that has the lock and reports it.
_KILLED_EARLY = """
import signal, sys
sys.path[:0] = {path!r}
from gpucluster.terraform import lock, runner
from pathlib import Path
from tests.waiting import wait_for
runner.terraform_dir = lambda: Path({root!r})
from tests.terraform.test_backends import Machine

def stop(console, pipe):
    if {locked!r}:
        wait_for("the console reads the pipe", lambda: lock._is_read(pipe))
    print("now", flush=True)
    signal.pause()

lock._refusal = stop
with Machine(Path({folder!r})).terraform({kind!r}, {config!r}).hold_state():
    pass
"""


@pytest.mark.parametrize("locked", [False, True], ids=["before the lock", "with the lock"])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_run_that_is_killed_while_its_console_starts_leaves_no_lock(tmp_path: Path, kind: str, locked: bool) -> None:
    here, there = tmp_path / "here", Machine(tmp_path / "there")
    with serving(s3=kind == "s3") as double:
        config = _http(double) if kind == "http" else {**_s3(double), "use_lockfile": True}
        text = _KILLED_EARLY.format(
            path=sys.path, root=str(tmp_path / "root"), folder=str(here), config=config, kind=kind, locked=locked
        )
        with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as killed:
            try:
                assert killed.stdout is not None
                assert killed.stdout.readline() == "now\n"
                assert bool(_locks(double)) or not locked
            finally:
                killed.kill()
        try:
            wait_for("the console has ended", lambda: not _terraforms(here.resolve()))
        finally:
            for pid in _terraforms(here.resolve()).values():
                os.kill(pid, signal.SIGKILL)
        assert _locks(double) == []
        with there.terraform(kind, config).hold_state():
            pass


_KILLED = """
import sys
sys.path[:0] = {path!r}
from gpucluster.terraform import runner
from pathlib import Path
runner.terraform_dir = lambda: Path({root!r})
from tests.terraform.test_backends import Machine
machine = Machine(Path({folder!r}))
terraform = machine.terraform("http", {config!r})
with terraform.hold_state():
    terraform.prepare()
    terraform.init()
    terraform.set_variables({{"cluster_name": "demo", "reads": {gate!r}}})
    terraform._on_event = lambda event: print(event.name, event.status, flush=True)
    terraform.apply(terraform.plan())
"""


def _terraforms(folder: Path) -> dict[str, int]:
    """The pids of the Terraforms that run below a folder, by their commands."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if folder in (place / "cwd").resolve().parents and Path(os.fsdecode(words[0])).name == "terraform":
                found[os.fsdecode(words[1])] = int(place.name)
    return found


def _open_files(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(descriptor))
    return found


def test_the_lock_of_a_killed_run_ends_with_its_terraform_and_not_before(tmp_path: Path) -> None:
    here, there = tmp_path / "here", Machine(tmp_path / "there")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with serving() as double:
        config = _http(double)
        values = {"path": sys.path, "root": str(tmp_path / "root"), "folder": str(here), "config": config}
        values["gate"] = str(gate)
        killed = subprocess.Popen([sys.executable, "-c", _KILLED.format(**values)], stdout=subprocess.PIPE, text=True)
        try:
            assert killed.stdout is not None
            assert any("slow" in line for line in killed.stdout), "it is created as long as nobody opens the gate"
            killed.kill()
            killed.wait()
            folder = here.resolve()
            running = _terraforms(folder)
            assert set(running) == {"apply", "console"}
            # The console, which holds the lock, reads to the end of its input: that is still open in Terraform.
            assert os.readlink(f"/proc/{running['console']}/fd/0") in _open_files(running["apply"])
            assert double.locks
        except BaseException:
            for pid in _terraforms(here.resolve()).values():
                os.kill(pid, signal.SIGKILL)
            raise
        gate.write_text("")
        wait_for("the lock is released", lambda: not double.locks, state=lambda: _terraforms(folder))
        assert double.changes[-2:] == ["PUT", "UNLOCK"], "the state is written before"
        assert "slow" in str(double.objects)
        with there.terraform("http", config).hold_state():
            pass


def test_a_state_moves_to_a_new_backend_and_back_and_a_copy_is_kept_each_time(machine: Machine) -> None:
    machine.apply()
    with serving() as double:
        assert machine.apply("http", _http(double)) == 0
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
        machine.apply("http", _http(double))
        shutil.rmtree(machine.paths.terraform)
        assert machine.apply() == 0, "the state was found where it lay, and moved"
        assert machine.apply("http", _http(double)) == 0


def test_a_damaged_note_of_where_the_state_is_heals(machine: Machine) -> None:
    with serving() as double:
        machine.apply("http", _http(double))
        note = machine.paths.root / "backend.json"
        good = note.read_text()
        for content in ("", "{}", "[]", '{"backend": "http", "config": {}}', "\x00"):
            note.write_text(content)
            assert machine.terraform("http", _http(double)).addresses() == ADDRESSES
        assert machine.apply("http", _http(double)) == 0
        assert note.read_text() == good


def test_a_move_that_was_killed_after_the_copy_is_done_again(machine: Machine) -> None:
    machine.apply()
    before = {file: file.read_bytes() for file in (machine.paths.terraform_state, machine.paths.root / "backend.json")}
    with serving() as double:
        machine.apply("http", _http(double))
        for file, content in before.items():
            file.write_bytes(content)
        assert machine.apply("http", _http(double)) == 0


def test_a_move_that_fails_leaves_the_state_where_it_was(machine: Machine) -> None:
    machine.apply()
    with serving() as double:
        double.failing = True
        with pytest.raises(TerraformError) as caught:
            machine.apply("http", _http(double))
        assert "the state can't be read or written" in str(caught.value)
        assert machine.apply() == 0
        double.failing = False
        double.lock("/demo")
        with pytest.raises(LockedError, match="0a1b2c3d-held"):
            machine.apply("http", _http(double))
        double.locks.clear()
        assert machine.apply("http", _http(double)) == 0
    with pytest.raises(TerraformError, match="connection refused") as caught:
        machine.terraform("http", _http(double)).outputs()
    assert "gpucluster apply" in str(caught.value)


def test_what_an_apply_could_not_save_is_saved_by_the_next(machine: Machine) -> None:
    with serving() as double:
        machine.apply("http", _http(double))
        terraform = machine.terraform("http", _http(double))
        terraform.set_variables({"cluster_name": "demo", "reads": "/dev/null"})
        plan = terraform.plan()
        double.read_only = True
        with pytest.raises(TerraformError) as caught:
            terraform.apply(plan)
        assert "the state can't be read or written" in caught.value.what
        double.read_only = False
        assert "slow" not in str(double.objects)
        assert machine.apply("http", _http(double), reads="/dev/null") == 0
        assert "slow" in str(double.objects)
        assert machine.apply("http", _http(double), reads="/dev/null") == 0


def test_a_state_that_is_there_already_is_never_overwritten(machine: Machine, tmp_path: Path) -> None:
    machine.apply()
    with serving() as double:
        Machine(tmp_path / "there").apply("http", _http(double))
        kept = double.objects["/demo"]
        with pytest.raises(InputError, match="another one already, with 2 resources"):
            machine.apply("http", _http(double))
        assert double.objects["/demo"] == kept
        newer = {**json.loads(machine.paths.terraform_state.read_text()), "serial": 99, "outputs": {}}
        double.objects["/demo"] = json.dumps(newer).encode()
        with pytest.raises(InputError, match="a newer one of this cluster"):
            machine.apply("http", _http(double))
        assert machine.apply() == 0


def test_the_state_of_another_cluster_is_refused(machine: Machine, tmp_path: Path) -> None:
    with serving() as double:
        machine.apply("http", _http(double))
        with pytest.raises(InputError, match="belongs to the cluster demo, and not to other"):
            Machine(tmp_path / "there", "other").apply("http", _http(double))


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


def _s3(double: StateDouble) -> dict[str, Any]:
    return {"bucket": "states", "endpoint": double.url}


def test_a_state_in_s3_of_another_maker(machine: Machine) -> None:
    with serving(s3=True) as double:
        assert machine.apply("s3", _s3(double)) == 2
        assert list(double.objects) == ["/states/gpucluster/demo/terraform.tfstate"]
        assert machine.terraform("s3", _s3(double)).addresses() == ADDRESSES
        assert machine.apply("s3", _s3(double)) == 0
        trailing = [seen for seen in double.headers_seen if "x-amz-trailer" in seen or "aws-chunked" in str(seen)]
        assert not trailing, "Object Storage refuses these"


def test_oci_is_refused_by_a_terraform_that_is_too_old_before_anything_is_made(machine: Machine) -> None:
    terraform = machine.terraform("oci", {"bucket": "states", "namespace": "space"})
    terraform.prepare()
    with pytest.raises(EnvironmentFault, match=r"terraform 1\.11\.4 has no backend oci.*1\.12 is the first") as caught:
        terraform.init()
    assert caught.value.exit_code == 5
    assert "backend: s3" in caught.value.hint
    assert not (machine.paths.terraform / "cluster" / ".terraform").exists()


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
