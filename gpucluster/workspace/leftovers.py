"""Programs that a killed run left: Terraform and Ansible with their children, which may still change the cloud.

A run marks the programs that it starts with a variable of ours in their environment; their children inherit it. By it
the next run finds them. It tells Terraform and Ansible to stop, once, and waits. Terraform's providers are never told:
one that stops in the middle of a request loses the OCID of what it creates. They end with their Terraform.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from gpucluster import process
from gpucluster.errors import ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.paths import ClusterPaths
from gpucluster.text import count
from gpucluster.waiting import wait_until

# Seconds to wait until Terraform, Ansible and their children have ended.
TIMEOUT = 120.0
# Seconds after which a provider is ended whose Terraform was killed: no process takes its answer any more.
_PROVIDER_TIMEOUT = 10.0
_POLL = 0.1
_ANNOUNCED = 15.0  # seconds between two events while we wait
VARIABLE = "GPUCLUSTER_CLUSTER"
# Terraform sets it for its plugins and for nothing else.
_PLUGIN_VARIABLE = "TF_PLUGIN_MAGIC_COOKIE"


def end(paths: ClusterPaths, on_event: Sink, *, timeout: float = TIMEOUT) -> None:
    """End what an earlier run of this cluster left.

    Args:
        timeout: seconds to wait.

    Raises:
        ToolError: something does not end.
    """
    marked = process.pids_with_variable(VARIABLE, str(paths.root))
    pids = tuple(pid for pid in marked if not _is_connection(pid))
    if not pids:
        return
    plugins = frozenset(pid for pid in pids if _has_variable(pid, _PLUGIN_VARIABLE))
    programs = {pid: name for pid in pids if pid not in plugins and (name := process.identity(pid))}
    if programs:
        what = f"{count(len(programs), 'program')} of an earlier run"
        warn(on_event, "leftovers", f"waiting for the end of {what}, which may still save its work")
        for pid in programs.keys() - _children_of(programs.keys()):
            if not _holds_lock(pid):
                process.interrupt_once(pid, paths.interrupts)
        stuck = _wait(programs, timeout, on_event)
        if stuck:
            raise ToolError(
                f"programs of an earlier run still work: {', '.join(_named(pid) for pid in stuck)}",
                hint="They save their work and end by themselves. Wait for that, then run the same command again",
            )
    left = {pid: name for pid in plugins if (name := process.identity(pid))}
    still = _wait(left, _PROVIDER_TIMEOUT if left else 0.0, on_event)
    for pid in still:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _wait(processes: Mapping[int, str], timeout: float, on_event: Sink) -> tuple[int, ...]:
    """Wait until processes have ended. Returns the pids of those that still run.

    Args:
        processes: the identity of each, by its pid.
    """
    began = announced = time.monotonic()

    def running() -> tuple[int, ...]:
        return tuple(pid for pid, name in processes.items() if process.identity(pid) == name)

    def ended() -> bool:
        nonlocal announced
        left = running()
        if left and time.monotonic() - announced >= _ANNOUNCED:
            announced = time.monotonic()
            names = ", ".join(map(_named, left))
            info(on_event, "leftovers", f"still waiting for {names}, {announced - began:.0f} s")
        return not left

    wait_until(ended, timeout, _POLL)
    return running()


def _named(pid: int) -> str:
    """Such as "terraform (pid 4711)"."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        name = "a program"
    return f"{name} (pid {pid})"


def _children_of(pids: Collection[int]) -> frozenset[int]:
    """Those of some processes whose parent is among them, too."""
    children = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in pids:
                children.add(pid)
    return frozenset(children)


def _holds_lock(pid: int) -> bool:
    """Whether a process is the console that holds the state's lock (see `terraform.lock`). It ends with the last
    Terraform of its run, and not before that has written the state."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[1:2] == [b"console"]


def _is_connection(pid: int) -> bool:
    """Whether a process is an open connection of ssh that Ansible shared (ControlPersist). It does nothing by itself,
    and outlives each run by a minute."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ssh: ")
    except OSError:
        return False


def _has_variable(pid: int, variable: str) -> bool:
    """Whether a process was started with a variable in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in environment.split(b"\0"))
