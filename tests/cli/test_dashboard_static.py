"""`gpucluster dashboard --static`: the file, its default name, and what it refuses. The cluster is made up."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli.base import cli
from gpucluster.cluster import Cluster
from tests.dashboards.overview_samples import sample


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster file; its cluster answers with made-up facts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Cluster, "overview", lambda self, *, timeout: sample())
    assert run("init", "--name", "demo").exit_code == 0
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_the_page_has_a_name_of_its_own(folder: Path) -> None:
    done = run("dashboard", "--static")
    assert done.exit_code == 0, done.output
    assert "demo-overview.html written" in done.output
    page = folder / "demo-overview.html"
    assert "Cluster demo" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600


def test_the_result_as_json_has_the_same_facts(folder: Path) -> None:
    done = run("dashboard", "--static", "page.html", "--output", "json")
    result = json.loads(done.stdout.splitlines()[-1])["data"]
    assert result["file"] == "page.html"
    assert result["overview"]["facts"]["name"] == "demo"
    assert (folder / "page.html").exists()


def test_another_file_stays_as_it_is(folder: Path) -> None:
    before = (folder / "cluster.yml").read_text()
    done = run("dashboard", "--static", "cluster.yml")
    assert done.exit_code == 2
    assert "not this kind of page of gpucluster" in done.output
    assert (folder / "cluster.yml").read_text() == before


@pytest.mark.parametrize(
    "words", [("--static", "page.html", "--job", "7"), ("--timeout", "3"), ("--static", "page.html", "--password")]
)
def test_options_that_do_not_fit_are_refused(folder: Path, words: tuple[str, ...]) -> None:
    assert run("dashboard", *words).exit_code == 2
    assert not (folder / "page.html").exists()
