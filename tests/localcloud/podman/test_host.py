"""What this machine can do with Podman."""

from __future__ import annotations

import shutil

import pytest

from gpucluster.localcloud.podman import host
from gpucluster.localcloud.podman.command import probe


def test_probe_reports_that_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert probe()[0].startswith("you are not root")


def test_crun_is_refused_on_old_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_unified_cgroups", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "runc" else "/" + name)
    assert any("apt install runc" in problem for problem in probe())
    monkeypatch.setattr(host, "_unified_cgroups", lambda: True)
    assert host._runtime() == "crun"
