"""What a name, a number, a shell, a key or a password may be. Whatever comes from outside goes through here first."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from directory.errors import Refused

_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_NAME_RULE = "A name has 1 to 32 of a-z, 0-9, _ and -, and begins with a letter or _"
_ACCOUNT = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")
_SHELL = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*){1,8}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Users and groups of the systems that the hosts may run, and of what is installed there; some only on other hosts than
#: this one. A group of the directory with such a name would give the powers that it has there. They and the numbers
#: below are the same as in `gpucluster/spec/reserved.py`: cluster.yml takes whom this program takes.
RESERVED = _words(
    """
    _apt adm admin all any apache audio avahi backup bin cdrom chrony cloud-init cloud-user colord containerd
    crontab daemon dba dbus debian dhcpcd dialout dip disk docker ec2-user fax floppy ftp games gnats gpucluster
    halt http input irc kmem kvm landscape ldap libvirt libvirt-qemu list lock lp lxd mail man mariadb mem
    messagebus munge mysql named netdev news nfsnobody nginx nobody nogroup none nslcd ntp opc openldap operator
    oracle plugdev polkitd pollinate postfix postgres prometheus proxy render root rpc rpcuser sgx shadow shutdown
    slurm src ssh ssh_keys sshd sssd staff statd sudo sync sys syslog systemd-journal systemd-network
    systemd-resolve systemd-timesync tape tcpdump tss tty ubuntu users utmp uucp uuidd video voice wheel www-data
    """
)
#: Below are the systems' own.
FIRST_ID = 2000
#: systemd's dynamic users with the two that stand for nobody, and the subordinate ids of containers without root.
SYSTEM_IDS = (range(61184, 65536), range(600_178_688, 1_879_048_192))
LAST_ID = 2_000_000_000

FULL_NAME_CHARACTERS = 100
# openssl reads no more of a password.
PASSWORD_BYTES = 200
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Surroundings:
    """What this host itself has, beside the directory.

    Args:
        users: name -> uid of its own accounts.
        groups: name -> gid of its own groups.
        logins: the users that the images let in, on any host.
        shells: the files that may be login shells.
    """

    users: Mapping[str, int]
    groups: Mapping[str, int]
    logins: Set[str]
    shells: Set[str]


def shown(value: Any) -> str:
    """A value from outside in a message: short, on one line, without anything that a terminal would obey."""
    if not isinstance(value, str):
        return type(value).__name__ if isinstance(value, (dict, list)) else repr(value)[:_SHOWN_CHARACTERS]
    cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
    return ascii(cut)


def user_name(value: Any, here: Surroundings) -> str:
    """The name of a user.

    Raises:
        Refused: it can't be one.
    """
    name = _free_name(value, "user", here)
    if name in here.users:
        raise Refused(f"{name} is an account of this host itself", "Choose another name")
    return name


def group_name(value: Any, here: Surroundings) -> str:
    """The name of a group that is to be made.

    Raises:
        Refused: it can't be one.
    """
    name = _free_name(value, "group", here)
    if name in here.groups:
        raise Refused(f"{name} is a group of this host itself", "Choose another name")
    return name


def known_name(value: Any, kind: str) -> str:
    """A name that is looked up, of a user or a group.

    Raises:
        Refused: nothing can have it.
    """
    return _plain(value, kind)


def _free_name(value: Any, kind: str, here: Surroundings) -> str:
    name = _plain(value, kind)
    if name in RESERVED or name in here.logins or name.startswith("systemd-"):
        raise Refused(f"the {kind} {name} belongs to the system", "Choose another name")
    return name


def _plain(value: Any, kind: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Refused(f"{shown(value)} can not be the name of a {kind}", _NAME_RULE)
    return value


def number(value: Any, what: str) -> int:
    """A uid or a gid that somebody asks for.

    Raises:
        Refused: it belongs to the system, or is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{shown(value)} is no {what}", f"A {what} is a whole number")
    if not FIRST_ID <= value <= LAST_ID or is_of_system(value):
        message = f"{what} {value if abs(value) <= 2**64 else 'so large'} belongs to the system or is out of range"
        apart = " and of ".join(f"{part.start} to {part.stop - 1}" for part in SYSTEM_IDS)
        raise Refused(message, f"Take one from {FIRST_ID} to {LAST_ID}, outside of {apart}")
    return value


def is_of_system(number: int) -> bool:
    """Whether a number belongs to something that runs on hosts, however high it is."""
    return any(number in part for part in SYSTEM_IDS)


def full_name(value: Any) -> str:
    """The name of a person, of any script.

    Raises:
        Refused: it is too long, or holds what accounts can't.
    """
    text = value.strip() if isinstance(value, str) else ""
    if not any(unicodedata.category(character).startswith("L") for character in text):
        raise Refused(f"{shown(value)} is no full name", "Write it with letters, such as 'Ada Lovelace'")
    if len(text) > FULL_NAME_CHARACTERS:
        raise Refused(f"the full name has {len(text)} characters", f"At most {FULL_NAME_CHARACTERS}")
    if any(character in ":," or not _writable(character) for character in text):
        hint = "It must not have colons, commas, line ends or invisible characters in it"
        raise Refused(f"{shown(text)} can't be a full name", hint)
    return text


def _writable(character: str) -> bool:
    """Whether people write it: no control, surrogate, private or unassigned character, and no other blank than one."""
    category = unicodedata.category(character)
    # The two joiners are needed to write some languages.
    return character in " \u200c\u200d" or (category[0] != "C" and category[0] != "Z")


def shell(value: Any, here: Surroundings) -> str:
    """A login shell.

    Raises:
        Refused: it is none on this host.
    """
    if not isinstance(value, str) or not _SHELL.fullmatch(value) or value not in here.shells:
        offered = ", ".join(sorted(here.shells)[:8])
        raise Refused(f"{shown(value)} is no login shell of this host", f"One of: {offered}")
    return value


def slurm_account(value: Any) -> str:
    """An account of Slurm.

    Raises:
        Refused: none can have this name.
    """
    if not isinstance(value, str) or not _ACCOUNT.fullmatch(value):
        raise Refused(f"{shown(value)} can not be an account of Slurm", "It has 1 to 64 of a-z, 0-9, _, . and -")
    return value


def password(value: Any) -> str:
    """A password; it is never shown.

    Raises:
        Refused: it is empty, too long, or can't be typed.
    """
    if not isinstance(value, str) or not value:
        raise Refused("the password is empty", "Leave it out to have none: people log in with ssh keys")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise Refused("the password has characters that can't be typed", "Choose another")
    if len(value.encode()) > PASSWORD_BYTES:
        raise Refused("the password is too long", f"At most {PASSWORD_BYTES} bytes")
    return value
