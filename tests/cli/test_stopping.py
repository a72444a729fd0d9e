"""How commands end at a stop signal: the same exit code for each, also when the terminal is gone."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
import textwrap
from pathlib import Path

import pytest

# A command of the tests: a run that works until it is stopped, and then still reports something. It waits in short
# steps, as the commands do: a signal that arrives in the microsecond before a system call waits for the call's end.
_COMMAND = """
    import sys, threading
    from pathlib import Path
    from gpucluster.cli import main
    from gpucluster.cli.base import command, reporting
    from gpucluster.events import warn
    from gpucluster.paths import ClusterPaths
    from gpucluster.workspace import run as runs

    @command("work")
    def work(context):
        with reporting(context) as reporter, runs.run("work", ClusterPaths(Path(FOLDER)), reporter) as run:
            with run.phase("working"):
                warn(reporter, "test", "ready")
                try:
                    for _ in range(12000):
                        threading.Event().wait(0.05)
                finally:
                    for _ in range(100):
                        warn(reporter, "test", "what is left to do")
    sys.argv[1:] = ["work"]
    main()
"""


def _work(folder: Path) -> tuple[int, int]:
    """The pid of the command, on a terminal of its own, and the other side of that terminal."""
    code = textwrap.dedent(_COMMAND).replace("FOLDER", repr(str(folder)))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    return pid, terminal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_a_stop_signal_or_a_lost_terminal_ends_a_run_in_order(tmp_path: Path, number: signal.Signals | None) -> None:
    pid, terminal = _work(tmp_path / "state")
    if number is None:
        os.close(terminal)
    else:
        os.kill(pid, number)
        _read_all(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    (log,) = (tmp_path / "state" / "runs").glob("*.json")
    assert json.loads(log.read_text())["status"] == "interrupted"


def test_nohup_keeps_a_run_alive(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        pid, terminal = _work(tmp_path / "state")
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGTERM)
    said = _read_all(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"was interrupted" in said


def _read_all(terminal: int) -> bytes:
    said = b""
    try:
        while chunk := os.read(terminal, 1000):
            said += chunk
    except OSError:  # the other side is closed
        pass
    os.close(terminal)
    return said
