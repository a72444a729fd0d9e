"""What of the controller's system the standby has as well, and what each host has of its own. Pure.

The common part is named by what it leaves out: a package or a role that is new is then on both hosts, without a list
that an author has to extend.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpucluster.node_agent.state_volume import layout

#: The trees that both hosts have in common.
ROOTS = ("/etc", "/opt", "/root", "/srv", "/usr", "/var/lib", "/var/spool/cron")
#: Trees in which the standby has nothing else. Elsewhere programs of a host that runs write files of their own.
EXACT = ("/etc", "/opt", "/srv", "/usr")
#: Where the standby's own part of this program is.
FOLDER = "/var/lib/gpucluster-standby"
_FSTAB = "/etc/fstab"
# Of each host: its identity, its network, its disks and its kernel, and what services note about themselves.
_OWN = (
    "/etc/adjtime",
    "/etc/crypttab",
    "/etc/default/grub",
    "/etc/default/grub.d",
    _FSTAB,
    "/etc/grub.d",
    "/etc/grub2.cfg",
    "/etc/hostname",
    "/etc/iscsi",
    "/etc/kernel",
    "/etc/ld.so.cache",
    "/etc/lvm",
    "/etc/machine-id",
    "/etc/mtab",
    "/etc/netplan",
    "/etc/network/interfaces.d",
    "/etc/NetworkManager/system-connections",
    "/etc/resolv.conf",
    "/etc/ssh/ssh_host_dsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ecdsa_key.pub",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_ed25519_key.pub",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_rsa_key.pub",
    "/etc/sysconfig/network-scripts",
    "/etc/udev/rules.d",
    "/etc/systemd/network",
    "/root/.ssh",
    "/usr/lib/modules",
    "/usr/src",
    "/var/lib/NetworkManager",
    "/var/lib/alloy",
    "/var/lib/apt/lists",
    "/var/lib/chrony",
    "/var/lib/cloud",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/dbus",
    "/var/lib/dhcp",
    "/var/lib/dhcpcd",
    "/var/lib/docker",
    "/var/lib/dnf",
    "/var/lib/gpucluster/containers",
    "/var/lib/iscsi",
    "/var/lib/kubelet",
    "/var/lib/logrotate",
    "/var/lib/nfs",
    "/var/lib/os-prober",
    "/var/lib/private",
    "/var/lib/slurm",
    "/var/lib/sss",
    "/var/lib/systemd",
    "/var/lib/ucf/cache",
    FOLDER,
    layout.MOUNT,
)
#: Folders that both hosts have, each with a content of its own: metrics are written again and again.
_OWN_CONTENT = ("/var/lib/gpucluster/metrics/",)
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4")


def is_own(path: str) -> bool:
    """Whether a path belongs to one host alone, or to the volume with the state."""
    for own in (*_OWN, *layout.DIRECTORIES.values()):
        if path == own or path.startswith((f"{own}/", f"{own}.before-state-volume")):
            return True
    return path.startswith(_OWN_CONTENT)


def is_exact(path: str) -> bool:
    """Whether a path that the controller does not have is removed from the standby."""
    return path.startswith(tuple(f"{root}/" for root in EXACT))


def shares(fstab: str) -> list[str]:
    """The lines of /etc/fstab about network file systems."""
    return [line for line in fstab.splitlines() if _is_share(line)]


def with_shares(fstab: str, lines: Iterable[str]) -> str:
    """The text of /etc/fstab with these network file systems and no others: the disks are those of the host."""
    own = [line for line in fstab.splitlines() if not _is_share(line)]
    return "".join(f"{line}\n" for line in (*own, *lines))


def _is_share(line: str) -> bool:
    words = line.split("#", 1)[0].split()
    return words[2:3] != [] and words[2] in _NETWORK_FILE_SYSTEMS
