"""The runs that the run log still has, and which files belong to which (the commands: tests/cli/test_history.py)."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError
from gpucluster.events import ignore
from gpucluster.paths import ClusterPaths
from gpucluster.workspace import run_history
from gpucluster.workspace.run import run


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    """The folder of a cluster file that is not read."""
    paths = ClusterPaths.of(tmp_path / "cluster.yml")
    paths.create()
    return paths


def _write(paths: ClusterPaths, name: str, **record: Any) -> None:
    (paths.runs / f"{name}.json").write_text(json.dumps({"run": name, "command": "apply", **record}))


def _statuses(paths: ClusterPaths) -> list[str]:
    return [each.status for each in run_history.past_runs(paths)]


def _logs(paths: ClusterPaths, name: str) -> list[Path]:
    return list(run_history.logs_of(paths, run_history.find(paths, name)))


def test_the_newest_is_first_and_every_run_has_its_own_logs(paths: ClusterPaths) -> None:
    for day in ("01", "02", "03"):
        _write(paths, f"202601{day}T030405-abcdef", status="success", elapsed=65.0)
        (paths.runs / f"202601{day}T030406-000001-terraform-plan.jsonl").write_text("{}\n")
    (paths.runs / "20260104T000000-abcdef.json").write_text("not JSON")
    listed = run_history.past_runs(paths)
    assert [each.id for each in listed] == [f"202601{day}T030405-abcdef" for day in ("03", "02", "01")]
    assert run_history.find(paths, None) == listed[0]
    names = [log.name for log in _logs(paths, "20260102")]
    assert names == ["20260102T030405-abcdef.json", "20260102T030406-000001-terraform-plan.jsonl"]


def test_a_record_with_odd_values_is_listed_without_them(paths: ClusterPaths) -> None:
    _write(paths, "20260101T030405-abcdef", status="failed", elapsed="long", phases=["terraform"], pid="x", error=None)
    (paths.runs / "20260102T030405-abcdef.json").write_text("[]")
    (one,) = run_history.past_runs(paths)
    assert (one.elapsed, one.phases, one.pid, one.error) == (None, {}, None, "")
    assert one.to_dict()["run"] == "20260101T030405-abcdef"


def test_a_run_without_an_end_was_killed_unless_it_holds_the_cluster(paths: ClusterPaths) -> None:
    _write(paths, "20260101T030405-abcdef", status="running")
    assert _statuses(paths) == ["killed"]
    with run("apply", paths, ignore):
        assert _statuses(paths) == ["running", "killed"]
    assert _statuses(paths) == ["success", "killed"]


@pytest.mark.parametrize(
    ("name", "message"), [("20270101", "there is no run 20270101"), ("20260101", "2 runs begin with 20260101")]
)
def test_a_name_of_no_run_or_of_several_is_refused(name: str, message: str, paths: ClusterPaths) -> None:
    with pytest.raises(InputError, match="there is no run yet"):
        run_history.find(paths, name)
    for hour in ("01", "02"):
        _write(paths, f"20260101T{hour}0405-abcdef", status="success")
    with pytest.raises(InputError, match=message):
        run_history.find(paths, name)


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
    assert _logs(paths, this) == [paths.runs / f"{this}.json", log]
    assert (log.read_text(), stat.S_IMODE(log.stat().st_mode)) == ("PLAY RECAP\n", 0o600)
    assert sorted(entry.name for entry in paths.runs.iterdir()) == [this, f"{this}.json"]
