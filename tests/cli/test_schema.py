"""`gpucluster schema`: what programs and editors check by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from tests.event_lines import require_valid

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("what", ["events", "cluster"])
def test_it_prints_the_schema_of_the_reference_and_needs_no_cluster(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    published = json.loads((REFERENCE / f"{what}.schema.json").read_text())
    assert json.loads(CliRunner().invoke(cli, ["schema", what]).stdout) == published
    event = json.loads(CliRunner().invoke(cli, ["--output", "json", "schema", what]).stdout)
    require_valid([event])
    assert event["data"] == {"command": "schema", "what": what, "schema": published}


def test_another_word_is_refused_with_those_that_there_are() -> None:
    done = CliRunner().invoke(cli, ["schema", "nonsense"])
    assert done.exit_code == 2
    assert "'events', 'cluster'" in done.output
