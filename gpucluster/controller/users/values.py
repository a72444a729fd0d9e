"""Checks of single values of a request: names, ids, shells, passwords. Every value from outside passes here first."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from gpucluster.controller.rules import names, ssh_keys
from gpucluster.controller.rules.names import FIRST_ID, FULL_NAME_CHARACTERS, LAST_ID
from gpucluster.node_agent.errors import Refused

_NAME = re.compile(names.NAME_PATTERN)
_NAME_RULE = "A name has 1 to 32 of a-z, 0-9, _ and -, and begins with a letter or _"
_ACCOUNT = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")
_SHELL = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*){1,8}")
# openssl reads no more of a password.
PASSWORD_BYTES = 200
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class LocalAccounts:
    """Accounts and shells of this host itself, apart from the directory.

    Args:
        users: name -> uid of its own accounts.
        groups: name -> gid of its own groups.
        logins: the login users of the images, on any host.
        shells: the files that may be login shells.
    """

    users: Mapping[str, int]
    groups: Mapping[str, int]
    logins: Set[str]
    shells: Set[str]


def shown(value: Any) -> str:
    """A value from outside for a message: short, on one line, without control characters."""
    if not isinstance(value, str):
        return type(value).__name__ if isinstance(value, (dict, list)) else repr(value)[:_SHOWN_CHARACTERS]
    cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
    return ascii(cut)


def user_name(value: Any, local: LocalAccounts) -> str:
    """The name of a user that is to be created.

    Raises:
        Refused: it is not well formed, or taken.
    """
    name = _free_name(value, "user", local)
    if name in local.users:
        raise Refused(f"{name} is an account of this host itself", "Choose another name")
    return name


def group_name(value: Any, local: LocalAccounts) -> str:
    """The name of a group that is to be created.

    Raises:
        Refused: it is not well formed, or taken.
    """
    name = _free_name(value, "group", local)
    if name in local.groups:
        raise Refused(f"{name} is a group of this host itself", "Choose another name")
    return name


def known_name(value: Any, kind: str) -> str:
    """The name of an existing user or group, to look it up.

    Raises:
        Refused: it is not well formed.
    """
    return _plain(value, kind)


def _free_name(value: Any, kind: str, local: LocalAccounts) -> str:
    name = _plain(value, kind)
    if names.is_reserved_name(name) or name in local.logins:
        raise Refused(f"the {kind} {name} belongs to the system", "Choose another name")
    return name


def _plain(value: Any, kind: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Refused(f"{shown(value)} can not be the name of a {kind}", _NAME_RULE)
    return value


def number(value: Any, what: str) -> int:
    """A requested uid or gid; `what` is "uid" or "gid".

    Raises:
        Refused: it belongs to the system, or is not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{shown(value)} is not a {what}", f"A {what} is a whole number")
    if not FIRST_ID <= value <= LAST_ID or names.is_reserved_id(value):
        message = f"{what} {value if abs(value) <= 2**64 else 'so large'} belongs to the system or is out of range"
        raise Refused(message, f"Take one from {FIRST_ID} to {LAST_ID}, outside of {names.free_ranges()}")
    return value


def full_name(value: Any) -> str:
    """The full name of a user, of any script.

    Raises:
        Refused: it is too long, or holds characters that accounts can't.
    """
    text = value.strip() if isinstance(value, str) else ""
    if not names.has_letter(text):
        raise Refused(f"{shown(value)} is not a full name", "Write it with letters, such as 'Ada Lovelace'")
    if len(text) > FULL_NAME_CHARACTERS:
        raise Refused(f"the full name has {len(text)} characters", f"At most {FULL_NAME_CHARACTERS}")
    if not names.is_full_name_text(text):
        hint = "It must not have colons, commas, line ends or invisible characters in it"
        raise Refused(f"{shown(text)} can't be a full name", hint)
    return text


def public_keys(value: Any) -> tuple[str, ...]:
    """Public ssh keys, each once, in this order.

    Raises:
        Refused: one of them is not a public key.
    """
    if not isinstance(value, list):
        raise Refused("ssh keys must be a list", "Write each key as one string")
    if len(value) > ssh_keys.MAX_KEYS:
        raise Refused(f"{len(value)} ssh keys are too many", f"At most {ssh_keys.MAX_KEYS}")
    try:
        return tuple(dict.fromkeys(ssh_keys.check(key if isinstance(key, str) else "") for key in value))
    except ssh_keys.BadKey as bad:
        raise Refused(f"the ssh key is {bad.message}", bad.hint or "Give the whole line of the .pub file") from bad


def shell(value: Any, local: LocalAccounts) -> str:
    """A login shell.

    Raises:
        Refused: this host has no such login shell.
    """
    if not isinstance(value, str) or not _SHELL.fullmatch(value) or value not in local.shells:
        offered = ", ".join(sorted(local.shells)[:8])
        raise Refused(f"{shown(value)} is not a login shell of this host", f"One of: {offered}")
    return value


def slurm_account(value: Any) -> str:
    """The name of an account in Slurm.

    Raises:
        Refused: it is not well formed.
    """
    if not isinstance(value, str) or not _ACCOUNT.fullmatch(value):
        raise Refused(f"{shown(value)} can not be an account of Slurm", "It has 1 to 64 of a-z, 0-9, _, . and -")
    return value


def password(value: Any) -> str:
    """A password; no message shows it.

    Raises:
        Refused: it is empty, too long, or can't be typed.
    """
    if not isinstance(value, str) or not value:
        raise Refused("the password is empty", "Leave it out to have none: users log in with ssh keys")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise Refused("the password has characters that can't be typed", "Choose another")
    if len(value.encode()) > PASSWORD_BYTES:
        raise Refused("the password is too long", f"At most {PASSWORD_BYTES} bytes")
    return value
