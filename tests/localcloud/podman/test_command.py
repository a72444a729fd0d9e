"""Calls of Podman, and the check whether it works on this host."""

from __future__ import annotations

import shutil

import pytest

from gpucluster.localcloud.podman.command import probe


def test_probe_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name in ("podman", "netavark") else "/" + name)
    assert "missing: netavark, podman. Install with: apt install netavark podman" in probe()
