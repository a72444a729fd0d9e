"""Kubernetes follows the directory: who the users are, and what a change reports where it did not follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import people
from gpucluster.controller.kubernetes.person_objects import KubernetesUser
from gpucluster.controller.users import kubernetes, nss
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.controller import DirectoryController
from gpucluster.controller.users.state import DirectoryGroup, DirectoryState, DirectoryUser
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.users.harness import CONFIG


def _config(**more: Any) -> Config:
    return Config.parse({**CONFIG, **more})


def _state() -> DirectoryState:
    users = [
        DirectoryUser("bob", 10002, 9999, "Bob", "/mnt/home/bob", "/bin/bash", enabled=False),
        DirectoryUser("ada", 10001, 9999, "Ada", "/mnt/home/ada", "/bin/bash"),
    ]
    groups = [
        DirectoryGroup("people", 9999),
        DirectoryGroup("privilege", 9876, ("ada",)),
        DirectoryGroup("lab", 10100, ("ada", "bob")),
    ]
    return DirectoryState(users={each.name: each for each in users}, groups={each.name: each for each in groups})


def test_users_have_the_groups_and_the_access_of_the_directory() -> None:
    assert kubernetes.people_of(_state(), _config()) == [
        KubernetesUser("ada", 10001, (9999, 9876, 10100), "/mnt/home/ada", enabled=True, privileged=True),
        KubernetesUser("bob", 10002, (9999, 10100), "/mnt/home/bob", enabled=False),
    ]


@pytest.mark.parametrize(("name", "why"), [("bob", "disabled"), ("eve", "no user"), (7, "no user")])
def test_who_may_not_use_the_cluster_gets_no_certificate(name: object, why: str) -> None:
    assert kubernetes.person_named(_config(), _state(), "ada").uid == 10001
    with pytest.raises(Refused, match=why):
        kubernetes.person_named(_config(), _state(), name)


def test_a_change_that_kubernetes_did_not_follow_is_reported_after_everything_else_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuses(*_: Any, **__: Any) -> people.Synced:
        raise Failed("the API server of Kubernetes on the controller gives no answer", "Look why")

    admin = tmp_path / "admin.conf"
    admin.touch()
    monkeypatch.setattr(kubernetes, "ADMIN", str(admin))
    monkeypatch.setattr(people, "sync", refuses)
    monkeypatch.setattr(DirectoryController, "state", lambda _self: _state())
    monkeypatch.setattr(nss, "expire_cache", lambda: None)
    config = replace(_config(kubernetes={"gpus": 8}), hosts_file=tmp_path / "hosts.json")
    here = DirectoryController(config, LocalAccounts({}, {}, frozenset(), frozenset()))
    monkeypatch.setattr(here.ldap, "apply", lambda records: None)

    class _Plan:
        records, state = ("one",), _state()
        before: Mapping[str, Mapping[str, str]] = {}

    assert here.apply(_Plan()) is True  # type: ignore[arg-type]
    with pytest.raises(Failed, match=r"the directory is as requested, but in Kubernetes.*no answer") as raised:
        here.check_followed({"changed": True})
    assert raised.value.partial_result == {"changed": True}
    monkeypatch.setattr(people, "sync", lambda *_, **__: people.Synced(3, 0))
    assert here.tell_kubernetes() is True
    here.check_followed({"changed": True})


def test_before_there_is_a_control_plane_the_directory_is_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubernetes, "ADMIN", str(tmp_path / "none"))
    assert kubernetes.follow(_config(kubernetes={}), _state()) is False
