"""A host takes another password for the directory: what it checks, and in which order.

The directory and systemctl are doubles. tests/controller/test_host_passwords.py has a real slapd, tests/e2e SSSD too.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent import directory_password, ldap_bind, programs
from gpucluster.node_agent.errors import Failed, Refused

OLD, NEW = "o" * 43, "n" * 43
# As the role writes it, and without Ansible, which the oldest Python does not have.
_VALUES = {
    "groups.controller[0]": "demo-controller",
    "directory_entry": "demo-controller",
    "ldap_hosts_dn": "ou=hosts,dc=demo,dc=local",
    "ldap_password": OLD,
    "directory_ca_file": "/etc/gpucluster/authority.pem",
}
_TEMPLATE = Path(__file__).parents[2] / "ansible/roles/ldap/templates/sssd.conf.j2"
CONFIG = re.sub(r"\{\{ (.*?) \}\}", lambda found: _VALUES.get(found[1], "demo"), _TEMPLATE.read_text())


class Host:
    """This machine as a host, in a folder of the test.

    Args:
        accepted: the passwords that the directory accepts.
    """

    def __init__(self, folder: Path) -> None:
        self.config = folder / "sssd.conf"
        self.config.write_text(CONFIG)
        self.config.chmod(0o600)
        self.accepted = {OLD, NEW}
        self.asked: list[tuple[str, ...]] = []
        self.commands: list[str] = []
        self.status = 0

    def bind(self, uri: str, authority: Path, dn: str, password: str) -> bool:
        self.asked.append((uri, str(authority), dn))
        return password in self.accepted

    def call(self, argv: Sequence[str], *_: Any, **_how: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(" ".join(argv))
        return subprocess.CompletedProcess(list(argv), self.status, "", "it is masked")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(ldap_bind, "accepted", made.bind)
    monkeypatch.setattr(programs, "call", made.call)
    monkeypatch.setattr(directory_password.take, "__defaults__", (made.config,))
    return made


def test_the_directory_accepts_it_before_sssd_has_it(host: Host) -> None:
    directory_password.take(NEW)
    assert host.config.read_text() == CONFIG.replace(OLD, NEW)
    assert host.config.stat().st_mode & 0o777 == 0o600
    ((uri, authority, dn),) = host.asked
    assert (uri.partition(":")[0], authority, dn.partition(",")[0]) == (
        "ldaps", "/etc/gpucluster/authority.pem", "cn=demo-controller",
    )  # fmt: skip
    assert host.commands == ["systemctl reset-failed sssd.service", "systemctl restart sssd.service"]
    # Again: a kill may have been between the file and the restart.
    directory_password.take(NEW)
    assert host.commands == ["systemctl reset-failed sssd.service", "systemctl restart sssd.service"] * 2


def test_one_that_the_directory_refuses_changes_nothing(host: Host) -> None:
    host.accepted = {OLD}
    with pytest.raises(Failed, match="does not accept the next password of cn=demo-controller"):
        directory_password.take(NEW)
    assert (host.config.read_text(), host.commands) == (CONFIG, [])


def test_sssd_that_does_not_start_is_a_failure(host: Host) -> None:
    host.status = 1
    with pytest.raises(Failed, match="does not start: it is masked"):
        directory_password.take(NEW)


@pytest.mark.parametrize("line", ["ldap_uri", "ldap_tls_cacert", "ldap_default_bind_dn", "ldap_default_authtok"])
def test_a_host_that_does_not_bind_is_named(host: Host, line: str) -> None:
    host.config.write_text("".join(each for each in CONFIG.splitlines(True) if not each.startswith(f"{line} =")))
    with pytest.raises(Refused, match="has no"):
        directory_password.take(NEW)
    assert host.commands == []


@pytest.mark.parametrize("bad", ["", "short", "n" * 43 + "\nldap_uri = ldap://x", "n" * 40 + "# x", "n" * 4000])
def test_what_is_no_password_of_the_controllers_is_refused(host: Host, bad: str) -> None:
    with pytest.raises(Refused, match="no password of the controller's"):
        directory_password.take(bad)
    assert host.asked == []


@pytest.mark.parametrize(("text", "status"), [(json.dumps(NEW), 0), ("{}", 2), (NEW, 2), ("", 2), ('"x"', 2)])
def test_the_password_is_on_standard_input_and_in_no_message(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, status: int
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert directory_password.main(["take"]) == status
    said = capsys.readouterr()
    assert NEW not in said.out + said.err
    assert bool(said.err) is bool(status)
    assert (NEW in host.config.read_text()) is (status == 0)
