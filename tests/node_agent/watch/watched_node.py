"""A node whose jobs are watched: its files, its processes, and doubles of nvidia-smi and of the RAS port."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SLEEPS = "import signal; signal.pause()"
SPINS = "while True: pass"


@dataclass
class Node:
    """A node whose GPUs report what a test sets."""

    folder: Path

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    def job(self, number: str, gpus: Sequence[int]) -> None:
        self.jobs.mkdir(exist_ok=True)
        content = {"version": 1, "job_id": number, "user": "alice", "gpus": [str(gpu) for gpu in gpus]}
        (self.jobs / f"{number}.json").write_text(json.dumps(content))

    def gpus(self, *rows: str) -> None:
        (self.folder / "gpus").write_text("".join(f"{row}\n" for row in rows))

    def holders(self, *rows: str) -> None:
        (self.folder / "holders").write_text("".join(f"{row}\n" for row in rows))

    @property
    def asked(self) -> list[str]:
        """What nvidia-smi was asked for."""
        file = self.folder / "asked"
        return file.read_text().split() if file.exists() else []


def row(number: int, power: str = "120.00", use: int = 100, memory: int = 0) -> str:
    return f"{number}, GPU-{number}, {use}, {memory}, {power}, 700.00"


@contextlib.contextmanager
def program(code: str) -> Iterator[int]:
    """A process of a job."""
    started = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield started.pid
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
