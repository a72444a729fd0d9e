"""Rules of `software`: the mirror, versions and checksums of releases, the time zone, the wheels."""

from __future__ import annotations

import re
import zoneinfo
from urllib.parse import urlsplit

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.sections import fields, software
from gpucluster.text import did_you_mean

RULES = ("The URL of `software.mirror` contains no password.",)

_MIRROR: Path = ("software", "mirror")
_COMPONENT = r"[a-z][a-z0-9-]*"
_FILE = r"[A-Za-z0-9][A-Za-z0-9._+~-]*"


def check(context: RuleContext) -> None:
    """Add every error of `software`."""
    section = context.section("software")
    for key, pattern, what in (("versions", _COMPONENT, "release"), ("checksums", _FILE, "file")):
        for name in section.get(key) or {}:
            if not re.fullmatch(pattern, name):
                context.error(("software", key, name), f"is not the name of a {what}: {shown(name)}", key=True)
    if isinstance(section.get("mirror"), str):
        _check_mirror(context, section["mirror"])
    if isinstance(section.get("timezone"), str) and section["timezone"]:
        _check_timezone(context, section["timezone"])
    if isinstance(section.get("wheels"), str) and not _is_directory(context, section["wheels"]):
        hint = "docs/how-to/elastic-nodes.md lists what it must contain"
        context.error(("software", "wheels"), f"there is no directory {section['wheels']}", hint)


def _check_mirror(context: RuleContext, name: str) -> None:
    if name.startswith(software.REMOTE):
        if not _is_url(name):
            context.error(_MIRROR, f"is not a URL: {shown(name)}", "Such as https://mirror.example/gpucluster")
        elif "@" in urlsplit(name).netloc:
            context.error(_MIRROR, "must not contain a password: this file is in Git", "Use a mirror without one")
    elif not _is_directory(context, name):
        hint = "Create and fill it: gpucluster software fetch DIR; or write a URL that begins with http:// or https://"
        context.error(_MIRROR, f"there is no directory {shown(name)}", hint)


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
