"""Rules of `storage`: where file systems are mounted, and which file systems are the shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.reserved import NEVER_UNDER, SYSTEM_DIRECTORIES
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.sections.storage import CONTROLLER_HOSTS, LOGIN_HOSTS

_HOME: Path = ("storage", "home")
_DISK: Path = ("storage", "local_disk")
_SHARES: Path = ("storage", "shares")
# The name of the file system and the mount target of the home share ends with it.
_HOME_NAME = "home"

RULES = (
    "`mount_path` is not a directory of the system, and none of them is inside another one.",
    "`storage.home`, and each of `storage.shares`, has `file_system_id` or `server`, or neither.",
    "`storage.shares` needs the home share, and a scheduler other than `kubernetes`: pods have no volume for it.",
    "`storage.shares.<name>.hosts` is `controller`, `login` and names of pools.",
    "`storage.shares.<name>.read_only` needs `file_system_id` or `server`: no host could fill a new file system.",
    "`storage.shares.<name>.mount_target: home` needs a home share that this cluster exports.",
    "`throughput_gbps` needs a mount target of the share: none with `server`, and none with `mount_target: home`.",
    "Export paths of shares that this cluster exports are not inside each other.",
)


def check(context: RuleContext) -> None:
    """Add every error of `storage`."""
    _check_directory(context, (*_HOME, "mount_path"), "/mnt/home")
    _check_directory(context, (*_HOME, "export_path"), "/mnt/home", mounted=False)
    _check_directory(context, (*_DISK, "mount_path"), "/mnt/localdisk")
    _check_apart(context)
    _check_existing(context, _HOME)
    home = context.section(*map(str, _HOME))
    if home.get("throughput_gbps") is not None and home.get("server") is not None:
        _no_throughput(context, _HOME, "the home share is on a server of its own", "Delete it, or `server`")
    if _shares(context):
        _check_supported(context)
        _check_mount_paths(context)
        _check_exports(context)
    for name, share in _shares(context).items():
        _check_share(context, name, share)


def _shares(context: RuleContext) -> dict[str, dict[str, Any]]:
    shares = context.section(*map(str, _SHARES))
    return {str(name): share for name, share in shares.items() if isinstance(share, dict)}


def _check_supported(context: RuleContext) -> None:
    if context.section(*map(str, _HOME)).get("enabled") is False:
        message = "need the home share: its directory gives users the same uids on all hosts"
        context.error(_SHARES, message, "Delete `storage.shares`, or enable storage.home", key=True)
    if context.data.get("scheduler") == "kubernetes":
        message = "pods get the home share as a volume, and no further ones"
        context.error(_SHARES, message, "Delete `storage.shares`, or use another scheduler", key=True)


def _check_share(context: RuleContext, name: str, share: Mapping[str, Any]) -> None:
    at = (*_SHARES, name)
    _check_directory(context, (*at, "mount_path"), f"/mnt/{name}")
    _check_directory(context, (*at, "export_path"), f"/{name}", mounted=False)
    _check_existing(context, at)
    if name == _HOME_NAME:
        context.error(at, "is the name of the home share", "Use another name", key=True)
    if share.get("read_only") is True and share.get("file_system_id") is None and share.get("server") is None:
        message = "no host could write into the file system that is created for it"
        context.error((*at, "read_only"), message, "Delete it, or name a file system or a server that exists")
    home = context.section(*map(str, _HOME))
    if share.get("mount_target") == "home" and share.get("server") is None and home.get("server") is not None:
        message = "the home share is on a server of its own, so this cluster has no mount target of it"
        place = (*at, "mount_target")
        context.error(place if context.written(place) else at, message, "Write `mount_target: own`")
    if share.get("throughput_gbps") is not None and share.get("server") is not None:
        _no_throughput(context, at, "the share is on a server of its own", "Delete it, or `server`")
    elif share.get("throughput_gbps") is not None and share.get("mount_target") == "home":
        hint = "Write `mount_target: own`, or set storage.home.throughput_gbps"
        _no_throughput(context, at, "the mount target of the home share exports it", hint)
    _check_hosts(context, at, share)


def _no_throughput(context: RuleContext, at: Path, why: str, hint: str) -> None:
    context.error((*at, "throughput_gbps"), f"has no mount target to be for: {why}", hint, key=True)


def _check_hosts(context: RuleContext, at: Path, share: Mapping[str, Any]) -> None:
    known = [CONTROLLER_HOSTS, LOGIN_HOSTS, *map(str, context.section("pools"))]
    hosts = share.get("hosts")
    if hosts == ():
        context.error((*at, "hosts"), "names no hosts", "Name some, or delete the key: then all hosts mount the share")
    for index, host in usable(hosts):
        if host not in known:
            message = f"there is no pool {shown(host)}"
            context.error((*at, "hosts", index), message, f"Use one of: {', '.join(known)}")


def _check_mount_paths(context: RuleContext) -> None:
    """No mount hides another one."""
    home, disk = context.section(*map(str, _HOME)), context.section(*map(str, _DISK))
    others = [("the home share", home.get("mount_path"))]
    others += [("the local disk", disk.get("mount_path"))] if disk.get("enabled") is not False else []
    for name, share in _shares(context).items():
        path = share.get("mount_path")
        if not isinstance(path, str):
            continue
        for what, other in others:
            if isinstance(other, str) and _overlap(path, other):
                message = f"{path} and {what} {other} would hide each other"
                context.error(
                    (*_SHARES, name, "mount_path"), message, f"Use a directory of its own, such as /mnt/{name}"
                )
                break
        others.append((f"the share {name}", path))


def _check_exports(context: RuleContext) -> None:
    """File Storage refuses paths of one mount target that are inside each other; and paths identify exports."""
    seen: list[tuple[str, str]] = []
    for place, what, path in _exports(context):
        other = next((each for each in seen if _overlap(path, each[1])), None)
        if other:
            message = f"{path} conflicts with the export path of {other[0]}, {other[1]}"
            context.error(
                place if context.written(place) else place[:-1],
                message,
                "Use a path that is not inside the other one, and does not contain it",
            )
        seen.append((what, path))


def _exports(context: RuleContext) -> Iterator[tuple[Path, str, str]]:
    home = context.section(*map(str, _HOME))
    if home.get("server") is None and home.get("enabled") is not False and isinstance(home.get("export_path"), str):
        yield (*_HOME, "export_path"), "the home share", home["export_path"]
    for name, share in _shares(context).items():
        path = share.get("export_path", "") or f"/{name}"
        if share.get("server") is None and isinstance(path, str):
            yield (*_SHARES, name, "export_path"), f"the share {name}", path


def _overlap(path: str, other: str) -> bool:
    return f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")


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
    if _overlap(local, home):
        message = f"{local} and the home share {home} would hide each other"
        context.error((*_DISK, "mount_path"), message, "Use a directory of its own, such as /mnt/localdisk")


def _check_existing(context: RuleContext, at: Path) -> None:
    share = context.section(*map(str, at))
    server = share.get("server")
    if share.get("file_system_id") is not None and server is not None:
        hint = "Keep file_system_id if this cluster is to export it, or server if a server exports it already"
        context.error((*at, "server"), "conflicts with file_system_id", hint, key=True)
    if not isinstance(server, str):
        return
    try:
        address = IPv4Address(server)
    except AddressValueError:
        message = f"must be an IPv4 address; got {shown(server)}"
        context.error((*at, "server"), message, "Such as 10.0.1.20; host names are not resolved")
        return
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
        message = f"other machines can't reach {server}"
        context.error((*at, "server"), message, "Write the address of the NFS server or of the mount target")
