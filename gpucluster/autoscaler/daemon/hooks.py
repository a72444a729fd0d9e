#!/usr/bin/python3 -IS
"""Slurm's hooks: write down what Slurm wants, and return. Installed as `resume`, `suspend` and `resume-fail`.

One file that needs nothing but Python's own library, for Slurm starts it with an empty environment. It asks nobody, so
that it is as fast (well below 0.2 s) with a daemon that is dead as with one that lives: the daemon is poked, not
waited for. A record that is lost costs little (the daemon looks at Slurm itself), so there is one try, and a full
disk is an exit status of 1 with words on standard error and in the system's log.

It has to run with the Python of every supported system, which is 3.6 on Oracle Linux 8: hence the types in quotes.

A file `hooks.json` beside the installed hook may give other paths: {"spool": "...", "poke": "..."}.
"""

import contextlib
import json
import os
import socket
import sys
import time

VERSION = 1
SPOOL = "/var/spool/gpucluster-autoscaler"
POKE = "/run/gpucluster-autoscaler/poke"
KINDS = {"resume": "resume", "suspend": "suspend", "resume-fail": "resume_fail"}
_SYSLOG = "/dev/log"
_WARNING = 3 << 3 | 4  # facility daemon, severity warning


def resume_file(path: "str | None") -> object:
    """What Slurm says about the jobs behind a resume; None if it says nothing that is JSON.

    It is a file in slurmctld's memory, gone when slurmctld is.
    """
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            found: object = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return found


def record(spool: str, kind: str, nodes: str, resume: object, now: int) -> str:
    """Write one record into the spool so that it is there whole or not at all; returns its path.

    Args:
        nodes: a hostlist as Slurm gave it. `now`: nanoseconds of the epoch.
    """
    path = os.path.join(spool, f"{now}-{os.getpid()}-{kind}.json")
    content = {"version": VERSION, "kind": kind, "at": now / 1e9, "nodes": nodes, "resume": resume}
    part = path + ".tmp"
    try:
        # The daemon is of the spool's group, and has to read it.
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
    """Send a datagram to a local socket, if somebody reads there and has room."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(message, address)


def paths(beside: str) -> "tuple[str, str]":
    """The spool and the daemon's socket."""
    chosen: object = None
    with contextlib.suppress(OSError, ValueError), open(os.path.join(beside, "hooks.json"), "rb") as file:
        chosen = json.loads(file.read())
    if not isinstance(chosen, dict):
        return SPOOL, POKE
    return str(chosen.get("spool", SPOOL)), str(chosen.get("poke", POKE))


def complain(words: str) -> int:
    """Say what is wrong where it will be read; returns the exit status."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"gpucluster: {words}\n")
        sys.stderr.flush()
    send(_SYSLOG, f"<{_WARNING}>gpucluster-hook[{os.getpid()}]: {words}".encode(errors="replace"))
    return 1


def main(arguments: "list[str]") -> int:
    """Carry out one call of Slurm.

    Args:
        arguments: the name under which we were called, and the hostlist.
    """
    resume = resume_file(os.environ.get("SLURM_RESUME_FILE"))
    kind = KINDS.get(os.path.basename(arguments[0]))
    if kind is None or len(arguments) < 2 or not arguments[1]:  # noqa: PLR2004
        return complain(f"usage: one of {', '.join(KINDS)} with a list of nodes; this was {' '.join(arguments)[:200]}")
    spool, poke = paths(os.path.dirname(os.path.abspath(arguments[0])))
    try:
        record(spool, kind, arguments[1], resume if kind == "resume" else None, int(time.time() * 1e9))
    except OSError as error:
        return complain(f"{kind} of {arguments[1][:200]} was not written to {spool}: {error.strerror}")
    send(poke, kind.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
