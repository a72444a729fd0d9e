"""A host gets the cluster's munge key over TLS from the program of the controller, and munged is restarted with it.

The server is the real one, with a real CA. munged itself is not: tests/e2e has it.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any

import pytest

from gpucluster.node_agent import munge_key, programs
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.certificates import server_of
from tests.listener import answering

pytestmark = pytest.mark.usefixtures("patient_requests")

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="binds a port below 1024")
OLD, NEW = b"old key " * 16, b"new key " * 16


class Controller:
    """The keys of a controller, and its server on a port of this machine."""

    def __init__(self, folder: Path, port: int, authority: Path) -> None:
        self.secret, self.following = folder / "munge.key", folder / "munge.key.next"
        self.known: dict[str, Any] = {"hosts": {"127.0.0.1": ["demo-compute-1"]}, "elastic": [], "domain": ""}
        self._known = folder / "known.json"
        self.settings = {"address": "127.0.0.1", "port": port, "authority": str(authority)}
        self.knows(self.known)

    def knows(self, known: dict[str, Any]) -> None:
        self._known.write_text(json.dumps(known))


@contextmanager
def serving(folder: Path) -> Iterator[Controller]:
    """The program as systemd runs it: one process for each connection."""
    pytest.importorskip("ssl")  # the Python of test_oldest_python comes without OpenSSL
    authority, certificate, key = server_of(folder, "127.0.0.1")
    with socket(AF_INET, SOCK_STREAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.listen()
        controller = Controller(folder, ear.getsockname()[1], authority)
        program = (
            "import sys; from pathlib import Path; from gpucluster.controller import munge_keys as m, ssh_ca;"
            f"ssh_ca.KNOWN = Path({str(folder / 'known.json')!r}); m.SECRET = Path({str(controller.secret)!r});"
            f"m.NEXT = Path({str(controller.following)!r});"
            f"sys.exit(m.main(['answer', '--certificate', {str(certificate)!r}, '--key', {str(key)!r}]))"
        )

        def run(connection: socket, other_end: tuple[str, int]) -> None:
            env = {**os.environ, "REMOTE_ADDR": other_end[0], "REMOTE_PORT": str(other_end[1])}
            subprocess.run([sys.executable, "-c", program], stdin=connection.fileno(), env=env, check=False)

        with answering(ear, run):
            yield controller


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    (tmp_path / "controller").mkdir()
    with serving(tmp_path / "controller") as made:
        made.secret.write_bytes(OLD)
        yield made


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """This machine as a host, with folders of the test. Returns the commands that were run."""
    commands: list[str] = []

    def call(argv: list[str], **_how: Any) -> subprocess.CompletedProcess[str]:
        commands.append(" ".join(argv))
        return subprocess.CompletedProcess(argv, 0, "4711\n", "")

    monkeypatch.setattr(munge_key, "KEY", tmp_path / "munge.key")
    monkeypatch.setattr(munge_key, "NEXT", tmp_path / "munge.key.next")
    monkeypatch.setattr(programs, "call", call)
    original = munge_key.install
    monkeypatch.setattr(munge_key, "install", lambda key, target: original(key, target, None))
    return commands


@AS_ROOT
def test_a_host_without_a_key_gets_it_and_no_other_user_can_read_it(
    controller: Controller, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(munge_key, "_AGAIN", ())
    munge_key.await_key(controller.settings)
    assert munge_key.KEY.read_bytes() == OLD
    assert stat.S_IMODE(munge_key.KEY.stat().st_mode) == 0o400
    assert ran == [], "munge has not started yet"


@AS_ROOT
def test_a_host_that_was_off_gets_the_new_key_at_its_boot(
    controller: Controller, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(munge_key, "_AGAIN", ())
    munge_key.KEY.write_bytes(OLD)
    controller.secret.write_bytes(NEW)
    munge_key.await_key(controller.settings)
    assert munge_key.KEY.read_bytes() == NEW
    assert ran == []


@AS_ROOT
def test_a_key_that_changes_while_a_host_boots_arrives_and_its_daemons_start_again(
    controller: Controller, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _signal: ended.append(pid))
    monkeypatch.setattr(munge_key, "_AGAIN", (1.0,))
    monkeypatch.setattr(munge_key, "notify", lambda *_words: controller.secret.write_bytes(NEW))
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    munge_key.await_key(controller.settings)
    assert munge_key.KEY.read_bytes() == NEW
    assert [command.rpartition(" ")[2] for command in ran] == ["munge.service", "slurmd.service"]
    assert ended == [4711, 4711]


@AS_ROOT
def test_a_host_with_a_key_starts_with_it_where_the_controller_does_not_know_it_yet(
    controller: Controller, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del ran
    monkeypatch.setattr(munge_key, "_AGAIN", ())
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("it waited"))
    munge_key.KEY.write_bytes(OLD)
    controller.knows({**controller.known, "hosts": {}})
    munge_key.await_key(controller.settings)
    assert munge_key.KEY.read_bytes() == OLD
    assert "no host of this cluster has the address 127.0.0.1 now" in capsys.readouterr().err


@AS_ROOT
def test_a_server_of_another_ca_is_not_believed(controller: Controller, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other, _certificate, _key = server_of(tmp_path / "other", "127.0.0.1")
    with pytest.raises(Failed, match="certificate verify failed"):
        munge_key.ask({**controller.settings, "authority": str(other)}, "current", "")


@AS_ROOT
def test_the_next_key_waits_beside_the_present_one_until_the_switch(controller: Controller, ran: list[str]) -> None:
    munge_key.KEY.write_bytes(OLD)
    with pytest.raises(Refused, match="no next munge key"):
        munge_key.stage(controller.settings, munge_key.digest(NEW))
    controller.following.write_bytes(NEW)
    munge_key.stage(controller.settings, munge_key.digest(NEW))
    assert (munge_key.KEY.read_bytes(), munge_key.NEXT.read_bytes()) == (OLD, NEW)
    assert ran == []
    munge_key.switch({}, munge_key.digest(NEW), late=False)
    assert munge_key.KEY.read_bytes() == NEW
    assert not munge_key.NEXT.exists()
    assert ran == ["systemctl restart munge.service"]


@AS_ROOT
def test_a_host_that_missed_the_preparation_switches_late(controller: Controller, ran: list[str]) -> None:
    munge_key.KEY.write_bytes(OLD)
    controller.secret.write_bytes(NEW)
    munge_key.switch(controller.settings, munge_key.digest(NEW), late=True)
    assert munge_key.KEY.read_bytes() == NEW
    assert ran == ["systemctl restart munge.service", "systemctl try-restart slurmd.service"]
    with pytest.raises(Failed, match="has another munge key by now"):
        munge_key.switch(controller.settings, munge_key.digest(b"third"), late=True)


def test_a_switch_that_was_killed_before_the_restart_is_repeated(ran: list[str]) -> None:
    munge_key.KEY.write_bytes(NEW)
    munge_key.switch({}, munge_key.digest(NEW), late=False)
    assert ran == ["systemctl restart munge.service"]


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"key": 1}', b'{"key": "?"}', b'{"key": "QUJD"}', b"\xff"])
def test_an_answer_that_is_none_is_no_key(text: bytes) -> None:
    with pytest.raises(Failed):
        munge_key.read_answer(text)


def test_what_is_wrong_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(munge_key, "SETTINGS", tmp_path / "none.json")
    assert munge_key.main(["stage", "ab"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
