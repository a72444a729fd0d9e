"""The double of Enroot as the two Debian packages that upstream publishes, and a root directory for its images."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mirror import Mirror

VERSION = "4.1.2"
PROGRAM = Path(__file__).with_name("enroot")
CONFIG = "/etc/enroot/enroot.conf"
HOOKS = "/etc/enroot/hooks.d"
EXTRA_HOOKS = "/usr/share/enroot/hooks.d"

# As upstream's, it can not work where a container sees version 1 hierarchies that are not its own.
_CGROUPS_HOOK = """#!/bin/sh
[ ! -d /sys/fs/cgroup/systemd ] || { echo "enroot-mount: failed to mount: /sys/fs/cgroup/systemd" >&2; exit 1; }
"""
_NVIDIA_HOOK = """#!/bin/sh
grep -q '^NVIDIA_VISIBLE_DEVICES=' "$ENROOT_ENVIRON" || exit 0
command -v nvidia-container-cli > /dev/null || { echo "Command not found: nvidia-container-cli" >&2; exit 1; }
"""
_PMI_HOOK = """#!/bin/bash
[ -n "${SLURM_JOB_ID-}" ] || exit 0
for name in $(compgen -e SLURM_); do printf '%s=%s\\n' "$name" "${!name}" >> "$ENROOT_ENVIRON"; done
"""
_PYTORCH_HOOK = """#!/bin/sh
if grep -q '^PYTORCH_VERSION=' "$ENROOT_ENVIRON"; then echo "RANK=${SLURM_PROCID-0}" >> "$ENROOT_ENVIRON"; fi
"""
_MOUNTS = """/proc /proc none x-create=dir,rbind,rw,nosuid,nodev,noexec
/sys /sys none x-create=dir,rbind,nosuid,nodev,noexec
/dev /dev none x-create=dir,rbind,rw,nosuid,noexec
tmpfs /tmp tmpfs x-create=dir,rw
"""


def add(mirror: Mirror, version: str = VERSION) -> None:
    """Put enroot_VERSION-1_amd64.deb and enroot+caps_VERSION-1_amd64.deb into a mirror.

    As upstream's, `enroot` brings a configuration without settings, and all that lies in /etc is a conffile.
    """
    etc = {
        CONFIG: f"# Settings of the double {version}; none is set here.\n",
        f"{HOOKS}/10-cgroups.sh": _CGROUPS_HOOK,
        f"{HOOKS}/98-nvidia.sh": _NVIDIA_HOOK,
        "/etc/enroot/mounts.d/10-system.fstab": _MOUNTS,
        "/etc/enroot/environ.d/10-terminal.env": "TERM=${TERM-}\n",
    }
    mirror.deb(
        "enroot",
        f"{version}-1",
        {
            "/usr/bin/enroot": PROGRAM.read_text().replace("@VERSION@", version),
            f"{EXTRA_HOOKS}/50-slurm-pmi.sh": _PMI_HOOK,
            f"{EXTRA_HOOKS}/50-slurm-pytorch.sh": _PYTORCH_HOOK,
            **etc,
        },
        depends="bash (>= 4.2), curl, jq (>= 1.5), parallel, squashfs-tools, zstd",
        scripts={"conffiles": "".join(f"{path}\n" for path in etc)},
    )
    mirror.deb(
        "enroot+caps",
        f"{version}-1",
        {"/usr/share/enroot/double-caps": "Users may import.\n"},
        depends=f"enroot (= {version}-1), libcap2-bin",
    )


def root_directory(
    files: Mapping[str, str] | None = None, programs: Sequence[str] = ("/bin/sh", "/usr/bin/cat", "/usr/bin/id")
) -> bytes:
    """A tar of a root directory: these programs of this machine with their libraries, and text files by their path."""
    paths = set(programs)
    for program in programs:
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        paths |= {word for word in linked.split() if word.startswith("/")}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(paths):
            archive.add(Path(path).resolve(), arcname=path.lstrip("/"))
        for path, text in {"etc/os-release": "ID=double\n", **(files or {})}.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(text.encode()), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()
