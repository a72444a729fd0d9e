"""The lock and the run log."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from gpucluster.errors import (
    DataGuardError,
    EnvironmentFault,
    GpuClusterError,
    InputError,
    LockedError,
    PreflightError,
    ReplacementError,
    ToolError,
)
from gpucluster.events import Event, ignore
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.workspace.run import run
from gpucluster.workspace.run_log import MAX_RUNS, RunLog, RunStatus, holder, lock, read_runs, records

HOLDER = """
import sys
from pathlib import Path
from gpucluster.workspace.run_log import lock
from gpucluster.paths import ClusterPaths
with lock(ClusterPaths(Path(sys.argv[1])), "apply"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path / ".gpucluster")
    made.create()
    return made


def test_the_second_is_refused_with_the_first_ones_pid_host_and_age_and_a_dead_holder_heals(
    paths: ClusterPaths,
) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(paths.root)], stdin=PIPE, stdout=PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        held = json.loads(paths.lock.read_text())
        paths.lock.write_text(json.dumps({**held, "since": held["since"] - 7300}))
        with pytest.raises(LockedError) as caught, lock(paths, "destroy"):
            pass
        text = str(caught.value)
        assert f"pid {holder.pid}" in text
        assert os.uname().nodename in text
        assert "gpucluster apply" in text
        assert "for 2 h" in text
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with lock(paths, "destroy"):
        pass


def test_a_run_holds_the_cluster_though_its_folder_is_deleted(paths: ClusterPaths) -> None:
    with lock(paths, "apply"):
        shutil.rmtree(paths.root)
        paths.create()
        with pytest.raises(LockedError), lock(paths, "destroy"):
            pytest.fail("two runs at once")
    with lock(paths, "destroy"):
        pass


def test_where_a_folder_cannot_be_locked_its_file_is(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS does it: flock needs a descriptor that can be written."""
    real = fcntl.flock

    def nfs(descriptor: int, operation: int) -> None:
        if os.fstat(descriptor).st_mode & stat.S_IFDIR:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", nfs)
    with lock(paths, "apply"), pytest.raises(LockedError, match="gpucluster apply"), lock(paths, "destroy"):
        pytest.fail("two runs at once")


def test_folders_and_files_are_private(paths: ClusterPaths) -> None:
    assert paths.root.stat().st_mode & 0o777 == 0o700
    write_private(paths.root / "x", "secret")
    assert (paths.root / "x").stat().st_mode & 0o777 == 0o600
    shutil.rmtree(paths.root)  # during a run
    write_private(paths.ssh / "config", "secret")
    assert [folder.stat().st_mode & 0o777 for folder in (paths.root, paths.ssh)] == [0o700, 0o700]


def test_a_write_that_fails_leaves_the_old_file(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    file = paths.root / "x"
    write_private(file, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        write_private(file, "new")
    assert file.read_text() == "old"
    assert [entry.name for entry in paths.root.iterdir() if entry.name.startswith(".x")] == []


def test_a_log_without_an_end_is_a_run_that_was_killed_unless_that_run_holds_the_lock(paths: ClusterPaths) -> None:
    with lock(paths, "apply"):
        RunLog(paths, "apply").enter("terraform")
        runs = read_runs(paths)
        assert runs.running is not None
        assert (runs.running["pid"], runs.running["command"]) == (os.getpid(), "apply")
        assert runs.last is not None
        assert runs.last["status"] == RunStatus.RUNNING
    runs = read_runs(paths)
    assert runs.running is None
    assert runs.last is not None
    assert (runs.last["status"], runs.last["phase"]) == (RunStatus.KILLED, "terraform")


def test_the_run_that_holds_the_lock_is_not_an_earlier_one_that_was_killed(paths: ClusterPaths) -> None:
    RunLog(paths, "apply")
    holding = subprocess.Popen([sys.executable, "-c", HOLDER, str(paths.root)], stdin=PIPE, stdout=PIPE)
    try:
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"held\n"
        runs = read_runs(paths)
        assert runs.running is not None
        assert runs.running["pid"] == holding.pid
        assert runs.last is not None
        assert runs.last["status"] == RunStatus.KILLED
    finally:
        holding.kill()
        holding.communicate()
    assert holder(paths) is None


def test_to_ask_for_the_holder_does_not_take_the_lock_from_a_run(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lock(paths, "apply"):
        pass
    with paths.lock.open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        real, refused = fcntl.flock, []

        def asked_until_refused(descriptor: int, operation: int) -> None:
            try:
                real(descriptor, operation)
            except BlockingIOError:
                refused.append(descriptor)
                asking.close()
                raise

        monkeypatch.setattr(fcntl, "flock", asked_until_refused)
        with lock(paths, "apply"):
            assert holder(paths)
    assert len(refused) == 2  # the run, and who asks for its holder


def test_a_plan_does_not_hide_the_last_change(paths: ClusterPaths) -> None:
    RunLog(paths, "apply").close(RunStatus.FAILED)
    log = sorted(paths.runs.glob("*.json"))[0]
    log.rename(paths.runs / "20200101T000000-000000.json")
    RunLog(paths, "plan").close(RunStatus.SUCCESS)
    runs = read_runs(paths)
    assert runs.last is not None
    assert runs.last_change is not None
    assert (runs.last["command"], runs.last_change["command"]) == ("plan", "apply")


@pytest.mark.parametrize("phase", ["", "terraform", "hosts", "ansible"])
@pytest.mark.parametrize("error", [InputError, DataGuardError, ReplacementError, PreflightError, ToolError])
def test_what_was_refused_before_it_changed_anything_is_not_a_change(
    paths: ClusterPaths, error: type[GpuClusterError], phase: str
) -> None:
    RunLog(paths, "apply").close(RunStatus.SUCCESS)
    next(paths.runs.glob("*.json")).rename(paths.runs / "20200101T000000-000000.json")

    def refuse() -> None:
        with run("restore", paths, ignore) as this:
            with this.phase(phase or "cloud"):
                pass
            raise error("no such file")

    with pytest.raises(error):
        refuse()
    runs = read_runs(paths)
    assert runs.last is not None
    assert runs.last_change is not None
    refused = error is not ToolError and phase in ("", "terraform")
    assert runs.last["status"] == ("refused" if refused else "failed")
    assert runs.last_change["command"] == ("apply" if refused else "restore")


def test_runs_that_begin_in_the_same_second_stay_in_their_order(paths: ClusterPaths) -> None:
    commands = [f"command-{number}" for number in range(10)]
    for command in commands:
        RunLog(paths, command).close(RunStatus.SUCCESS)
    assert [record["command"] for record in records(paths)] == commands[::-1]


def test_many_plans_do_not_push_the_last_change_out_of_the_log(paths: ClusterPaths) -> None:
    RunLog(paths, "apply").close(RunStatus.SUCCESS)
    for _ in range(MAX_RUNS + 1):
        RunLog(paths, "plan").close(RunStatus.SUCCESS)
    runs = read_runs(paths)
    assert runs.last_change is not None
    assert runs.last_change["command"] == "apply"


def test_the_run_log_is_bounded(paths: ClusterPaths) -> None:
    for _ in range(MAX_RUNS + 5):
        RunLog(paths, "status").close(RunStatus.SUCCESS)
    assert len(list(paths.runs.glob("*.json"))) == MAX_RUNS
    assert json.loads(next(paths.runs.glob("*.json")).read_text())["command"] == "status"


def test_a_phase_begins_with_what_it_took_in_the_last_run_that_succeeded(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path)
    events: list[Event] = []
    for command, good in (("apply", True), ("apply", False), ("plan", True), ("apply", True)):
        with suppress(InputError), run(command, paths, events.append) as this:
            with this.phase("terraform"):
                pass
            this.phases["terraform"] = {"apply": 12.0, "plan": 3.0}[command] + (0 if good else 100)
            if not good:
                raise InputError("wrong")
    first, *_, last = [each for each in events if each.status == "started"]
    assert (dict(first.data), dict(last.data)) == ({}, {"last": 12.0})


def test_a_phase_begins_with_the_tasks_of_the_last_run_that_had_some(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path)
    events: list[Event] = []
    for tasks, took in ((120, 60.0), (0, 2.0), (0, 3.0)):
        with run("apply", paths, events.append) as this:
            with this.phase("ansible"):
                pass
            this.phases["ansible"] = took
            this.tasks |= {"ansible": tasks} if tasks else {}
    begun = [dict(each.data) for each in events if each.status == "started"]
    tasks_of_first = {"number": 120, "seconds": 60.0}
    assert begun == [{}, {"last": 60.0, "tasks": tasks_of_first}, {"last": 2.0, "tasks": tasks_of_first}]
