"""Rules of file systems: where they are mounted, and where the shared home comes from."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address

from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.taken import NEVER_UNDER, SYSTEM_DIRECTORIES
from gpucluster.spec.wording import shown

_HOME: Path = ("storage", "home")
_DISK: Path = ("storage", "local_disk")


def check_storage(draft: Draft) -> None:
    """Note every fault of `storage`."""
    _directory(draft, (*_HOME, "mount_path"), "/mnt/home")
    _directory(draft, (*_HOME, "export_path"), "/mnt/home", mounted=False)
    _directory(draft, (*_DISK, "mount_path"), "/mnt/localdisk")
    _apart(draft)
    _existing(draft)


def _directory(draft: Draft, path: Path, example: str, *, mounted: bool = True) -> None:
    text = draft.section(*map(str, path[:-1])).get(str(path[-1]))
    if not isinstance(text, str):
        return
    if {".", ".."} & set(text.split("/")):
        draft.fault(path, f"must not have . or .. in it; got {shown(text)}")
    if mounted and (text in SYSTEM_DIRECTORIES or any(text.startswith(f"{parent}/") for parent in NEVER_UNDER)):
        hint = f"Take a directory of its own, such as {example}"
        draft.fault(path, f"{text} belongs to the system, and would be hidden", hint)


def _apart(draft: Draft) -> None:
    home, disk = draft.section(*map(str, _HOME)).get("mount_path"), draft.section(*map(str, _DISK))
    local = disk.get("mount_path")
    if not isinstance(home, str) or not isinstance(local, str) or disk.get("enabled") is False:
        return
    if f"{local}/".startswith(f"{home}/") or f"{home}/".startswith(f"{local}/"):
        message = f"{local} and the shared home {home} would hide one another"
        draft.fault((*_DISK, "mount_path"), message, "Take a directory of its own, such as /mnt/localdisk")


def _existing(draft: Draft) -> None:
    home = draft.section(*map(str, _HOME))
    server = home.get("server")
    if home.get("file_system_id") is not None and server is not None:
        hint = "Keep file_system_id to have it exported by this cluster, or server for one that exports it already"
        draft.fault((*_HOME, "server"), "stands beside file_system_id", hint, key=True)
    if not isinstance(server, str):
        return
    try:
        address = IPv4Address(server)
    except AddressValueError:
        message = f"must be an IPv4 address; got {shown(server)}"
        draft.fault((*_HOME, "server"), message, "Such as 10.0.1.20; names of hosts are not looked up")
        return
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
        message = f"no other machine can reach {server}"
        draft.fault((*_HOME, "server"), message, "Write the address of the NFS server or of the mount target")
