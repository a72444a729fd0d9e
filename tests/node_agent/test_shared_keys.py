"""What a host does with the keys that the controller gives it: in authorized_keys, and in the folder of containers."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent import munge_key, shared_keys
from gpucluster.node_agent.drift import recorded
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.host_identity import BEGIN, END, controllers_key
from gpucluster.node_agent.shared_keys import MARKER, old_servers, take, with_own, without

FORMER, NEXT = "ssh-ed25519 AAAA1 demo controller", "ssh-ed25519 AAAA2 demo controller"
OPERATOR, ADMIN = "ssh-ed25519 OOOO alice", "ssh-rsa BBBB added by hand"
BOTH = f"{ADMIN}\n{BEGIN}{OPERATOR}\n{MARKER}{FORMER}\n{END}# more\n"


def test_only_the_controllers_part_of_authorized_keys_changes() -> None:
    both = with_own(BOTH, [FORMER, NEXT])
    assert both == f"{ADMIN}\n{BEGIN}{OPERATOR}\n{MARKER}{FORMER}\n{NEXT}\n{END}# more\n"
    after = with_own(both, [NEXT])
    assert after == f"{ADMIN}\n{BEGIN}{OPERATOR}\n{MARKER}{NEXT}\n{END}# more\n"
    assert controllers_key(after) == f"{BEGIN}{NEXT}\n{END}", "an image gets it"
    assert with_own(with_own(f"{BEGIN}{FORMER}\n{END}", [NEXT]), [NEXT]) == f"{BEGIN}{NEXT}\n{END}"
    assert with_own(ADMIN, [NEXT]) == f"{ADMIN}\n{BEGIN}{NEXT}\n{END}"


def test_a_removed_key_is_removed_whatever_stands_before_and_after_it() -> None:
    text = f'{ADMIN}\nno-pty,command="echo no" ssh-ed25519 JJJJ join\nssh-ed25519 JJJJ\nssh-ed25519 JJJJJ other\n'
    assert without(text, {"ssh-ed25519 JJJJ"}) == f"{ADMIN}\nssh-ed25519 JJJJJ other\n"
    assert without(text, ()) == text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of this process's user, for the test."""
    own = pwd.getpwuid(os.geteuid())
    entry = pwd.struct_passwd((*own[:5], str(tmp_path / "home"), own.pw_shell))
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: entry)
    return tmp_path / "home"


@pytest.fixture
def mesh(tmp_path: Path) -> Path:
    folder = tmp_path / "mesh"
    folder.mkdir()
    (folder / "config").write_text("Host *\n    Port 12345\n    User root\n")
    return folder


CONTAINERS = {"login": "private 1\n", "server": "private 2\n", "authorized": [NEXT, FORMER], "known": [NEXT]}


def test_a_host_has_what_the_document_has(home: Path, mesh: Path) -> None:
    keys = home / ".ssh/authorized_keys"
    for document in ({"controller": [FORMER, NEXT], "containers": CONTAINERS}, {"controller": [NEXT]}, {}):
        assert take(document, "opc", mesh) == {"servers": 0}
    assert keys.read_text() == f"{BEGIN}{NEXT}\n{END}"
    assert (keys.stat().st_mode & 0o777, keys.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert (mesh / "authorized_keys").read_text() == f"{NEXT}\n{FORMER}\n"
    assert (mesh / "known_hosts").read_text() == f"[*]:12345 {NEXT}\n"
    private = mesh / "id_ed25519"
    assert (private.read_text(), private.stat().st_mode & 0o777) == ("private 1\n", 0o600)
    before = private.stat()
    take({"containers": CONTAINERS}, "opc", mesh)
    assert private.stat() == before, "what a host has is not written again"


def test_a_rotation_is_no_drift_and_a_key_of_another_stays_one(
    home: Path, mesh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "RECORD", tmp_path / "applied.json")
    keys = home / ".ssh/authorized_keys"

    def seen() -> list[str]:
        noted = json.loads(recorded.RECORD.read_text())["noted"]["files"]
        return [each["seen"] for each in recorded.files(noted, noted) if each["kind"] == "file"]

    for other, expected in (("", []), (f"{ADMIN}\n", ["other content"])):
        take({"controller": [FORMER]}, "opc", mesh)
        record = {"format": recorded.FORMAT, "noted": {"files": {str(keys): recorded.state_of(str(keys))}}}
        recorded.RECORD.write_text(json.dumps(record))
        recorded.RECORD.chmod(0o600)
        keys.write_text(other + keys.read_text())
        for document in ({"controller": [FORMER, NEXT]}, {"controller": [NEXT], "removed": [FORMER]}):
            take(document, "opc", mesh)
            assert seen() == expected
        assert recorded.RECORD.stat().st_mode & 0o777 == 0o600
    recorded.RECORD.unlink()
    take({"controller": [FORMER]}, "opc", mesh)
    assert not recorded.RECORD.exists(), "an apply that has begun has removed it"


def test_a_host_without_the_folder_of_containers_gets_none(home: Path, tmp_path: Path) -> None:
    (tmp_path / "keys alone").mkdir()
    for folder in (tmp_path / "none", tmp_path / "keys alone"):
        assert take({"containers": CONTAINERS}, "opc", folder) == {"servers": 0}
    assert not (tmp_path / "none").exists()
    assert list((tmp_path / "keys alone").iterdir()) == []
    assert list(home.iterdir()) == []


def test_no_link_of_the_user_leads_root_elsewhere(home: Path, mesh: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / ".ssh").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"\.ssh"):
        take({"controller": [NEXT]}, "opc", mesh)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("key", ["x", 'x" y\nssh-rsa A', None, 1, "ssh-ed25519 A\nssh-rsa BBBB"])
def test_what_is_no_key_is_refused(home: Path, mesh: Path, key: Any) -> None:
    for document in ({"controller": [key]}, {"removed": [key]}, {"containers": {**CONTAINERS, "known": [key]}}):
        with pytest.raises(Refused, match="something else than public keys"):
            take(document, "opc", mesh)
    assert list(home.iterdir()) == []


def process(folder: Path, number: int, name: str, inside: Path, started_at: float) -> None:
    """A process in a folder like /proc."""
    place = folder / str(number)
    (place / "root/root").mkdir(parents=True)
    (place / "root/root/.ssh").symlink_to(inside)
    (place / "comm").write_text(f"{name}\n")
    ticks = int(started_at * os.sysconf("SC_CLK_TCK"))
    (place / "stat").write_text(f"{number} (ssh d) S {' '.join(['0'] * 18)} {ticks} 0\n")


def test_ssh_servers_of_containers_that_are_older_than_their_host_key_are_counted(mesh: Path, tmp_path: Path) -> None:
    processes, other, up = tmp_path / "proc", tmp_path / "other", 1000.0
    processes.mkdir()
    other.mkdir()
    (processes / "uptime").write_text(f"{up} 0.0\n")
    assert old_servers(mesh, processes) == 0, "there is no key"
    (mesh / "ssh_host_ed25519_key").write_text("key")
    written = time.time() - 500
    os.utime(mesh / "ssh_host_ed25519_key", (written, written))
    process(processes, 10, "sshd", mesh, 100)
    process(processes, 11, "sshd", mesh, 900)
    process(processes, 12, "sshd", other, 100)
    process(processes, 13, "sleep", mesh, 100)
    (processes / "14").mkdir()
    assert old_servers(mesh, processes) == 1


def test_sshd_of_this_machine_is_none_of_a_container(mesh: Path) -> None:
    (mesh / "ssh_host_ed25519_key").write_text("key")
    assert old_servers(mesh) == 0


# ---- at the boot


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the controller answers, one after the other: a double of the connection, which test_munge_key has."""
    given: list[Any] = []

    def conversation(_settings: Any, request: Any, _what: str, _most: int) -> bytes:
        assert request["which"] == "shared"
        answer = given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    monkeypatch.setattr(munge_key, "conversation", conversation)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    yield given
    assert given == []


def test_a_host_that_boots_learns_the_keys_and_asks_again_later(
    home: Path, mesh: Path, answers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {"refused": "no host of this cluster has the address"}
    answers += [Failed("no connection"), refused, {"shared": None}, {"shared": {"controller": [NEXT]}}]
    shared_keys.await_keys({}, "opc", mesh)
    assert (home / ".ssh/authorized_keys").read_text() == f"{BEGIN}{NEXT}\n{END}"
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "no connection",
        "the controller does not give the shared keys: no host of this cluster has the address",
    ]


@pytest.mark.parametrize("last", [b"x", b"[]", b'{"shared": 1}', Failed("no connection")])
def test_a_host_that_has_not_learnt_them_in_the_end_begins_again(
    home: Path, mesh: Path, answers: list[Any], last: Any
) -> None:
    answers += [{"shared": None}, {"shared": None}, last]
    with pytest.raises(Failed):
        shared_keys.await_keys({}, "opc", mesh)
    assert list(home.iterdir()) == []


def test_the_program_answers_in_json(tmp_path: Path) -> None:
    def run(text: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "gpucluster.node_agent", "shared-keys", "take"]
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=False)

    done = run(json.dumps({"user": "root", "document": {}}))
    assert (done.returncode, json.loads(done.stdout)) == (0, {"servers": 0}), done.stderr
    for text in ("x", "[]", "{}"):
        assert (run(text).returncode, run(text).stdout) == (2, "")
