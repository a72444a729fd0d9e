"""What `controller replace` refuses and asks; the run itself is a double."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.cluster.controller import ControllerOperations
from gpucluster.cluster.state import StateOperations
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
