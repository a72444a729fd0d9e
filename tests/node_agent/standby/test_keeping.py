"""The host in service repeats what the last apply has sent; systemd is a double."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.standby import keeping, mirror, watching
from gpucluster.node_agent.state_volume import layout


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def send(*words: str, only_compare: bool, root: Path) -> dict[str, Any]:
        calls.append((*words, only_compare, root))
        return {"differing": 1, "paths": ["/etc/a"]}

    monkeypatch.setattr(mirror, "send", send)
    return calls


def test_the_timer_repeats_what_was_sent(
    tmp_path: Path,
    systemctl: list[tuple[str, ...]],
    sent: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path)
    assert [words[1] for words in systemctl] == ["daemon-reload", "enable"]
    service = (tmp_path / "etc/systemd/system" / keeping.SERVICE).read_text()
    assert "ExecStart=/usr/local/bin/gpucluster-agent standby again" in service
    keeping.keep("debian@10.0.0.4", "ssh-ed25519 BBBB", tmp_path)
    assert [words[1] for words in systemctl] == ["daemon-reload", "enable", "enable"]
    assert keeping.again(tmp_path) == {}  # this host does not have the volume
    assert sent == []
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    assert keeping.again(tmp_path)["differing"] == 1
    assert sent == [("debian@10.0.0.4", "ssh-ed25519 BBBB", False, tmp_path)]


def test_both_hosts_have_the_units_of_a_standby_that_goes_on_by_itself_until_it_does_not(
    tmp_path: Path, systemctl: list[tuple[str, ...]]
) -> None:
    units = tmp_path / "etc/systemd/system"
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path, automatic=True)
    assert [words[-1] for words in systemctl if words[1] == "enable"] == [
        keeping.TIMER, watching.SERVICE, watching.SHUTDOWN,
    ]  # fmt: skip
    assert f"ConditionPathExists={layout.PASSIVE}" in (units / watching.SERVICE).read_text()
    assert "ExecStop=/usr/local/bin/gpucluster-agent standby announce" in (units / watching.SHUTDOWN).read_text()
    systemctl.clear()
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path)
    assert ("systemctl", "disable", "--quiet", watching.SERVICE, watching.SHUTDOWN) in systemctl
    assert sorted(file.name for file in units.iterdir()) == [keeping.SERVICE, keeping.TIMER]


def test_the_timer_notes_whether_the_standby_could_go_on(
    tmp_path: Path,
    systemctl: list[tuple[str, ...]],
    sent: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path, automatic=True)
    metrics = tmp_path / keeping.METRICS_FILE.lstrip("/")
    metrics.parent.mkdir(parents=True)
    asked: list[str] = []

    def call(argv: Sequence[str], **_how: Any) -> programs.Completed[str]:
        asked.append(argv[-1])
        return programs.Completed(list(argv), 0, '{"ready": true, "reason": ""}', "")

    monkeypatch.setattr(programs, "call", call)
    keeping.again(tmp_path)
    assert asked == ["watched"]
    assert "gpucluster_standby_failover_ready 1\n" in metrics.read_text()
    monkeypatch.setattr(programs, "call", lambda argv, **_how: programs.Completed(list(argv), 255, "", "no route"))
    keeping.again(tmp_path)
    assert "gpucluster_standby_failover_ready 0\n" in metrics.read_text()
    assert "the standby does not answer" in capsys.readouterr().err


def test_a_shutdown_is_announced_by_the_host_in_service_alone(tmp_path: Path, systemctl: list[tuple[str, ...]]) -> None:
    keeping.announce(tmp_path)
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path, automatic=True)
    systemctl.clear()
    keeping.announce(tmp_path)
    assert systemctl[-1][-2:] == ("debian@10.0.0.3", "pause")
    systemctl.clear()
    (tmp_path / layout.PASSIVE.lstrip("/")).touch()
    keeping.announce(tmp_path)
    assert systemctl == []


def test_an_apply_ends_the_metric_of_a_failover(tmp_path: Path, systemctl: list[tuple[str, ...]]) -> None:
    keeping.note_failover(12.0, tmp_path)
    metrics = tmp_path / keeping.FAILOVER_FILE.lstrip("/")
    assert not metrics.exists(), "there are no exporters"
    metrics.parent.mkdir(parents=True)
    keeping.note_failover(12.0, tmp_path)
    assert metrics.read_text().endswith("gpucluster_standby_automatic_failover_timestamp_seconds 12.000\n")
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path, automatic=True)
    assert not metrics.exists()


def test_a_standby_that_does_not_answer_is_no_fault_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "run", lambda *_argv, **_how: "")
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    assert keeping.again(tmp_path) == {}  # no apply has made a standby
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path)

    def refuse(*_words: str, **_how: Any) -> dict[str, Any]:
        raise Failed("no answer")

    monkeypatch.setattr(mirror, "send", refuse)
    assert keeping.again(tmp_path) == {}
    assert "no answer" in capsys.readouterr().err


def test_the_time_of_the_last_success_is_a_metric_where_there_are_exporters_until_the_standby_ends(
    tmp_path: Path,
    systemctl: list[tuple[str, ...]],
    sent: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    keeping.keep("debian@10.0.0.3", "ssh-ed25519 AAAA", tmp_path)
    metrics = tmp_path / keeping.METRICS_FILE.lstrip("/")
    keeping.again(tmp_path)
    assert not metrics.exists()
    metrics.parent.mkdir(parents=True)
    monkeypatch.setattr(time, "time", lambda: 1234.5)
    keeping.again(tmp_path)
    (line,) = (line for line in metrics.read_text().splitlines() if not line.startswith("#"))
    name, value = line.split()
    assert name in keeping.METRICS
    assert value == "1234.500"

    systemctl.clear()
    for _ in range(2):
        keeping.end(tmp_path)
    assert [words[1] for words in systemctl] == ["disable", "daemon-reload", "daemon-reload"]
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    assert keeping.again(tmp_path) == {}
    assert len(sent) == 2
