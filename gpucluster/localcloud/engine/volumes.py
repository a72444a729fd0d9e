"""Block volumes in containers: a volume is a sparse file of this machine, and an instance sees it as a loop device.

Which loop devices an instance may use is decided when its container is made: its control group allows the few numbers
that follow from its name, and no others, so it sees neither the disks of this host nor the volumes of other instances.
A kernel has 2^20 numbers. The device node appears in the container under the consistent path that OCI has for
paravirtualized attachments (docs: Connecting to Volumes With Consistent Device Paths); there it is a link.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from pathlib import Path

from gpucluster import process
from gpucluster.errors import CloudError
from gpucluster.localcloud.podman.command import error_text, podman
from gpucluster.waiting import wait_until

#: The device paths that an instance of the local cloud can have; OCI has those up to oraclevdag.
DEVICES = tuple(f"/dev/oracleoci/oraclevd{letter}" for letter in "bcde")
# linux/major.h, LOOP_MAJOR; linux/loop.h, LOOP_CTL_ADD and LOOP_CTL_REMOVE.
_LOOP_MAJOR, _ADD, _REMOVE = 7, 0x4C80, 0x4C81
_MINORS = 1 << 20
# Below are those that losetup takes by itself.
_FIRST = 4096
_CONTROL = Path("/dev/loop-control")
# The kernel closes the device of a container that has ended a moment after its last process.
_FREE_SECONDS, _POLL = 20.0, 0.1


def minor(name: str, device: str) -> int:
    """The number of the loop device that an instance sees as this device. Pure."""
    digest = hashlib.sha256(name.encode()).digest()
    slots = (_MINORS - _FIRST) // len(DEVICES)
    slot = int.from_bytes(digest[:8], "big") % slots
    return _FIRST + slot * len(DEVICES) + DEVICES.index(device)


def rules(name: str) -> list[str]:
    """Options of `podman run` that let an instance use the devices of volumes that will be attached to it."""
    return [f"--device-cgroup-rule=b {_LOOP_MAJOR}:{minor(name, device)} rwm" for device in DEVICES]


def attach(name: str, device: str, file: Path, *, running: bool) -> None:
    """Let an instance see a volume as this device. Does nothing where it does already.

    Args:
        running: the container runs: a stopped one gets the device node when it is started.

    Raises:
        CloudError: the file is in use by another device, so another instance may write to it; or the kernel refused.
    """
    number = minor(name, device)
    loop = Path(f"/dev/loop{number}")
    others: set[str] = set()

    def is_free() -> bool:
        nonlocal others
        others = users_of(file) - {str(loop)}
        return not others

    if not wait_until(is_free, _FREE_SECONDS, _POLL):
        raise CloudError(f"the volume is still in use as {', '.join(sorted(others))}", where=str(file))
    if str(loop) not in users_of(file):
        _add(loop, number)
        result = process.run(["losetup", str(loop), str(file)], check=False)
        if result.returncode != 0:
            raise CloudError(f"the volume can't be attached to {name}: {error_text(result)}", where=f"losetup {loop}")
    if running:
        make = f"mkdir -p /dev/oracleoci && {{ test -b {device} || mknod -m 0660 {device} b {_LOOP_MAJOR} {number}; }}"
        podman("exec", name, "sh", "-c", make)


def detach(name: str, device: str, *, running: bool) -> None:
    """Take a volume from an instance. Does nothing where it is not attached.

    An instance that has it mounted still keeps it until it unmounts it or ends, and no other instance gets it until
    then. (OCI takes it away at once, and what was not written is lost.)
    """
    if running:
        podman("exec", name, "rm", "-f", device, check=False)
    _remove(minor(name, device))


def release(name: str) -> None:
    """Take all volumes from an instance whose container is gone."""
    for device in DEVICES:
        _remove(minor(name, device))


def _remove(number: int) -> None:
    loop = Path(f"/dev/loop{number}")
    if loop.exists():
        process.run(["losetup", "--detach", str(loop)], check=False)
        with contextlib.suppress(OSError):
            _control(_REMOVE, number)
            loop.unlink(missing_ok=True)


def users_of(file: Path) -> set[str]:
    """The loop devices of this host that show a file.

    Raises:
        ProcessError: losetup does not tell it. A volume that has users would be given to another instance.
    """
    if not file.exists():
        return set()
    listed = process.run(["losetup", "--associated", str(file), "--noheadings", "--output", "NAME"])
    return set(listed.stdout.split())


def _add(loop: Path, number: int) -> None:
    """Make a loop device with this number, and its node where the kernel makes none."""
    try:
        with contextlib.suppress(FileExistsError):
            _control(_ADD, number)
        if not loop.exists():
            os.mknod(loop, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, number))
    except OSError as error:
        raise CloudError(
            f"this host makes no loop device: {error.strerror}",
            where=str(_CONTROL),
            hint="A volume of the local cloud is a loop device: modprobe loop, or use a machine that has them",
        ) from error


def _control(request: int, number: int) -> None:
    with _CONTROL.open("r+b", buffering=0) as control:
        fcntl.ioctl(control, request, number)
