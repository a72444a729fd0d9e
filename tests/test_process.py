"""Starting other programs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.errors import EnvironmentFault, ProcessError


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


def test_a_time_limit_ends_the_program() -> None:
    with pytest.raises(ProcessError, match=r"0\.2 s"):
        process.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def test_lines_come_as_they_are_written() -> None:
    seen: list[float] = []
    code = "import time\nfor i in range(2): print(i, flush=True); time.sleep(0.5)"
    process.stream([sys.executable, "-c", code], on_line=lambda _: seen.append(time.monotonic()))
    assert seen[1] - seen[0] > 0.3


def test_an_interruption_is_passed_on_once_and_raised_when_the_program_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        f"    open({str(log)!r}, 'a').write('stopped ')\n"
        "    time.sleep(0.3); sys.exit(1)\n"
        "signal.signal(signal.SIGINT, stop); print('ready', flush=True); time.sleep(60)"
    )
    main = threading.main_thread().ident
    assert main is not None

    def on_line(_: str) -> None:
        threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        process.stream([sys.executable, "-c", code], on_line=on_line)
    assert log.read_text() == "stopped "


def test_identity_tells_a_process_from_its_successor(tmp_path: Path) -> None:
    pid = process.spawn_daemon([sys.executable, "-c", "import time; time.sleep(30)"], log=tmp_path / "d.log")
    try:
        assert process.identity(pid) is not None
        assert process.identity(os.getpid()) != process.identity(pid)
        assert (tmp_path / "d.log").stat().st_mode & 0o777 == 0o600
    finally:
        assert process.end([pid], 5) == ()
    assert process.identity(pid) is None


def test_marked_finds_the_children_of_a_dead_run(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}"
    env = {**os.environ, "GPUCLUSTER_TEST_MARK": mark}
    pid = process.spawn_daemon([sys.executable, "-c", "import time; time.sleep(30)"], log=tmp_path / "d.log", env=env)
    try:
        assert process.pids_with_variable("GPUCLUSTER_TEST_MARK", mark) == (pid,)
        assert process.pids_with_variable("GPUCLUSTER_TEST_MARK", mark + "x") == ()
    finally:
        process.end([pid], 5)
