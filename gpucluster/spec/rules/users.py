"""Rules of `users`: names, ids, groups and public keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.controller.rules import names as name_rules
from gpucluster.controller.rules import ssh_keys
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.rules.ssh import read_key_file
from gpucluster.text import count

RULES = (
    "Names and uids of users are unique, none belongs to the system, and every user has a public key (with provider "
    "local `generate_key: true` is enough).",
    "`users.group` and `users.privilege_group` are different groups; the `group` of a user is one of them.",
    "Without a home share every user has a `uid`.",
)

_OUTSIDE = f"Use one outside of {name_rules.free_ranges()}"


def check(context: RuleContext) -> None:
    """Add every error of `users`; the key files that it names are read."""
    users = context.section("users")
    first_uid = users.get("first_uid")
    for key in ("group", "privilege_group"):
        if _is_reserved_name(users.get(key)):
            context.error(("users", key), f"the group {users[key]} belongs to the system", "Choose another name")
    _check_two_groups(context, users)
    for key in ("gid", "privilege_gid", "first_uid"):
        if _is_reserved(users.get(key)):
            context.error(("users", key), f"{users[key]} belongs to the system", _OUTSIDE)
    names: dict[Any, Path] = {}
    logins = _login_users(context)
    uids: dict[Any, Path] = {}
    for index, person in usable(users.get("people")):
        if isinstance(person, dict):
            path: Path = ("users", "people", index)
            _check_name(context, (*path, "name"), person.get("name"), names, logins)
            _check_uid(context, (*path, "uid"), person.get("uid"), first_uid, uids)
            _check_full_name(context, (*path, "full_name"), person.get("full_name"))
            _check_groups(context, path, person, users)
            _check_without_directory(context, path, person)
            _check_keys(context, path, person)


def _is_reserved_name(name: Any) -> bool:
    return isinstance(name, str) and name_rules.is_reserved_name(name)


def _is_reserved(number: Any) -> bool:
    # A value of another type is reported elsewhere; `in` would search a range for it number by number.
    return type(number) is int and name_rules.is_reserved_id(number)


def _check_two_groups(context: RuleContext, users: Mapping[str, Any]) -> None:
    """The default group has no privileges; users list the group with privileges by name."""
    group, gid = users.get("group"), users.get("gid")
    if group is not None and group == users.get("privilege_group"):
        message = f"{group} is the group with root privileges in containers, which not every user may have"
        hint = f"Choose another name here, and write `groups: [{group}]` for each user who needs them"
        context.error(("users", "group"), message, hint)
    elif gid is not None and gid == users.get("privilege_gid"):
        context.error(("users", "gid"), f"{gid} is the id of {users.get('privilege_group')}", "Choose another")


def _check_groups(context: RuleContext, path: Path, person: Mapping[str, Any], users: Mapping[str, Any]) -> None:
    known = [name for name in (users.get("group"), users.get("privilege_group")) if name]
    primary = person.get("group")
    if primary and primary not in known and context.written((*path, "group")):
        context.error((*path, "group"), f"can't be {shown(primary)}", f"One of: {', '.join(known)}")
    seen: dict[Any, Path] = {}
    for index, name in usable(person.get("groups")):
        where: Path = (*path, "groups", index)
        if _is_reserved_name(name):
            context.error(where, f"the group {name} belongs to the system", "Choose another name")
        else:
            _check_unique(context, seen, name, where)


def _check_without_directory(context: RuleContext, path: Path, person: Mapping[str, Any]) -> None:
    """Without a directory nothing stores the ids, so the file must have them."""
    if context.section("slurm").get("enabled") is True:
        return  # Slurm needs the home share; that it is missing is reported there
    if context.section("storage", "home").get("enabled") is False and "uid" in person and person["uid"] is None:
        who = person.get("name") or "this user"
        message = f"{who} needs a uid: without a home share there is no directory that stores one"
        context.error(path, message, "Add `uid: 10001`, and do not change it later")


def _login_users(context: RuleContext) -> set[Any]:
    """The login users of all images; they exist before the directory does."""
    machines = [context.section("controller"), context.section("login"), *context.section("pools").values()]
    images = (machine.get("image") for machine in machines if isinstance(machine, dict))
    return {image.get("login_user") for image in images if isinstance(image, dict)}


def _check_name(context: RuleContext, path: Path, name: Any, seen: dict[Any, Path], logins: set[Any]) -> None:
    if isinstance(name, str):
        if _is_reserved_name(name) or name in logins:
            context.error(path, f"the user {name} belongs to the system", "Choose another name")
        _check_unique(context, seen, name, path)


def _check_uid(context: RuleContext, path: Path, uid: Any, first_uid: Any, seen: dict[Any, Path]) -> None:
    if isinstance(uid, int):
        if isinstance(first_uid, int) and uid < first_uid:
            context.error(path, f"is below first_uid: {uid} < {first_uid}", "Raise it, or lower first_uid")
        elif _is_reserved(uid):
            context.error(path, f"{uid} belongs to the system", _OUTSIDE)
        _check_unique(context, seen, uid, path)


def _check_full_name(context: RuleContext, path: Path, full_name: Any) -> None:
    if not isinstance(full_name, str) or not full_name:
        return
    if not name_rules.has_letter(full_name):
        context.error(path, f"contains no letter: {shown(full_name)}", "Such as: Ada Lovelace")
    elif not name_rules.is_full_name_text(full_name.strip()):
        context.error(path, "must not contain a colon, a comma, a line end or invisible characters")


def _check_unique(context: RuleContext, seen: dict[Any, Path], value: Any, path: Path) -> None:
    if value in seen:
        message = f"{value} occurs twice, first in line {context.line(seen[value])}"
        context.error(path, message, "Each may occur once")
    else:
        seen[value] = path


def _check_keys(context: RuleContext, path: Path, person: Mapping[str, Any]) -> None:
    texts, files = person.get("ssh_public_keys"), person.get("ssh_public_key_files")
    for index, text in usable(texts):
        if isinstance(text, str):
            try:
                ssh_keys.check(text)
            except ssh_keys.BadKey as bad:
                context.error((*path, "ssh_public_keys", index), f"the key is {bad.message}", bad.hint)
    for index, name in usable(files):
        if isinstance(name, str):
            read_key_file(context, (*path, "ssh_public_key_files", index), name)
    keys = [*(texts or ()), *(key for name in files or () for key in context.public_keys.get(name, ()))]
    if len(keys) > ssh_keys.MAX_KEYS:
        context.error(path, f"has {count(len(keys), 'ssh key')}", f"At most {ssh_keys.MAX_KEYS}")
    if texts is not None and files is not None:
        _check_has_key(context, path, person, has_own=bool(texts or files))


def _check_has_key(context: RuleContext, path: Path, person: Mapping[str, Any], *, has_own: bool) -> None:
    generate, provider = person.get("generate_key"), context.provider
    who = person.get("name") or "this user"
    if generate and provider is not None and not provider.generates_keys:
        message = "is for provider local only: users create their private keys themselves"
        context.error((*path, "generate_key"), message, "Ask the user for a public key, and add it to ssh_public_keys")
    elif generate and has_own:
        context.error((*path, "generate_key"), f"{who} has a key already", "Delete the line")
    elif generate is False and not has_own:
        generated = ", or generate_key: true" if provider is not None and provider.generates_keys else ""
        hint = f"Add ssh_public_keys or ssh_public_key_files{generated}"
        context.error(path, f"{who} has no ssh key and could not log in", hint)
