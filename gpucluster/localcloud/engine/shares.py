"""Makes the mounts of a share read-only or writable in instances that have it mounted: on OCI its server does that.

A mount in an instance is a bind mount of a directory of this machine. Each mount namespace has its own: that of the
instance, those of services in a sandbox, and those of containers in it. The kernel keeps a mount writable while a
file in it is open for writing, so such a mount is left as it is.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from gpucluster import process

_LOG = logging.getLogger(__name__)

# A program of its own, because a process with several threads can't enter a mount namespace. The arguments are
# mount_setattr(2)'s: attr_set, attr_clr, propagation, userns_fd; MOUNT_ATTR_RDONLY is 1. Its number is the same on all
# architectures. It inherits the open namespaces: from within one, /proc is that of the instance. CLONE_NEWNS is
# 0x00020000.
_REMOUNT = """
import ctypes, json, os, sys
writable, namespaces = json.load(sys.stdin)
attributes = (ctypes.c_uint64 * 4)(*((0, 1) if writable else (1, 0)), 0, 0)
libc = ctypes.CDLL(None, use_errno=True)
failed = []
for namespace, mounts in namespaces:
    if libc.setns(namespace, 0x00020000):
        failed.append(f"namespace: {os.strerror(ctypes.get_errno())}")
        continue
    for mount in mounts:
        if libc.syscall(442, -100, os.fsencode(mount), 0, attributes, ctypes.sizeof(attributes)):
            failed.append(f"{mount}: {os.strerror(ctypes.get_errno())}")
print(", ".join(failed))
"""


def set_writable(directory: Path, *, writable: bool) -> None:
    """Change every mount of a directory, or of one below it, in the mount namespaces of other processes.

    A mount that can't be changed is left as it is, with a line in the log.
    """
    device, root = _place(directory)
    with ExitStack() as opened:
        mounts_by_namespace = []
        for namespace, mountinfo in _other_namespaces(opened):
            if mounts := list(mounts_of(mountinfo, device, root)):
                mounts_by_namespace.append((namespace, mounts))
        if not mounts_by_namespace:
            return
        names = [namespace for namespace, _ in mounts_by_namespace]
        given = json.dumps([writable, mounts_by_namespace])
        unchanged = process.run([sys.executable, "-c", _REMOUNT], input=given, inherited=names).stdout.strip()
    if unchanged:
        _LOG.warning("%s: not made %s: %s", directory, "writable" if writable else "read-only", unchanged)


def _other_namespaces(opened: ExitStack) -> Iterator[tuple[int, str]]:
    """The mount namespaces of other processes: an open file of each, and its mounts (proc_pid_mountinfo(5)).

    The file is opened while the process is looked at: the first one of a namespace need not be its init (numbers of
    processes start again at pid_max), and may have ended a moment later.
    """
    known = {os.stat("/proc/self/ns/mnt").st_ino}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Looked at first, because nearly all processes are of a namespace that is known.
            if os.stat(folder / "ns" / "mnt").st_ino in known:
                continue
            with ExitStack() as this:
                namespace = os.open(folder / "ns" / "mnt", os.O_RDONLY | os.O_CLOEXEC)
                this.callback(os.close, namespace)
                mountinfo = (folder / "mountinfo").read_text()
                opened.push(this.pop_all())
        except OSError:
            continue  # it has ended, or is not ours to look at
        known.add(os.fstat(namespace).st_ino)
        yield namespace, mountinfo


def mounts_of(mountinfo: str, device: str, root: str) -> Iterator[str]:
    """Where a directory of a file system, or one below it, is mounted (proc_pid_mountinfo(5)). Pure."""
    for line in mountinfo.splitlines():
        _, _, its_device, its_root, target, *_ = line.split(" ")
        if its_device == device and f"{_plain(its_root)}/".startswith(f"{root}/"):
            yield _plain(target)


def _place(directory: Path) -> tuple[str, str]:
    """The device of a directory of this machine, and its path in that file system."""
    path = directory.resolve()
    best = ("", "", "")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        _, _, device, root, target, *_ = line.split(" ")
        target = _plain(target)
        if path.is_relative_to(target) and len(target) >= len(best[0]):  # the last one of a place is on top
            best = (target, device, _plain(root))
    return best[1], os.path.join(best[2], path.relative_to(best[0])).rstrip("/")


def _plain(text: str) -> str:
    r"""Without the escapes of mountinfo: a space is \040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
