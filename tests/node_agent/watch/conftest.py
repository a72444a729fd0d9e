"""Fixtures that several tests of this folder use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node_agent.watch.watched_node import Node


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/asked\n'
        f'case "$1" in --query-gpu=*) exec cat {tmp_path}/gpus ;; *) exec cat {tmp_path}/holders ;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    # Slurm's number of a GPU is the one of its device file: without the driver's folder it stays as it is.
    for name in ("gpus", "holders"):
        (tmp_path / name).write_text("")
    return Node(tmp_path)
