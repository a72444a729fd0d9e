"""Calls of Podman, and the check whether it works on this host."""

from __future__ import annotations

import shutil

import pytest

from gpucluster.localcloud.podman.command import exists, probe


def test_probe_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name in ("podman", "netavark") else "/" + name)
    assert "missing: netavark, podman. Install with: apt install netavark podman" in probe()


@pytest.mark.containers
@pytest.mark.parametrize("kind", ["container", "image", "network"])
def test_podman_shows_by_its_status_that_there_is_none(kind: str) -> None:
    if shutil.which("podman") is None:
        pytest.skip("Podman is not installed")
    assert exists(kind, "gpucluster-test-none") is False
