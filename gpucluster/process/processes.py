"""Processes of this machine, by their pid: what they are, and stopping them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from gpucluster.errors import EnvironmentFault
from gpucluster.paths import read_saved, write_private

_TOLD = 50  # remembered processes that got SIGINT


def identity(pid: int) -> str | None:
    """A name that no later process with the same pid has (boot id and start time); None if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    state, start_time = fields[0], fields[19]
    return None if state in ("Z", "X") else f"{boot}:{start_time}"


def pids_with_variable(variable: str, value: str) -> tuple[int, ...]:
    """The pids of processes with `variable=value` in their environment, such as those that a killed run left."""
    assignment = f"{variable}={value}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if assignment in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return tuple(sorted(pids))


def interrupt_once(pid: int, interrupts_file: Path) -> None:
    """Send SIGINT to a process, unless it got one from us before: a second one makes Terraform drop its state.

    Args:
        interrupts_file: the file that remembers the processes that got one, also those of an earlier run.
    """
    started = identity(pid)
    if started is None:
        return
    name = f"{pid}:{started}"
    try:
        before = read_saved(interrupts_file).split()
    except OSError:
        before = []
    if name not in before:
        with contextlib.suppress(EnvironmentFault):  # on a full disk it must end all the more
            write_private(interrupts_file, "\n".join([*before[-_TOLD:], name]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
