"""Makes the mounts of a share read-only or writable in instances that have it mounted: on OCI its server does that.

A mount in an instance is a bind mount of a directory of this machine. Each mount namespace has its own: that of the
instance, those of services in a sandbox, and those of containers in it. The kernel keeps a mount writable while a
file in it is open for writing, so such a mount is left as it is.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gpucluster import process

# A program of its own, because a process with several threads can't enter a mount namespace. The arguments are
# mount_setattr(2)'s: attr_set, attr_clr, propagation, userns_fd; MOUNT_ATTR_RDONLY is 1. Its number is the same on all
# architectures. Namespaces are opened first: from within one, /proc is that of the instance.
_REMOUNT = """
import ctypes, json, os, sys
writable, namespaces = json.load(sys.stdin)
attributes = (ctypes.c_uint64 * 4)(*((0, 1) if writable else (1, 0)), 0, 0)
libc = ctypes.CDLL(None, use_errno=True)
opened = []
for path, mounts in namespaces.items():
    try:
        opened.append((os.open(path, os.O_RDONLY), mounts))
    except OSError:
        pass
for namespace, mounts in opened:
    if libc.setns(namespace, 0x00020000) == 0:
        for mount in mounts:
            libc.syscall(442, -100, os.fsencode(mount), 0, attributes, ctypes.sizeof(attributes))
"""


def set_writable(directory: Path, *, writable: bool) -> None:
    """Change every mount of a directory, or of one below it, in the mount namespaces of other processes."""
    own = os.readlink("/proc/self/ns/mnt")
    by_namespace: dict[str, tuple[str, list[str]]] = {}
    device, root = _place(directory)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            namespace = os.readlink(folder / "ns" / "mnt")
            if namespace != own and namespace not in by_namespace:
                lines = (folder / "mountinfo").read_text()
                by_namespace[namespace] = (str(folder / "ns" / "mnt"), list(mounts_of(lines, device, root)))
        except OSError:
            continue  # it has ended, or is not ours to look at
    mounts_by_path = {path: mounts for path, mounts in by_namespace.values() if mounts}
    if mounts_by_path:
        process.run([sys.executable, "-c", _REMOUNT], input=json.dumps([writable, mounts_by_path]))


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
