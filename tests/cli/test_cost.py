"""`gpucluster cost`: what users and programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpucluster.cli.base import cli
from gpucluster.cluster import Cluster
from gpucluster.cost.model import Use
from gpucluster.cost.report import CostRow, total
from gpucluster.lifecycle.cost import CostReport
from tests.spec.spec_texts import MINIMAL

ROWS = [
    CostRow("vision", {Use.JOB: 120.5}, held=20.25),
    CostRow("-", {Use.IDLE: 30.0, Use.UNUSED: 4.0, Use.SERVICE: 2.25}),
]


def found(**changes: Any) -> CostReport:
    values: dict[str, Any] = {
        "by": "account", "since": "2026-11-01T00:00:00+01:00", "until": "2026-11-20T00:00:00+01:00", "rows": ROWS,
        "total": total(ROWS), "currency": "USD", "source": "a list", "unpriced": {}, "uncovered": {},
        "unsure_hours": 0.0,
    }  # fmt: skip
    return CostReport(**values | changes)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    (tmp_path / "cluster.yml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)

    def run(report: CostReport, *words: str) -> str:
        monkeypatch.setattr(Cluster, "cost", lambda *_words, **_more: report)
        done = CliRunner().invoke(cli, ["cost", *words])
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_a_table_with_a_sum(said: Any) -> None:
    lines = [line.split() for line in said(found()).splitlines()]
    assert lines[0] == ["ACCOUNT", "JOBS", "HELD", "UNUSED", "IDLE", "SERVICES", "TOTAL"]
    assert lines[1] == ["vision", "120.50", "20.25", "0.00", "0.00", "0.00", "120.50"]
    assert lines[3] == ["total", "120.50", "20.25", "4.00", "30.00", "2.25", "156.75"]
    assert lines[-1][:2] == ["USD,", "2026-11-01T00:00:00+01:00"]


def test_what_is_not_counted_is_named(said: Any) -> None:
    text = said(found(unpriced={"BM.X": 3.0}, uncovered={f"n{number}": 1.0 for number in range(7)}, unsure_hours=2.0))
    assert "! BM.X has no known price: 3.0 hours of it are not counted" in text
    assert (
        "! 7.0 hours of jobs were before nodes were recorded, and are not counted: n0, n1, n2, n3, n4 and others"
        in text
    )
    assert "2.0 hours too many are counted, at most" in text
    text = said(found(held_unknown="monitoring is off"))
    assert "! which GPUs of jobs had no process is not known: monitoring is off" in text
    assert text.splitlines()[1].split()[2] == "?"


def test_json_and_many_jobs(said: Any) -> None:
    data = json.loads(said(found(), "--json").splitlines()[-1])["data"]
    assert (data["command"], data["total"]["total"], data["rows"][0]["job"]) == ("cost", 156.75, 120.5)
    rows = [CostRow(str(number), {Use.JOB: 1.0}) for number in range(60)]
    assert "10 more jobs: with --json" in said(found(by="job", rows=rows), "--by", "job")
