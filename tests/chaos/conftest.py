"""Chaos takes hours: only `make chaos` runs it, which names the number of rounds in GPUCLUSTER_TEST_CHAOS."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests with the marker `chaos`, also where `-m` asks for other ones."""
    if os.environ.get("GPUCLUSTER_TEST_CHAOS"):
        return
    left_out = [item for item in items if item.get_closest_marker("chaos")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
