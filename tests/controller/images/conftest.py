"""Fixtures that several tests of this folder use."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.images.image_site import Controller


@pytest.fixture
def controller() -> Iterator[Controller]:
    # Another account writes below it, and pytest's folders are root's alone.
    with tempfile.TemporaryDirectory(prefix="gpucluster-test-images-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = Controller(folder)
        yield made
        # What a real scancel would have ended.
        for pid in map(int, made.told("srun.pids").split()):
            with contextlib.suppress(OSError):
                if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
