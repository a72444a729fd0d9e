"""Rules of `storage`: where file systems are mounted, and which file system is the home share."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.reserved import NEVER_UNDER, SYSTEM_DIRECTORIES
from gpucluster.spec.rules.context import RuleContext

_HOME: Path = ("storage", "home")
_DISK: Path = ("storage", "local_disk")

RULES = (
    "`mount_path` is not a directory of the system, and neither of the two is inside the other.",
    "`storage.home` has `file_system_id` or `server`, or neither.",
)


def check(context: RuleContext) -> None:
    """Add every error of `storage`."""
    _check_directory(context, (*_HOME, "mount_path"), "/mnt/home")
    _check_directory(context, (*_HOME, "export_path"), "/mnt/home", mounted=False)
    _check_directory(context, (*_DISK, "mount_path"), "/mnt/localdisk")
    _check_apart(context)
    _check_existing(context)


def _check_directory(context: RuleContext, path: Path, example: str, *, mounted: bool = True) -> None:
    text = context.section(*map(str, path[:-1])).get(str(path[-1]))
    if not isinstance(text, str):
        return
    if {".", ".."} & set(text.split("/")):
        context.error(path, f"must not contain . or ..; got {shown(text)}")
    if mounted and (text in SYSTEM_DIRECTORIES or any(text.startswith(f"{parent}/") for parent in NEVER_UNDER)):
        hint = f"Use a directory of its own, such as {example}"
        context.error(path, f"{text} belongs to the system, and its content would be hidden", hint)


def _check_apart(context: RuleContext) -> None:
    home, disk = context.section(*map(str, _HOME)).get("mount_path"), context.section(*map(str, _DISK))
    local = disk.get("mount_path")
    if not isinstance(home, str) or not isinstance(local, str) or disk.get("enabled") is False:
        return
    if f"{local}/".startswith(f"{home}/") or f"{home}/".startswith(f"{local}/"):
        message = f"{local} and the home share {home} would hide each other"
        context.error((*_DISK, "mount_path"), message, "Use a directory of its own, such as /mnt/localdisk")


def _check_existing(context: RuleContext) -> None:
    home = context.section(*map(str, _HOME))
    server = home.get("server")
    if home.get("file_system_id") is not None and server is not None:
        hint = "Keep file_system_id if this cluster is to export it, or server if a server exports it already"
        context.error((*_HOME, "server"), "conflicts with file_system_id", hint, key=True)
    if not isinstance(server, str):
        return
    try:
        address = IPv4Address(server)
    except AddressValueError:
        message = f"must be an IPv4 address; got {shown(server)}"
        context.error((*_HOME, "server"), message, "Such as 10.0.1.20; host names are not resolved")
        return
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
        message = f"other machines can't reach {server}"
        context.error((*_HOME, "server"), message, "Write the address of the NFS server or of the mount target")
