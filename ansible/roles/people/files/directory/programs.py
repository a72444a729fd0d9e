"""The one door to other programs: words, never a shell, and never without a limit of time."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from directory.errors import Failed

SECONDS = 60.0
#: As shells have it: there is no such program.
MISSING = 127


def call(argv: Sequence[str], text: str = "", seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a program with this standard input; its exit status is the caller's matter.

    Raises:
        Failed: it did not end in time.
    """
    try:
        return subprocess.run(
            argv, input=text, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(argv), MISSING, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{argv[0]} did not answer within {seconds:.0f} s", "Try again") from error
