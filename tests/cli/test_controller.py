"""What `controller replace` and `controller failover` refuse and ask; the run itself is a double."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.cluster.controller import ControllerOperations
from gpucluster.cluster.state import StateOperations
from gpucluster.lifecycle.failover import FailoverResult
from gpucluster.lifecycle.result import RunResult
from gpucluster.workspace.run_log import RunStatus
from tests.spec.spec_texts import LOCAL


def test_without_a_volume_it_names_what_a_backup_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster.yml").write_text(LOCAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StateOperations, "require_own", lambda _self: None)
    done = CliRunner().invoke(cli, ["controller", "replace", "--yes"], catch_exceptions=False)
    assert done.exit_code == 2
    for words in ("on its boot disk", "state_volume_gb", "gpucluster restore", "neither the queue"):
        assert words in done.output.replace("\n", " "), done.output


def test_with_one_it_runs_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LOCAL.replace("controller:", "controller:\n  state_volume_gb: 50", 1)
    if "state_volume_gb" not in text:
        text = f"{LOCAL}controller: {{state_volume_gb: 50}}\n"
    (tmp_path / "cluster.yml").write_text(text)
    monkeypatch.chdir(tmp_path)
    ended = RunResult("controller replace", RunStatus.SUCCESS, 61.0, {})
    monkeypatch.setattr(StateOperations, "require_own", lambda _self: None)
    monkeypatch.setattr(ControllerOperations, "replace", lambda _self: ended)
    done = CliRunner().invoke(cli, ["controller", "replace", "--yes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "controller replace" in done.output


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose cluster has a standby."""
    (tmp_path / "cluster.yml").write_text(
        LOCAL.replace("controller:", "controller:\n  state_volume_gb: 50\n  standby: true", 1)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StateOperations, "require_own", lambda _self: None)
    return tmp_path


def test_a_failover_needs_a_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster.yml").write_text(LOCAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StateOperations, "require_own", lambda _self: None)
    done = CliRunner().invoke(cli, ["controller", "failover", "--yes"], catch_exceptions=False)
    assert done.exit_code == 2
    assert "has no standby" in done.output


@pytest.mark.usefixtures("pair")
def test_with_a_standby_a_replacement_is_a_failover() -> None:
    done = CliRunner().invoke(cli, ["controller", "replace", "--yes"], catch_exceptions=False)
    assert done.exit_code == 2
    assert "gpucluster controller failover" in done.output.replace("\n", " ")


@pytest.mark.usefixtures("pair")
def test_a_failover_reports_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def failover(_self: ControllerOperations, *, accept_behind: bool) -> FailoverResult:
        asked.append(accept_behind)
        return FailoverResult("demo-standby", 31.4, released=True)

    monkeypatch.setattr(ControllerOperations, "failover", failover)
    for option in ([], ["--accept-behind"]):
        done = CliRunner().invoke(cli, ["controller", "failover", "--yes", *option], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert "demo-standby is in service; the cluster was without a controller for 31 s" in done.output
    assert asked == [False, True]
