"""A host asks for its certificate and its entry, and writes them where sshd and SSSD read them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_INET, AF_UNIX, SOCK_DGRAM, SOCK_STREAM, gethostname, socket
from typing import Any

import pytest

from gpucluster.controller import ssh_ca
from gpucluster.node_agent import host_certificates, programs
from gpucluster.node_agent.errors import Failed
from tests.controller.host_keys import pair
from tests.listener import answering
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.usefixtures("patient_requests")

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="binds a port below 1024")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    pair(tmp_path / "ca")
    return tmp_path / "ca"


@contextmanager
def serving(authority: Path, known: dict[str, Any], more: str = "") -> Iterator[int]:
    """The CA, as systemd runs it: one program for each connection. Yields its port.

    Args:
        more: what else the program changes before it answers.
    """
    program = (
        "import sys, json; from pathlib import Path; from gpucluster.controller import ssh_ca as h;"
        f"h.KNOWN = Path({str(authority) + '.json'!r});{more}"
        f"h.answer.__defaults__ = (Path({str(authority)!r}),); sys.exit(h.main(['answer']))"
    )
    Path(f"{authority}.json").write_text(json.dumps(known))
    with socket(AF_INET, SOCK_STREAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.listen()

        def run(connection: socket, other_end: tuple[str, int]) -> None:
            env = {**os.environ, "REMOTE_ADDR": other_end[0], "REMOTE_PORT": str(other_end[1])}
            ends = connection.fileno()
            subprocess.run([sys.executable, "-c", program], stdin=ends, stdout=ends, env=env, check=False)

        with answering(ear, run):
            yield ear.getsockname()[1]


@AS_ROOT
def test_a_host_asks_until_the_controller_knows_it(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = pair(tmp_path / "ssh_host_ed25519_key")
    name = gethostname().partition(".")[0]
    monkeypatch.setattr(host_certificates, "_PAUSE", 0.1)
    asked: list[list[str]] = []
    reloaded: list[tuple[int, int]] = []

    def call(argv: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, "4711\n", "")

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(os, "kill", lambda *given: reloaded.append(given))
    known: dict[str, Any] = {"hosts": {}, "elastic": [], "domain": ""}
    with serving(authority, known) as port:
        settings: dict[str, Any] = {
            "address": "127.0.0.1", "port": port, "sshd": "ssh",
            "authority": " ".join(authority.with_name("ca.pub").read_text().split()[:2]),
        }  # fmt: skip
        public = tmp_path / "ssh_host_ed25519_key.pub"
        asking = threading.Thread(target=host_certificates.request, args=(settings, public), daemon=True)
        asking.start()
        told: list[str] = []

        def is_told() -> bool:
            told.append(capsys.readouterr().err)
            return "no host of this cluster has the address 127.0.0.1 now" in "".join(told)

        wait_for("it reports that the controller does not know it", is_told)
        known["hosts"]["127.0.0.1"] = [name]
        new = Path(f"{authority}.new")
        new.write_text(json.dumps(known))
        new.replace(f"{authority}.json")
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
        certificate = host_certificates.parse((tmp_path / "ssh_host_ed25519_key-cert.pub").read_text())
        assert certificate is not None
        assert (certificate.key, certificate.names) == (key, frozenset({name, "127.0.0.1"}))
        assert asked == [["systemctl", "show", "--property=MainPID", "--value", "ssh"]]
        assert reloaded == [(4711, signal.SIGHUP)]
        # It has one: it asks no more. With another key, and where the cluster has another CA, it needs another.
        host_certificates.request(settings, public)
        assert len(reloaded) == 1
        assert not host_certificates.is_valid(certificate, "ssh-ed25519 other", settings["authority"], name)
        assert not host_certificates.is_valid(certificate, key, "ssh-ed25519 other", name)
        assert not host_certificates.is_valid(certificate, key, settings["authority"], "other")


@AS_ROOT
def test_a_host_takes_a_certificate_of_another_ca(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, public = pair(tmp_path / "ssh_host_ed25519_key"), tmp_path / "ssh_host_ed25519_key.pub"
    name, former = gethostname().partition(".")[0], pair(tmp_path / "former")
    signals: list[tuple[str, int]] = []
    monkeypatch.setattr(host_certificates, "signal_unit", lambda *given: signals.append(given))
    target = tmp_path / "ssh_host_ed25519_key-cert.pub"
    target.write_text(ssh_ca.sign(key, [name], tmp_path / "former"))
    following = " ".join(authority.with_name("ca.pub").read_text().split()[:2])
    settings = tmp_path / "settings.json"
    with serving(authority, {"hosts": {"127.0.0.1": [name]}, "elastic": [], "domain": ""}) as port:
        text = json.dumps({"address": "127.0.0.1", "port": port, "sshd": "ssh", "authority": former}, indent=4) + "\n"
        settings.write_text(text)
        # The controller signs with another one: neither file changes.
        with pytest.raises(Failed, match="ssh-ed25519-cert"):
            host_certificates.renew("ssh-ed25519 other", settings, public)
        assert settings.read_text() == text
        for _ in range(2):
            host_certificates.renew(following, settings, public)
        assert settings.read_text() == text.replace(former, following)
        certificate = host_certificates.parse(target.read_text())
        assert host_certificates.is_valid(certificate, key, following, name)
        assert signals == [("ssh", signal.SIGHUP)] * 2
        # A host that knows the CA of another day, from an image for instance, has one that others believe.
        target.unlink()
        host_certificates.request(json.loads(text), public)
        assert host_certificates.is_valid(host_certificates.parse(target.read_text()), key, following, name)


def sssd_of_an_image() -> str:
    """The configuration of SSSD that the role writes into an image: name and password are empty there."""
    template = Path(__file__).parents[2] / "ansible/roles/ldap/templates/sssd.conf.j2"
    text = re.sub(r"\{\{ (directory_entry|ldap_password) \}\}", "", template.read_text())
    return re.sub(r"\{\{ \w+ \}\}", "demo", text)


@AS_ROOT
def test_a_node_of_an_image_waits_for_its_entry_and_writes_it_where_sssd_reads_it(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part of the directory is a double: it keeps the hash, and refuses in the words of the real one."""
    public, sssd = tmp_path / "ssh_host_ed25519_key.pub", tmp_path / "sssd.conf"
    pair(public.with_suffix(""))
    before = sssd_of_an_image()
    sssd.write_text(before)
    sssd.chmod(0o640)
    os.chown(sssd, 0, 12)
    (tmp_path / ".sssd.conf.new").write_text("of one that was killed")
    monkeypatch.setattr(host_certificates, "_PAUSE_FOR_ENTRY", 0.1)
    monkeypatch.setattr(programs, "call", _no_systemctl(programs.call))
    ready = Notified(monkeypatch)
    kept, name = tmp_path / "hash", gethostname().partition(".")[0]
    double = (
        "from gpucluster.controller.users import base_tree as b;"
        "from gpucluster.controller.users.config import Config as C;"
        "from gpucluster.node_agent.errors import Refused; C.load = classmethod(lambda *a: None);"
        f"\ndef admit(_config, _host, hashed):\n file = Path({str(kept)!r})\n"
        " if not file.exists(): raise Refused('no node boots at this address now', 'Ask again')\n"
        f" file.write_text(hashed); return 'compute-e1'\nb.admit = admit\n"
    )
    known: dict[str, Any] = {"hosts": {"127.0.0.1": [name]}, "elastic": [], "domain": ""}
    with serving(authority, known, double) as port:
        settings: dict[str, Any] = {
            "address": "127.0.0.1", "port": port, "sshd": "ssh", "directory": str(sssd),
            "authority": " ".join(authority.with_name("ca.pub").read_text().split()[:2]),
        }  # fmt: skip
        asking = threading.Thread(target=host_certificates.request, args=(settings, public), daemon=True)
        asking.start()
        told: list[str] = []

        def is_told() -> bool:
            told.append(capsys.readouterr().err)
            return "no directory entry yet: no directory entry: no node boots at this address now" in "".join(told)

        wait_for("it reports that the autoscaler does not know it", is_told)
        assert sssd.read_text() == before
        assert not ready.said()
        kept.write_text("")
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
    assert ready.said() == ["READY=1"]
    lines = sssd.read_text().splitlines()
    (password,) = [line.partition(" = ")[2] for line in lines if line.startswith("ldap_default_authtok =")]
    assert len(password) >= 43
    assert "ldap_default_bind_dn = cn=compute-e1,demo" in lines
    rest = [line for line in before.splitlines() if "ldap_default" not in line]
    assert [line for line in lines if "ldap_default" not in line] == rest
    state = sssd.stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (0, 12, 0o640)
    assert not (tmp_path / ".sssd.conf.new").exists()
    # What was sent is the hash of what was written.
    salt = kept.read_text().split("$")[2]
    made = subprocess.run(
        ["openssl", "passwd", "-6", "-salt", salt, "-stdin"], input=password, capture_output=True, text=True, check=True
    )
    assert kept.read_text() == "{CRYPT}" + made.stdout.strip()
    assert password not in "".join(told) + kept.read_text()
    # After a reboot it sends no request, and what waits for it starts at once.
    host_certificates.request({**settings, "port": 1}, public)
    assert ready.said() == ["READY=1", "READY=1"]


@AS_ROOT
def test_a_node_with_an_entry_and_no_certificate_yet_lets_others_start(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the host may come later, and an image of an earlier release has no settings of a directory."""
    public = tmp_path / "ssh_host_ed25519_key.pub"
    pair(public.with_suffix(""))
    monkeypatch.setattr(host_certificates, "_PAUSE", 0.1)
    monkeypatch.setattr(programs, "call", _no_systemctl(programs.call))
    ready = Notified(monkeypatch)
    known: dict[str, Any] = {"hosts": {"127.0.0.1": ["another"]}, "elastic": [], "domain": ""}
    with serving(authority, known) as port:
        settings: dict[str, Any] = {
            "address": "127.0.0.1", "port": port, "sshd": "ssh",
            "authority": " ".join(authority.with_name("ca.pub").read_text().split()[:2]),
        }  # fmt: skip
        asking = threading.Thread(target=host_certificates.request, args=(settings, public), daemon=True)
        asking.start()
        wait_for("it is ready", ready.said)
        assert asking.is_alive()
        known["hosts"]["127.0.0.1"] = [gethostname().partition(".")[0]]
        new = Path(f"{authority}.new")
        new.write_text(json.dumps(known))
        new.replace(f"{authority}.json")
        asking.join(PATIENCE_S)
        assert not asking.is_alive()


@pytest.mark.parametrize(
    "said",
    [
        "",
        "ssh-ed25519-cert-v01@openssh.com x",
        "directory entry ",
        "directory entry compute-e1,ou=people",
        "directory entry a b",
        "directory entry compute-e1\nldap_uri = ldaps://mine",
        "no directory entry: there is none",
    ],
)
def test_what_is_not_a_name_of_an_entry_is_written_nowhere(tmp_path: Path, said: str) -> None:
    sssd = tmp_path / "sssd.conf"
    sssd.write_text(sssd_of_an_image())
    entry = host_certificates.Entry.needed({"directory": str(sssd)})
    assert entry is not None
    assert entry.take(said) is False
    assert sssd.read_text() == sssd_of_an_image()


class Notified:
    """systemd's side of sd_notify(3)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._socket = socket(AF_UNIX, SOCK_DGRAM)
        # The kernel gives it a name: a path in a folder of a test may be too long.
        self._socket.bind("")
        self._socket.setblocking(False)
        self._said: list[str] = []
        monkeypatch.setenv("NOTIFY_SOCKET", self._socket.getsockname().decode().replace("\0", "@", 1))

    def said(self) -> list[str]:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._said.append(self._socket.recv(100).decode())
        return self._said


def _no_systemctl(real: Callable[..., Any]) -> Callable[..., Any]:
    """Other programs run; sshd of this machine is not reloaded."""

    def call(argv: list[str], *given: Any, **named: Any) -> Any:
        return (
            subprocess.CompletedProcess(argv, 0, "0\n", "") if argv[0] == "systemctl" else real(argv, *given, **named)
        )

    return call
