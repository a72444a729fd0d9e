"""Rules of `software`: the mirror, versions and checksums of releases, trusted certificates, the proxy, the time zone,
the wheels. And of `nvidia.repositories`."""

from __future__ import annotations

import re
import zoneinfo
from typing import Any
from urllib.parse import urlsplit

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.certificate_files import read_certificates
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.sections import fields, software
from gpucluster.text import did_you_mean

RULES = (
    "The URLs of `software.mirror` and `software.proxy` contain no password.",
    "`nvidia.repositories` has one repository for each system.",
    "`software.denied_modules` names no module that hosts of a cluster need, each once.",
    "The files of `software.trusted_ca_files` are certificates in PEM, without a private key.",
)

_MIRROR: Path = ("software", "mirror")
_PROXY: Path = ("software", "proxy")
# A name or an address, and a port. Shells, systemd, apt and dnf read it, and agree on no way to quote anything else.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
#: Of network, disks, the share, containers, firewalls, GPUs and RDMA.
_NEEDED_MODULES = re.compile(
    r"(virtio|nvme|nvidia|mlx5|ib|rdma|nf|nft|ip|iptable|x|nfs|bnxt|i40e|ixgbe)_.+|"
    r"nfs|nfsv[34]|sunrpc|lockd|xfs|ext4|overlay|squashfs|loop|fuse|bridge|veth|nvidia|nvme|gdrdrv|autofs4"
)
_COMPONENT = r"[a-z][a-z0-9-]*"
_FILE = r"[A-Za-z0-9][A-Za-z0-9._+~-]*"


def check(context: RuleContext) -> None:
    """Add every error of `software`."""
    section = context.section("software")
    _check_repositories(context)
    for key, pattern, what in (("versions", _COMPONENT, "release"), ("checksums", _FILE, "file")):
        for name in section.get(key) or {}:
            if not re.fullmatch(pattern, name):
                context.error(("software", key, name), f"is not the name of a {what}: {shown(name)}", key=True)
    if isinstance(section.get("mirror"), str):
        _check_mirror(context, section["mirror"])
    if isinstance(section.get("proxy"), str):
        _check_proxy(context, section["proxy"])
    elif section.get("no_proxy"):
        context.error(("software", "no_proxy"), "has no effect without proxy", "Add `proxy:` or delete the line")
    _check_denied_modules(context)
    for index, name in usable(section.get("trusted_ca_files")):
        read_certificates(context, ("software", "trusted_ca_files", index), name)
    if isinstance(section.get("timezone"), str) and section["timezone"]:
        _check_timezone(context, section["timezone"])
    if isinstance(section.get("wheels"), str) and not _is_directory(context, section["wheels"]):
        hint = "docs/how-to/elastic-nodes.md lists what it must contain"
        context.error(("software", "wheels"), f"there is no directory {section['wheels']}", hint)


def _check_denied_modules(context: RuleContext) -> None:
    seen: set[str] = set()
    for index, name in usable(context.section("software").get("denied_modules")):
        path = ("software", "denied_modules", index)
        if _NEEDED_MODULES.fullmatch(name):
            context.error(path, f"hosts need {name}", "Without it they have no network, share, containers or GPUs")
        elif name in seen:
            context.error(path, f"{name} occurs twice", "Delete one of them")
        seen.add(name)


def _check_repositories(context: RuleContext) -> None:
    seen: set[Any] = set()
    for index, repository in usable(context.section("nvidia").get("repositories")):
        system = repository.get("system")
        if system in seen:
            context.error(("nvidia", "repositories", index, "system"), f"{system} occurs twice", "Delete one")
        seen.update({system} - {None})


def _check_mirror(context: RuleContext, name: str) -> None:
    if name.startswith(software.REMOTE):
        if not _is_url(name):
            context.error(_MIRROR, f"is not a URL: {shown(name)}", "Such as https://mirror.example/gpucluster")
        elif "@" in urlsplit(name).netloc:
            context.error(_MIRROR, "must not contain a password: this file is in Git", "Use a mirror without one")
    elif not _is_directory(context, name):
        hint = "Create and fill it: gpucluster software fetch DIR; or write a URL that begins with http:// or https://"
        context.error(_MIRROR, f"there is no directory {shown(name)}", hint)


def _check_proxy(context: RuleContext, url: str) -> None:
    host = urlsplit(url).netloc if _is_url(url) else ""
    plain = "@" in host or _HOST.fullmatch(host)  # the next error is clearer about a password
    if not url.startswith(software.REMOTE) or not plain or urlsplit(url).path not in ("", "/"):
        context.error(_PROXY, f"is not the URL of a proxy: {shown(url)}", "Such as http://proxy.example:3128")
    elif "@" in urlsplit(url).netloc:
        hint = "Use a proxy that allows the cluster's network without one"
        context.error(_PROXY, "must not contain a password: this file is in Git", hint)


def _is_directory(context: RuleContext, name: str) -> bool:
    try:
        return fields.located(name, context.directory).is_dir()
    except (RuntimeError, OSError, ValueError):
        return False


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and not parts.query and not parts.fragment and (port is None or port > 0)


def _check_timezone(context: RuleContext, name: str) -> None:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        # A machine without a time zone database has no names to compare with.
        if known and name not in known:
            hint = did_you_mean(name, known) or "Such as UTC or Europe/Berlin"
            context.error(("software", "timezone"), f"unknown time zone {shown(name)}", hint)
