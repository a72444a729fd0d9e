"""`software list` only reads: it needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from gpucluster.artifacts import releases, sources
from gpucluster.cli import cli
from gpucluster.errors import EnvironmentFault
from tests.spec.spec_texts import MINIMAL


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise EnvironmentFault("no answer", where="https://example.org")

    monkeypatch.setattr(sources.ProjectPages, "find", fail)
    monkeypatch.setattr(releases, "cache_dir", lambda: tmp_path / "cache")


@pytest.mark.usefixtures("no_network")
def test_what_is_not_here_is_unknown_without_a_network(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    # The first has no checksum in the catalogue, the other one has.
    for release, file_name in (("25.11", "slurm-25.11.7.tar.bz2"), ("26.05", "slurm-wlm_26.05.5.orig.tar.gz")):
        file.write_text(f'{MINIMAL}slurm: {{release: "{release}"}}\n')
        done = CliRunner().invoke(cli, ["software", "list", "--file", str(file), "--output", "json"])
        assert done.exit_code == 0, done.output
        events = [json.loads(line) for line in done.output.splitlines()]
        states = {each["file"]: each["state"] for each in events[-1]["data"]["files"]}
        assert states[file_name] == "unknown"
        assert any(event.get("status") == "warning" and "does not answer" in event["message"] for event in events)


@pytest.mark.usefixtures("no_network")
def test_what_needs_the_files_still_ends(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(f'{MINIMAL}slurm: {{release: "25.11"}}\n')
    done = CliRunner().invoke(cli, ["software", "fetch", str(tmp_path / "files"), "--file", str(file)])
    assert done.exit_code == 5
    assert "no answer" in done.output + done.stderr
