"""Questions without an answer do not keep a command from ending."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import PATIENCE_S

# The SDK and our own listings work with such threads, for which Python waits before it ends.
HANGING = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from gpucluster.cli import main
from gpucluster.operations.inquiry import Inquiry
def ask():
    with ThreadPoolExecutor() as workers:
        return list(workers.map(time.sleep, [300, 300]))
print(Inquiry(ask).answer(time.monotonic() + 0.1).error)
sys.argv = ["gpucluster", *sys.argv[1:]]
main()
"""


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", HANGING, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_command_ends_with_its_output_and_exit_code_though_a_thread_still_waits() -> None:
    done = _run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("no answer in time\n")
    assert "gpucluster" in done.stdout
    assert _run("nonsense").returncode == 2
