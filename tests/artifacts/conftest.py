"""A mirror of release files, and a cache of the test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.artifacts import http_client, store
from tests.artifacts.release_files import DEBS, PYXIS
from tests.mirror import Mirror, Server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, no proxies, and no patience."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(http_client, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(store, "PAUSES", (0.01, 0.01))
    return tmp_path / "cache" / "gpucluster" / "software"


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """A Debian site's: no rpm."""
    made = Mirror(tmp_path / "mirror")
    for name in (*DEBS, PYXIS):
        made.file(name, f"content of {name}")
    return made


@pytest.fixture
def server(mirror: Mirror) -> Iterator[Server]:
    with mirror.serve() as running:
        yield running
