"""Fixtures that several tests of this folder use."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.health.policy import PolicySettings
from tests.controller.health.control_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, PolicySettings())
