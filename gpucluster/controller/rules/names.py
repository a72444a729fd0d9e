"""Names and ids of users and groups: what is well formed, and what belongs to the system."""

from __future__ import annotations

import unicodedata

#: A user or group name, as a regular expression for the whole text.
NAME_PATTERN = r"[a-z_][a-z0-9_-]{0,31}"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Users and groups of Debian, Ubuntu and Oracle Linux and of what is installed on hosts; some exist only on other hosts
#: than the controller. A group of the directory with such a name would give the rights that it has there.
RESERVED_NAMES = _words(
    """
    _apt _rpc _ssh adm admin all any apache audio avahi backup bin cdrom chrony cloud-init cloud-user colord
    containerd crontab daemon dba dbus debian dhcpcd dialout dip disk docker ec2-user fax floppy ftp games gnats
    gpucluster halt http input irc kmem kvm landscape ldap libvirt libvirt-qemu list lock lp lxd mail man mariadb
    mem messagebus munge mysql named netdev news nfsnobody nginx nobody nogroup none nslcd ntp opc openldap operator
    oracle plugdev polkitd pollinate postfix postgres prometheus proxy rdma render root rpc rpcuser sasl sgx shadow
    shutdown slurm src ssh ssh_keys sshd sssd staff statd sudo sync sys syslog systemd-journal systemd-network
    systemd-resolve systemd-timesync tape tcpdump tss tty ubuntu users utmp uucp uuidd video voice wheel www-data
    """
)
#: systemd makes users with such names as it needs them.
RESERVED_PREFIX = "systemd-"

#: Ids below the first one belong to the operating systems.
FIRST_ID, LAST_ID = 2000, 2_000_000_000
#: systemd's dynamic users with the two ids of `nobody`, and the subordinate ids of rootless containers.
RESERVED_IDS = (range(61184, 65536), range(600_178_688, 1_879_048_192))

FULL_NAME_CHARACTERS = 100


def is_reserved_name(name: str) -> bool:
    """Whether a user or group name belongs to the system."""
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX)


def is_reserved_id(number: int) -> bool:
    """Whether a uid or gid belongs to something that runs on hosts, although it is not below FIRST_ID."""
    return any(number in part for part in RESERVED_IDS)


def free_ranges() -> str:
    """The reserved ranges in words, for "outside of ..."."""
    return " and of ".join(f"{part.start} to {part.stop - 1}" for part in RESERVED_IDS)


def has_letter(text: str) -> bool:
    """Whether a text has a letter of any script, as every full name has."""
    return any(unicodedata.category(character).startswith("L") for character in text)


def is_full_name_text(text: str) -> bool:
    """Whether an account's full name can hold every character: no colon, comma, line end or invisible character."""
    return not any(character in ":," or not _is_written(character) for character in text)


def _is_written(character: str) -> bool:
    """No control, surrogate, private or unassigned character, and no blank but the space."""
    # Some languages need the two joiners.
    return character in " \u200c\u200d" or unicodedata.category(character)[0] not in "CZ"
