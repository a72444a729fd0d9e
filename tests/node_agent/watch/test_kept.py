"""The file that a watcher leaves for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.node_agent.watch import kept


@pytest.mark.parametrize("text", ["", "[]", '{"jobs": [3], "at": 1}', '{"jobs": [{}], "at": 1}', '{"at": 1}'])
def test_what_is_not_a_file_of_the_watcher_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs.json").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        kept.read(tmp_path / "jobs.json")
