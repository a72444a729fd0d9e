"""Programs that are shell scripts of a test: each notes its arguments, and does what the test wrote.

It does not prove what the program of that name prints, nor which arguments it accepts: tests with the real one do.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest


class Commands:
    """Scripts that are found before any other program.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")

    def add(self, name: str, script: str = "") -> None:
        """A program; without a script it prints nothing and succeeds."""
        file = self.folder / name
        notes = shlex.quote(str(self.folder / f"{name}.calls"))
        file.write_text(f'#!/bin/sh\nprintf "%s " "$@" >>{notes}; echo >>{notes}\n{script}\n')
        file.chmod(0o755)

    def prints(self, name: str, text: str, status: int = 0, errors: str = "") -> None:
        """A program that prints this, with this exit status."""
        printed = f"printf %s {shlex.quote(text)}; printf %s {shlex.quote(errors)} >&2; exit {status}"
        self.add(name, printed)

    def calls(self, name: str) -> list[str]:
        """The arguments of each call, in their order."""
        file = self.folder / f"{name}.calls"
        return [line.strip() for line in file.read_text().splitlines()] if file.exists() else []
