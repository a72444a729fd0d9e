"""How often this machine's kernel saw some events while a block ran: what a command costs that no program tells.

syncs  calls that wait for a disk (fsync, fdatasync, syncfs), of every program and container.
files  calls that may create a file (openat with O_CREAT), as above. A file that is opened again counts again.
ssh    starts of ssh: a command on a host or a file for one, over a connection that stays open. With pipelining a task
       of Ansible is one.

Counted by the kernel's tracing, in an instance of its own, so another trace on this machine goes on. Everything that
runs meanwhile counts: the numbers are of use on a quiet machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_TRACING = Path("/sys/kernel/tracing")
#: Kilobytes for each processor: 100 bytes for an event; a first apply has some ten thousand.
_BUFFER = 32_768
#: What is counted -> events, as the kernel's folders and as its trace name them, with a filter.
#: https://docs.kernel.org/trace/events.html
_EVENTS: Mapping[str, Mapping[tuple[str, str], str]] = {
    "syncs": {(f"syscalls/sys_enter_{call}", f"sys_{call}"): "" for call in ("fsync", "fdatasync", "syncfs")},
    "files": {("syscalls/sys_enter_openat", "sys_openat"): "flags & 0x40"},
    "ssh": {("sched/sched_process_exec", "sched_process_exec"): 'filename ~ "*/ssh"'},
}
_EVENT = re.compile(r"^ *\S.*-\d+ +\[\d+\] \S+ +[\d.]+: (\w+)[:(]", re.MULTILINE)
_LOST = re.compile(r"^overrun: [1-9]", re.MULTILINE)


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """A block; its counts are in the dict at its end. The dict stays empty where the kernel can't count.

    Raises:
        RuntimeError: there were more events than the kernel keeps, so the counts would be too small.
    """
    found: dict[str, int] = {}
    if not (_TRACING / "instances").exists():
        subprocess.run(("mount", "-t", "tracefs", "tracefs", _TRACING), check=False, stderr=subprocess.DEVNULL)
    conditions = {folder: condition for events in _EVENTS.values() for (folder, _), condition in events.items()}
    if not all((_TRACING / "events" / folder).is_dir() for folder in conditions):
        yield found
        return
    instance = Path(tempfile.mkdtemp(prefix=f"gpucluster-{os.getpid()}-", dir=_TRACING / "instances"))
    try:
        (instance / "buffer_size_kb").write_text(str(_BUFFER))
        for folder, condition in conditions.items():
            event = instance / "events" / folder
            (event / "filter").write_text(condition or "0")  # 0: no filter
            (event / "enable").write_text("1")
        yield found
        (instance / "tracing_on").write_text("0")
        if any(_LOST.search(stats.read_text()) for stats in instance.glob("per_cpu/*/stats")):
            raise RuntimeError(f"the kernel kept {_BUFFER} kB of events for each processor, and there were more")
        found.update(counts((instance / "trace").read_text()))
    finally:
        instance.rmdir()


def counts(trace: str) -> dict[str, int]:
    """The events of each kind in a trace, as the kernel prints it."""
    seen = Counter(_EVENT.findall(trace))
    return {kind: sum(seen[name] for _, name in events) for kind, events in _EVENTS.items()}
