"""`gpucluster runs` and `gpucluster logs`: what the run log still has."""

from __future__ import annotations

import json
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.errors import ToolError
from gpucluster.events import ignore
from gpucluster.paths import ClusterPaths
from gpucluster.workspace import run_history
from gpucluster.workspace.run import run


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterPaths:
    """A cluster file that does not even have to be valid."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text("broken: [\n")
    paths = ClusterPaths.of(tmp_path / "cluster.yml")
    paths.create()
    return paths


def _write(paths: ClusterPaths, name: str, **record: Any) -> None:
    (paths.runs / f"{name}.json").write_text(json.dumps({"run": name, "command": "apply", **record}))


def _run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def _json(*words: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_run(*words, "-o", "json").stdout)["data"]
    return data


def test_a_run_that_failed_is_listed_with_its_error_and_its_files(paths: ClusterPaths) -> None:
    with suppress(ToolError), run("apply", paths, ignore) as this, this.phase("terraform"):
        artifacts = paths.ansible / "artifacts" / f"{this.id}-site"
        artifacts.mkdir(parents=True)
        (artifacts / "stdout").write_text("PLAY\n")
        terraform = paths.runs / f"{this.id.partition('-')[0]}-000001-terraform-apply.log"
        terraform.write_text("Error: 429\n")
        raise ToolError("no capacity", hint="Try later")
    assert this.id in _run("runs").stdout
    shown = _run("logs").stdout
    for words in (
        "apply, failed in the phase terraform",
        "terraform  ",
        "no capacity. Try later",
        str(terraform),
        str(artifacts / "stdout"),
    ):
        assert words in shown
    data = _json("logs", this.id)
    assert data["run"]["error"] == "no capacity. Try later"
    assert data["logs"] == [str(paths.runs / f"{this.id}.json"), str(terraform), str(artifacts / "stdout")]


def test_the_newest_is_first_and_every_run_has_its_own_logs(paths: ClusterPaths) -> None:
    for day in ("01", "02", "03"):
        _write(paths, f"202601{day}T030405-abcdef", status="success", elapsed=65.0, started="2026-01-01T03:04:05+00:00")
        (paths.runs / f"202601{day}T030406-000001-terraform-plan.jsonl").write_text("{}\n")
    (paths.runs / "20260104T000000-abcdef.json").write_text("not JSON")
    listed = _run("runs").stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == [f"202601{day}T030405-abcdef" for day in ("03", "02", "01")]
    assert "1 min 05 s" in listed[1]
    names = [Path(log).name for log in _json("logs", "20260102")["logs"]]
    assert names == ["20260102T030405-abcdef.json", "20260102T030406-000001-terraform-plan.jsonl"]


def test_a_run_without_an_end_was_killed_unless_it_holds_the_cluster(paths: ClusterPaths) -> None:
    _write(paths, "20260101T030405-abcdef", status="running")
    assert [each["status"] for each in _json("runs")["runs"]] == ["killed"]
    with run("apply", paths, ignore):
        assert [each.status for each in run_history.past_runs(paths)] == ["running", "killed"]
    assert [each["status"] for each in _json("runs")["runs"]] == ["success", "killed"]


@pytest.mark.parametrize("name", ["20270101", "20260101"])
def test_a_name_of_no_run_or_of_several_is_refused(name: str, paths: ClusterPaths) -> None:
    for hour in ("01", "02"):
        _write(paths, f"20260101T{hour}0405-abcdef", status="success")
    refused = _run("logs", name)
    assert (refused.exit_code, "gpucluster runs" in refused.stderr) == (2, True)


def test_what_ansible_printed_outlives_its_folder(paths: ClusterPaths) -> None:
    this = "20260101T030405-abcdef"
    _write(paths, this, status="success")
    for name in (f"{this}-site", "20250101T000000-abcdef-site"):
        folder = paths.ansible / "artifacts" / name
        folder.mkdir(parents=True)
        (folder / "stdout").write_text("PLAY RECAP\n")
    run_history.save_ansible_logs(paths)
    shutil.rmtree(paths.ansible)
    log = paths.runs / this / "ansible-site.log"
    assert _json("logs", this)["logs"] == [str(paths.runs / f"{this}.json"), str(log)]
    assert (log.read_text(), stat.S_IMODE(log.stat().st_mode)) == ("PLAY RECAP\n", 0o600)
    assert sorted(entry.name for entry in paths.runs.iterdir()) == [this, f"{this}.json"]


def test_options_of_journals_are_refused_for_a_run(paths: ClusterPaths) -> None:
    _write(paths, "20260101T030405-abcdef", status="success")
    for words in (("logs", "--grep", "x"), ("logs", "20260101", "-f"), ("logs", "12", "--follow")):
        assert _run(*words).exit_code == 2, words


def test_before_the_first_run_there_is_nothing_to_show(paths: ClusterPaths) -> None:
    assert _run("runs").stdout == "there are no runs yet\n"
    assert "gpucluster apply" in _run("logs").stderr
    assert _run("runs", "-f", "nowhere.yml").exit_code == 2
