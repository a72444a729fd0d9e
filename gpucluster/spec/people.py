"""Rules of people: the operator's key pair, the users and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.agent.rules import names as name_rules
from gpucluster.agent.rules import ssh_keys
from gpucluster.spec import fields, keys
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.wording import shown

_OUTSIDE = f"Take one outside of {name_rules.free_ranges()}"


def check_ssh(draft: Draft) -> None:
    """Note every fault of `ssh`; its public key is read."""
    ssh = draft.section("ssh")
    public, private = ssh.get("public_key_file"), ssh.get("private_key_file")
    path: Path = ("ssh", "public_key_file")
    if "public_key_file" not in ssh:
        return
    if public is None:
        if draft.section("cloud").get("provider") == "oci":
            hint = "Add `public_key_file: ~/.ssh/id_ed25519.pub` under `ssh:`"
            draft.fault(path, "is missing: provider oci needs it", hint)
        if private is not None:
            hint = "Name the public key, too, or delete the line: then gpucluster makes a pair"
            draft.fault(("ssh", "private_key_file"), "a private key without a public one", hint)
        return
    found = _key_file(draft, path, public)
    if len(found) > 1:
        draft.fault(path, f"{public} holds {len(found)} keys; the operator has one", "Name the .pub file of one pair")
    if found and private is None and not public.endswith(".pub"):
        hint = "Add `private_key_file:` under `ssh:`"
        draft.fault(path, f"can't tell the private key's name from {shown(public)}", hint)
    if private is not None:
        _private_key(draft, private)


def check_users(draft: Draft) -> None:
    """Note every fault of `users`; the key files that are named are read."""
    users = draft.section("users")
    first_uid = users.get("first_uid")
    for key in ("group", "privilege_group"):
        if _is_reserved_name(users.get(key)):
            draft.fault(("users", key), f"the group {users[key]} belongs to the system", "Choose another name")
    _groups_apart(draft, users)
    for key in ("gid", "privilege_gid", "first_uid"):
        if _reserved(users.get(key)):
            draft.fault(("users", key), f"{users[key]} belongs to the system", _OUTSIDE)
    names: dict[Any, Path] = {}
    logins = _login_users(draft)
    uids: dict[Any, Path] = {}
    for index, person in enumerate(users.get("people") or ()):
        if isinstance(person, dict):
            path: Path = ("users", "people", index)
            _name(draft, (*path, "name"), person.get("name"), names, logins)
            _uid(draft, (*path, "uid"), person.get("uid"), first_uid, uids)
            _full_name(draft, (*path, "full_name"), person.get("full_name"))
            _groups(draft, path, person, users)
            _without_directory(draft, path, person)
            _person_keys(draft, path, person)


def _is_reserved_name(name: Any) -> bool:
    return isinstance(name, str) and name_rules.is_reserved_name(name)


def _reserved(number: Any) -> bool:
    # What is no whole number is reported elsewhere; a range would search for it one by one.
    return type(number) is int and name_rules.is_reserved_id(number)


def _groups_apart(draft: Draft, users: Mapping[str, Any]) -> None:
    """Everybody's group gives nothing; powers are asked for by name."""
    group, gid = users.get("group"), users.get("gid")
    if group is not None and group == users.get("privilege_group"):
        message = f"{group} is the group of those with the powers of root in containers; not everybody is one of them"
        hint = f"Choose another name here, and write `groups: [{group}]` at each person who shall have them"
        draft.fault(("users", "group"), message, hint)
    elif gid is not None and gid == users.get("privilege_gid"):
        draft.fault(("users", "gid"), f"{gid} is the id of {users.get('privilege_group')}", "Choose another")


def _groups(draft: Draft, path: Path, person: Mapping[str, Any], users: Mapping[str, Any]) -> None:
    known = [name for name in (users.get("group"), users.get("privilege_group")) if name]
    primary = person.get("group")
    if primary and primary not in known and draft.written((*path, "group")):
        draft.fault((*path, "group"), f"can't be {shown(primary)}", f"One of: {', '.join(known)}")
    seen: dict[Any, Path] = {}
    for index, name in enumerate(person.get("groups") or ()):
        where: Path = (*path, "groups", index)
        if _is_reserved_name(name):
            draft.fault(where, f"the group {name} belongs to the system", "Choose another name")
        elif name is not None:
            _unique(draft, seen, name, where)


def _without_directory(draft: Draft, path: Path, person: Mapping[str, Any]) -> None:
    """Numbers that nobody remembers must stand in the file."""
    if draft.section("slurm").get("enabled") is True:
        return  # it needs the shared home, which is told where it is missing
    if draft.section("storage", "home").get("enabled") is False and "uid" in person and person["uid"] is None:
        who = person.get("name") or "this user"
        message = f"{who} needs a uid: without a shared home there is no directory that would remember one"
        draft.fault(path, message, "Add `uid: 10001`, and keep it")


def _login_users(draft: Draft) -> set[Any]:
    """The users that the images let in; they are there before LDAP is."""
    machines = [draft.section("controller"), *draft.section("pools").values()]
    images = (machine.get("image") for machine in machines if isinstance(machine, dict))
    return {image.get("login_user") for image in images if isinstance(image, dict)}


def _name(draft: Draft, path: Path, name: Any, seen: dict[Any, Path], logins: set[Any]) -> None:
    if isinstance(name, str):
        if _is_reserved_name(name) or name in logins:
            draft.fault(path, f"the user {name} belongs to the system", "Choose another name")
        _unique(draft, seen, name, path)


def _uid(draft: Draft, path: Path, uid: Any, first_uid: Any, seen: dict[Any, Path]) -> None:
    if isinstance(uid, int):
        if isinstance(first_uid, int) and uid < first_uid:
            draft.fault(path, f"is below first_uid: {uid} < {first_uid}", "Raise it, or lower first_uid")
        elif _reserved(uid):
            draft.fault(path, f"{uid} belongs to the system", _OUTSIDE)
        _unique(draft, seen, uid, path)


def _full_name(draft: Draft, path: Path, full_name: Any) -> None:
    if not isinstance(full_name, str) or not full_name:
        return
    if not name_rules.has_letter(full_name):
        draft.fault(path, f"has no letter in it: {shown(full_name)}", "Such as: Ada Lovelace")
    elif not name_rules.is_full_name_text(full_name.strip()):
        draft.fault(path, "must not have a colon, a comma, a line end or invisible characters in it")


def _key_file(draft: Draft, path: Path, name: str) -> tuple[str, ...]:
    try:
        found = keys.read(fields.located(name, draft.directory))
    except ssh_keys.BadKey as bad:
        draft.fault(path, bad.message, bad.hint)
        return ()
    except RuntimeError:
        draft.fault(path, f"there is no user whose home {shown(name)} could be in")
        return ()
    draft.public_keys[name] = found
    return found


def _private_key(draft: Draft, name: str) -> None:
    path: Path = ("ssh", "private_key_file")
    try:
        file = fields.located(name, draft.directory)
        is_file = file.is_file()
    except (RuntimeError, OSError):
        is_file = False
    if not is_file:
        draft.fault(path, f"there is no file {name}", "Make a pair: ssh-keygen -t ed25519")


def _unique(draft: Draft, seen: dict[Any, Path], value: Any, path: Path) -> None:
    if value in seen:
        draft.fault(path, f"{value} stands twice, first in line {draft.line(seen[value])}", "Each may stand once")
    else:
        seen[value] = path


def _few_keys(draft: Draft, path: Path, found: list[str]) -> None:
    if len(found) > ssh_keys.MAX_KEYS:
        draft.fault(path, f"has {len(found)} ssh keys", f"At most {ssh_keys.MAX_KEYS}")


def _person_keys(draft: Draft, path: Path, person: Mapping[str, Any]) -> None:
    texts, files = person.get("ssh_public_keys"), person.get("ssh_public_key_files")
    for index, text in enumerate(texts or ()):
        if isinstance(text, str):
            try:
                ssh_keys.check(text)
            except ssh_keys.BadKey as bad:
                draft.fault((*path, "ssh_public_keys", index), f"the key is {bad.message}", bad.hint)
    for index, name in enumerate(files or ()):
        if isinstance(name, str):
            _key_file(draft, (*path, "ssh_public_key_files", index), name)
    _few_keys(draft, path, [*(texts or ()), *(key for name in files or () for key in draft.public_keys.get(name, ()))])
    generate = person.get("generate_key")
    if texts is None or files is None or generate is None:
        return
    who = person.get("name") or "this user"
    local = draft.section("cloud").get("provider") == "local"
    if generate and draft.section("cloud").get("provider") == "oci":
        message = "is for provider local only: a private key should be made by its owner"
        draft.fault((*path, "generate_key"), message, "Ask for a public key, and name it in ssh_public_keys")
    elif generate and (texts or files):
        draft.fault((*path, "generate_key"), f"{who} has a key already", "Delete the line")
    elif not generate and not texts and not files:
        hint = "Add ssh_public_keys or ssh_public_key_files" + (", or generate_key: true" if local else "")
        draft.fault(path, f"{who} has no ssh key and could not log in", hint)
