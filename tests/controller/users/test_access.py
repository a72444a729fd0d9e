"""Disabling and removing users: what is refused, and what is done where a part fails.

slapd, homes and Slurm are doubles here; test_service_directory.py and test_slurm_containers.py have the real ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.users import hosts, lock, nss
from gpucluster.controller.users.access import Access
from gpucluster.controller.users.controller import DirectoryController
from gpucluster.controller.users.state import DirectoryState
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.users.directory_model import CLUSTER, LOCAL, Directory
from tests.controller.users.harness import KEY


class HomesDouble:
    """Homes that exist by name only."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.owner: int | None = None
        self.broken = ""

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.broken:
            raise Failed(f"{name}: it broke", "Fix it")

    def owners(self) -> dict[str, int]:
        return {} if self.owner is None else {"alice": self.owner}

    def check(self, _so_far: str) -> None:
        self._step("check")

    def has(self, _name: str) -> bool:
        return True

    def lock(self, _user: object) -> bool:
        self._step("lock")
        return True

    def take_keys(self, _user: object) -> int:
        self._step("take_keys")
        return 2

    def archive(self, name: str) -> Path:
        self._step("archive")
        return Path(f"/archive/{name}.tar.gz")

    def set_aside(self, name: str) -> str:
        self._step("set_aside")
        return name

    def sweep(self, _name: str, _aside: str) -> None:
        self._step("sweep")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Directory:
    """A directory with two users; requests change it."""
    model = Directory()
    model.want("alice", ssh_keys=[KEY])
    model.want("bob")
    monkeypatch.setattr(DirectoryController, "state", lambda _self: model.state)
    monkeypatch.setattr(DirectoryController, "plan", lambda _self, _state: model.plan())
    monkeypatch.setattr(DirectoryController, "apply", lambda _self, plan: bool(model.apply(plan)))
    monkeypatch.setattr(nss, "expire_cache", lambda: None)
    monkeypatch.setattr(hosts, "confirm", lambda *_, **__: hosts.HostsReport())

    @contextlib.contextmanager
    def held() -> Iterator[None]:
        yield

    monkeypatch.setattr(lock, "held", held)
    return model


@pytest.fixture
def homes() -> HomesDouble:
    return HomesDouble()


@pytest.fixture
def access(there: Directory, homes: HomesDouble) -> Access:
    controller = DirectoryController(CLUSTER, LOCAL)
    controller.homes = homes  # type: ignore[assignment]
    return Access(controller)


def state(there: Directory) -> DirectoryState:
    found: DirectoryState = there.state
    return found


def test_a_user_is_disabled_and_enabled_and_keeps_the_number(access: Access, there: Directory) -> None:
    uid = there.uid("alice")
    assert access.disable("alice")["changed"]
    assert not state(there).users["alice"].enabled
    assert access.enable("alice")["changed"]
    assert (state(there).users["alice"].enabled, there.uid("alice")) == (True, uid)
    assert state(there).users["bob"].enabled


def test_who_is_none_of_the_users_is_refused(access: Access, there: Directory) -> None:
    before = dict(there.entries)
    for work in (access.enable, access.disable, lambda name: access.remove(name, archive=False)):
        with pytest.raises(Refused, match="there is no user eve"):
            work("eve")
    assert there.entries == before


def test_a_home_that_fails_keeps_no_user_in(access: Access, there: Directory, homes: HomesDouble) -> None:
    homes.broken = "lock"
    with pytest.raises(Failed, match="alice is disabled, but lock: it broke") as raised:
        access.disable("alice")
    assert "then run the same command again" in raised.value.hint
    assert not state(there).users["alice"].enabled


def test_a_host_that_does_not_confirm_is_reported_after_everything_is_done(
    access: Access, there: Directory, homes: HomesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = hosts.HostsReport()
    refused: list[str] = []

    def require(_self: object, _result: dict[str, Any], so_far: str) -> dict[str, Any]:
        refused.append(so_far)
        raise Failed("gpu-1 does not answer")

    monkeypatch.setattr(hosts.HostsReport, "require", require)
    monkeypatch.setattr(hosts, "confirm", lambda *_, **__: report)
    with pytest.raises(Failed, match="gpu-1 does not answer"):
        access.remove("alice", archive=False)
    assert refused == ["alice is removed, but"]
    assert "alice" not in state(there).users
    assert "take_keys" in homes.steps


def test_a_removed_user_is_reported_with_what_went_and_what_stays(access: Access, there: Directory) -> None:
    result = access.remove("alice", archive=False)
    assert result["removed"] == {"entry": True, "association": False, "keys": 2, "jobs": 0, "processes": 0}
    assert result["kept"] == ["/mnt/home/alice"]
    assert result["archive"] is None
    assert "alice" in state(there).retired_users


def test_removing_again_completes_what_an_earlier_run_could_not_do(
    access: Access, there: Directory, homes: HomesDouble
) -> None:
    there.remove("alice")
    result = access.remove("alice", archive=False)
    assert (result["removed"]["entry"], homes.steps) == (False, ["take_keys"])


def test_an_archive_takes_the_place_of_a_home(access: Access, homes: HomesDouble, there: Directory) -> None:
    homes.owner = there.uid("alice")
    assert access.remove("alice", archive=True)["archive"] == "/archive/alice.tar.gz"
    assert homes.steps == ["take_keys", "check", "archive", "set_aside", "sweep"]


def test_the_home_of_another_user_is_not_archived(access: Access, homes: HomesDouble) -> None:
    homes.owner = 12345
    with pytest.raises(Failed, match="the home of alice belongs to another user"):
        access.remove("alice", archive=True)
    assert "archive" not in homes.steps


def test_a_user_who_was_created_meanwhile_keeps_the_home(
    access: Access, there: Directory, homes: HomesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def archive(_self: object, _name: str) -> Path:
        there.want("alice")
        return Path("/archive/alice.tar.gz")

    monkeypatch.setattr(HomesDouble, "archive", archive)
    with pytest.raises(Failed, match="alice was created again in the meantime"):
        access.remove("alice", archive=True)
    assert "set_aside" not in homes.steps
