"""Rules of `users.directory`: its files, and what a cluster with a directory that exists can't have."""

from __future__ import annotations

import os
import stat
from typing import Any

from gpucluster.controller.rules import names as name_rules
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.certificate_files import read_certificates
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.sections import fields

RULES = (
    "With `users.directory` there are no `users.people`; `scheduler` is `slurm`; there is a home share; and "
    "`backup.certificate` and `controller.state_volume_gb` are not set.",
    "`users.directory.bind_password_file` is a file with one line, which only you can read.",
    "`users.directory.ca_certificate` is a file with certificates in PEM, without a private key.",
    "`users.directory.ldap_schema` needs `kind: ldap`, and `id_mapping` needs `kind: ad`.",
    "`users.directory.user_groups` and `admin_groups` name no group of the system, each group once.",
)

_AT: Path = ("users", "directory")
_MAX_BYTES = 4096
_HOW = "docs/how-to/existing-directory.md"


def check(context: RuleContext) -> None:
    """Add every error of `users.directory`. The content of the password's file is never part of a message."""
    section = context.section("users", "directory")
    if not section:
        return
    _check_cluster(context)
    _check_kind(context, section)
    _check_groups(context, section)
    first, last = section.get("first_id"), section.get("last_id")
    if isinstance(first, int) and isinstance(last, int) and last < first:
        context.error((*_AT, "last_id"), f"{last} is below first_id, which is {first}", "Write a higher number")
    if isinstance(section.get("bind_password_file"), str):
        _check_password(context, section["bind_password_file"])
    if isinstance(section.get("ca_certificate"), str):
        read_certificates(context, (*_AT, "ca_certificate"), section["ca_certificate"])


def _check_cluster(context: RuleContext) -> None:
    """What belongs to the cluster's own directory, or was not made for another one."""
    if context.section("users").get("people"):
        message = "the users of this cluster are in users.directory"
        context.error(("users", "people"), message, "Add them to a group of user_groups there, and delete `people`")
    if context.data.get("scheduler") not in ("slurm", None):
        message = "needs `scheduler: slurm`: users of other schedulers come from the cluster's own directory"
        context.error(_AT, message, "Delete `users.directory`, and write the users under users.people", key=True)
    elif context.section("storage", "home").get("enabled") is False:
        context.error(_AT, "needs the home share: its users have their homes there", "Enable storage.home", key=True)
    if context.section("backup").get("certificate") is not None:
        message = "backups on a schedule need the cluster's own directory"
        context.error(("backup", "certificate"), message, f"Delete `backup`; see {_HOW}")
    if context.section("controller").get("state_volume_gb") is not None:
        message = "a volume for the controller's state needs the cluster's own directory"
        context.error(("controller", "state_volume_gb"), message, f"Delete the line; see {_HOW}")


def _check_kind(context: RuleContext, section: dict[str, Any]) -> None:
    kind = section.get("kind")
    if kind in ("ad", "ipa") and context.written((*_AT, "ldap_schema")):
        context.error((*_AT, "ldap_schema"), f"has no effect with `kind: {kind}`", "Delete the line", key=True)
    if kind in ("ldap", "ipa") and section.get("id_mapping") is True:
        message = f"`kind: {kind}` has no SIDs from which ids could be computed"
        context.error((*_AT, "id_mapping"), message, "Delete the line")


def _check_groups(context: RuleContext, section: dict[str, Any]) -> None:
    seen: set[str] = set()
    for key in ("user_groups", "admin_groups"):
        for index, name in usable(section.get(key)):
            where: Path = (*_AT, key, index)
            if not isinstance(name, str):
                continue
            if name_rules.is_reserved_name(name.lower()):
                context.error(where, f"the group {name} belongs to the system", "Name a group of the directory")
            elif name.lower() in seen:
                context.error(where, f"{name} occurs twice", "Administrators are users, too")
            seen.add(name.lower())


def _check_password(context: RuleContext, name: str) -> None:
    path: Path = (*_AT, "bind_password_file")
    try:
        with fields.located(name, context.directory).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError):
        hint = "File names are relative to this file. It has the password of bind_dn, and nothing else"
        context.error(path, f"there is no file {shown(name)} that can be read", hint)
        return
    lines = content.decode(errors="replace").splitlines()
    if mode & 0o077:
        context.error(path, f"others than you can read {shown(name)}", f"Run: chmod 600 {name}")
    elif len(lines) != 1 or not lines[0].strip() or "\ufffd" in lines[0] or len(content) > _MAX_BYTES:
        context.error(path, f"{shown(name)} must have one line, the password", "Write the password alone into it")
    elif lines[0] != lines[0].strip() or not lines[0].isprintable():
        context.error(
            path,
            f"the password in {shown(name)} has a blank at an end, or a control character",
            "SSSD would not read it",
        )
