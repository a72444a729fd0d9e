"""The job of an import: a user's job on a node."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import time
from collections import deque
from typing import NamedTuple

from gpucluster.controller.images.requester import RequesterGone, is_waiting, report
from gpucluster.node_agent import programs
from gpucluster.node_agent.accounts import Account, environment
from gpucluster.node_agent.errors import Failed

#: How often it is checked whether the requester still waits, in seconds.
TICK = 1.0
#: After this time without output a line reports that the import still runs, in seconds.
SILENCE = 60.0
#: For Slurm's commands, and for a cancelled job: Slurm kills it 30 s after the cancel. In seconds.
COMMAND_SECONDS = 60.0
LAST_WORDS = 6
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# The statistics of mksquashfs, two dozen lines.
_FIGURES = re.compile(
    r"Parallel mksquashfs:|Creating \d|Exportable Squashfs|(un)?compressed |duplicates are|Filesystem size"
    r"|[\d.]+% of uncompressed|(Inode|Directory|Xattr|Fragment|Id) table|Number of |\w+ \(\d+\)$"
)


class ImportPool(NamedTuple):
    """Where a job can run. `exclude` names nodes of its partition that are not the pool's."""

    partition: str
    exclude: str
    cpus: int


class ImportJob:
    """The job of an import. Its name finds it when the process that started it is gone."""

    def __init__(self, owner: Account, name: str) -> None:
        self._owner = owner
        self._name = f"gpucluster-image/{name}"

    def run(self, pool: ImportPool, command: list[str]) -> tuple[int, list[str]]:
        """Run a command on a node of a pool; returns its status, and its last lines of output.

        Raises:
            RequesterGone: the requester has disconnected; the job is cancelled.
        """
        argv = [
            *("srun", f"--job-name={self._name}", f"--partition={pool.partition}", "--nodes=1", "--ntasks=1"),
            *([f"--exclude={pool.exclude}"] if pool.exclude else []),
            *(f"--cpus-per-task={pool.cpus}", "--chdir=/", "--input=none", "--mpi=none", "--quit-on-interrupt"),
            *command,
        ]
        owner = self._owner
        with programs.start(
            argv, environment=environment(owner), uid=owner.uid, gid=owner.gid, groups=owner.groups
        ) as child:
            try:
                words = _follow(child)
                return child.wait(), words
            except BaseException:
                self.cancel()
                programs.end(child, COMMAND_SECONDS)
                raise

    def cancel(self) -> None:
        """Cancel all jobs of the user with this name."""
        with contextlib.suppress(Failed):
            programs.call(
                ["scancel", "--quiet", f"--user={self._owner.name}", f"--name={self._name}"], seconds=COMMAND_SECONDS
            )


def _follow(child: programs.Running[bytes]) -> list[str]:
    """Report a program's output until its end; returns the last lines."""
    assert child.stdout is not None
    last: deque[str] = deque(maxlen=LAST_WORDS)
    rest = b""
    begun = heard = time.monotonic()
    with selectors.DefaultSelector() as watch:
        watch.register(child.stdout, selectors.EVENT_READ)
        while True:
            ready = watch.select(TICK)
            if not is_waiting():
                raise RequesterGone
            if not ready:
                # Slurm prints nothing while a node boots, and Enroot nothing while it downloads.
                if time.monotonic() - heard > SILENCE:
                    heard = time.monotonic()
                    report(f"still running after {(heard - begun) / 60:.0f} min")
                continue
            heard = time.monotonic()
            chunk = os.read(child.stdout.fileno(), 65536)
            *lines, rest = re.split(rb"[\r\n]+", rest + chunk) if chunk else (rest, b"")
            for line in lines:
                words = shown_line(line.decode(errors="replace"))
                if words:
                    last.append(words)
                    report(words)
            if not chunk:
                return list(last)


def shown_line(line: str) -> str:
    """A line of a program as it is reported: shortened, without colours; empty for progress bars and statistics."""
    words = _COLOUR.sub("", line).strip()
    if _FIGURES.match(words) or re.match(r"\[[=|/\\ -]*[|/\\-][= ]*\]", words):
        return ""
    return "".join(char if char.isprintable() else "?" for char in words[:300])
