"""What a host takes as the CA of today: what a chain proves that begins with the CA that it trusts, and nothing else.

openssl, TLS and the controller's answers are real. SSSD is not: tests/controller/test_directory_authority.py has it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any

import pytest

from gpucluster.controller import ca
from gpucluster.node_agent import directory_authority, programs
from gpucluster.node_agent.errors import Failed
from tests.listener import answering
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Authority:
    """The CA of a controller in a folder of its own, and how it was at first.

    Attributes:
        first: its certificate before any rotation.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, cluster: str = "demo") -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        folder.mkdir()
        self._run(lambda: ca.main([
            f"--cluster={cluster}", "--name=localhost", "--address=127.0.0.1", f"--directory={folder}/server",
            f"--publish={folder}/etc/published.pem", "--group=nobody",
        ]))  # fmt: skip
        self.first = self.present

    def _run(self, what: Any) -> Any:
        before = os.umask(0o022)
        try:
            with self._monkeypatch.context() as patch:
                patch.setattr(ca, "FOLDER", self.folder / "etc" / "authority")
                patch.setattr(shutil, "chown", lambda *_: None)
                real = tempfile.TemporaryDirectory
                patch.setattr(tempfile, "TemporaryDirectory", lambda prefix, **_: real(prefix=prefix))
                return what()
        finally:
            os.umask(before)

    @property
    def present(self) -> str:
        return str(self._run(ca.authority))

    @property
    def answer(self) -> dict[str, str]:
        found: dict[str, str] = self._run(ca.published)
        return found

    def rotate(self) -> None:
        for step in (ca.prepare, ca.switch, ca.issue, ca.end):
            self._run(step)

    @contextmanager
    def directory(self) -> Iterator[str]:
        """A server with its certificate. The client decides, so no answer is read or sent."""
        ssl = pytest.importorskip("ssl")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server" / "server.pem", self.folder / "server" / "server.key")

        def greet(connection: socket) -> None:
            context.wrap_socket(connection, server_side=True).close()

        with _serving(greet) as port:
            yield f"ldaps://127.0.0.1:{port}"


@contextmanager
def _serving(answer: Callable[[socket], object]) -> Iterator[int]:
    """A port on which each connection gets this answer."""

    def reply(connection: socket, _address: object) -> None:
        with suppress(OSError):  # of a client that does not believe the server
            answer(connection)

    with socket(AF_INET, SOCK_STREAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.listen()
        with answering(ear, reply):
            yield ear.getsockname()[1]


class Host:
    """A host, in a folder of the test, and what it asks systemd for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trusted, self.sssd, self.settings = (
            folder / "authority.pem",
            folder / "sssd.conf",
            folder / "settings.json",
        )
        self.commands: list[str] = []
        original = programs.call

        def call(argv: Sequence[str], *more: Any, **how: Any) -> Any:
            if argv[0] != "systemctl":
                return original(argv, *more, **how)
            self.commands.append(" ".join(argv[1:]))
            return subprocess.CompletedProcess(list(argv), 0, "", "")

        monkeypatch.setattr(programs, "call", call)
        monkeypatch.setattr(directory_authority, "TRUSTED", self.trusted)
        monkeypatch.setattr(directory_authority.own_directory, "__defaults__", (self.sssd,))

    def reads(self, uri: str, authority: str = "") -> None:
        self.sssd.write_text(f"ldap_uri = {uri}\nldap_tls_cacert = {authority or self.trusted}\n")

    def learn(self, answer: Any) -> None:
        def told(connection: socket) -> None:
            assert connection.recv(100) == b"authority\n"
            connection.sendall(json.dumps(answer).encode())

        with _serving(told) as port:
            self.settings.write_text(json.dumps({"address": "127.0.0.1", "port": port}))
            directory_authority.learn(self.trusted, self.settings)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    return Authority(tmp_path / "own", monkeypatch)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: Authority) -> Host:
    made = Host(tmp_path, monkeypatch)
    made.trusted.write_text(authority.first)
    return made


@pytest.mark.parametrize("times", [1, 3])
def test_a_host_that_was_off_trusts_the_ca_of_today_alone(host: Host, authority: Authority, times: int) -> None:
    for _ in range(times):
        authority.rotate()
    with authority.directory() as uri:
        host.reads(uri)
        host.learn(authority.answer)
        assert host.trusted.read_text() == authority.present != authority.first
        assert host.commands == ["reset-failed sssd.service", "--no-block try-restart sssd.service"]
        # It asks for no more, and nothing is restarted: the directory proves itself.
        host.settings.unlink()
        directory_authority.learn(host.trusted, host.settings)
        assert len(host.commands) == 2


def test_a_host_of_another_directory_asks_at_each_boot_and_its_sssd_is_left_alone(
    host: Host, authority: Authority
) -> None:
    host.reads("ldaps://example.com", "/etc/gpucluster/directory-ca.pem")
    host.learn(authority.answer)
    assert host.trusted.read_text() == authority.first
    authority.rotate()
    host.learn(authority.answer)
    assert (host.trusted.read_text(), host.commands) == (authority.present, [])
    host.learn(authority.answer)


def test_a_host_that_trusts_both_during_a_rotation_learns_nothing_of_a_former_one(
    host: Host, authority: Authority
) -> None:
    before = authority.answer
    authority.rotate()
    host.trusted.write_text(authority.present)
    with pytest.raises(Failed, match="nothing proves the CA"):
        host.learn(before)
    assert host.trusted.read_text() == authority.present


def _forged(own: dict[str, str], theirs: dict[str, str], first: str) -> dict[str, Any]:
    """Answers of an attacker with another CA.

    Args:
        own: the controller's answer. `theirs`: that of the other CA. `first`: what the host trusts.
    """
    return {
        "another CA": theirs,
        "another CA with our chain": {**theirs, "links": own["links"]},
        "another CA with our proof": {**own, "authority": theirs["authority"]},
        "our CA with another proof": {**own, "proof": theirs["proof"]},
        "no link": {**own, "links": ""},
        "another link": {**own, "links": theirs["authority"]},
        "the CA itself as the link": {**own, "links": own["authority"]},
        "a server's certificate as the CA": {**own, "authority": own["proof"]},
        "a server's certificate as a link": {**theirs, "links": own["links"] + own["proof"]},
        "the known CA as the proof": {**theirs, "proof": first},
        "no certificate": {**own, "authority": "x"},
        "words around it": {**own, "authority": f"x\n{own['authority']}"},
        "numbers": dict.fromkeys(own, 1),
        "a list": [own],
        "nothing": {},
    }


@pytest.mark.parametrize("cluster", ["demo", "public"], ids=["of the same name", "of another name"])
def test_what_the_known_ca_has_not_signed_is_refused(
    host: Host, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    other = Authority(tmp_path / "other", monkeypatch, cluster)
    authority.rotate()
    # An attacker may have a certificate of a CA that the system trusts.
    store = tmp_path / "store"
    store.mkdir()
    (store / "other.pem").write_text(other.first)
    subprocess.run(["openssl", "rehash", str(store)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_DIR", str(store))
    monkeypatch.setenv("SSL_CERT_FILE", str(store / "other.pem"))
    host.reads("ldaps://example.com", "/etc/gpucluster/directory-ca.pem")
    for name, answer in _forged(authority.answer, other.answer, authority.first).items():
        with pytest.raises(Failed):
            host.learn(answer)
        assert host.trusted.read_text() == authority.first, name
    host.learn(authority.answer)
    assert host.trusted.read_text() == authority.present


def test_a_bundle_is_trusted_if_the_directory_proves_itself_by_it(host: Host, authority: Authority) -> None:
    with authority.directory() as uri:
        host.reads(uri)
        authority.rotate()
        # The server has the certificate of the former one.
        with pytest.raises(Failed, match="does not prove itself"):
            directory_authority.trust(authority.present, host.trusted)
        assert (host.trusted.read_text(), host.commands) == (authority.first, [])
        directory_authority.trust(authority.first + authority.present, host.trusted)
        # Again: a kill may have been between the file and the restart.
        directory_authority.trust(authority.first + authority.present, host.trusted)
    assert host.trusted.read_text() == authority.first + authority.present
    assert host.trusted.stat().st_mode & 0o777 == 0o644
    assert host.commands == ["reset-failed sssd.service", "try-restart sssd.service"] * 2
    with pytest.raises(Failed, match="the directory does not answer"):
        directory_authority.trust(authority.present, host.trusted)


def test_without_an_answer_nothing_changes(host: Host, authority: Authority) -> None:
    pytest.importorskip("ssl")  # the Python of test_oldest_python comes without OpenSSL
    host.reads("ldaps://127.0.0.1:1")
    with pytest.raises(Failed, match="the directory does not answer"):
        directory_authority.learn(host.trusted, host.settings)
    host.reads("ldaps://example.com", "/etc/gpucluster/directory-ca.pem")
    host.settings.write_text('{"address": "127.0.0.1", "port": 1}')
    with pytest.raises(Failed, match="does not tell its CA"):
        directory_authority.learn(host.trusted, host.settings)
    assert host.trusted.read_text() == authority.first
    host.trusted.unlink()
    directory_authority.learn(host.trusted, host.settings)
    assert not host.trusted.exists(), "a host without one trusts no answer"


def test_a_directory_that_has_accepted_a_connection_may_answer_late(
    host: Host, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ssl")
    monkeypatch.setattr(directory_authority, "_CONNECT_SECONDS", PATIENCE_S)
    monkeypatch.setattr(directory_authority, "_ANSWER_SECONDS", 0.2)
    with socket(AF_INET, SOCK_STREAM) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(Failed, match=r"the directory does not answer: .*timed out"):
            directory_authority.is_proven(f"ldaps://127.0.0.1:{silent.getsockname()[1]}", host.trusted)


def test_systemd_does_not_wait_for_a_controller_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[Any] = []
    answers = iter([Failed("timed out"), Failed("timed out"), FileNotFoundError(2, "no settings"), None])

    def learn() -> None:
        steps.append("asks")
        answer = next(answers)
        if answer is not None:
            raise answer

    monkeypatch.setattr(directory_authority, "learn", learn)
    monkeypatch.setattr(directory_authority, "notify", steps.append)
    monkeypatch.setattr(time, "sleep", steps.append)
    directory_authority.await_learned()
    asked = ["asks", "READY=1"]
    assert steps == [*asked, 2.0, *asked, 4.0, *asked, 8.0, *asked]
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "timed out", "[Errno 2] no settings"
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "status"), [("{}", 2), ('"x"', 2), ("x", 2), ("", 2), ('"-----BEGIN"', 2)])
def test_what_is_no_bundle_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, status: int
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    before = os.umask(0o022)
    assert directory_authority.main(["trust"]) == status
    os.umask(before)
    assert "directory-authority" in capsys.readouterr().err
    assert host.commands == []
