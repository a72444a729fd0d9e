"""Prepares a host's disk as an image from which any number of instances can boot, each with an identity of its own.

What identifies the host is removed: its name, keys, machine id, logs, cloud-init's data, and the keys that may log in.
The munge key goes, too: an instance gets it from the controller at its boot (`munge_key`).
What makes it a node stays: packages, SSSD, mounts and services, and the controller's public key, with
which root there ends the processes of users who are disabled. Usage: gpucluster-agent seal HOME...
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import re
import shlex
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import AgentError, report

#: The lines around the part of authorized_keys that gpucluster writes.
BEGIN, END = "# BEGIN gpucluster\n", "# END gpucluster\n"
REMOVED = """
/etc/ssh/ssh_host_* /root/.ssh /root/.bash_history /root/.ansible /etc/gpucluster/authority
/etc/gpucluster/node.conf /etc/munge/munge.key /etc/munge/munge.key.next
/etc/NetworkManager/system-connections/gpucluster-* /etc/netplan/60-gpucluster-* /etc/systemd/network/60-gpucluster-*
/var/lib/systemd/random-seed /var/lib/systemd/credential.secret /var/lib/dbus/machine-id
/var/lib/dhcp/* /var/lib/NetworkManager/*lease /run/systemd/netif/leases/*
/var/lib/sss/db/* /var/lib/sss/mc/* /var/log/sssd/*
/var/lib/slurm/slurmd/* /var/spool/slurm/d/* /var/log/slurm/*
/var/log/journal/* /var/log/cloud-init*.log
"""
EMPTIED = """
/var/log/wtmp /var/log/btmp /var/log/lastlog /var/log/auth.log /var/log/syslog /var/log/secure /var/log/messages
"""


def remove(path: Path) -> None:
    """Remove a file, a link or a folder; never what a link leads to."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass  # it is gone already


def without_own_name(text: str, name: str) -> str:
    """/etc/hosts without the lines that give this host its own name."""
    kept = [line for line in text.splitlines() if name not in line.partition("#")[0].split()[1:]]
    return "\n".join(kept) + "\n"


def without_local_disk(text: str, conf: str) -> str:
    """/etc/fstab without the drives of this host: those of a new instance are blank, and mounted once formatted.

    Args:
        text: of /etc/fstab.
        conf: of node.conf, which names the mount point and the label of the drives.
    """
    values = dict(word.split("=", 1) for word in shlex.split(conf, comments=True) if "=" in word)
    place = values.get("local_disk_mount_path")
    ours = f"LABEL={values.get('local_disk_label')}"
    kept = [line for line in text.splitlines() if line.split()[:2] != [ours, place]]
    return "\n".join(kept) + "\n"


def controllers_key(text: str) -> str:
    """The part of authorized_keys that the role `base` wrote: the controller's public key. Empty if it has none.

    Args:
        text: of authorized_keys.
    """
    match = re.search(rf"^({BEGIN})(.*?)(^{END.rstrip()}$\n?)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        return ""
    begin, lines, end = match.groups()
    # Before this line are keys of operators, where the role has added some.
    return begin + lines.rpartition("# Of the controller:\n")[2] + end


def keep_controllers_key(keys: Path) -> None:
    """Remove authorized_keys, and write a new one with the controller's key if it had that. No link is followed."""
    kept = ""
    with contextlib.suppress(OSError):
        source = os.open(keys, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(source, "rb") as stream:
            owner = os.fstat(source)
            kept = controllers_key(stream.read().decode(errors="replace"))
    remove(keys)
    if kept:
        target = os.open(keys, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(target, "w", encoding="utf-8") as stream:
            os.fchown(target, owner.st_uid, owner.st_gid)
            stream.write(kept)


def rewrite(path: Path, text: str) -> None:
    """Rewrite a file in place: container engines mount some of these files."""
    if path.exists():
        path.write_text(text, encoding="utf-8")


def seal(homes: Sequence[Path]) -> None:
    """Remove what identifies this host. Only root of the controller can log in afterwards.

    Args:
        homes: home directories of the users who may log in so far.

    Raises:
        Failed: cloud-init could not be reset.
    """
    name = socket.gethostname().partition(".")[0]
    # These services would write the removed files again.
    programs.call(["systemctl", "stop", "slurmd", "sssd", "rsyslog"])
    programs.run("cloud-init", "clean", "--logs")
    hosts = Path("/etc/hosts")
    rewrite(hosts, without_own_name(hosts.read_text(encoding="utf-8"), name))
    rewrite(Path("/etc/hostname"), "localhost\n")
    conf, fstab = Path("/etc/gpucluster/node.conf"), Path("/etc/fstab")
    if conf.exists() and fstab.exists():
        rewrite(fstab, without_local_disk(fstab.read_text(encoding="utf-8"), conf.read_text(encoding="utf-8")))
    # Empty, not absent: without the file systemd would reset every unit to its preset at the next boot.
    rewrite(Path("/etc/machine-id"), "")
    for pattern in REMOVED.split():
        for path in glob.glob(pattern):
            remove(Path(path))
    for path in EMPTIED.split():
        rewrite(Path(path), "")
    for home in homes:
        keep_controllers_key(home / ".ssh/authorized_keys")
        for left in (".bash_history", ".ansible", ".cache/motd.legal-displayed"):
            remove(home / left)
    os.sync()


def main(argv: Sequence[str] | None = None) -> int:
    """Seal this host; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent seal", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("homes", metavar="HOME", nargs="*", type=Path, help="the home of a user who may log in so far")
    options = parser.parse_args(argv)
    try:
        seal(options.homes)
    except AgentError as error:
        return report(error, "seal")
    return 0
