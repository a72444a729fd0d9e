"""The command line of `job report`: what it refuses, and what it writes. The controller is a double."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.jobs.report.page import KIND
from gpucluster.operations.job_reports import JobReports
from gpucluster.pages.frame import is_page
from gpucluster.spec import template
from tests.jobs.report import made_up


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))
    found: list[Any] = []

    def report(_reports: JobReports, job: str, *, anonymous: bool = False) -> Any:
        found.append((job, anonymous))
        return made_up.report(made_up.known(), anonymous=anonymous)

    monkeypatch.setattr(JobReports, "report", report)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["job", "report", *words])


def test_text_json_and_a_page(asked: list[Any], tmp_path: Path) -> None:
    done = run("12", "--html", "report.html")
    assert done.exit_code == 0, done.output
    assert "Nothing stands out" in done.stdout
    assert "Page: report.html" in done.stdout
    assert is_page((tmp_path / "report.html").read_text(), KIND)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o600, "it names users and hosts"
    # Once more, over the one of before; no other file is left.
    done = run("12_3", "--html", "report.html", "--anonymous", "--output", "json")
    assert json.loads(done.stdout.splitlines()[-1])["data"]["energy_kwh"] == pytest.approx(9.6)
    assert "ann" not in (tmp_path / "report.html").read_text().split()
    assert asked == [("12", False), ("12_3", True)]
    assert sorted(each.name for each in tmp_path.iterdir() if "report" in each.name) == ["report.html"]


def test_another_file_is_not_overwritten(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "thesis.html").write_text("<p>years of work</p>")
    done = run("12", "--html", "thesis.html")
    assert done.exit_code == 2
    assert "not a job report" in done.output
    assert (tmp_path / "thesis.html").read_text() == "<p>years of work</p>"
    assert asked == []
    assert run("12", "--html", "thesis.html", "--force").exit_code == 0
    assert run("12", "--html", "nowhere/report.html").exit_code == 2
