"""What a cluster has measured before, as it is kept."""

from __future__ import annotations

from pathlib import Path

from gpucluster.controller.measure import baseline


def test_a_baseline_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    assert baseline.load(tmp_path) == {}
    (tmp_path / "baseline.json").write_text("{broken")
    assert baseline.load(tmp_path) == {}
    baseline.merge(tmp_path, {"a": 1})
    assert baseline.merge(tmp_path, {"b": 2}) == baseline.load(tmp_path) == {"a": 1, "b": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["baseline.json"]
