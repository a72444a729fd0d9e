"""Fixtures that several tests of this folder use."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.node_agent.checks.collect.place import MeasuredHost
from tests.node_agent.checks.collect.measured_tree import BootClock, said, tree
from tests.node_agent.checks.measured import NODE


@pytest.fixture
def clock() -> BootClock:
    return BootClock()


@pytest.fixture
def host(tmp_path: Path, clock: BootClock) -> MeasuredHost:
    tree(tmp_path / "root")
    return MeasuredHost(
        NODE, tmp_path / "root", tmp_path / "state", lambda: clock.now, lambda: clock.now + clock.offset, said({})
    )
