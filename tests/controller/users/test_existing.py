"""A directory that exists: filters, reasons in words, and what SSSD would not understand. The servers are in
tests/ansible/test_existing_directory_host.py."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.users import existing
from gpucluster.controller.users.existing import ExistingDirectory
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from tests.waiting import PATIENCE_S

RAW: dict[str, Any] = {
    "kind": "ldap", "servers": ["ldaps://a.example", "ldaps://b.example:1636"], "base": "dc=example",
    "bind_dn": "cn=reader,dc=example", "schema": "rfc2307", "user_groups": ["hpc"], "admin_groups": ["admins"],
    "id_mapping": False, "first_id": 2000, "last_id": 600_000_000,
}  # fmt: skip
LDAP = ExistingDirectory.parse(RAW)
AD = ExistingDirectory.parse(RAW | {"kind": "ad", "schema": "ad"})
MAPPED = ExistingDirectory.parse(RAW | {"kind": "ad", "schema": "ad", "id_mapping": True})
#: S-1-5-21-1-2-3-513, as Active Directory stores it.
SID = base64.b64encode(bytes([1, 5, 0, 0, 0, 0, 0, 5]) + b"".join(n.to_bytes(4, "little") for n in (21, 1, 2, 3, 513)))


def test_the_configuration_has_defaults_for_files_alone() -> None:
    assert LDAP.groups == ("hpc", "admins")
    assert LDAP.password_file == existing.PASSWORD_FILE
    with pytest.raises(KeyError):
        ExistingDirectory.parse({key: value for key, value in RAW.items() if key != "base"})


def test_filters_find_what_sssd_finds() -> None:
    assert LDAP.group_filter("a*(b)\\") == "(&(objectClass=posixGroup)(cn=a\\2a\\28b\\29\\5c))"
    assert AD.group_filter("HPC Users") == "(&(objectClass=group)(sAMAccountName=HPC Users))"
    assert "(uidNumber=*)" in AD.user_filter
    assert "uidNumber" not in MAPPED.user_filter


@pytest.mark.parametrize(
    ("directory", "group", "words"),
    [
        (LDAP, {"gidnumber": ["4000"]}, "(|(gidNumber=4000))"),
        (AD, {"gidnumber": ["4000"], "objectsid": [SID.decode()]}, "(|(gidNumber=4000)(primaryGroupID=513))"),
        (MAPPED, {"gidnumber": ["4000"], "objectsid": ["S-1-5-21-1-2-3-513"]}, "(|(primaryGroupID=513))"),
    ],
)
def test_users_with_a_primary_group_are_found_by_its_number(
    directory: ExistingDirectory, group: dict[str, list[str]], words: str
) -> None:
    assert words in directory.primary_filter(group)


def test_a_sid_is_read_from_the_answer_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are not text: decoded as such, that of Domain Users would be another number."""
    Servers(monkeypatch, groups=f"dn: cn=g\ngidNumber: 4000\nobjectSid:: {SID.decode()}\n")
    ldap = existing.ExistingLdap(MAPPED)
    ldap.connect()
    assert "(primaryGroupID=513)" in MAPPED.primary_filter(ldap.group("Domain Users"))


def test_a_group_without_a_number_is_the_primary_one_of_no_user() -> None:
    assert LDAP.primary_filter({}) == ""
    assert existing.relative_id("not base64!") == 0


def verification(code: int) -> Callable[[Any], OSError]:
    def made(ssl: Any) -> OSError:
        error: OSError = ssl.SSLCertVerificationError("no")
        error.verify_code, error.verify_message = code, "some reason"  # type: ignore[attr-defined]
        return error

    return made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (verification(10), "has expired"),
        (verification(9), "not valid yet: compare the clocks"),
        (verification(62), "for another name than a.example"),
        (verification(20), "not of the CA in users.directory.ca_certificate"),
        (verification(7), "not of the CA in users.directory.ca_certificate"),
        (verification(99), "not accepted: some reason"),
        (lambda ssl: ssl.SSLError(1, "[SSL] wrong version number"), "does not speak TLS"),
        (lambda _ssl: socket.gaierror(-2, "Name or service not known"), "a.example does not resolve"),
        (lambda _ssl: TimeoutError(), "security lists and firewalls"),
        (lambda _ssl: ConnectionRefusedError(111, "Connection refused"), "can't be reached: Connection refused"),
    ],
)
def test_each_reason_for_no_connection_has_words(made: Callable[[Any], OSError], words: str) -> None:
    ssl = pytest.importorskip("ssl")  # the Python of test_oldest_python comes without OpenSSL
    assert words in existing.tls_problem(made(ssl), "ldaps://a.example")


AD_TEXT = (
    "ldap_bind: Invalid credentials (49)\n\tadditional info: 80090308: LdapErr: DSID-0C09, comment: {}, data {}, v4563"
)


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (0, "", ""),
        (4, "Size limit exceeded (4)", ""),
        (49, "ldap_bind: Invalid credentials (49)", "bind_password_file is wrong"),
        (49, AD_TEXT.format("AcceptSecurityContext error", "532"), "its password has expired"),
        (49, AD_TEXT.format("AcceptSecurityContext error", "775"), "it is locked"),
        (32, "No such object (32)", "has no entry dc=example"),
        (10, "Referral (10)", "has no entry dc=example"),
        (34, "Invalid DN syntax (34)", "as the name of an entry"),
        (8, "Strong(er) authentication required (8)", "a stronger bind"),
        (255, "Can't contact LDAP server (-1)", "does not answer a search: Can't contact"),
    ],
)
def test_each_answer_of_a_server_has_words(status: int, text: str, words: str) -> None:
    said = existing.bind_problem(status, text, LDAP, "ldaps://a.example")
    assert (words in said) if words else said == ""


@pytest.mark.parametrize(
    ("directory", "entry", "words"),
    [
        (LDAP, {"gidnumber": ["4000"], "memberuid": ["a"]}, ""),
        (LDAP, {}, "has no gidNumber"),
        (LDAP, {"gidnumber": ["500"]}, "is outside of users.directory.first_id and last_id (2000 to 600000000)"),
        (LDAP, {"gidnumber": ["4000"], "member": ["cn=a"]}, "write `ldap_schema: rfc2307bis`"),
        (
            replace(LDAP, schema="rfc2307bis"),
            {"gidnumber": ["4000"], "memberuid": ["a"]},
            "write `ldap_schema: rfc2307`",
        ),
        (MAPPED, {"member": ["cn=a"]}, ""),
    ],
)
def test_what_sssd_would_not_make_a_group_of(
    directory: ExistingDirectory, entry: dict[str, list[str]], words: str
) -> None:
    said = "; ".join(existing.group_problems(directory, "hpc", entry))
    assert (words in said) if words else said == ""


class Servers:
    """A double of the servers: which of them answer, and what they have. It proves nothing of ldapsearch."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        away: tuple[str, ...] = (),
        users: str = "dn: uid=a\nuid: a\n",
        groups: str = "dn: cn=g\ngidNumber: 4000\nmemberUid: a\n",
    ) -> None:
        self.asked: list[list[str]] = []
        self.users, self.groups = users, groups
        monkeypatch.setattr(existing, "connection_problem", lambda one, _ca: f"{one} is away" if one in away else "")
        monkeypatch.setattr(programs, "call", self.call)

    def call(self, argv: Any, text: str = "", seconds: float = 0) -> programs.Completed[str]:
        self.asked.append(list(argv))
        of_groups = any("(objectClass=posixGroup)" in word or "(objectClass=group)" in word for word in argv)
        return programs.Completed(list(argv), 0, self.groups if of_groups else self.users, "")


def test_a_check_uses_the_first_server_that_answers_and_names_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch, away=(LDAP.servers[0],))
    assert existing.check(LDAP) == ["ldaps://a.example is away"]
    words = servers.asked[0]
    assert words[words.index("-H") + 1] == "ldaps://b.example:1636"
    assert words[words.index("-y") + 1] == str(existing.PASSWORD_FILE)
    assert "LDAPTLS_REQCERT=demand" in words


def test_a_directory_without_a_server_or_without_users_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Servers(monkeypatch, away=LDAP.servers)
    with pytest.raises(Failed, match=r"a\.example is away; ldaps://b\.example:1636 is away"):
        existing.check(LDAP)
    Servers(monkeypatch, users="")
    with pytest.raises(Failed, match="there is no user with a uidNumber below dc=example"):
        existing.check(LDAP)


def test_a_server_that_has_accepted_a_connection_may_answer_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssl = pytest.importorskip("ssl")
    monkeypatch.setattr(existing, "_CONNECT_SECONDS", PATIENCE_S)
    monkeypatch.setattr(existing, "_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"ldaps://127.0.0.1:{silent.getsockname()[1]}"
        assert f"{server} does not answer within 1 s" in existing.connection_problem(server, tmp_path / "ca.pem")


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ssl")
    assert "can't be reached" in existing.connection_problem("ldaps://127.0.0.1", tmp_path / "nothing.pem")
