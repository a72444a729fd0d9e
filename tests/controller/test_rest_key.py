"""Another key of the REST API's tokens: whole or not at all, and visible where a rotation was interrupted.

systemctl and scontrol are doubles; tests/ansible/test_rest_host.py has the real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller import rest_key
from gpucluster.node_agent.errors import Failed, Refused
from tests.doubles.commands import Commands


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "etc" / "jwt.key"
    file.parent.mkdir()
    file.write_bytes(b"before")
    monkeypatch.setattr(rest_key, "KEY", file)
    # Another account than that of this process is root's to name.
    monkeypatch.setattr(rest_key, "_OWNER", None)
    monkeypatch.setattr(rest_key, "BEGUN", tmp_path / "begun")
    return file


def notes() -> list[str]:
    return []


def test_both_daemons_start_again_with_another_key(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.add("systemctl")
    commands.add("scontrol")
    said = notes()
    saved: list[bytes] = []
    done = rest_key.rotate(said.append, lambda: saved.append(key.read_bytes()))
    assert saved == [key.read_bytes()]
    assert done == {"new": True, "hosts": 1, "away": [], "unconfirmed": []}
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (rest_key.SIZE, 0o400)
    assert [each for each in commands.calls("systemctl") if each.startswith("restart")] == [
        "restart slurmdbd.service", "restart slurmctld.service",
    ]  # fmt: skip
    assert "every token that was made before is refused" in said[0]
    assert rest_key.state()[0]["state"] == "complete"
    assert list(key.parent.iterdir()) == [key]


def test_without_accounting_slurmctld_alone_starts_again(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.add("systemctl", 'case "$*" in *is-enabled*slurmdbd*) exit 1 ;; esac')
    commands.add("scontrol")
    rest_key.rotate(notes().append)
    assert "restart slurmdbd.service" not in commands.calls("systemctl")


def test_a_rotation_that_fails_is_shown_and_the_next_one_ends_it(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.add("systemctl", 'case "$*" in restart*) echo broken >&2; exit 1 ;; esac')
    commands.add("scontrol")
    with pytest.raises(Failed, match="restart slurmdbd"):
        rest_key.rotate(notes().append)
    made = key.read_bytes()
    assert made != b"before"
    assert rest_key.state()[0]["state"] == "prepared"
    commands.add("systemctl")
    rest_key.rotate(notes().append)
    assert key.read_bytes() != made
    assert rest_key.state()[0]["state"] == "complete"


def test_without_the_api_there_is_nothing_to_rotate(key: Path) -> None:
    key.unlink()
    assert rest_key.state() == []
    with pytest.raises(Refused, match="no key of tokens"):
        rest_key.rotate(notes().append)
