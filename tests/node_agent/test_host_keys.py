"""A host takes other ssh host keys: its files at each step, and what it accepts of others.

ssh-keygen and the CA's signature are real; the way to the CA is a double, and so is sshd.
tests/controller/test_host_keys.py has a real one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import sys
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from gpucluster.controller import ssh_ca
from gpucluster.node_agent import host_certificates, host_keys, programs
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.host_keys import pair

NAME = gethostname().partition(".")[0]
OLD, NEW, OTHER = (f"ssh-ed25519 {letter * 8}" for letter in "ONX")


class Host:
    """A host in a folder of the test, and the CA that it asks.

    Args:
        names: those that the CA certifies. `asked`: the keys that it was asked to certify. `signals`: what sshd got.
    """

    def __init__(self, folder: Path) -> None:
        self.ssh = folder / "ssh"
        self.ssh.mkdir()
        self.present = {kind: pair(self.ssh / f"ssh_host_{kind}_key", kind) for kind in host_keys.KINDS}
        self.authority = folder / "ca"
        self.settings = {"address": "192.0.2.1", "port": 6822, "authority": pair(self.authority), "sshd": "ssh"}
        self.names = [NAME]
        self.asked: list[str] = []
        self.signals: list[tuple[str, int]] = []

    def ask(self, _address: str, _port: int, key: str) -> str:
        self.asked.append(key)
        return ssh_ca.sign(key, self.names, self.authority)

    def public(self, name: str) -> str:
        return host_keys.public(self.ssh / name)

    def files(self) -> set[str]:
        return {file.name for file in self.ssh.iterdir()}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(host_certificates, "ask", made.ask)
    monkeypatch.setattr(host_certificates, "signal_unit", lambda *given: made.signals.append(given))
    return made


def test_the_next_keys_are_beside_the_present_ones_until_the_switch(host: Host) -> None:
    (host.ssh / "ssh_host_rsa_key").chmod(0o640)
    before = host.files()
    made = host_keys.prepare(host.settings, host.ssh)
    assert made["present"] == [host.present[kind] for kind in ("ed25519", "ecdsa", "rsa")]
    assert [key.split()[0] for key in made["next"]] == [key.split()[0] for key in made["present"]]
    assert not set(made["next"]) & set(made["present"])
    assert host.present["ed25519"] == host.public("ssh_host_ed25519_key.pub")
    assert host.asked == [made["next"][0]]
    # Interrupted, and asked again: the same keys, and no other certificate.
    assert host_keys.prepare(host.settings, host.ssh) == made
    assert len(host.asked) == 1
    assert host.signals == []

    host_keys.switch(host.settings, made["next"][0], host.ssh)
    assert host.signals == [("ssh", signal.SIGHUP)]
    assert host.files() == before | {"ssh_host_ed25519_key-cert.pub"}
    for kind, key in zip(("ed25519", "ecdsa", "rsa"), made["next"]):
        private = host.ssh / f"ssh_host_{kind}_key"
        assert host.public(f"{private.name}.pub") == key
        assert stat.S_IMODE(private.stat().st_mode) == (0o640 if kind == "rsa" else 0o600)
        private.chmod(0o600)
        assert pair_of(private) == key
    certificate = host_certificates.parse((host.ssh / "ssh_host_ed25519_key-cert.pub").read_text())
    assert host_certificates.is_valid(certificate, made["next"][0], str(host.settings["authority"]), NAME)
    # Again: a kill may have been between the files and sshd.
    host_keys.switch(host.settings, made["next"][0], host.ssh)
    assert len(host.signals) == 2


def pair_of(private: Path) -> str:
    """The public key of a private one, as ssh-keygen derives it."""
    done = programs.call(["ssh-keygen", "-y", "-f", str(private)])
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split()[:2])


@pytest.mark.parametrize("renames", range(8))
def test_a_switch_that_was_killed_between_two_files_goes_on(
    host: Host, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    made = host_keys.prepare(host.settings, host.ssh)
    original = Path.replace
    done: list[Path] = []

    class Killed(BaseException):
        pass

    def replace(self: Path, target: Path) -> Path:
        if len(done) == renames:
            raise Killed
        done.append(target)
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    if renames < 7:
        with pytest.raises(Killed):
            host_keys.switch(host.settings, made["next"][0], host.ssh)
    monkeypatch.setattr(Path, "replace", original)
    host_keys.switch(host.settings, made["next"][0], host.ssh)
    assert not [name for name in host.files() if ".next" in name]
    for kind, key in zip(("ed25519", "ecdsa", "rsa"), made["next"]):
        assert pair_of(host.ssh / f"ssh_host_{kind}_key") == host.public(f"ssh_host_{kind}_key.pub") == key


def test_a_pair_that_was_not_complete_is_made_again(host: Host) -> None:
    (host.ssh / "ssh_host_ed25519_key.next.pub").write_text("ssh-ed25519 half")
    (host.ssh / ".ssh_host_ed25519_key.next").write_text("half")
    made = host_keys.prepare(host.settings, host.ssh)
    assert pair_of(host.ssh / "ssh_host_ed25519_key.next") == made["next"][0]


def test_without_a_certificate_for_this_host_nothing_is_prepared(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.names = ["another-host"]
    with pytest.raises(Failed, match="no certificate for the next host key"):
        host_keys.prepare(host.settings, host.ssh)

    def refuses(*_: Any) -> str:
        raise ConnectionRefusedError("Connection refused")

    monkeypatch.setattr(host_certificates, "ask", refuses)
    with pytest.raises(Failed, match="Connection refused"):
        host_keys.prepare(host.settings, host.ssh)
    assert host.public("ssh_host_ed25519_key.pub") == host.present["ed25519"]


def test_a_key_that_was_not_prepared_is_not_switched_to(host: Host) -> None:
    with pytest.raises(Failed, match="has prepared another key"):
        host_keys.switch(host.settings, NEW, host.ssh)
    assert host.signals == []


def test_a_host_without_the_key_that_the_ca_certifies_takes_no_part(host: Host) -> None:
    (host.ssh / "ssh_host_ed25519_key").unlink()
    with pytest.raises(Failed, match="no ed25519 host key"):
        host_keys.prepare(host.settings, host.ssh)


KNOWN = f"""\
# BEGIN gpucluster
@cert-authority * {OLD}
gpu-1,10.0.0.1 {OLD}
gpu-2,10.0.0.2 {OTHER}
# END gpucluster
other.example {OLD} a comment
"""


def test_both_keys_are_accepted_and_then_the_next_alone(tmp_path: Path) -> None:
    file = tmp_path / "ssh_known_hosts"
    file.write_text(KNOWN)
    file.chmod(0o644)
    add = {"add": {OLD: NEW, "ssh-ed25519 unknown": "ssh-ed25519 x"}, "drop": []}
    for _ in range(2):
        host_keys.known(add, file)
        assert file.read_text() == KNOWN.replace(
            f"gpu-1,10.0.0.1 {OLD}\n", f"gpu-1,10.0.0.1 {OLD}\ngpu-1,10.0.0.1 {NEW}\n"
        ).replace(" a comment\n", f" a comment\nother.example {NEW}\n")
    host_keys.known({"add": {}, "drop": [OLD]}, file)
    # The line of the CA stays.
    assert (
        file.read_text()
        == f"""\
# BEGIN gpucluster
@cert-authority * {OLD}
gpu-1,10.0.0.1 {NEW}
gpu-2,10.0.0.2 {OTHER}
# END gpucluster
other.example {NEW}
"""
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    inode = file.stat().st_ino
    host_keys.known({"add": {}, "drop": [OLD]}, file)
    assert file.stat().st_ino == inode, "it is not written again"
    host_keys.known(add, tmp_path / "nowhere")


def test_another_ca_is_accepted_beside_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "ssh_known_hosts"
    file.write_text(KNOWN)
    add = {"add": {OLD: NEW}, "authorities": True}
    for _ in range(2):
        host_keys.known({**add, "drop": []}, file)
        assert file.read_text() == KNOWN.replace("@cert", f"@cert-authority * {NEW}\n@cert").replace(
            f"@cert-authority * {NEW}\n@cert-authority * {OLD}", f"@cert-authority * {OLD}\n@cert-authority * {NEW}"
        )
    host_keys.known({**add, "drop": [OLD]}, file)
    assert file.read_text() == KNOWN.replace(f"* {OLD}", f"* {NEW}"), "the keys of hosts stay"


@pytest.mark.parametrize(
    "changes", [{"add": []}, {"add": {OLD: "x"}}, {"drop": "x"}, {"drop": [1]}, {"add": {OLD: f"{NEW}\n* {OTHER}"}}]
)
def test_anything_but_a_key_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="names no host keys"):
        host_keys.known(changes, tmp_path / "x")


def test_the_command(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(host.settings))
    monkeypatch.setattr(host_keys, "SETTINGS", settings)
    for function in (host_keys.prepare, host_keys.switch):
        monkeypatch.setattr(function, "__defaults__", (host.ssh,))
    assert host_keys.main(["prepare"]) == 0
    made = json.loads(capsys.readouterr().out)
    for text, status in ((json.dumps(made["next"][0]), 0), ("{", 2), ('"ssh-ed25519 x"', 1)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert host_keys.main(["switch"]) == status
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"add": 1}'))
    assert host_keys.main(["known"]) == 2
    settings.unlink()
    assert host_keys.main(["prepare"]) == 1
    os.umask(0o022)
