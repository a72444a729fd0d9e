"""Stacks of a hung job: the real py-spy on real processes of another user, and the file in that user's home.

Not proven here: a process that holds a GPU (the fake /proc has links with such names), a control group of Slurm, and a
kernel with Yama.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpucluster.node_agent import accounts
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.watch import __main__ as watch
from gpucluster.node_agent.watch import flight_recorder, kept, stacks
from tests.node_agent.processes import LONG
from tests.waiting import PATIENCE_S, wait_for

PY_SPY = Path(sys.prefix, "bin/py-spy")
#: Each user may run this one; ours can be in a home.
PYTHON = "/usr/bin/python3"
UID = 65534
HUNG = kept.ObservedJob("12", "hung", 40.0, "rank 1 has launched 200 AllReduce operations, and others 220")
WAITS = (
    "import time\ndef waits_for_the_others():\n    print('x', flush=True)\n    time.sleep(600)\nwaits_for_the_others()"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="works for another user: needs root")


@contextlib.contextmanager
def rank(code: str = WAITS) -> Iterator[int]:
    """A process of the user."""
    started = subprocess.Popen(
        [PYTHON, "-c", code], stdout=subprocess.PIPE, user=UID, group=UID, extra_groups=[], cwd="/"
    )
    assert started.stdout is not None
    try:
        assert started.stdout.readline() == b"x\n"
        yield started.pid
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of the job's user."""
    folder = Path(tempfile.mkdtemp(prefix="stacks-", dir="/tmp"))
    os.chown(folder, UID, UID)
    (tmp_path / "12.json").write_text(json.dumps({"job_id": "12", "user": "alice"}))
    user = accounts.Account("alice", UID, UID, (UID,), str(folder))
    monkeypatch.setattr(accounts, "account", {"alice": user}.__getitem__)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def of_job(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of the job: without Slurm and GPUs nothing else shows them."""
    pids: list[int] = []
    monkeypatch.setattr(stacks, "processes", lambda _job, _first: pids)
    # py-spy takes milliseconds, and waits for a processor as long as it takes.
    monkeypatch.setattr(stacks, "_ONE_S", PATIENCE_S)
    monkeypatch.setattr(flight_recorder, "ASK_S", PATIENCE_S)
    return pids


@pytest.fixture(scope="module")
def py_spy() -> Iterator[str]:
    """py-spy where each user can run it: the checkout and its environment may be in a home."""
    if not PY_SPY.exists():
        pytest.skip(f"there is no {PY_SPY}")
    folder = Path(tempfile.mkdtemp(prefix="py-spy-", dir="/tmp"))
    folder.chmod(0o755)
    yield str(shutil.copy(PY_SPY, folder))
    shutil.rmtree(folder)


def take(folder: Path, program: str, seconds: float = LONG) -> str:
    return stacks.taken(HUNG, seconds, str(folder), program)


@as_root
def test_the_owner_gets_a_file_with_the_stacks(tmp_path: Path, home: Path, of_job: list[int], py_spy: str) -> None:
    with rank() as pid:
        of_job.append(pid)
        path = Path(take(tmp_path, py_spy))
    assert path.parent == home / "gpucluster-stacks"
    assert path.name.startswith("12-")
    state = path.stat()
    assert (state.st_uid, state.st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (UID, 0o600, 0o700)
    text = path.read_text()
    assert "rank 1 has launched 200 AllReduce" in text
    assert f"Process {pid}: " in text
    assert "waits_for_the_others (" in text


@as_root
def test_a_process_that_is_stopped_is_read_and_stays_stopped(
    tmp_path: Path, home: Path, of_job: list[int], py_spy: str
) -> None:
    with rank() as pid:
        of_job.append(pid)
        os.kill(pid, signal.SIGSTOP)
        stat = Path(f"/proc/{pid}/stat")
        wait_for("it is stopped", lambda: " T " in stat.read_text())
        assert "waits_for_the_others (" in Path(take(tmp_path, py_spy)).read_text()
        assert " T " in stat.read_text()


@as_root
def test_a_process_that_has_ended_is_named_beside_the_others(
    tmp_path: Path, home: Path, of_job: list[int], py_spy: str
) -> None:
    with rank() as gone:
        pass
    with rank() as pid:
        of_job += [gone, pid]
        text = Path(take(tmp_path, py_spy)).read_text()
    assert f"(process {gone}: Error: Failed to get process executable name." in text
    assert "waits_for_the_others (" in text


@as_root
@pytest.mark.parametrize("who", ["gone", "root's"])
def test_without_any_stack_there_is_no_file(
    tmp_path: Path, home: Path, of_job: list[int], py_spy: str, who: str
) -> None:
    with rank() as gone:
        pass
    of_job.append(gone if who == "gone" else os.getpid())
    with pytest.raises(Failed, match=r"^py-spy: (Error: Failed to get|Permission Denied)"):
        take(tmp_path, py_spy)
    assert list(home.iterdir()) == []


@as_root
def test_too_much_output_is_cut(tmp_path: Path, home: Path, of_job: list[int], py_spy: str) -> None:
    deep = "import sys, time\nsys.setrecursionlimit(9000)\ndef a_function_with_a_long_name(left):\n"
    deep += "    if left:\n        return a_function_with_a_long_name(left - 1)\n    print('x', flush=True)\n"
    deep += "    time.sleep(600)\na_function_with_a_long_name(3000)"
    with rank(deep) as pid:
        of_job.append(pid)
        of_job.append(pid)
        # One of them can be described as a whole: a process of another kind.
        with rank() as other:
            of_job.append(other)
            path = Path(take(tmp_path, py_spy))
    text = path.read_text()
    assert f"(process {pid}: py-spy printed more than 65536 bytes)" in text
    assert "waits_for_the_others (" in text
    assert len(text) < 3 * 70_000


@as_root
def test_a_program_that_does_not_end_is_ended(
    tmp_path: Path, home: Path, of_job: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A double of a py-spy whose process does not let it end.
    program = home / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "_ONE_S", 0.3)
    of_job += [1, 2]
    with pytest.raises(Failed, match=r"py-spy gave no answer within 0\.3 s"):
        take(tmp_path, str(program))


@as_root
def test_a_link_in_the_home_leads_only_where_the_user_may_go(
    tmp_path: Path, home: Path, of_job: list[int], py_spy: str
) -> None:
    secret = tmp_path / "roots"
    secret.mkdir(mode=0o700)
    (home / "gpucluster-stacks").symlink_to(secret)
    with rank() as pid:
        of_job.append(pid)
        with pytest.raises(Failed, match="Permission denied"):
            take(tmp_path, py_spy)
    assert list(secret.iterdir()) == []


@pytest.mark.parametrize("number", ["../12", "0", "", "12.json"])
def test_a_number_that_is_none_opens_no_file(tmp_path: Path, number: str) -> None:
    with pytest.raises(Failed, match="the number of the job is none"):
        stacks.taken(HUNG._replace(job_id=number), 30.0, str(tmp_path), "/usr/bin/py-spy")


def test_root_has_no_stacks(tmp_path: Path) -> None:
    (tmp_path / "12.json").write_text(json.dumps({"job_id": "12", "user": "root"}))
    with pytest.raises(AgentError, match="root has no jobs"):
        take(tmp_path, "/usr/bin/py-spy")


@pytest.mark.parametrize(("scope", "fault"), [("0", ""), ("1", r"ptrace_scope is 1 here"), ("3", "is 3 here")])
def test_yama_has_to_let_users_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, fault: str) -> None:
    (tmp_path / "scope").write_text(f"{scope}\n")
    if fault:
        (tmp_path / "12.json").write_text(json.dumps({"job_id": "12", "user": "alice"}))
        user = accounts.Account("alice", os.getuid(), os.getgid(), (os.getgid(),), str(tmp_path))
        monkeypatch.setattr(accounts, "account", lambda _name: user)
        monkeypatch.setattr(stacks, "processes", lambda _job, _first: [])
    monkeypatch.setattr(stacks, "YAMA", str(tmp_path / "scope"))
    with pytest.raises((Failed, FileNotFoundError), match=fault or "12"):
        take(tmp_path, "/usr/bin/py-spy")


@as_root
def test_only_a_program_that_root_alone_can_change_is_taken(tmp_path: Path) -> None:
    assert stacks.installed(["/usr/bin/env"]) == "/usr/bin/env"
    with pytest.raises(Failed, match=r"^py-spy is not installed$"):
        stacks.installed([str(tmp_path / "none")])
    # /tmp, above it, is for all users.
    own = tmp_path / "py-spy"
    own.write_text("")
    link = tmp_path / "link"
    link.symlink_to("/usr/bin/env")
    for path in (own, link):
        with pytest.raises(Failed, match=f"^others than root can change {path}$"):
            stacks.installed([str(path)])
    assert stacks.installed([str(own), "/usr/bin/env"]) == "/usr/bin/env"


def test_processes_of_the_job_with_a_gpu_are_chosen_and_the_named_one_is_first(tmp_path: Path) -> None:
    def process(pid: int, job: str, *files: str) -> None:
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0\n")
        for number, file in enumerate(files):
            (folder / str(number)).symlink_to(file)

    process(31, "12", "/dev/null", "/dev/nvidia0")
    process(32, "12", "/dev/nvidiactl", "/dev/nvidia-uvm")
    process(33, "12", "/dev/nvidia1")
    process(34, "13", "/dev/nvidia1")
    process(35, "12")
    (tmp_path / "self").mkdir()
    assert stacks.processes("12", 0, str(tmp_path)) == [31, 33]
    assert stacks.processes("12", 33, str(tmp_path)) == [33, 31]
    assert stacks.processes("12", 35, str(tmp_path)) == [35, 31, 33]
    # One of another job is not taken because it is named, and none of another user.
    assert stacks.processes("12", 34, str(tmp_path)) == [31, 33]
    assert stacks.processes("12", 33, str(tmp_path), os.getuid() + 1) == []


class Taken:
    """Lists which were taken."""

    def __init__(self) -> None:
        self.of: list[tuple[str, float]] = []
        self.fault: Exception | None = None
        self.now = 0.0

    def __call__(self, job: kept.ObservedJob, seconds: float) -> str:
        self.of.append((job.job_id, job.since))
        self.now += 30.0
        if self.fault:
            raise self.fault
        return "/home/alice/x"


def test_the_stacks_of_each_hang_are_taken_once_and_three_times_for_a_job() -> None:
    take_one = Taken()
    known = stacks.Stacks(take_one, lambda: 0.0)
    assert known.of([HUNG]) == known.of([HUNG]) == {"12": "/home/alice/x"}
    assert known.of([HUNG._replace(state="working")]) == {}
    for since in (50.0, 60.0, 70.0):
        known.of([HUNG._replace(since=since)])
    assert take_one.of == [("12", since) for since in (40.0, 50.0, 60.0)]
    known.of([])
    assert known.of([HUNG]) == {"12": "/home/alice/x"}


def test_one_look_ends_in_time_and_a_fault_is_told() -> None:
    take_one = Taken()
    known = stacks.Stacks(take_one, lambda: take_one.now)
    jobs = [HUNG._replace(job_id=number) for number in ("1", "2", "3")]
    assert known.of(jobs)["3"] == "none: those of other jobs took too long"
    take_one.fault = Failed("py-spy is not installed")
    assert known.of([HUNG._replace(job_id="4")]) == {"4": "none: py-spy is not installed"}
    take_one.fault = FileNotFoundError(2, "No such file or directory", "5.json")
    assert known.of([HUNG._replace(job_id="5")])["5"].startswith("none: ")


def test_stacks_are_taken_before_the_controller_hears_of_the_hang(tmp_path: Path) -> None:
    order: list[str] = []

    def send(text: str) -> bool:
        order.append(json.loads(text)["watched_jobs"]["jobs"][0]["stacks"])
        return True

    def stacks_of(jobs: Sequence[kept.ObservedJob]) -> dict[str, str]:
        order.append("taken")
        return {jobs[0].job_id: "/home/alice/x"}

    file = tmp_path / "jobs.json"
    reporter = watch.JobReporter(send, file, lambda: 100.0, "gpu-1", stacks_of)
    kept.write([HUNG], 100.0, file)
    reporter.look()
    assert order == ["taken", "/home/alice/x"]
