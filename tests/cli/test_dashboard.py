"""`gpucluster dashboard --files`: Grafana's dashboards for a Grafana of your own, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.dashboards import boards


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_each_dashboard_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("dashboard", "--files", "deep/boards")
    assert ended.exit_code == 0, ended.output
    files = {file.name: json.loads(file.read_text()) for file in (tmp_path / "deep/boards").iterdir()}
    assert {name: board["uid"] for name, board in files.items()} == {
        f"{name}.json": board["uid"] for name, board in boards.all_dashboards().items()
    }
    again = run("--output", "json", "dashboard", "--files", "deep/boards")
    assert json.loads(again.output.splitlines()[-1])["data"]["files"][0] == "deep/boards/autoscaler.json"


def test_it_goes_with_no_other_option_and_a_file_is_not_a_folder(tmp_path: Path) -> None:
    assert run("dashboard", "--files", str(tmp_path), "--job", "7").exit_code == 2
    (tmp_path / "file").touch()
    ended = run("dashboard", "--files", str(tmp_path / "file"))
    assert (ended.exit_code, "Traceback" in ended.output) == (2, False)
