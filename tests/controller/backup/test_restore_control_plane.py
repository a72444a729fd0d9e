"""The order in which a restore replaces a control plane, and what is left of one that fails."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import restore as restoring
from gpucluster.controller.backup.archive import ETCD
from gpucluster.controller.backup.site import Site
from gpucluster.node_agent.errors import Failed


class PlaneDouble:
    """Only records the requests; test_control_plane.py has the real one."""

    def __init__(self, broken: str = "") -> None:
        self.steps: list[str] = []
        self.broken = broken
        self.exchanged = False

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.broken:
            self.broken = ""
            raise Failed(f"{name} is broken")

    def build(self, *_: Any) -> None:
        self._step("build")

    def stop(self) -> None:
        self._step("stop")

    def exchange(self) -> None:
        self.exchanged = True
        self._step("exchange")

    def start(self) -> int:
        self._step("start")
        return 42

    def interrupted(self) -> bool:
        return self.exchanged

    def put_back(self) -> None:
        self.exchanged = False
        self._step("put back")

    def discard(self) -> None:
        self.exchanged = False
        self._step("discard")

    def renew_health_access(self) -> None:
        self._step("renew access")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ETCD).write_text("")
    monkeypatch.setattr(restoring, "unit", lambda *_: None)
    return tmp_path


def site(plane: PlaneDouble | None) -> Site:
    return Site("demo", None, None, plane)  # type: ignore[arg-type]


def test_a_control_plane_is_built_before_it_is_stopped(work: Path) -> None:
    plane = PlaneDouble()
    with restoring.control_plane_replaced(site(plane), work) as objects:
        assert objects == 42
    assert plane.steps == ["build", "stop", "exchange", "start", "discard", "renew access"]


@pytest.mark.parametrize(
    ("broken", "steps"),
    [
        ("build", ["build", "discard"]),
        ("stop", ["build", "stop", "discard"]),
        ("exchange", ["build", "stop", "exchange", "stop", "put back", "discard"]),
        ("start", ["build", "stop", "exchange", "start", "stop", "put back", "discard"]),
    ],
)
def test_after_a_failure_the_old_one_is_back(broken: str, steps: list[str], work: Path) -> None:
    plane = PlaneDouble(broken)
    with pytest.raises(Failed, match=f"{broken} is broken"), restoring.control_plane_replaced(site(plane), work):
        raise AssertionError("the block must not run")
    assert plane.steps == steps


def test_a_directory_that_fails_afterwards_brings_the_old_control_plane_back(work: Path) -> None:
    plane = PlaneDouble()
    with contextlib.suppress(Failed), restoring.control_plane_replaced(site(plane), work):
        raise Failed("slapd does not start")
    assert plane.steps[-3:] == ["stop", "put back", "discard"]


def test_a_backup_without_a_control_plane_leaves_it_alone(work: Path) -> None:
    (work / ETCD).unlink()
    plane = PlaneDouble()
    for each in (site(plane), site(None)):
        with restoring.control_plane_replaced(each, work) as objects:
            assert objects is None
    assert plane.steps == []


def test_what_a_killed_restore_has_left_is_put_back(work: Path) -> None:
    plane = PlaneDouble()
    restoring.recover_control_plane(site(plane))
    assert plane.steps == []
    plane.exchanged = True
    restoring.recover_control_plane(site(plane))
    assert plane.steps == ["stop", "put back", "discard"]
