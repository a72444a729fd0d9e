"""RDMA devices as the kernel shows them below /sys/class/infiniband: devices, ports, and one file for each counter.

A file may be missing, or refuse to be read: a driver does so for a counter that its device does not have
(Documentation/ABI/stable/sysfs-class-infiniband of the kernel). Each file counts for itself.
"""

from __future__ import annotations

import os
from typing import NamedTuple

#: Of the kernel. Each driver fills the second one with counters of its own.
FOLDERS = ("counters", "hw_counters")
#: Bytes of one unit of the counters of port data: they count words.
DATA_UNIT = 4
#: In hw_counters, and no counter: how long the driver answers with values that it has read before, in milliseconds.
LIFESPAN = "lifespan"
# The counters have 64 bits at most. A page of the kernel is the most that such a file has.
_DIGITS, _MOST = 20, 4096


class Port(NamedTuple):
    """A port of a device.

    Attributes:
        device: its name, such as mlx5_0.
        number: of the port, as its folder is named: "1".
        folder: the port's folder.
    """

    device: str
    number: str
    folder: str


class Counters(NamedTuple):
    """What the files of a port have.

    Attributes:
        values: by the name of the file, as the kernel gives them: they may wrap, and a reset of the device sets them
            back.
        lifespan: in milliseconds, None if the driver has none.
        unread: how many files could not be read, or have no number.
    """

    values: dict[str, int]
    lifespan: int | None
    unread: int


def names(folder: str) -> list[str]:
    """The names in a folder of the kernel, sorted; none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def devices(sysfs: str = "/sys") -> list[str]:
    """The folders of all RDMA devices, sorted."""
    folder = f"{sysfs}/class/infiniband"
    return [f"{folder}/{name}" for name in names(folder)]


def ports(device: str) -> list[Port]:
    """The ports of a device, by its folder."""
    name = os.path.basename(device)
    return [Port(name, number, f"{device}/ports/{number}") for number in names(f"{device}/ports")]


def text(path: str) -> str:
    """The text of a file of the kernel.

    Raises:
        OSError: it can't be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def number(path: str) -> int | None:
    """The number in a file of the kernel; None if the file can't be read or has something else."""
    try:
        content = text(path)
    except OSError:
        return None
    return int(content) if content.isascii() and content.isdigit() and len(content) <= _DIGITS else None


def counters(port: Port) -> Counters:
    """All counters of a port. A name that both folders have counts once, as the kernel's own."""
    values: dict[str, int] = {}
    lifespan, unread = None, 0
    for kind in FOLDERS:
        folder = f"{port.folder}/{kind}"
        for name in names(folder):
            value = number(f"{folder}/{name}")
            if value is None:
                unread += 1
            elif name == LIFESPAN:
                lifespan = value
            else:
                values.setdefault(name, value)
    return Counters(values, lifespan, unread)
