"""The cache of `make test-kubernetes`: what is old is removed, what is used is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import kubernetes_sources as sources

DAY = 86400.0


def fill(folder: Path, names: dict[str, float], now: float) -> None:
    """Folders by their names, with the days since they were used."""
    for name, days in names.items():
        (folder / name).mkdir()
        (folder / name / "file").touch()
        os.utime(folder / name, (now - days * DAY, now - days * DAY))


def test_what_other_versions_have_made_is_removed_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CACHE", tmp_path)
    now = 1e9
    current = [
        sources.programs_folder().name,
        sources._rehearsal_folder().name,
        sources._mirror_folder(rehearsal=False).name,
        sources._mirror_folder(rehearsal=True).name,
        sources._tools_folder().name,
        sources._torch_folder().name,
    ]
    assert len(set(current)) == 6
    old = {
        "mirror-000000000000": 3, "programs-111111111111": 2, ".mirror-222222222222.part": 2,
        "gpucluster-kubernetes-a_b1": 2,
    }  # fmt: skip
    kept = {**dict.fromkeys([*current, "sources", "somebody-s"], 30.0), "mirror-333333333333": 0.5}
    fill(tmp_path, {**old, **kept}, now)
    (tmp_path / ".mirror-000000000000.lock").touch()
    (tmp_path / "sources.txt").touch()
    assert sources.clean(now) == sorted(old)
    assert {entry.name for entry in tmp_path.iterdir()} == {*kept, "sources.txt"}


def test_what_is_used_is_marked_as_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CACHE", tmp_path)
    made: list[Path] = []
    folder = tmp_path / "tools-000000000000"
    sources._made(folder, made.append)
    os.utime(folder, (1, 1))
    sources._made(folder, made.append)
    assert len(made) == 1
    assert folder.stat().st_mtime > 1


def test_what_is_missing_fails_a_test_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PACKAGES", {"/nowhere/conntrack": "conntrack"})
    monkeypatch.setenv("GPUCLUSTER_TEST_KUBERNETES", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install conntrack"):
        sources.need_kubernetes()
    monkeypatch.delenv("GPUCLUSTER_TEST_KUBERNETES")
    with pytest.raises(pytest.skip.Exception):
        sources.need_kubernetes()


def test_missing_programs_fail_a_test_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.controller.kubernetes import api_server

    monkeypatch.setattr(sources, "CACHE", tmp_path)
    monkeypatch.delenv("GPUCLUSTER_KUBERNETES_BINARIES", raising=False)
    monkeypatch.setenv("GPUCLUSTER_TEST_KUBERNETES", "1")
    assert api_server.asked_for()
    with pytest.raises(pytest.fail.Exception, match=r"kube-apiserver.*Run: make test-kubernetes"):
        api_server.binaries()
    monkeypatch.setenv("GPUCLUSTER_KUBERNETES_BINARIES", str(tmp_path / "given"))
    with pytest.raises(pytest.fail.Exception, match="given/kube-apiserver"):
        api_server.binaries()
