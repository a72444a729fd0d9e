"""The lock of a state, with the real Terraform: who holds it, since when, and that no killed run leaves it."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import InputError, LockedError
from gpucluster.terraform import lock
from tests.terraform.small_root import ADDRESSES, Machine, http_config, s3_config
from tests.terraform.state_doubles import serving
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_root")]


def test_two_machines_at_once_the_second_is_told_what_to_type_and_it_works(machine: Machine) -> None:
    with serving() as double:
        machine.apply("http", http_config(double))
        double.lock("/demo")
        with pytest.raises(LockedError, match="0a1b2c3d-held") as caught:
            machine.apply("http", http_config(double))
        assert caught.value.exit_code == 4
        assert caught.value.hint.endswith("gpucluster state unlock 0a1b2c3d-held")
        assert " ago) (lock 0a1b2c3d-held)" in caught.value.what
        terraform = machine.terraform("http", http_config(double))
        with pytest.raises(InputError, match="not the lock that is held"):
            terraform.unlock_state("another")
        assert double.locks
        removed = terraform.unlock_state("0a1b2c3d-held")
        assert "0a1b2c3d-held" in removed
        with pytest.raises(InputError, match="no run holds"):
            terraform.unlock_state("0a1b2c3d-held")
        assert machine.apply("http", http_config(double)) == 0


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
        # Not before its command is started: a stop in between would not reach that.
        assert any("Executing" in line for line in other.stdout)
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
        config = http_config(double) if kind == "http" else {**s3_config(double), "use_lockfile": True}
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
            assert "gpucluster state unlock" in said
            assert re.search(r"\(\d+ (s|min|min \d+ s) ago\)", said)
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
        config = http_config(double) if kind == "http" else {**s3_config(double), "use_lockfile": True}
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
from tests.terraform.small_root import Machine

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
        config = http_config(double) if kind == "http" else {**s3_config(double), "use_lockfile": True}
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
from tests.terraform.small_root import Machine
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
        config = http_config(double)
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
