"""The file of the monitor's settings: what is read, whose pool a node is, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.monitor.settings import ElasticPool, MonitorSettings, ScrapedHost
from gpucluster.node_agent.errors import Failed

HOST = {"name": "gpu-1", "address": "10.0.0.5", "pool": "gpu", "shape": "BM.GPU4.8", "jobs": ["node", "dcgm"]}
RAW: dict[str, Any] = {
    "slurm": True,
    "interval": 30,
    "jobs": {"node": 9100, "dcgm": "9400"},
    "hosts": [HOST, {**HOST, "name": "ctl", "pool": "", "jobs": ["node"]}],
    "elastic": {"burst": {"names": "gpu-e[1-6]", "shape": "BM.GPU4.8", "jobs": ["node"]}},
    "optional": ["dcgm"],
}


def load(folder: Path, **changes: Any) -> MonitorSettings:
    (folder / "monitor.json").write_text(json.dumps({**RAW, **changes}))
    return MonitorSettings.load(folder / "monitor.json")


def test_the_settings_of_the_role_are_read(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.hosts[0] == ScrapedHost("gpu-1", "10.0.0.5", "gpu", "BM.GPU4.8", ("node", "dcgm"))
    assert settings.elastic == {"burst": ElasticPool("gpu-e[1-6]", "BM.GPU4.8", ("node",))}
    assert settings.jobs == {"node": 9100, "dcgm": 9400}
    assert settings.optional == {"dcgm"}
    assert not settings.autoscaler
    assert load(tmp_path, autoscaler=True).autoscaler


def test_a_node_has_the_pool_that_names_it(tmp_path: Path) -> None:
    pool_of = load(tmp_path).pool_of()
    names = ("gpu-1", "ctl", "gpu-e6", "gpu-e7", "stranger")
    assert [pool_of(name) for name in names] == ["gpu", "", "burst", "", ""]
    # The same again: answers are kept.
    assert [pool_of(name) for name in names] == ["gpu", "", "burst", "", ""]


@pytest.mark.parametrize(
    "changes",
    [{"hosts": [{"name": "x"}]}, {"jobs": []}, {"jobs": {"node": "x"}}, {"elastic": None}, {"interval": None}],
    ids=str,
)
def test_a_file_that_the_role_did_not_write_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"monitor\.json can't be read"):
        load(tmp_path, **changes)


def test_a_host_without_the_file_does_not_monitor(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="this host does not monitor a cluster") as raised:
        MonitorSettings.load(tmp_path / "none")
    assert raised.value.hint == "Run: gpucluster apply"
