"""/sys of the network namespaces of this host: where the RDMA devices are that have moved into pods.

A sysfs shows the devices of the network namespace from which it was mounted (Documentation/filesystems/sysfs-tagging
of the kernel; fs/sysfs/mount.c: sysfs_init_fs_context), and so does the class `infiniband`: its devices have the tag
of their namespace (drivers/infiniband/core/device.c: ib_class, rdma_dev_change_netns). So /sys of the host does not
have them, to enter the namespace is not enough, and `/proc/PID/root/sys` is what was mounted in the container:
that of another namespace, or nothing. Each namespace gets a new sysfs here, read-only. It is mounted in a mount
namespace of this process alone, and taken off again; who holds its folder open still sees it.

The mounts that keep namespaces show which ones there are: containerd and CRI-O bind each pod's to a file, as
`ip netns` does. A namespace that only processes keep is not found. No process of a pod is looked at, so nothing that
a container has changed is followed, and there is no right to trace processes.

Statistics of a driver (ethtool) are no files: the kernel gives them to a socket of the namespace. A socket that is
open keeps its namespace, and with it the interfaces of a pod that has gone. So one is held only where an interface is
that a collector reads, and it is closed as soon as the mount that kept the namespace is gone: the kernel wakes who
polls /proc/self/mountinfo (proc_pid_mountinfo(5), fs/proc_namespace.c: mounts_poll).

Two halves. `give` needs CAP_SYS_ADMIN, runs once for each question, reads nothing from who asks, and passes open
folders and sockets. `Namespaces` asks it, without any right, when there are other namespaces than before.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Callable

from gpucluster.node_agent.rdma_files import names

#: What a collector calls them together, beside the devices that it has found.
SUBJECT = "network namespaces"
#: Namespaces that are looked at. kubelet allows 110 pods unless it is configured otherwise; a process has 1024 open
#: files.
MOST = 512
#: Seconds of one look for all of them. One takes a quarter of a millisecond; the process that gives them has to start
#: first, and on a busy host the next look reads what it sends. Less than what the collectors get (exporter.__main__).
SECONDS = 3.0
#: Seconds until that process gives up an asker that does not read: longer than from one look to the next. Less than
#: systemd lets it run (gpucluster-rdma-namespaces@.service).
_GIVE_SECONDS = 45.0
_LONGEST_NAME = 256
# linux/sched.h, linux/mount.h
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 1, 2, 4, 8
_RECURSIVE, _PRIVATE, _DETACH = 1 << 14, 1 << 18, 2
_WHERE = b"/sys"


def find(mounts: str, own: str) -> dict[str, str]:
    """The network namespaces that mounts keep: their names to one path of each, `MOST` at most.

    Args:
        mounts: the text of /proc/self/mountinfo.
        own: the name of the namespace that is left out: `net:[4026531840]`.
    """
    paths: dict[str, str] = {}
    for line in mounts.splitlines():
        # id, parent, device, root, mount point, options, optional fields, -, type (proc_pid_mountinfo(5))
        before, _dash, after = line.partition(" - ")
        words = before.split(" ")
        if after.startswith("nsfs ") and words[3].startswith("net:[") and words[3] != own:
            paths.setdefault(words[3], _plain(words[4]))
    # Both halves see the same mounts, perhaps in another order.
    return dict(sorted(paths.items())[:MOST])


def here(proc: str = "/proc") -> dict[str, str]:
    """The network namespaces of this host but for our own, as `find` gives them.

    Raises:
        OSError: /proc can't be read.
    """
    mounts = Path(proc, "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return find(mounts, os.readlink(f"{proc}/self/ns/net"))


def give(asker: socket.socket, proc: str = "/proc") -> None:
    """Send the folder of a new sysfs of each namespace, and a socket of it: a message with its name, and both open.

    The socket has an address family of this host alone: who has it reaches no network by it.

    This process is in another network namespace and another mount namespace afterwards: it should end.

    Raises:
        OSError: the kernel refuses, or the asker is gone. A namespace that ends meanwhile is left out.
    """
    asker.settimeout(_GIVE_SECONDS)
    namespaces = here(proc)
    _call("unshare", _CLONE_NEWNS)
    # Else our mounts would appear in the namespace that this one is a copy of.
    _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    for name, path in namespaces.items():
        folder = _sysfs(name, path)
        if folder is not None:
            # In the namespace that was entered last.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inside:
                socket.send_fds(asker, [name.encode()], [folder, inside.fileno()])
            os.close(folder)


def _sysfs(name: str, path: str) -> int | None:
    """The folder of a new sysfs of a network namespace, open; None if that namespace is not there any more.

    Raises:
        OSError: the kernel refuses.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if f"net:[{os.fstat(descriptor).st_ino}]" != name:
            return None
        _call("setns", descriptor, _CLONE_NEWNET)
    finally:
        os.close(descriptor)
    _call("mount", b"sysfs", _WHERE, b"sysfs", _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_PROGRAMS, None)
    try:
        return os.open(_WHERE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        _call("umount2", _WHERE, _DETACH)


class Namespaces:
    """The network namespaces of this host as who has no rights sees them.

    Args:
        address: the socket that answers with `give`; "" for none, and then there are no namespaces.
        proc: where /proc is.
        keeps: whether a socket of a namespace is needed, by the path of its /sys. By default of none.
    """

    def __init__(self, address: str, proc: str = "/proc", keeps: Callable[[str], bool] | None = None) -> None:
        self._address, self._proc = address, proc
        self._keeps = keeps or (lambda _sysfs: False)
        self._held: dict[str, int] = {}
        self._wanted: set[str] = set()
        self._sockets: dict[str, socket.socket] = {}
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._watched = False

    def folders(self) -> Mapping[str, str]:
        """Where /sys of each namespace is, by the name of the namespace.

        Raises:
            OSError: the mounts of this host can't be read.
        """
        if not self._address:
            return {}
        for name in [name for name, folder in self._held.items() if not _alive(folder)]:
            os.close(self._held.pop(name))
        self._wanted = set(here(self._proc))
        needed = {name for name in self._held if self._keeps(self._path(name))}
        # An interface moves into a namespace after that was made.
        if set(self._held) != self._wanted or not needed <= set(self._sockets):
            if self._connection is None:
                self.close()
            # `missing` reports what could not be had: what is there is read.
            with contextlib.suppress(OSError):
                self._ask()
        else:
            self._end_question()
            self._close_sockets(needed)
        return {name: self._path(name) for name in self._held}

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[socket.socket | None]:
        """A socket of a namespace, while it is used; None where there is none, or the namespace has ended."""
        with self._lock:
            yield self._sockets.get(name)

    def _path(self, name: str) -> str:
        return f"{self._proc}/self/fd/{self._held[name]}"

    def missing(self) -> list[str]:
        """The namespaces that were there when `folders` looked, are still there, and could not be read.

        Raises:
            OSError: the mounts of this host can't be read.
        """
        return sorted((self._wanted & set(here(self._proc))) - set(self._held)) if self._address else []

    def require_all(self) -> None:
        """Fail where there are namespaces that could not be read, and perhaps devices in them.

        Raises:
            OSError: with their number; or the mounts of this host can't be read.
        """
        missing = self.missing()
        if missing:
            raise OSError(f"{len(missing)} could not be read, such as {missing[0]}")

    def close(self) -> None:
        """Let go of all: a sysfs that is held open costs memory, and does not keep its namespace."""
        self._end_question()
        while self._held:
            os.close(self._held.popitem()[1])
        self._close_sockets()

    def _ask(self) -> None:
        """Ask, or go on with an answer that did not end within the time of the look before."""
        until = time.monotonic() + SECONDS
        try:
            if self._connection is None:
                self._connection = _connected(self._address)
            while len(self._held) < MOST:
                self._connection.settimeout(max(0.001, until - time.monotonic()))
                text, folders, _flags, _address = socket.recv_fds(
                    self._connection, _LONGEST_NAME, 2, socket.MSG_CMSG_CLOEXEC
                )
                if not text:
                    break
                self._take(text.decode(), folders)
        except socket.timeout:  # in Python 3.9 a class of its own
            return
        except OSError:
            self._end_question()
            raise
        self._end_question()

    def _end_question(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _take(self, name: str, descriptors: list[int]) -> None:
        """Keep the folder and perhaps the socket of a namespace."""
        if name in self._held:
            os.close(self._held.pop(name))
        for number, descriptor in enumerate(descriptors):
            if number == 0:
                self._held[name] = descriptor
            elif self._keeps(self._path(name)):
                with self._lock:
                    self._sockets[name] = socket.socket(fileno=descriptor)
                self._watch()
            else:
                os.close(descriptor)

    # --- sockets end with what they are for -----

    def _close_sockets(self, kept: Collection[str] = ()) -> None:
        """Close all but these."""
        with self._lock:
            for name in [name for name in self._sockets if name not in kept]:
                self._sockets.pop(name).close()

    def _watch(self) -> None:
        """Close each socket when its namespace is no longer kept, also between scrapes."""
        with self._lock:
            if self._watched:
                return
            self._watched = True
        threading.Thread(target=self._release, daemon=True).start()

    def _release(self) -> None:
        with open(f"{self._proc}/self/mountinfo", "rb") as mounts:
            changes = select.poll()
            changes.register(mounts, select.POLLPRI | select.POLLERR)
            while True:
                # Looked at before it waits: what has changed since the file was opened is reported once.
                try:
                    kept = set(here(self._proc))
                except OSError:
                    kept = set()
                self._close_sockets(kept)
                with self._lock:
                    if not self._sockets:
                        self._watched = False
                        return
                changes.poll()


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(SECONDS)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _alive(folder: int) -> bool:
    """Whether the namespace of a sysfs is there. Each has a loopback device, and one that has ended has no interface.

    The number of one that has ended is soon another's.
    """
    return bool(names(f"/proc/self/fd/{folder}/class/net"))


def _plain(path: str) -> str:
    """A path of mountinfo, which writes blanks, tabs, line ends and backslashes as octal numbers."""
    for sign in " \t\n\\":
        path = path.replace(f"\\{ord(sign):03o}", sign)
    return path


def _call(name: str, *values: object) -> None:
    """Call a function of the C library that returns -1 for an error. Python has `setns` and `unshare` from 3.12 on.

    Raises:
        OSError: it fails.
    """
    import ctypes  # the exporter itself calls nothing

    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*values) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
