"""Lists of what Prometheus scrapes: written whole, kept over restarts, and only as long as a node is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.monitor import targets
from gpucluster.controller.monitor.collector import Lists
from tests.controller.monitor.slurm_lines import SETTINGS, groups, node


def test_elastic_nodes_are_targets_while_they_are_in_service() -> None:
    nodes = [
        node("gpu-1", "IDLE"), node("gpu-e1", "IDLE+CLOUD"), node("gpu-e2", "IDLE+CLOUD+POWERED_DOWN", "gpu-e2"),
        node("gpu-e3", "ALLOCATED+CLOUD", "gpu-e3"), node("gpu-e9", "IDLE+CLOUD"), node("other", "IDLE"),
    ]  # fmt: skip
    assert [host.name for host in targets.elastic_hosts(SETTINGS, nodes)] == ["gpu-e1"]


def test_lists_outlive_a_restart_a_full_disk_and_a_file_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = Lists(SETTINGS, tmp_path)
    lists.update([node("gpu-e1", "IDLE+CLOUD")])
    assert groups(tmp_path, "node") == {
        "ctl": ["10.0.0.2:9100"], "gpu-1": ["10.0.1.1:9100"], "gpu-e1": ["10.0.1.9:9100"]
    }  # fmt: skip
    again = Lists(SETTINGS, tmp_path)
    again.write()
    assert "gpu-e1" in groups(tmp_path, "node")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(targets, "write", full)
        again.update([])
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == before
    again.update([])
    assert "gpu-e1" not in groups(tmp_path, "node")
    (tmp_path / "targets-node.json").write_text('[{"labels": 3}, null')
    (tmp_path / "targets-old.json").write_text("[]")
    Lists(SETTINGS, tmp_path).write()
    assert set(groups(tmp_path, "node")) == {"ctl", "gpu-1"}
    assert not (tmp_path / "targets-old.json").exists()
