#!/usr/local/lib/gpucluster/python -IS
"""Slurm's hooks: write a record of what Slurm wants, and return. Installed as `resume`, `suspend`, `resume-fail`.

One file that needs only Python's standard library, because Slurm starts it with an empty environment. It waits for
nothing, so it takes well below 0.2 s whether the daemon runs or not: it wakes the daemon and does not wait for it. A
lost record costs little (the daemon asks Slurm itself), so there is one try. On a full disk the exit status is 1, with
a message on standard error and in the system's log.

A file `hooks.json` beside the installed hook may give other paths: {"spool": "...", "poke": "..."}.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time

VERSION = 1
SPOOL = "/var/spool/gpucluster-autoscaler"
WAKE_UP_SOCKET = "/run/gpucluster-autoscaler/poke"
KINDS = {"resume": "resume", "suspend": "suspend", "resume-fail": "resume_fail"}
_SYSLOG = "/dev/log"
_WARNING = 3 << 3 | 4  # facility daemon, severity warning


def resume_file(path: str | None) -> object:
    """What Slurm reports about the jobs of a resume; None if that is not JSON.

    The file is in slurmctld's memory, and gone when slurmctld is.
    """
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            document: object = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return document


def record(spool: str, kind: str, nodes: str, resume: object, now: int) -> str:
    """Write one record into the spool atomically; returns its path.

    Args:
        nodes: a hostlist as Slurm gave it. `now`: nanoseconds of the epoch.
    """
    path = os.path.join(spool, f"{now}-{os.getpid()}-{kind}.json")
    content = {"version": VERSION, "kind": kind, "at": now / 1e9, "nodes": nodes, "resume": resume}
    part = path + ".tmp"
    try:
        # The daemon is in the spool's group and has to read it.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o640)
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(descriptor)
        os.rename(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    directory = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return path


def send(address: str, message: bytes) -> None:
    """Send a datagram to a local socket. Without a reader, or with a full queue, it is dropped."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(message, address)


def paths(beside: str) -> tuple[str, str]:
    """The spool and the daemon's socket."""
    chosen: object = None
    with contextlib.suppress(OSError, ValueError), open(os.path.join(beside, "hooks.json"), "rb") as file:
        chosen = json.loads(file.read())
    if not isinstance(chosen, dict):
        return SPOOL, WAKE_UP_SOCKET
    return str(chosen.get("spool", SPOOL)), str(chosen.get("poke", WAKE_UP_SOCKET))


def report_error(words: str) -> int:
    """Report an error on standard error and in the system's log; returns the exit status."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"gpucluster: {words}\n")
        sys.stderr.flush()
    send(_SYSLOG, f"<{_WARNING}>gpucluster-hook[{os.getpid()}]: {words}".encode(errors="replace"))
    return 1


def main(arguments: list[str]) -> int:
    """Handle one call of Slurm.

    Args:
        arguments: the name under which the program was called, and the host list.
    """
    resume = resume_file(os.environ.get("SLURM_RESUME_FILE"))
    kind = KINDS.get(os.path.basename(arguments[0]))
    if kind is None or len(arguments) < 2 or not arguments[1]:  # noqa: PLR2004
        return report_error(
            f"usage: one of {', '.join(KINDS)} with a list of nodes; this was {' '.join(arguments)[:200]}"
        )
    spool, wake_up = paths(os.path.dirname(os.path.abspath(arguments[0])))
    try:
        record(spool, kind, arguments[1], resume if kind == "resume" else None, int(time.time() * 1e9))
    except OSError as error:
        return report_error(f"{kind} of {arguments[1][:200]} was not written to {spool}: {error.strerror}")
    send(wake_up, kind.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
