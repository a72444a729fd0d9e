"""Fixtures that several tests of this folder use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node_agent.checks.collect.measured_tree import process, tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tree(tmp_path / "root")
    process(tmp_path / "root", 1, 0, "/init.scope")
    return tmp_path
