"""The file of the health service's settings: what is read, whose addresses and nodes it knows, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.reactions.policy import Choice
from gpucluster.node_agent.errors import Failed

RAW: dict[str, Any] = {
    "slurm": True,
    "interval": 300,
    "max_drained_percent": 10,
    "shadow": False,
    "networks": ["10.0.0.0/16", "fd00::/64"],
    "hosts": {"192.168.1.2": "ctl"},
    "pools": {"compute": {"nodes": ["compute-1"], "elastic": ""}, "gpu": {"nodes": [], "elastic": "gpu-e[1-3]"}},
}
REACTIONS = {"on_hang": "requeue", "end_idle_seconds": 3600, "partitions": {"gpu": "cancel"}}


def load(folder: Path, **changes: Any) -> HealthSettings:
    (folder / "health.json").write_text(json.dumps({**RAW, **changes}))
    return HealthSettings.load(folder / "health.json")


def test_the_settings_of_the_role_are_read(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert (settings.slurm, settings.kubernetes, settings.interval) == (True, False, 300.0)
    assert (settings.policy.max_drained_percent, settings.policy.shadow) == (10, False)
    assert (settings.pools, settings.elastic) == ({"compute": ("compute-1",), "gpu": ()}, {"gpu": "gpu-e[1-3]"})
    assert settings.reactions is None


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.0.255.1", True),
        ("10.1.0.1", False),
        ("192.168.1.2", True),  # a permanent host elsewhere
        ("192.168.1.3", False),
        ("fd00::7", True),
        ("ctl", False),
        ("", False),
    ],
)
def test_only_hosts_of_the_cluster_get_an_answer(address: str, allowed: bool, tmp_path: Path) -> None:
    assert load(tmp_path).allows(address) is allowed


@pytest.mark.parametrize(
    ("node", "pool"), [("compute-1", "compute"), ("compute-2", ""), ("gpu-e3", "gpu"), ("gpu-e4", ""), ("gpu-e", "")]
)
def test_a_node_belongs_to_the_pool_that_names_it(node: str, pool: str, tmp_path: Path) -> None:
    assert load(tmp_path).pool_of(node) == pool


def test_reactions_follow_only_where_jobs_are_watched(tmp_path: Path) -> None:
    reactions = load(tmp_path, reactions=REACTIONS, shadow=True).reactions
    assert reactions is not None
    assert (reactions.on_hang, reactions.partitions, reactions.end_idle_s) == (
        Choice.REQUEUE, {"gpu": Choice.CANCEL}, 3600.0,
    )  # fmt: skip
    assert reactions.shadow
    never = load(tmp_path, reactions={**REACTIONS, "end_idle_seconds": None}).reactions
    assert never is not None
    assert never.end_idle_s is None


@pytest.mark.parametrize(
    "changes",
    [
        {"networks": ["10.0.0.1/16"]},
        {"interval": "soon"},
        {"hosts": []},
        {"pools": {"gpu": {"nodes": []}}},
        {"reactions": {**REACTIONS, "on_hang": "explode"}},
        {"reactions": {}},
    ],
    ids=str,
)
def test_a_file_that_the_role_did_not_write_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"health\.json can't be read") as raised:
        load(tmp_path, **changes)
    assert raised.value.hint == "Run: gpucluster apply"


def test_a_host_without_the_file_is_not_a_controller(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="this host is not a controller with checks"):
        HealthSettings.load(tmp_path / "none")
    (tmp_path / "broken").write_text("{")
    with pytest.raises(Failed, match="broken can't be read"):
        HealthSettings.load(tmp_path / "broken")


@pytest.mark.parametrize(
    ("changes", "reboots"),
    [({}, False), ({"reboots": True}, True), ({"reboots": True, "slurm": False, "kubernetes": True}, False)],
)
def test_only_slurm_reboots_nodes(changes: dict[str, Any], reboots: bool, tmp_path: Path) -> None:
    assert load(tmp_path, **changes).policy.reboots is reboots
