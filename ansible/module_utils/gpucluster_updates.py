"""Commands that also run where nothing else has changed: what they bring up to date is in databases, which other
commands change, too; and what they wait for may be gone at any time.

A task runs such a command (`gpucluster_update`), and notes it (`gpucluster_applied`). A later apply that finds every
host as it was repeats it from there (`gpucluster_unchanged`).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# A program of the distribution or of ours: none takes longer on the largest cluster.
TIMEOUT = 600
PAUSE = 1.0

UPDATE_SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "argv": {"type": "list", "elements": "str", "required": True},
    "stdin": {"type": "str", "default": ""},
    "environment": {"type": "dict", "default": {}},
    "every_line": {"type": "str", "default": ""},
    "later_lines": {"type": "list", "elements": "str", "default": []},
    "seconds": {"type": "int", "default": 0},
}


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Args:
        fault: why it is not as expected; empty if it is.
    """

    status: int
    stdout: str
    stderr: str
    fault: str

    @property
    def changed(self) -> bool:
        """Whether a program of gpucluster reports that it has changed something."""
        return '"changed": true' in self.stdout


def run(update: Mapping[str, Any], *, later: bool, patience: float) -> Outcome:
    """Run a command until it succeeds, and prints what is expected.

    Args:
        update: with the keys of UPDATE_SPEC.
        later: expect what a later look expects.
        patience: seconds after which a failure counts.
    """
    lines = update["later_lines"] if later else ()
    until = time.monotonic() + patience
    while True:
        outcome = _run(update, lines)
        if not outcome.fault or time.monotonic() >= until:
            return outcome
        time.sleep(PAUSE)


def _run(update: Mapping[str, Any], lines: Iterable[str]) -> Outcome:
    environment = {**os.environ, **update["environment"]}
    argv = update["argv"]
    try:
        done = subprocess.run(
            argv, input=update["stdin"], capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Outcome(-1, "", str(error), str(error))
    if done.returncode != 0:
        return Outcome(done.returncode, done.stdout, done.stderr, f"{argv[0]}: status {done.returncode}")
    return Outcome(0, done.stdout, done.stderr, unexpected(done.stdout, update["every_line"], lines))


def unexpected(stdout: str, every_line: str, lines: Iterable[str]) -> str:
    """What an output has that it should not have, or does not have that it should; empty if it is as expected.

    Args:
        every_line: a regular expression that is found in each line. lines: each begins a line.
    """
    printed = stdout.splitlines()
    for line in printed:
        if every_line and not re.search(every_line, line):
            return f"not as expected: {line}"
    for expected in lines:
        if not any(re.match(expected, line) for line in printed):
            return f"no line is like {expected}"
    return ""
