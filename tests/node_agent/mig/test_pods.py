"""The agent divides the GPUs of a node of Kubernetes: what holds them is ended, and no pod loses one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucluster.node_agent.mig import plan, pods
from tests.node_agent.mig.test_apply import MIXED, PARTS, SEVEN, Place

PLUGIN = "nvidia-device-plugin"


class Joined(Place):
    """A node that has joined, with its device plugin, and with a pod that kubelet remembers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.smi.active = [pods.KUBELET]
        self.smi.containers = {"c1": (PLUGIN, "plugin"), "c2": ("workload", "training")}
        for card in self.smi.cards:
            card.held_by = [PLUGIN]

    def remember(self, *entries: tuple[str, str]) -> None:
        """What kubelet writes: pods, by uid, and the resources of which they have a device."""
        file = self.root / pods.CHECKPOINT.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        each = [
            {"PodUID": uid, "ContainerName": "workload", "ResourceName": resource, "DeviceIDs": {"0": ["GPU-1"]},
             "AllocResp": ""}
            for uid, resource in entries
        ]  # fmt: skip
        file.write_text(
            json.dumps({"Data": {"PodDeviceEntries": each or None, "RegisteredDevices": {}}, "Checksum": 1})
        )


@pytest.fixture
def joined(tmp_path: Path) -> Joined:
    return Joined(tmp_path)


def test_the_device_plugin_lets_go_of_the_gpus_and_kubelet_starts_it_again(joined: Joined) -> None:
    joined.remember()
    assert f"GPU 0: make {SEVEN}" in joined.apply()
    assert joined.smi.calls[:2] == [f"systemctl stop {pods.KUBELET}", "crictl stop --timeout 20 c1"]
    assert joined.smi.calls[-1] == f"systemctl start --no-block {pods.KUBELET}"
    assert joined.smi.containers == {"c2": ("workload", "training")}, "pods without GPUs go on"
    joined.smi.calls = []
    assert joined.apply() == []
    assert joined.smi.calls == [], "kubelet is left alone where nothing changes"


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me"])
def test_a_gpu_of_a_pod_that_runs_is_never_changed(joined: Joined, resource: str) -> None:
    joined.remember(("gone", resource), ("training", resource))
    said = joined.refused()
    assert said == "pods have GPUs of this node (user-ada/training): drain the node, and apply again"
    assert joined.smi.calls == [f"systemctl stop {pods.KUBELET}", f"systemctl start --no-block {pods.KUBELET}"]
    assert [card.mode for card in joined.smi.cards] == ["Disabled"] * 3


def test_what_a_pod_has_besides_gpus_and_a_pod_that_has_ended_hold_none(joined: Joined) -> None:
    joined.remember(("training", "nvidia.com/rdma-vf"), ("ended", "nvidia.com/gpu"))
    assert joined.apply()


@pytest.mark.parametrize("text", ["", "{", '{"Data": {}}', '{"Data": {"PodDeviceEntries": [{"PodUID": "a"}]}}', "[]"])
def test_a_record_that_can_not_be_read_changes_nothing(joined: Joined, text: str) -> None:
    joined.remember()
    (joined.root / pods.CHECKPOINT.lstrip("/")).write_text(text)
    assert "which pods have GPUs?" in joined.refused()
    assert pods.KUBELET in joined.smi.active


def test_a_runtime_that_gives_no_answer_changes_nothing(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined.smi, "_crictl", lambda _words: plan_said(1, "FATA[0002] validate service connection"))
    assert joined.refused() == "crictl does not report which pods run here: FATA[0002] validate service connection"
    assert pods.KUBELET in joined.smi.active
    assert [card.mode for card in joined.smi.cards] == ["Disabled"] * 3


def plan_said(status: int, output: str) -> object:
    from gpucluster.node_agent.mig.collect import ProgramOutput

    return ProgramOutput(status, output)


def test_at_a_boot_no_kubelet_runs_and_nothing_is_asked_of_it(joined: Joined) -> None:
    joined.smi.active, joined.smi.containers = [], {}
    joined.remember(("training", "nvidia.com/gpu"))
    assert joined.apply(PARTS)
    assert not [call for call in joined.smi.calls if "kubelet" in call or "crictl" in call]


def test_kubelet_runs_again_after_a_driver_that_refuses(joined: Joined) -> None:
    joined.remember()
    joined.apply()
    joined.smi.refuses, joined.smi.containers["c1"] = "Insufficient Resources", (PLUGIN, "plugin")
    with pytest.raises(plan.NotPossible):
        joined.apply((MIXED, MIXED, ""))
    assert pods.KUBELET in joined.smi.active
