"""What this host allows a container to do, and what it lacks, as far as files and programs show."""

from __future__ import annotations

import json
import os
import resource
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Folders where distributions install Podman's network helpers (containers.conf(5), helper_binaries_dir).
_HELPER_DIRECTORIES = ("/usr/lib/podman", "/usr/libexec/podman", "/usr/local/lib/podman", "/usr/local/libexec/podman")
# Required programs, with the Debian package of each.
_PROGRAMS = {
    "podman": "podman",
    "conmon": "conmon",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "setpriv": "util-linux",
}
_HELPERS = {"netavark": "netavark"}
_NEEDED_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
# Enough for Slurm's and MariaDB's daemons. Not more, because slapd reserves memory for every file that it may open.
_WANTED_FILES = 8192
_FEWEST_FILES = 1024
# The kernel's log, which a kubelet reads.
_KERNEL_LOG = Path("/dev/kmsg")
# What an instance keeps on the disk of this host below, because its own is an overlay, which can't carry another one.
_VOLUMES = ("/var/lib/containerd", "/var/lib/kubelet")
# The first program of an instance, before its init. With control groups of version 1 Podman shows systemd those of all
# of this host, where one instance's `system.slice` would be the other's: below that mount is the instance's own part.
# And it mounts all of them read-only, where programs such as a kubelet make groups for their containers.
_BEFORE_INIT = """\
groups=/sys/fs/cgroup
while [ "$(grep -c " $groups/systemd " /proc/self/mountinfo)" -gt 1 ]; do
    umount --recursive $groups/systemd || break
done
for own in $groups/*; do
    ! mountpoint --quiet "$own" || mount -o remount,bind,rw,nosuid,nodev,noexec "$own"
done
exec /sbin/init
"""
_WANTED_PROCESSES = 32768


@dataclass(frozen=True)
class HostSettings:
    """Settings of `podman run` on this host.

    Args:
        runtime: name of the OCI runtime.
        files, processes: resource limits of an instance, both soft and hard.
        fuse: the host has /dev/fuse.
        kernel_log: the host has /dev/kmsg.
    """

    runtime: str
    files: int
    processes: int
    fuse: bool
    kernel_log: bool

    def run_options(self) -> list[str]:
        """Options of `podman run` for the rights of an instance.

        Not --privileged: then a program that formats disks on an instance could see the disks of this host. For the
        same reason an instance may not load kernel modules, set the clock or write to hardware.
        """
        return [
            "--cap-add=ALL",
            "--cap-drop=SYS_MODULE,SYS_TIME,SYS_RAWIO",
            "--security-opt=seccomp=unconfined",
            "--security-opt=apparmor=unconfined",
            "--security-opt=label=disable",
            "--security-opt=unmask=ALL",
            f"--ulimit=nofile={self.files}:{self.files}",
            f"--ulimit=nproc={self.processes}:{self.processes}",
            *(["--device=/dev/fuse"] if self.fuse else []),
            # Not to be written: a program's lines would be in the log of this host.
            *([f"--device={_KERNEL_LOG}:{_KERNEL_LOG}:r"] if self.kernel_log else []),
        ]

    def boot_options(self) -> list[str]:
        """Options of `podman run` for a container that boots systemd, with the rights of an instance.

        Its control groups are its own: it sees none but those below its own, and can write them.
        """
        return [
            *self.run_options(),
            "--systemd=always",
            "--cgroupns=private",
            *(f"--volume={folder}" for folder in _VOLUMES),
            f"--entrypoint={json.dumps(['/bin/sh', '-c', _BEFORE_INIT])}",
        ]


@cache
def settings() -> HostSettings:
    """The settings for this host, determined once."""
    return HostSettings(
        runtime=_runtime(),
        files=_limit(resource.RLIMIT_NOFILE, _WANTED_FILES),
        # Podman never allows more processes than the kernel has process ids.
        processes=min(_limit(resource.RLIMIT_NPROC, _WANTED_PROCESSES), _pid_max()),
        fuse=Path("/dev/fuse").exists(),
        kernel_log=_KERNEL_LOG.exists(),
    )


def _limit(kind: int, desired: int) -> int:
    """The wanted limit, or a lower hard limit: raising that needs CAP_SYS_RESOURCE, which may be missing."""
    hard = resource.getrlimit(kind)[1]
    return desired if hard == resource.RLIM_INFINITY else min(desired, hard)


def _pid_max() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def _unified_cgroups() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def _runtime() -> str:
    """Prefer runc: it works with every layout of control groups, while crun refuses version 1 and hybrid layouts."""
    if shutil.which("runc") or not (_unified_cgroups() and shutil.which("crun")):
        return "runc"
    return "crun"


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def static_problems() -> list[str]:
    """What keeps this host from running instances, each with its fix, as far as it is known without a container."""
    return [*_user_problems(), *_program_problems(), *_kernel_problems()]


def _user_problems() -> list[str]:
    if os.geteuid() != 0:
        return [
            "you are not root: instances have fixed addresses on a bridge of this host, which rootless Podman can't "
            "give. Run the command with sudo, or as root in a virtual machine"
        ]
    held = _capabilities()
    missing = [name for name, bit in _NEEDED_CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        return [f"root lacks {', '.join(missing)} here: start this container or sandbox with more rights, or use a VM"]
    return []


def _program_problems() -> list[str]:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = {name: package for name, package in _PROGRAMS.items() if shutil.which(name, path=path) is None}
    helpers = os.pathsep.join(_HELPER_DIRECTORIES)
    missing |= {name: package for name, package in _HELPERS.items() if shutil.which(name, path=helpers) is None}
    if not shutil.which("runc", path=path) and not shutil.which("crun", path=path):
        missing["runc"] = "runc"
    elif not _unified_cgroups() and not shutil.which("runc", path=path):
        return [
            "the OCI runtime crun refuses the control groups of this host (version 1 or hybrid): apt install runc",
            *_install(missing),
        ]
    return _install(missing)


def _install(missing: dict[str, str]) -> list[str]:
    if not missing:
        return []
    packages = " ".join(sorted(set(missing.values())))
    return [f"missing: {', '.join(sorted(missing))}. Install with: apt install {packages}"]


def _kernel_problems() -> list[str]:
    problems = []
    if not _unified_cgroups() and not Path("/sys/fs/cgroup/systemd").is_dir():
        problems.append(
            "there are no control groups that systemd can use: mount them (mount -t cgroup2 none /sys/fs/cgroup), "
            "or install cgroupfs-mount"
        )
    if "overlay" not in Path("/proc/filesystems").read_text().split() and shutil.which("fuse-overlayfs") is None:
        problems.append("the kernel has no overlay file system: modprobe overlay, or apt install fuse-overlayfs")
    if _limit(resource.RLIMIT_NOFILE, _WANTED_FILES) < _FEWEST_FILES:
        problems.append(f"fewer than {_FEWEST_FILES} open files are allowed: raise the hard limit (ulimit -Hn)")
    return problems
