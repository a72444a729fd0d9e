"""What this machine lacks for `make test`, before anything starts: each thing with what to do about it.

    python3 tools/machine.py first      before anything is installed: standard library only
    .venv/bin/python -m tools.machine   with the packages installed: what the kernel and the programs can really do

Status 0: nothing is missing. 1: something is, and each is named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_GIB = 1024**3
_MEMORY_GIB = 7  # a machine of 8 GB has a little less for programs
#: Measured: what one run of the suite writes at most, beside what it caches.
_TEMPORARY_GIB = 2
_IMAGES_GIB = 8
_CORES = 2
#: Per user. Each systemd of a container takes some of them, and up to some twenty containers run at a time.
_INOTIFY = {"max_user_instances": 128, "max_user_watches": 8192}
_PYTHON = (3, 11)
_PROGRAMS = {"git": "apt install git", "ip": "apt install iproute2", "podman": "apt install podman"}
_TESTS_OWN = {
    "prometheus": "apt install prometheus",
    "promtool": "apt install prometheus",
    "prometheus-node-exporter": "apt install prometheus-node-exporter",
    "qemu-system-x86_64": "apt install qemu-system-x86",
    "systemd-analyze": "apt install systemd",
    "ssh-keygen": "apt install openssh-client",
}
#: Each kernel feature by a command that uses it and leaves nothing behind.
_FEATURES = {
    "network namespaces": "unshare --net true",
    "user namespaces": "unshare --user --map-root-user true",
    "bridges": "unshare --net ip link add name br0 type bridge",
    "veth": "unshare --net ip link add name v0 type veth peer name v1",
    "nftables": "unshare --net nft add table inet gpucluster",
    "tmpfs": "unshare --mount mount -t tmpfs none /mnt",
    "overlay": "unshare --mount sh -c 'mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b /mnt/c /mnt/d && "
    "mount -t overlay -o lowerdir=/mnt/a,upperdir=/mnt/b,workdir=/mnt/c none /mnt/d'",
    "FUSE": "test -c /dev/fuse",
    "loop devices": "losetup --find",
}


def first() -> Iterator[str]:
    """What must be there before packages can be installed."""
    if sys.platform != "linux":
        yield f"this is {sys.platform}: use a machine with Debian 12, or a virtual one"
        return
    if os.geteuid() != 0:
        yield "you are not root: containers with fixed addresses need it (sudo -i)"
    if sys.version_info < _PYTHON:
        yield f"Python {'.'.join(map(str, _PYTHON))} or newer: this is {sys.version.split()[0]} (make test PYTHON=...)"
    if not shutil.which("apt-get"):
        yield "apt-get is missing: the packages of the tests are Debian's. Use a machine with Debian 12"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
    if memory < _MEMORY_GIB:
        yield f"8 GB of memory: this machine has {memory:.1f} GiB"
    if (os.cpu_count() or 1) < _CORES:
        yield f"{_CORES} processors: this machine has {os.cpu_count()}"
    yield from _space(Path(tempfile.gettempdir()), _TEMPORARY_GIB, "temporary files (TMPDIR names another folder)")
    yield from _space(Path("/var/lib"), _IMAGES_GIB, "images and containers")
    yield from _executable(Path(tempfile.gettempdir()))
    for name, least in _INOTIFY.items():
        found = int(Path("/proc/sys/fs/inotify", name).read_text())
        if found < least:
            yield f"fs.inotify.{name} is {found}: sysctl -w fs.inotify.{name}={least}"


def installed() -> Iterator[str]:
    """What is missing although packages are installed."""
    from gpucluster.localcloud.podman.command import probe

    yield from probe()
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    for name, fix in {**_PROGRAMS, **_TESTS_OWN}.items():
        if shutil.which(name, path=path) is None:
            yield f"the program {name}: {fix}"
    if not (shutil.which("terraform") or shutil.which("tofu")):
        yield "terraform or tofu on PATH: its one program file, from its maker, in /usr/local/bin"
    for feature, command in _FEATURES.items():
        said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        if said.returncode != 0:
            yield f"{feature}: `{command}` fails here: {said.stderr.strip()[-200:]}"


def _space(folder: Path, least: int, what: str) -> Iterator[str]:
    found = shutil.disk_usage(folder).free / _GIB
    if found < least:
        yield f"{least} GiB of space in {folder} for {what}: {found:.1f} are free"


def _executable(folder: Path) -> Iterator[str]:
    """Programs that tests write must be allowed to run there."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        program = Path(own, "program")
        program.write_text("#!/bin/sh\n")
        program.chmod(0o700)
        try:
            subprocess.run([program], check=True)
        except OSError:
            yield f"{folder} is mounted noexec: let TMPDIR name a folder where programs may run"


def main(words: list[str]) -> int:
    """Name what is missing. Returns the exit status."""
    missing = list(first() if words == ["first"] else installed())
    for line in missing:
        print(f"make test needs: {line}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
