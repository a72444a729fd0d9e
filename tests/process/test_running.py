"""Starting other programs."""

from __future__ import annotations

import os
import signal
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


def test_input_of_any_size_arrives_although_we_look_whether_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucluster.process.running._STOP_POLL", 0.001)
    code = "import sys; print(len(sys.stdin.read()))"
    done = process.run([sys.executable, "-c", code], input="x" * (1 << 23), stop=threading.Event())
    assert done.stdout == f"{1 << 23}\n"
