"""The job of an import, as a person, on a node."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import selectors
import subprocess
import time
from collections import deque
from typing import NamedTuple

from images.asker import say, somebody_waits
from images.errors import Gone

#: How often it looks whether anybody still waits for the answer, in seconds.
TICK = 1.0
#: After so many seconds without news it says that it is still there.
SILENCE = 60.0
#: For Slurm's commands; and for a job that was cancelled, which Slurm gives 30 s to end before it kills it.
PATIENCE = 60.0
LAST_WORDS = 6
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# The figures of mksquashfs, two dozen lines of them.
_FIGURES = re.compile(
    r"Parallel mksquashfs:|Creating \d|Exportable Squashfs|(un)?compressed |duplicates are|Filesystem size"
    r"|[\d.]+% of uncompressed|(Inode|Directory|Xattr|Fragment|Id) table|Number of |\w+ \(\d+\)$"
)


class Pool(NamedTuple):
    """Where a job can run. `exclude` names nodes of its partition that are not the pool's."""

    partition: str
    exclude: str
    cpus: int


class Job:
    """The job of an import. It is found by its name when whoever started it is gone."""

    def __init__(self, owner: pwd.struct_passwd, name: str) -> None:
        self._owner = owner
        self._name = f"gpucluster-image/{name}"
        self._search = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")

    def run(self, pool: Pool, command: list[str]) -> tuple[int, list[str]]:
        """Run a command on a node of a pool; its status, and its last words.

        Raises:
            Gone: nobody waits any more; the job is cancelled.
        """
        argv = [
            *("srun", f"--job-name={self._name}", f"--partition={pool.partition}", "--nodes=1", "--ntasks=1"),
            *([f"--exclude={pool.exclude}"] if pool.exclude else []),
            *(f"--cpus-per-task={pool.cpus}", "--chdir=/", "--input=none", "--mpi=none", "--quit-on-interrupt"),
            *command,
        ]
        owner = self._owner
        with subprocess.Popen(
            argv,
            cwd="/",
            env={
                "HOME": owner.pw_dir, "USER": owner.pw_name, "LOGNAME": owner.pw_name, "SHELL": "/bin/sh",
                "PATH": self._search, "LC_ALL": "C",
            },
            user=owner.pw_uid,
            group=owner.pw_gid,
            extra_groups=os.getgrouplist(owner.pw_name, owner.pw_gid),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child:  # fmt: skip
            try:
                words = _follow(child)
                return child.wait(), words
            except BaseException:
                self.cancel()
                child.terminate()
                assert child.stdout is not None
                child.stdout.close()  # or it would wait for us to read
                try:
                    child.wait(timeout=PATIENCE)
                except subprocess.TimeoutExpired:
                    child.kill()
                raise

    def cancel(self) -> None:
        """Cancel the person's jobs of this name, whoever started them."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["scancel", "--quiet", f"--user={self._owner.pw_name}", f"--name={self._name}"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                timeout=PATIENCE,
            )  # fmt: skip


def _follow(child: subprocess.Popen[bytes]) -> list[str]:
    """Tell what a program says until it has said all; the end of it."""
    assert child.stdout is not None
    last: deque[str] = deque(maxlen=LAST_WORDS)
    rest = b""
    begun = heard = time.monotonic()
    with selectors.DefaultSelector() as watch:
        watch.register(child.stdout, selectors.EVENT_READ)
        while True:
            ready = watch.select(TICK)
            if not somebody_waits():
                raise Gone
            if not ready:
                # Slurm says nothing while a node boots, nor Enroot while it downloads.
                if time.monotonic() - heard > SILENCE:
                    heard = time.monotonic()
                    say(f"still at it after {(heard - begun) / 60:.0f} min")
                continue
            heard = time.monotonic()
            chunk = os.read(child.stdout.fileno(), 65536)
            *lines, rest = re.split(rb"[\r\n]+", rest + chunk) if chunk else (rest, b"")
            for line in lines:
                words = shown_line(line.decode(errors="replace"))
                if words:
                    last.append(words)
                    say(words)
            if not chunk:
                return list(last)


def shown_line(line: str) -> str:
    """A line of a program, for people: no colours, no bars of progress, no figures, no end that nobody reads."""
    words = _COLOUR.sub("", line).strip()
    if _FIGURES.match(words) or re.match(r"\[[=|/\\ -]*[|/\\-][= ]*\]", words):
        return ""
    return "".join(char if char.isprintable() else "?" for char in words[:300])
