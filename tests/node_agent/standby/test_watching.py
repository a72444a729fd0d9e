"""What hosts do for a standby that goes on by itself; systemd is a double, connections are real."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from gpucluster.node_agent.standby import scope, watching
from gpucluster.node_agent.state_volume import layout

NOW = 1e9


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / scope.FOLDER.lstrip("/")).mkdir(parents=True)
    return tmp_path


def test_a_controller_that_is_only_slow_is_reached() -> None:
    """Nobody accepts the connection, as on a host that swaps or is stopped: its kernel does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert watching.reaches("127.0.0.1", port)
        found = watching.witness(["127.0.0.1"], ports={"ssh": port, "slurmctld": 1})
    assert found == {"reached": True, "by": ["ssh at 127.0.0.1"]}
    assert not watching.reaches("127.0.0.1", port)
    assert watching.witness(["127.0.0.1"], ports={"ssh": port}) == {"reached": False, "by": []}


def test_the_program_runs_with_the_settings_and_not_without(root: Path, systemctl: list[tuple[str, ...]]) -> None:
    watching.watch('{"version": 1}', root)
    file = root / watching.SETTINGS.lstrip("/")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ('{"version": 1}\n', 0o600)
    assert [words[1] for words in systemctl] == ["daemon-reload", "restart"]
    systemctl.clear()
    watching.pause(root)
    for _ in range(2):
        watching.unwatch(root)
    assert systemctl == [("systemctl", "stop", watching.SERVICE)]
    assert list((root / scope.FOLDER.lstrip("/")).iterdir()) == []


def test_settings_that_are_no_json_change_nothing(root: Path, systemctl: list[tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        watching.watch("nonsense", root)
    assert systemctl == []
    assert not (root / watching.SETTINGS.lstrip("/")).exists()


def test_an_announced_shutdown_counts_for_a_bounded_time(root: Path) -> None:
    assert watching.paused_seconds(root, lambda: NOW) == 0
    watching.pause(root, lambda: NOW)
    assert watching.paused_seconds(root, lambda: NOW + 100) == watching.PAUSE_SECONDS - 100
    assert watching.paused_seconds(root, lambda: NOW + watching.PAUSE_SECONDS) == 0
    # A clock that was set back does not make it longer.
    assert watching.paused_seconds(root, lambda: NOW - 86400) == watching.PAUSE_SECONDS
    for text in ("", "[]", "{}", '{"until": "soon"}', '{"until": null}'):
        (root / watching.PAUSE.lstrip("/")).write_text(text)
        assert watching.paused_seconds(root, lambda: NOW) == 0


@pytest.mark.parametrize(
    ("text", "ready", "reason"),
    [
        (json.dumps({"at": NOW, "ready": True, "reason": ""}), True, ""),
        (json.dumps({"at": NOW, "ready": False, "reason": "why"}), False, "why"),
        (json.dumps({"at": NOW - 500, "ready": True, "reason": ""}), False, "was seen 500 s ago"),
        (json.dumps({"at": NOW + 500, "ready": True, "reason": ""}), False, "was seen -500 s ago"),
        ("", False, "does not run"),
        ("[]", False, "does not run"),
        (None, False, "does not run"),
    ],
)
def test_only_a_fresh_status_counts(root: Path, text: str | None, ready: bool, reason: str) -> None:
    if text is not None:
        (root / watching.STATUS.lstrip("/")).write_text(text)
    found = watching.status(root, lambda: NOW)
    assert found["ready"] is ready
    assert reason in found["reason"]


def test_a_host_with_the_volume_is_no_standby(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not watching.is_passive(root)
    (root / layout.PASSIVE.lstrip("/")).touch()
    assert watching.is_passive(root)
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    assert not watching.is_passive(root)
