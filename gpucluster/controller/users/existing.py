"""A directory that exists: its servers as this host reaches them, and what is wrong before SSSD depends on it.

SSSD itself reports none of this in words: with a wrong password, a wrong base or an expired certificate it goes
offline, and users are unknown.
"""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpucluster.controller.users import ldif
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

if TYPE_CHECKING:
    # Each program that reads the configuration imports this module, and most do without it.
    import ssl

#: What the role ldap writes: the password, for root alone, and the certificates of the CA. SSSD has copies of its own,
#: which change after the check.
PASSWORD_FILE = Path("/var/lib/gpucluster-directory/existing.password")
CA_FILE = Path("/var/lib/gpucluster-directory/existing-ca.pem")
#: Until a connection is there, and until a server that has accepted one answers: a busy one does so late.
_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 60.0
_LDAPS = 636
#: Exit statuses of OpenLDAP's programs are the result codes of RFC 4511 (appendix A); 255 is a connection that failed.
_SIZE_LIMIT, _STRONGER_AUTH, _REFERRAL, _NO_SUCH_OBJECT, _INVALID_DN = 4, 8, 10, 32, 34
_INVALID_CREDENTIALS, _CANT_CONTACT = 49, 255
#: What Active Directory adds to "invalid credentials": "... comment: AcceptSecurityContext error, data 533, v4563".
_AD_REASON = re.compile(r"\bdata ([0-9a-f]{3})\b")
_AD_REASONS = {
    "525": "there is no such entry",
    "52e": "the password is wrong",
    "530": "it may not log in at this time",
    "532": "its password has expired",
    "533": "it is disabled",
    "701": "it has expired",
    "773": "it must change its password first",
    "775": "it is locked",
}
_BINARY = ("objectsid",)
#: Codes of OpenSSL's verification (x509_vfy.h).
_EXPIRED, _NOT_YET, _HOSTNAME = 10, 9, 62
_UNTRUSTED = (2, 7, 18, 19, 20, 21)


@dataclass(frozen=True)
class ExistingDirectory:
    """A directory that exists, as cluster.yml has it.

    Args:
        schema: SSSD's name of it: how groups list members, and how attributes are called.
        last_id: the highest uid and gid.
    """

    kind: str
    servers: tuple[str, ...]
    base: str
    bind_dn: str
    schema: str
    user_groups: tuple[str, ...]
    admin_groups: tuple[str, ...]
    id_mapping: bool
    first_id: int
    last_id: int
    password_file: Path = PASSWORD_FILE
    ca_file: Path = CA_FILE

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> ExistingDirectory:
        """Parse a part of the configuration of the program `cluster`.

        Raises:
            KeyError, TypeError, ValueError: it is not well formed.
        """
        return cls(
            kind=raw["kind"],
            servers=tuple(raw["servers"]),
            base=raw["base"],
            bind_dn=raw["bind_dn"],
            schema=raw["schema"],
            user_groups=tuple(raw["user_groups"]),
            admin_groups=tuple(raw["admin_groups"]),
            id_mapping=bool(raw["id_mapping"]),
            first_id=int(raw["first_id"]),
            last_id=int(raw["last_id"]),
            password_file=Path(raw.get("password_file") or PASSWORD_FILE),
            ca_file=Path(raw.get("ca_file") or CA_FILE),
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Every group whose members are users."""
        return (*self.user_groups, *self.admin_groups)

    def group_filter(self, name: str) -> str:
        """The filter (RFC 4515) that finds a group by its name."""
        kind, attribute = ("group", "sAMAccountName") if self.kind == "ad" else ("posixGroup", "cn")
        return f"(&(objectClass={kind})({attribute}={escaped(name)}))"

    @property
    def user_filter(self) -> str:
        """The filter that finds users whom SSSD can see."""
        if self.kind != "ad":
            return "(&(objectClass=posixAccount)(uid=*)(uidNumber=*))"
        number = "" if self.id_mapping else "(uidNumber=*)"
        return f"(&(objectClass=user)(sAMAccountName=*){number})"

    @property
    def name_attribute(self) -> str:
        """The attribute with a user's login name, in lower case."""
        return "samaccountname" if self.kind == "ad" else "uid"

    def primary_filter(self, group: ldif.Entry) -> str:
        """The filter of the users who have a group as their primary one: no group lists them."""
        tests = [f"(gidNumber={number})" for number in group.get("gidnumber", []) if not self.id_mapping]
        if self.kind == "ad":
            tests += [f"(primaryGroupID={rid})" for rid in map(relative_id, group.get("objectsid", [])) if rid]
        return f"(&{self.user_filter}(|{''.join(tests)}))" if tests else ""


def escaped(text: str) -> str:
    """A value in a filter (RFC 4515, section 3)."""
    return "".join(f"\\{ord(each):02x}" if each in "*()\\\0" else each for each in text)


def relative_id(sid: str) -> int:
    """The last number of a SID, of its base64 form or `S-1-5-21-...-513`; 0 if it is none."""
    if sid.startswith("S-"):
        return int(sid.rpartition("-")[2])
    try:
        raw = base64.b64decode(sid, validate=True)
    except ValueError:
        return 0
    return int.from_bytes(raw[-4:], "little") if len(raw) >= 12 else 0  # noqa: PLR2004 - one sub-authority at least


def tls_problem(error: OSError, server: str, seconds: float = _CONNECT_SECONDS) -> str:
    """Why no connection with TLS is made, in words.

    Args:
        seconds: the limit that was in force.
    """
    import ssl

    name = urlsplit(server).hostname
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {server} {_refusal(error, str(name))}"
    if isinstance(error, ssl.SSLError):
        return f"{server} does not speak TLS: {error}"
    if isinstance(error, socket.gaierror):
        return f"{name} does not resolve on this host: {error.strerror}"
    if isinstance(error, (socket.timeout, TimeoutError)):
        return f"{server} does not answer within {seconds:.0f} s: routes, security lists and firewalls decide it"
    return f"{server} can't be reached: {error.strerror or error}"


def _refusal(error: ssl.SSLCertVerificationError, name: str) -> str:
    reasons = {
        _EXPIRED: "has expired, or that of its CA",
        _NOT_YET: "is not valid yet: compare the clocks of both hosts",
        _HOSTNAME: f"is for another name than {name}",
        **dict.fromkeys(_UNTRUSTED, "is not of the CA in users.directory.ca_certificate"),
    }
    return reasons.get(error.verify_code, f"is not accepted: {error.verify_message}")


def connection_problem(server: str, ca_file: Path) -> str:
    """Why this host has no connection with TLS to a server; empty if it has one."""
    import ssl

    place, seconds = urlsplit(server), _CONNECT_SECONDS
    try:
        # As strict as SSSD, and no more: a default context of Python 3.13 refuses CAs without some extensions.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(str(ca_file))
        address = (str(place.hostname), place.port or _LDAPS)
        with socket.create_connection(address, timeout=seconds) as plain:
            seconds = _ANSWER_SECONDS
            plain.settimeout(seconds)
            with context.wrap_socket(plain, server_hostname=place.hostname):
                return ""
    except OSError as error:
        return tls_problem(error, server, seconds)


def bind_problem(status: int, text: str, directory: ExistingDirectory, server: str) -> str:
    """Why a search did not work, in words; empty if it did.

    Args:
        status: of ldapsearch.
        text: its standard error.
    """
    words = "; ".join(line.strip() for line in text.splitlines() if line.strip()) or f"status {status}"
    if status in (0, _SIZE_LIMIT):
        return ""
    if status == _INVALID_CREDENTIALS:
        code = _AD_REASON.search(text)
        reason = _AD_REASONS.get(code[1], "") if code else ""
        return f"{server} does not accept the bind of {directory.bind_dn}: " + (
            reason or "the password in users.directory.bind_password_file is wrong, or there is no such entry"
        )
    if status in (_NO_SUCH_OBJECT, _REFERRAL):
        may_not = f"or {directory.bind_dn} may not read it"
        return f"{server} has no entry {directory.base}, {may_not}: users.directory.base is wrong"
    if status == _INVALID_DN:
        return f"{server} does not read {directory.bind_dn} or {directory.base} as the name of an entry: {words}"
    if status == _STRONGER_AUTH:
        return f"{server} wants a stronger bind than a password with TLS: {words}"
    return f"{server} does not answer a search: {words}"


class ExistingLdap:
    """The servers, in the order of cluster.yml: the first that answers is asked."""

    def __init__(self, directory: ExistingDirectory) -> None:
        self._directory = directory
        self._server = ""
        self.unreachable: tuple[str, ...] = ()

    def connect(self) -> None:
        """Choose the server; `unreachable` has why those before it were not.

        Raises:
            Failed: no server can be used.
        """
        problems: list[str] = []
        for server in self._directory.servers:
            problem = connection_problem(server, self._directory.ca_file)
            if not problem:
                self._server = server
                self.unreachable = tuple(problems)
                return
            problems.append(problem)
        raise Failed(
            f"no server of the directory can be used: {'; '.join(problems)}",
            "Look at users.directory in cluster.yml. Nothing was changed: hosts that know it use their caches",
        )

    def search(
        self, base: str, filter_text: str, attributes: Sequence[str], *, scope: str = "sub", most: int = 0
    ) -> list[ldif.Entry]:
        """Entries below a base.

        Args:
            most: how many at most; 0 is all that the server gives.

        Raises:
            Failed: the server does not answer it.
        """
        one = self._directory
        words = (
            *("env", "LDAPCONF=/dev/null", f"LDAPTLS_CACERT={one.ca_file}", "LDAPTLS_REQCERT=demand", "ldapsearch"),
            *("-x", "-LLL", "-o", "ldif-wrap=no", "-o", f"nettimeout={_ANSWER_SECONDS:.0f}", "-H", self._server),
            *("-D", one.bind_dn, "-y", str(one.password_file), "-b", base, "-s", scope),
            # Active Directory gives at most 1000 entries at once.
            *(("-z", str(most)) if most else ("-E", "pr=500/noprompt")),
            *(filter_text, *attributes),
        )
        result = programs.call(words)
        problem = bind_problem(result.returncode, result.stderr, one, self._server)
        if result.returncode == programs.MISSING:
            problem = "ldapsearch is not installed on this host"
        if problem:
            raise Failed(problem, "Look at users.directory in cluster.yml")
        return [entry for entry in ldif.parse(result.stdout, _BINARY) if "dn" in entry]

    def group(self, name: str) -> ldif.Entry:
        """The entry of a group.

        Raises:
            Failed: there is none, or several.
        """
        one = self._directory
        attributes = ("gidNumber", "objectSid", "member", "memberUid")
        found = self.search(one.base, one.group_filter(name), attributes)
        if len(found) != 1:
            what = f"{len(found)} groups" if found else "no group"
            more = "" if found else f", or {one.bind_dn} may not read it"
            raise Failed(
                f"there is {what} {name} below {one.base}{more}",
                "Look at users.directory.user_groups and admin_groups. Groups need "
                + ("the class group" if one.kind == "ad" else "the class posixGroup"),
            )
        return found[0]

    def primary_members(self, group: ldif.Entry) -> list[str]:
        """The login names of users who have a group as their primary one."""
        one = self._directory
        text = one.primary_filter(group)
        entries = self.search(one.base, text, (one.name_attribute,)) if text else []
        return [entry[one.name_attribute][0] for entry in entries if one.name_attribute in entry]


def group_problems(directory: ExistingDirectory, name: str, entry: ldif.Entry) -> Iterable[str]:
    """What SSSD would not make a group of users of."""
    numbers = entry.get("gidnumber", [])
    if not directory.id_mapping:
        if not numbers:
            yield f"the group {name} has no gidNumber"
        for number in numbers:
            if not directory.first_id <= int(number) <= directory.last_id:
                limits = f"{directory.first_id} to {directory.last_id}"
                what = f"the gid of the group {name}, {number}, is outside of users.directory.first_id and last_id"
                yield f"{what} ({limits})"
    by_name, by_entry = entry.get("memberuid", []), entry.get("member", [])
    if directory.schema == "rfc2307" and by_entry and not by_name:
        yield f"the group {name} lists entries (member): write `ldap_schema: rfc2307bis`"
    if directory.schema == "rfc2307bis" and by_name and not by_entry:
        yield f"the group {name} lists names (memberUid): write `ldap_schema: rfc2307`"


def check(directory: ExistingDirectory) -> list[str]:
    """Check what every host will rely on. Reads only.

    Returns:
        What is wrong and prevents nothing: servers that do not answer, beside one that does.

    Raises:
        Failed: hosts could not use the directory.
    """
    ldap = ExistingLdap(directory)
    ldap.connect()
    ldap.search(directory.base, "(objectClass=*)", ("1.1",), scope="base", most=1)
    problems = [problem for name in directory.groups for problem in group_problems(directory, name, ldap.group(name))]
    if not ldap.search(directory.base, directory.user_filter, (directory.name_attribute,), most=1):
        missing = "" if directory.id_mapping else " with a uidNumber"
        problems.append(f"there is no user{missing} below {directory.base} that {directory.bind_dn} may read")
    if problems:
        raise Failed("; ".join(problems), "Look at users.directory in cluster.yml. Nothing was changed")
    return list(ldap.unreachable)
