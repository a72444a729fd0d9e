"""Makes measurements at the same time, each in a process of its own, and waits for none longer than its limit.

A process and not a thread: a file of the kernel can put its reader to sleep for good (a network device whose firmware
is gone), and a program with such a thread never ends. A process that does not end is left behind instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from gpucluster.node_agent import in_child
from gpucluster.node_agent.checks.model import Missing, RefusedMeasurement

# A measurement is smaller than this, in bytes; and a process gets so much time over its limit to report that it met it.
_MOST = 32 << 20
_GRACE_S = 0.3
# Seconds for which the end of a process is waited for.
_BURIAL_S = 0.1


class Task(NamedTuple):
    """One measurement: how it is made, and the seconds that it has."""

    measure: Callable[[float], object]
    seconds: float


def run(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """The values by name; `Missing` where there is none. The values are what JSON makes of them."""
    begin = time.monotonic()
    selector = selectors.DefaultSelector()
    open_pipes: dict[int, str] = {}
    pids: dict[int, int] = {}
    received: dict[str, bytearray] = {}
    for name, task in tasks.items():
        reader, pids_reader = _start(task)
        open_pipes[reader], pids[reader], received[name] = name, pids_reader, bytearray()
        selector.register(reader, selectors.EVENT_READ)
    values: dict[str, Any] = {}
    while open_pipes:
        now = time.monotonic() - begin
        for reader, name in list(open_pipes.items()):
            if now > tasks[name].seconds + _GRACE_S or len(received[name]) > _MOST:
                values[name] = Missing(f"{name} gave no answer within {tasks[name].seconds:g} s")
                _end_programs(pids[reader])
                _end(reader, pids.pop(reader), selector)
                del open_pipes[reader]
        for key, _events in selector.select(0.05) if open_pipes else ():
            data = os.read(key.fd, 1 << 16)
            name = open_pipes[key.fd]
            received[name] += data
            if not data:
                values[name] = _decoded(bytes(received[name]))
                _end(key.fd, pids.pop(key.fd), selector)
                del open_pipes[key.fd]
    selector.close()
    return values


def _start(task: Task) -> tuple[int, int]:
    """Start a process; returns the reading end of its pipe, and its number."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    status = 1
    try:
        os.setsid()
        os.close(reader)
        _leave_standard_files()
        # The end of a process that its parent no longer waits for.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, task.seconds + 1.0)
        value = task.measure(task.seconds)
        names = {Missing: "missing", RefusedMeasurement: "refused"}
        answer = (
            {names[type(value)]: value.reason} if isinstance(value, (Missing, RefusedMeasurement)) else {"value": value}
        )
        with open(writer, "wb") as stream:
            stream.write(json.dumps(answer).encode())
        status = 0
    finally:
        os._exit(status)


def _leave_standard_files() -> None:
    """Who started us waits for the end of our output: a process that is left behind must not hold it open."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _decoded(data: bytes) -> Any:
    try:
        answer = json.loads(data)
    except ValueError:
        return Missing("the measurement ended without an answer")
    if "refused" in answer:
        return RefusedMeasurement(answer["refused"])
    return Missing(answer["missing"]) if "missing" in answer else answer["value"]


def _end_programs(pid: int) -> None:
    """End the programs that a measurement waits for. Each leads a group of its own, and would outlive it: a tool that
    hangs would be there once more after each round of checks."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # it starts no other meanwhile
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
        for child in children:
            in_child.kill(child)


def _end(reader: int, pid: int, selector: selectors.BaseSelector) -> None:
    selector.unregister(reader)
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    in_child.reap(pid, _BURIAL_S)
