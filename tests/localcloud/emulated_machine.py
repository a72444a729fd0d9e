"""A machine with a kernel of its own, which QEMU emulates: the same on every processor, and independent of the host's.

A container has the kernel of its host, which may lack what a test is about, such as device-mapper. User-mode Linux is
no way out: 6.1 panics on processors with AMX. Neither is KVM: inside of some virtual machines it is there and hangs.

The kernel is Debian's for clouds. It has NVMe and ext4 built in, so it boots without an initial RAM disk. It is
unpacked into the cache and never installed. A boot takes some seconds of the processor, and so does each ten programs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.errors import ProcessError
from gpucluster.paths import cache_dir
from gpucluster.process import bound
from tests.waiting import PATIENCE_S

PACKAGE = "linux-image-cloud-amd64"
_BLOCK = 4096
# By its clock, which is the host's, a kernel takes a busy host for a broken timer or a dead drive, and panics.
_BUSY_HOST = "no_timer_check tsc=nowatchdog nowatchdog nvme_core.io_timeout=3600 nvme_core.admin_timeout=3600"


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package."""

    root: Path

    @property
    def image(self) -> Path:
        """The kernel itself."""
        (found,) = self.root.glob("boot/vmlinuz-*")
        return found

    def module(self, name: str) -> Path:
        """The file of a module."""
        (found,) = self.root.glob(f"lib/modules/*/kernel/**/{name}.ko")
        return found


def kernel() -> Kernel:
    """The kernel of this host's Debian, from the cache or the host's mirror. Without QEMU or a mirror: skipped."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("NOT RUN: a machine with a kernel of its own; apt install qemu-system-x86")
    folder = cache_dir() / "tests" / "kernel"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _unpacked(folder)
        except ProcessError:
            # The lists of this host are old, and its mirror has a newer kernel by now.
            process.run(["apt-get", "-qq", "update"])
            return _unpacked(folder)


def _unpacked(folder: Path) -> Kernel:
    package, digest = _newest()
    root = folder / digest[:16]
    if not root.exists():
        _unpack(package, digest, root)
    return Kernel(root)


def _newest() -> tuple[str, str]:
    """The package with the kernel, as `name=version`, and its SHA256."""
    depends = _fields(PACKAGE)["Depends"]
    match = re.search(r"(linux-image-\S+) \(= (\S+)\)", depends)
    assert match, depends
    package = f"{match[1]}={match[2]}"
    return package, _fields(package)["SHA256"]


def _fields(package: str) -> dict[str, str]:
    argv = ["apt-cache", "show", "--no-all-versions", package]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        pytest.skip(f"NOT RUN: no mirror of this machine has {package}: {done.stderr.strip()}")
    return dict(re.findall(r"^([\w-]+): (.*)$", done.stdout, re.MULTILINE))


def _unpack(package: str, digest: str, root: Path) -> None:
    part = root.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    process.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package], cwd=part)
    (archive,) = part.glob("*.deb")
    assert process.run(["sha256sum", str(archive)]).stdout.split()[0] == digest
    process.run(["dpkg-deb", "--extract", str(archive), str(part)])
    archive.unlink()
    part.rename(root)


@dataclass(frozen=True)
class EmulatedMachine:
    """One machine, which can be started again and again.

    Args:
        kernel: what it boots.
        disk: the root file system, ext4. It is /dev/nvme0n1.
        drives: files that are /dev/nvme1n1, /dev/nvme2n1, and so on.
    """

    kernel: Kernel
    disk: Path
    drives: tuple[Path, ...]

    def run(self, program: str) -> str:
        """Boot with this program of the disk as init, until it powers off. Returns what it wrote to /dev/ttyS1.

        A panic ends the machine as well.
        """
        console, said = (self.disk.with_suffix(suffix) for suffix in (".console", ".said"))
        for file in (console, said):
            file.unlink(missing_ok=True)
        argv = ["qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-m", "512"]
        argv += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-kernel", str(self.kernel.image)]
        argv += ["-append", f"{_BUSY_HOST} console=ttyS0 quiet root=/dev/nvme0n1 rw init={program} panic=-1"]
        argv += ["-serial", f"file:{console}", "-serial", f"file:{said}"]
        for number, file in enumerate((self.disk, *self.drives)):
            # Nothing outlives the test, so nothing has to reach the host's disk.
            argv += ["-drive", f"if=none,id=d{number},format=raw,cache=unsafe,file={file}"]
            argv += ["-device", f"nvme,drive=d{number},serial=drive{number}"]
        process.run(bound.to_this_process(argv), timeout=5 * PATIENCE_S)
        assert said.exists(), console.read_text()
        answer = said.read_text().replace("\r", "")
        assert answer, console.read_text()[-4000:]
        return answer


def make_disk(image: Path, disk: Path, programs: Iterable[str], files: Mapping[str, str | Path]) -> None:
    """Write a file with ext4 that has some programs of a system and the libraries that they need.

    Args:
        image: the root of the system.
        disk: what is written. Beside it there will be a folder with the same contents.
        programs: names of programs, and folders such as /etc/lvm.
        files: paths and contents of more files: text, which can be executed, or a file that is copied.
    """
    root = disk.with_suffix(".root")
    for folder in ("dev", "mnt", "proc", "run", "sys", "tmp", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("bin", "lib", "lib64", "sbin"):
        (root / folder).symlink_to(f"usr/{folder}")
    archive = disk.with_suffix(".tar")
    with archive.open("wb") as out:
        collect = ["chroot", str(image), "sh", "-ec", _COLLECT, "sh", *programs]
        subprocess.run(collect, stdout=out, check=True, timeout=PATIENCE_S)
    process.run(["tar", "--extract", f"--file={archive}", f"--directory={root}", "--keep-directory-symlink"])
    for path, content in files.items():
        file = root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copy(content, file)
        else:
            file.write_text(content)
            file.chmod(0o755)
    size = int(process.run(["du", "--summarize", "--bytes", str(root)]).stdout.split()[0])
    with disk.open("wb") as blank:
        blank.truncate((size * 3 // 2 // _BLOCK + 2**13) * _BLOCK)
    process.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(root), str(disk)], timeout=PATIENCE_S)


# An archive of programs, which are no links any more, of their libraries, and of folders.
_COLLECT = r"""
found=$(for each; do command -v "$each" || echo "$each"; done)
libraries=$(for each in $found; do [ -d "$each" ] || ldd "$each"; done | sed -n 's|.*\s\(/\S*\) (0x.*|\1|p' | sort -u)
tar --create --dereference --hard-dereference $found $libraries
"""
