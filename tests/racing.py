"""Processes that do the same at the same moment: each gets ready, and begins when all are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from gpucluster.paths import import_root

#: Where a racer's program waits for the others: it has to import sys before.
GET_SET = "print('ready', flush=True); sys.stdin.readline()"


def race(program: str, arguments: Sequence[Sequence[str]]) -> list[str]:
    """Run a program of Python once for each list of arguments. Returns what each has printed after the start.

    Args:
        program: prints `ready`, and goes on when it gets a line (`GET_SET`).
    """
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, *each],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=import_root(),
                )
            )
            for each in arguments
        ]  # fmt: skip
        for each in racers:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in racers:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        printed = [each.communicate()[0] for each in racers]
        assert [each.returncode for each in racers] == [0] * len(racers)
    return printed
