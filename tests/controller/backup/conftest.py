"""Fixtures that several tests of this folder use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import directory
from tests.controller.users.harness import SUFFIX


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """A directory whose old, new and present database can be told apart."""
    found = directory.Directory(SUFFIX, tmp_path / "slapd.conf", tmp_path / "data", "nobody")
    for path, content in ((found.data, "old"), (found.fresh, "new")):
        path.mkdir()
        (path / "data.mdb").write_text(content)
    return found
