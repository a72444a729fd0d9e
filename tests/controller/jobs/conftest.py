"""Fixtures that several tests of this folder use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.jobs.data_place import Place
from tests.controller.jobs.share_harness import share


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with share("2m") as folder:
        yield Place(folder, tmp_path / "locks")
