"""Dumps of PyTorch's flight recorder of a hung job: real pipes, and real processes of another user.

A double: the rank is a script that does with its pipe what ProcessGroupNCCL.cpp does (DumpPipe: unlink, mkfifo, open
without waiting, read), and DebugInfoWriter with its file. It does not prove that PyTorch still does so: that was seen
by hand with PyTorch 2.11. Not proven here either: Enroot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpucluster.node_agent import accounts
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.watch import flight_recorder, stacks
from tests.node_agent.processes import LONG
from tests.node_agent.watch.test_stacks import HUNG, PYTHON, UID, as_root, home, of_job, py_spy
from tests.waiting import PATIENCE_S

__all__ = ["home", "of_job", "py_spy"]

#: A process group of NCCL, as far as its pipe goes. Rank 3.
RANK = """
import os, select, signal
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "3.pipe"
if os.path.lexists(pipe):
    os.unlink(pipe)
os.mkfifo(pipe, 0o666)
descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
dump = os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", os.environ["HOME"] + "/.cache/torch/nccl_trace_rank_") + "3"
print("x", flush=True)
select.select([descriptor], [], [])
if os.read(descriptor, 128):
    with open(dump, "wb") as stream:
        stream.write(b"a dump")
signal.pause()
"""
#: What has the variables and no pipe: another library, or a recorder that is off.
SLEEPS = "import signal\nprint('x', flush=True)\nsignal.pause()"


@contextlib.contextmanager
def rank(environment: Mapping[str, str], code: str = RANK) -> Iterator[int]:
    """A process of the user with such an environment."""
    started = subprocess.Popen(
        [PYTHON, "-c", code], stdout=subprocess.PIPE, user=UID, group=UID, extra_groups=[], cwd="/",
        env={"PATH": "/usr/bin:/bin", **environment}, start_new_session=True,
    )  # fmt: skip
    assert started.stdout is not None
    try:
        assert started.stdout.readline() == b"x\n"
        yield started.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        started.stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the user, for pipes and dumps."""
    found = Path(tempfile.mkdtemp(prefix="recorder-", dir="/tmp"))
    os.chown(found, UID, UID)
    yield found
    shutil.rmtree(found)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank writes its dump when it gets a processor."""
    monkeypatch.setattr(flight_recorder, "WAIT_S", PATIENCE_S)


@pytest.fixture
def user(folder: Path) -> accounts.Account:
    return accounts.Account("alice", UID, UID, (UID,), str(folder))


def names(folder: Path) -> dict[str, str]:
    return {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/dump_",
        "HOME": str(folder),
    }  # fmt: skip


def asked(user: accounts.Account, *pids: int) -> bytes:
    return flight_recorder.ask_as(user, lambda: pids, PATIENCE_S)


def said(user: accounts.Account, *pids: int) -> str:
    found = asked(user, *pids)
    return flight_recorder.written_as(user, found, "") if found else ""


@as_root
def test_the_owner_reads_where_the_stacks_and_the_dump_are(
    tmp_path: Path, home: Path, of_job: list[int], py_spy: str, folder: Path
) -> None:
    with rank(names(folder)) as pid:
        of_job.append(pid)
        text = stacks.taken(HUNG, LONG, str(tmp_path), py_spy)
    path, _, more = text.partition("; ")
    assert more == f"flight recorder: {folder}/dump_3"
    dump = folder / "dump_3"
    assert (dump.read_bytes(), dump.stat().st_uid) == (b"a dump", UID)
    written = Path(path).read_text()
    assert "<module> (<string>:" in written
    assert written.endswith(f"Process {pid} (rank 3): its dump is {dump}\n")


@as_root
def test_a_dump_is_there_without_py_spy_too(
    tmp_path: Path, home: Path, of_job: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "PROGRAMS", ("/usr/bin/none-of-that-name",))
    monkeypatch.setattr(stacks.installed, "__defaults__", (("/usr/bin/none-of-that-name",),))
    with rank(names(folder)) as pid:
        of_job.append(pid)
        text = stacks.taken(HUNG, LONG, str(tmp_path))
    assert text == f"none: py-spy is not installed; flight recorder: {folder}/dump_3"


@as_root
def test_who_has_no_pipe_in_the_environment_is_not_asked(user: accounts.Account, folder: Path) -> None:
    # A pipe with such a name is open all the same: the program has set the variable itself.
    with rank(
        {"HOME": str(folder), "PYTHONUNBUFFERED": "1"}, f"import os\nos.environ.update({names(folder)})\n{RANK}"
    ) as pid:
        assert asked(user, pid) == b""
    assert not (folder / "dump_3").exists()


@as_root
def test_processes_that_a_rank_has_forked_are_no_ranks(user: accounts.Account, folder: Path) -> None:
    forks = RANK.replace("print(", "child = os.fork()\nif not child:\n    signal.pause()\nprint(child, ")
    forks = forks.replace('print(child, "x", flush=True)', 'print("x", flush=True)')
    with rank(names(folder), forks) as pid:
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        assert said(user, pid, child) == f"flight recorder: {folder}/dump_3"


@as_root
def test_an_old_dump_is_not_taken_for_a_new_one(
    user: accounts.Account, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "dump_3").write_text("of another job")
    os.chown(folder / "dump_3", UID, UID)
    monkeypatch.setattr(flight_recorder, "WAIT_S", 0.3)
    silent = RANK.replace("if os.read(descriptor, 128):", "if False:")
    with rank(names(folder), silent) as pid:
        assert said(user, pid) == "flight recorder: no dump (no answer in time)"
    monkeypatch.setattr(flight_recorder, "WAIT_S", PATIENCE_S)
    with rank(names(folder)) as pid:
        assert said(user, pid) == f"flight recorder: {folder}/dump_3"


@as_root
@pytest.mark.parametrize("where", [".cache/torch/comm_lib_trace_rank_", ".cache/torch/nccl_trace_rank_"])
def test_without_a_name_for_the_dump_it_is_where_releases_write_it(
    user: accounts.Account, folder: Path, where: str
) -> None:
    (folder / ".cache/torch").mkdir(parents=True)
    os.chown(folder / ".cache/torch", UID, UID)
    environment = {**names(folder), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": ""}
    code = RANK.replace('os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", ', "(").replace(
        ".cache/torch/nccl_trace_rank_", where
    )
    with rank(environment, code) as pid:
        assert said(user, pid) == f"flight recorder: {folder}/{where}3"


@as_root
def test_a_process_without_a_pipe_reports_why(user: accounts.Account, folder: Path) -> None:
    with rank(names(folder), SLEEPS) as pid:
        assert "no dump (it has no such pipe open: its recorder is off" in said(user, pid)


# --- what a user may have put there -----


def opened(what: str) -> str:
    """A process that has something else open under the name of its pipe."""
    return f"import os, time\nname = os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE'] + '3.pipe'\n{what}\n{SLEEPS}"


@as_root
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("held = open(name, 'w')", "not a named pipe of this user"),
        ("os.mkfifo(name)\nheld = os.open(name, os.O_PATH)", "its pipe can't be opened: No such device or address"),
        (
            "import fcntl\nos.mkfifo(name)\nheld = os.open(name, os.O_RDWR | os.O_NONBLOCK)\n"
            "fcntl.fcntl(held, 1031, 4096)\nos.write(held, b'x' * 4096)",
            "its pipe is full",
        ),
        ("os.mkdir(name)\nheld = os.open(name, os.O_RDONLY)", "not a named pipe of this user"),
        ("import socket\nheld = socket.socket(socket.AF_UNIX)\nheld.bind(name)", "no such pipe open"),
    ],
    ids=["file", "nobody reads", "full", "folder", "socket"],
)
def test_nothing_but_a_pipe_of_the_user_is_written_to(
    user: accounts.Account, folder: Path, what: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The watcher does not wait for a dump of one that was not asked: the test would not end.
    monkeypatch.setattr(flight_recorder, "WAIT_S", 6000.0)
    with rank(names(folder), opened(what)) as pid:
        assert why in said(user, pid)
    file = folder / "pipe_3.pipe"
    assert not file.is_file() or file.read_bytes() == b""


@as_root
def test_a_pipe_of_another_user_is_not_written_to(user: accounts.Account, folder: Path) -> None:
    """Root's, which all users may write to: a byte there would make something else happen."""
    (folder / "others").mkdir()
    pipe = folder / "others/pipe_3.pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        environment = {**names(folder), "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/others/pipe_"}
        with rank(environment, opened("held = os.open(name, os.O_RDWR | os.O_NONBLOCK)")) as pid:
            assert "not a named pipe of this user" in said(user, pid)
            with pytest.raises(BlockingIOError):
                os.read(reading, 1)
    finally:
        os.close(reading)


@as_root
def test_a_pipe_that_took_the_place_of_the_rank_s_is_left_alone(user: accounts.Account, folder: Path) -> None:
    """The one that the rank reads is written to, though its name leads elsewhere now."""
    with rank(names(folder)) as pid:
        (folder / "pipe_3.pipe").unlink()
        os.mkfifo(folder / "pipe_3.pipe")
        other = os.open(folder / "pipe_3.pipe", os.O_RDWR | os.O_NONBLOCK)
        try:
            assert said(user, pid) == f"flight recorder: {folder}/dump_3"
            with pytest.raises(BlockingIOError):
                os.read(other, 1)
        finally:
            os.close(other)


@as_root
def test_a_rank_with_mounts_of_its_own_is_asked_and_its_dump_is_found(user: accounts.Account, folder: Path) -> None:
    """As in a container: neither its pipe nor its dump is at these paths for us."""
    own = (
        f"mount -t tmpfs none {folder} && exec setpriv --reuid {UID} --regid {UID} --clear-groups {PYTHON} -c '{RANK}'"
    )
    started = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", own], stdout=subprocess.PIPE, env={"PATH": os.defpath, **names(folder)}
    )
    assert started.stdout is not None
    try:
        if started.stdout.readline() != b"x\n":
            pytest.skip("mounts are not allowed here")
        assert said(user, started.pid) == f"flight recorder: {folder}/dump_3"
        assert list(folder.iterdir()) == []
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


@as_root
def test_a_dump_is_only_a_plain_file(user: accounts.Account, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "WAIT_S", 0.3)
    links = RANK.replace('with open(dump, "wb") as stream:', 'os.path.lexists(dump) or os.symlink("/etc/passwd", dump)')
    links = links.replace('        stream.write(b"a dump")\n', "")
    with rank(names(folder), links) as pid:
        assert "no dump (no answer in time)" in said(user, pid)
    assert (folder / "dump_3").is_symlink()


@as_root
def test_processes_of_others_are_not_looked_at(user: accounts.Account, folder: Path) -> None:
    with subprocess.Popen(["/usr/bin/sleep", "600"], env=names(folder)) as other:
        try:
            assert asked(user, other.pid) == b""
        finally:
            other.kill()


@as_root
def test_who_does_not_answer_is_given_up(user: accounts.Account) -> None:
    def never() -> list[int]:
        signal.pause()
        return []

    with pytest.raises(Failed, match="no answer in time"):
        flight_recorder.ask_as(user, never, 0.3)


@as_root
def test_a_recorder_that_fails_takes_no_stacks_away(
    tmp_path: Path, home: Path, of_job: list[int], py_spy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise Failed("no answer in time")

    with rank(names(folder)) as pid:
        of_job.append(pid)
        monkeypatch.setattr(flight_recorder, "ask_as", fails)
        path, _, more = stacks.taken(HUNG, LONG, str(tmp_path), py_spy).partition("; ")
    assert Path(path).exists()
    assert more == "flight recorder: no answer in time"


def test_dumps_that_differ_in_the_rank_are_one_word() -> None:
    found = [flight_recorder.DumpRequest(pid, str(pid - 10), {}) for pid in (12, 11, 21, 13)]
    dumps = {12: "/x/rank_2", 11: "/x/rank_1", 21: "/x/rank_11", 13: "/y/3"}
    assert flight_recorder.words(found, dumps) == "flight recorder: /x/rank_{1,2,11} /y/3"
    assert flight_recorder.words([], {}) == ""


def test_an_environment_with_odd_lines_is_read_as_getenv_does(tmp_path: Path) -> None:
    (tmp_path / "environ").write_bytes(b"A=1\0A=2\0nothing\0\0B=x=y\0C=\xff\0")
    assert flight_recorder._environment(str(tmp_path / "environ")) == {"A": "1", "B": "x=y", "C": "\udcff"}


def test_names_that_are_too_long_are_refused(tmp_path: Path) -> None:
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "environ").write_text(f"{flight_recorder.PIPE}={'x' * 400}\0")
    (found,) = flight_recorder.ask([7], str(tmp_path))
    assert found.fault == "its environment has a path that is too long"
