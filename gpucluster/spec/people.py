"""Rules of people: the operator's key pair, the users and their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucluster.spec import fields, keys
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.taken import RESERVED_IDS, SYSTEM_NAMES
from gpucluster.spec.wording import shown

_OUTSIDE = f"Take one outside of {RESERVED_IDS.start} to {RESERVED_IDS.stop - 1}"


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
    group, first_uid = users.get("group"), users.get("first_uid")
    if group in SYSTEM_NAMES:
        draft.fault(("users", "group"), f"the group {group} belongs to the system", "Choose another name")
    for key in ("gid", "first_uid"):
        if users.get(key) in RESERVED_IDS:
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
            _person_keys(draft, path, person)


def _login_users(draft: Draft) -> set[Any]:
    """The users that the images let in; they are there before LDAP is."""
    machines = [draft.section("controller"), *draft.section("pools").values()]
    images = (machine.get("image") for machine in machines if isinstance(machine, dict))
    return {image.get("login_user") for image in images if isinstance(image, dict)}


def _name(draft: Draft, path: Path, name: Any, seen: dict[Any, Path], logins: set[Any]) -> None:
    if isinstance(name, str):
        if name in SYSTEM_NAMES or name in logins or name.startswith("systemd-"):
            draft.fault(path, f"the user {name} belongs to the system", "Choose another name")
        _unique(draft, seen, name, path)


def _uid(draft: Draft, path: Path, uid: Any, first_uid: Any, seen: dict[Any, Path]) -> None:
    if isinstance(uid, int):
        if isinstance(first_uid, int) and uid < first_uid:
            draft.fault(path, f"is below first_uid: {uid} < {first_uid}", "Raise it, or lower first_uid")
        elif uid in RESERVED_IDS:
            draft.fault(path, f"{uid} belongs to the system", _OUTSIDE)
        _unique(draft, seen, uid, path)


def _full_name(draft: Draft, path: Path, full_name: Any) -> None:
    if isinstance(full_name, str) and re.search(r"[:,\n]", full_name):
        draft.fault(path, "must not have a colon, a comma or a line end in it")


def _key_file(draft: Draft, path: Path, name: str) -> tuple[str, ...]:
    try:
        found = keys.read(fields.located(name, draft.directory))
    except keys.BadKey as bad:
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


def _person_keys(draft: Draft, path: Path, person: Mapping[str, Any]) -> None:
    texts, files = person.get("ssh_public_keys"), person.get("ssh_public_key_files")
    for index, text in enumerate(texts or ()):
        if isinstance(text, str):
            try:
                keys.check(text)
            except keys.BadKey as bad:
                draft.fault((*path, "ssh_public_keys", index), f"the key is {bad.message}", bad.hint)
    for index, name in enumerate(files or ()):
        if isinstance(name, str):
            _key_file(draft, (*path, "ssh_public_key_files", index), name)
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
