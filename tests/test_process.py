"""Starting other programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.errors import EnvironmentFault, ProcessError
from tests.waiting import wait_for


def test_arguments_reach_the_program_unread_by_any_shell() -> None:
    odd = ["$(id)", "a b", "*", "';--"]
    done = process.run([sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd])
    assert done.stdout.strip() == repr(odd)


def test_a_failure_carries_status_and_words() -> None:
    with pytest.raises(ProcessError) as caught:
        process.run([sys.executable, "-c", "import sys; sys.exit('no luck')"])
    assert caught.value.returncode == 1
    assert "no luck" in str(caught.value)


def test_a_missing_program_is_an_environment_fault() -> None:
    with pytest.raises(EnvironmentFault, match="no-such-program"):
        process.run(["no-such-program"])


def test_a_program_that_can_not_be_started_is_an_environment_fault(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("")
    with pytest.raises(EnvironmentFault, match="can't be started: Permission denied"):
        process.run([str(tmp_path / "program")])


@pytest.mark.parametrize("ours", [0o000, 0o077])
def test_the_caller_s_umask_does_not_reach_programs(tmp_path: Path, ours: int) -> None:
    umask = [sys.executable, "-c", "import os; print(oct(os.umask(0)))"]
    before = os.umask(ours)
    try:
        seen = [process.run(umask).stdout, process.stream(umask, on_line=lambda _: None).stdout]
        process.spawn_daemon(umask, log=tmp_path / "log")
        with process.in_memory("test") as output:
            protected = process.follow(
                umask, output=output, errors=output, on_line=lambda _: None, on_stop=lambda _: None,
                interrupts_file=tmp_path / "told", env={}, cwd=tmp_path,
            )  # fmt: skip
    finally:
        os.umask(before)
    wait_for("the daemon writes its umask", (tmp_path / "log").read_text)
    assert {*seen, (tmp_path / "log").read_text()} == {"0o22\n"}
    assert protected.stdout == "0o77\n"


def test_a_time_limit_ends_the_program() -> None:
    with pytest.raises(ProcessError, match=r"0\.2 s"):
        process.run(["sleep", "600"], timeout=0.2)


def test_lines_come_as_they_are_written(tmp_path: Path) -> None:
    """A program that waits for an answer to its first line gets it."""
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    seen: list[str] = []

    def on_line(line: str) -> None:
        seen.append(line)
        if len(seen) == 1:
            answer.write_text("second")

    process.stream(["sh", "-c", f"echo first; cat {answer}"], on_line=on_line)
    assert seen == ["first", "second"]


def test_an_interruption_is_passed_on_once_and_raised_when_the_program_has_ended(tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    os.mkfifo(go)
    # It ends when it may, and not at the signal. One more signal would be written down as well.
    code = (
        "import signal\n"
        "def write(word): print(word, end=' ', file=log, flush=True)\n"
        f"log = open({str(log)!r}, 'a')\n"
        "signal.signal(signal.SIGINT, lambda *_: write('stopped')); print('ready', flush=True)\n"
        f"open({str(go)!r}).read(); write('ended')"
    )
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_twice() -> None:
        try:
            signal.pthread_kill(main, signal.SIGINT)
            wait_for("the program is told", lambda: log.read_text() == "stopped ")
            signal.pthread_kill(main, signal.SIGINT)
        finally:
            go.write_text("")

    def on_line(_: str) -> None:
        aside.submit(interrupt_twice)

    with pytest.raises(KeyboardInterrupt), ThreadPoolExecutor(1) as aside:
        process.stream([sys.executable, "-c", code], on_line=on_line)
    assert log.read_text() == "stopped ended "


def test_identity_tells_a_process_from_its_successor(tmp_path: Path) -> None:
    pid = process.spawn_daemon(["sleep", "600"], log=tmp_path / "d.log")
    try:
        assert process.identity(pid) is not None
        assert process.identity(os.getpid()) != process.identity(pid)
        assert (tmp_path / "d.log").stat().st_mode & 0o777 == 0o600
    finally:
        os.kill(pid, signal.SIGINT)
    wait_for("the program ends", lambda: process.identity(pid) is None)


def test_marked_finds_the_children_of_a_dead_run(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}"
    env = {**os.environ, "GPUCLUSTER_TEST_MARK": mark}
    pid = process.spawn_daemon(["sleep", "600"], log=tmp_path / "d.log", env=env)
    try:
        assert process.pids_with_variable("GPUCLUSTER_TEST_MARK", mark) == (pid,)
        assert process.pids_with_variable("GPUCLUSTER_TEST_MARK", mark + "x") == ()
    finally:
        os.kill(pid, signal.SIGINT)


# Programs that must come to their own end

# Reports "ready", counts what it gets of SIGINT, and comes to its end when a test lets it: `_let_go`.
_CAREFUL = """
import signal
told = 0
def stop(*_):
    global told
    told += 1
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
open("go").read()
print(f"saved after {told} signals", flush=True)
"""
# Follows the program above, in a process that is killed; `sys.argv` has the file and the folder.
_FOLLOWER = f"""
import sys
from pathlib import Path
from gpucluster import process
with open(sys.argv[1], "w+b", buffering=0) as output:
    process.follow(
        [sys.executable, "-c", {_CAREFUL!r}], output=output, errors=output,
        on_line=lambda line: print(line, flush=True),
        on_stop=lambda number: print("stop", number, flush=True), interrupts_file=Path(sys.argv[2]) / "told",
        env={{"PROGRAM_OF_A_TEST": sys.argv[2]}}, cwd=Path(sys.argv[2]),
    )
"""


def _follower(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """One that follows, when its program is ready."""
    output = folder / "output"
    os.mkfifo(folder / "go")
    argv = [sys.executable, "-c", _FOLLOWER, str(output), str(folder)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child, output


def _let_go(folder: Path) -> None:
    (folder / "go").write_text("")


def test_a_program_writes_on_when_we_are_killed(tmp_path: Path) -> None:
    with _follower(tmp_path)[0] as child:
        child.kill()
    (pid,) = process.pids_with_variable("PROGRAM_OF_A_TEST", str(tmp_path))
    process.interrupt_once(pid, tmp_path / "told")
    _let_go(tmp_path)
    wait_for("the program ends", lambda: process.identity(pid) is None)
    assert (tmp_path / "output").read_text() == "ready\nsaved after 1 signals\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_stop_signal_is_passed_on_once_and_the_program_ends_by_itself(tmp_path: Path, number: int) -> None:
    child, output = _follower(tmp_path)
    with child:
        assert child.stdout is not None
        child.send_signal(number)
        assert child.stdout.readline() == "stop 1\n"
        child.send_signal(number)
        assert child.stdout.readline() == "stop 2\n"
        _let_go(tmp_path)
        said = child.stdout.read()
    assert said.startswith("saved after 1 signals\n"), said
    assert "KeyboardInterrupt" in said
    assert output.read_text() == "ready\nsaved after 1 signals\n"


def test_a_program_that_was_told_to_stop_is_not_told_again_by_the_next_run(tmp_path: Path) -> None:
    child, output = _follower(tmp_path)
    with child:
        assert child.stdout is not None
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "stop 1\n"
        child.kill()
    (pid,) = process.pids_with_variable("PROGRAM_OF_A_TEST", str(tmp_path))
    process.interrupt_once(pid, tmp_path / "told")
    _let_go(tmp_path)
    wait_for("the program ends", lambda: process.identity(pid) is None)
    assert output.read_text() == "ready\nsaved after 1 signals\n"


def test_an_error_of_ours_waits_for_the_program(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")

    def let_go() -> None:
        wait_for("the program is told", (tmp_path / "told").exists)
        _let_go(tmp_path)

    def fail(_line: str) -> None:
        threading.Thread(target=let_go, daemon=True).start()
        raise OSError("the terminal is gone")

    with process.in_memory("test") as output, pytest.raises(OSError, match="terminal"):
        process.follow(
            [sys.executable, "-c", _CAREFUL],
            output=output, errors=output, on_line=fail, on_stop=lambda _: None, interrupts_file=tmp_path / "told",
            env={}, cwd=tmp_path,
        )  # fmt: skip
    assert process.identity(int((tmp_path / "told").read_text().partition(":")[0])) is None
