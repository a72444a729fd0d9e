"""The command by which a node that has joined takes its place, with a double of scontrol."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.node_agent import metadata, slurm_place
from tests.doubles.commands import Commands

_NODE = os.uname().nodename.partition(".")[0]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("document", "switch"),
    [
        ({"networkBlockId": "n", "rackId": "r"}, "rdma-gpu_nb-n:rdma-gpu_lb-r"),
        # An earlier instance of this node may have had a place.
        ({}, "rdma-gpu_unplaced"),
    ],
)
def test_slurm_is_told_the_place(
    commands: Commands, document: dict[str, str], switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "host_document", lambda: document)
    commands.prints("scontrol", "")
    assert slurm_place.main(["gpu"]) == 0
    assert commands.calls("scontrol") == [f"update nodename={_NODE} topology=default:rdma-gpu:{switch}"]


def test_a_refusal_is_reported(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "host_document", dict)
    commands.prints("scontrol", "", 1, "Requested topology configuration is not available")
    assert slurm_place.main(["gpu"]) == 1
    assert "did not take the place default:rdma-gpu:rdma-gpu_unplaced" in capsys.readouterr().err


def test_the_pool_is_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        slurm_place.main(["gpu:x"])
    assert "is not the name of a pool" in capsys.readouterr().err
