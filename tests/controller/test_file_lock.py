"""Locks that at most one process holds: another process has one here, and gives it back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpucluster.controller import file_lock
from tests.waiting import PATIENCE_S

HOLDER = """\
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_lock_of_another_process_is_awaited_and_is_free_when_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    argv = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with path.open("w") as file:
            assert not file_lock.acquire(file.fileno())
            assert not file_lock.acquire(file.fileno(), 0.1)
            holder.stdin.write("end\n")
            holder.stdin.flush()
            assert file_lock.acquire(file.fileno(), PATIENCE_S)
            # It is ours already.
            assert file_lock.acquire(file.fileno())
