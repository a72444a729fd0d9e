"""The entries with which hosts bind to the directory, one for each host. Pure.

The controller has the passwords in a file of root. An entry exists as long as its line in that file does: a restored
backup, or an entry that was changed by hand, is put right from the file. Of a node that boots from a baked image the
file has the hash alone: the node makes its password itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from gpucluster.controller.users import ldif
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.state import policy_dn
from gpucluster.node_agent.errors import Refused

#: An entry of an elastic node stays for this time, whatever the scheduler reports: the node may be joining.
JOINING_SECONDS = 3600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,251}")
#: SHA-512 of the C library with its own number of rounds: each bind costs slapd as many as the hash asks for.
_HASH = re.compile(r"\{CRYPT\}\$6\$[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{86}")


@dataclass(frozen=True)
class DesiredHost:
    """A host that is to have an entry.

    Args:
        instance: the OCID of its instance, empty if it is not known. Another one gets another password.
    """

    name: str
    instance: str = ""


@dataclass(frozen=True)
class HostEntry:
    """What the controller's file has of a host.

    Args:
        password: empty where only the host knows it.
        made: when the password was made, in seconds since 1970.
        former: the hash of the password before, which is accepted as well until the host has confirmed that it uses
            the present one; empty outside of a rotation.
    """

    name: str
    password: str
    hash: str
    made: int
    instance: str = ""
    former: str = ""


Entries = Mapping[str, HostEntry]


def parse(text: str) -> dict[str, HostEntry]:
    """The entries of the controller's file, by name.

    Raises:
        ValueError, KeyError, TypeError: it is not well formed.
    """
    return {name: HostEntry(name=name, **fields) for name, fields in json.loads(text)["hosts"].items()}


def text(entries: Entries) -> str:
    """The content of the controller's file."""
    hosts = {name: asdict(entry) for name, entry in sorted(entries.items())}
    for fields in hosts.values():
        del fields["name"]
        # Only a rotation has it: a release before this one reads the file of a cluster whose rotation is complete.
        if not fields["former"]:
            del fields["former"]
    return json.dumps({"hosts": hosts}, indent=1) + "\n"


def desired_hosts(hosts: Mapping[str, object]) -> list[DesiredHost]:
    """The hosts of a request.

    Args:
        hosts: name -> OCID of its instance, or an empty text.

    Raises:
        Refused: a name is not a host name, or a value is not text.
    """
    entries = []
    for name, instance in hosts.items():
        if not _NAME.fullmatch(name) or not isinstance(instance, str):
            raise Refused(f"{name[:60]!r} is not a host with an instance", 'Write {"NAME": "OCID", ...}')
        entries.append(DesiredHost(name, instance))
    return entries


def put(
    entries: Entries, hosts: Iterable[DesiredHost], make: Callable[[int], list[tuple[str, str]]], now: int
) -> dict[str, HostEntry]:
    """The entries, with one for each of these hosts. A host that exists keeps its password, a re-created one does not.

    Args:
        make: gives this number of new passwords, each with its hash.
    """
    missing = [host for host in hosts if not _serves(entries.get(host.name), host)]
    made = zip(missing, make(len(missing)) if missing else [])
    new = {host.name: HostEntry(host.name, password, hashed, now, host.instance) for host, (password, hashed) in made}
    return {**entries, **new}


def _serves(entry: HostEntry | None, host: DesiredHost) -> bool:
    # The host needs a password, and may have had an entry of which only the hash is known.
    return entry is not None and bool(entry.password) and host.instance in ("", entry.instance)


def put_hash(entries: Entries, host: DesiredHost, hashed: str, now: int) -> dict[str, HostEntry]:
    """The entries, with one for this host, which has made its password itself. It takes the place of the one before.

    Raises:
        Refused: it is not a hash that slapd should work with.
    """
    if not _HASH.fullmatch(hashed):
        raise Refused("not the hash of a password", "Make one with: openssl passwd -6")
    known = entries.get(host.name)
    if known is not None and (known.hash, known.instance) == (hashed, host.instance):
        return dict(entries)
    return {**entries, host.name: HostEntry(host.name, "", hashed, now, host.instance)}


def renew(
    entries: Entries, names: Iterable[str], make: Callable[[int], list[tuple[str, str]]], now: int
) -> dict[str, HostEntry]:
    """The entries, with another password for each of these hosts. The one before is accepted as well.

    Args:
        make: gives this number of new passwords, each with its hash.
    """
    chosen = [entries[name] for name in names]
    new = {
        entry.name: replace(entry, password=password, hash=hashed, made=now, former=entry.hash)
        for entry, (password, hashed) in zip(chosen, make(len(chosen)) if chosen else [])
    }
    return {**entries, **new}


def confirm(entries: Entries, hash_by_name: Mapping[str, str]) -> dict[str, HostEntry]:
    """The entries, without the former password of these hosts.

    Args:
        hash_by_name: of the password that the host has confirmed. One that was made again meanwhile stays as it is.
    """

    def confirmed(entry: HostEntry) -> HostEntry:
        return replace(entry, former="") if hash_by_name.get(entry.name) == entry.hash else entry

    return {name: confirmed(entry) for name, entry in entries.items()}


@dataclass(frozen=True)
class ClusterHosts:
    """Which hosts exist.

    Args:
        permanent: the names of the permanent hosts; None if it is not known, and all of them stay.
        elastic: whether a name is one of an elastic node, which may exist or not.
        existing: the elastic nodes that exist; None if the scheduler does not report them, and all of them stay.
    """

    permanent: Collection[str] | None
    elastic: Callable[[str], bool]
    existing: Collection[str] | None


def without_removed(entries: Entries, cluster: ClusterHosts, now: int) -> dict[str, HostEntry]:
    """The entries of the hosts that exist."""

    def stays(entry: HostEntry) -> bool:
        if cluster.elastic(entry.name):
            joining = now - entry.made < JOINING_SECONDS
            return joining or cluster.existing is None or entry.name in cluster.existing
        return cluster.permanent is None or entry.name in cluster.permanent

    return {name: entry for name, entry in entries.items() if stays(entry)}


def records(config: Config, entries: Entries, present: Mapping[str, Collection[str]]) -> list[str]:
    """The LDIF records that make the directory's entries of hosts those of the controller's file.

    slapd accepts a bind with any value of userPassword (RFC 4519), and its overlay ppolicy accepts one value in each
    change: a second one is added by a record of its own (ppolicy_modify of ppolicy.c).

    Args:
        present: name (DN, lower case) -> stored hashes, of the entries below the unit.
    """
    policy = policy_dn(config, "services")
    by_dn = {f"cn={name},{config.hosts_dn}": entry for name, entry in sorted(entries.items())}
    known = {dn.lower() for dn in by_dn}
    changes = [ldif.delete(dn) for dn in present if dn not in known]
    for dn, entry in by_dn.items():
        stored = present.get(dn.lower())
        if stored is None:
            classes = [("objectClass", "organizationalRole"), ("objectClass", "simpleSecurityObject")]
            own = [("cn", entry.name), ("userPassword", entry.hash), ("pwdPolicySubentry", policy)]
            changes.append(ldif.add(dn, [*classes, *own]))
            changes += _also(dn, entry.former)
        elif entry.former and set(stored) == {entry.former}:
            # The host binds with this one now.
            changes += _also(dn, entry.hash)
        elif set(stored) != {entry.hash, entry.former} - {""}:
            changes.append(ldif.modify(dn, replace={"userPassword": [entry.hash], "pwdPolicySubentry": [policy]}))
            changes += _also(dn, entry.former)
    return changes


def _also(dn: str, hashed: str) -> list[str]:
    return [ldif.modify(dn, add={"userPassword": [hashed]})] if hashed else []
