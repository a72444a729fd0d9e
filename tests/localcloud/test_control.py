"""The server itself: signatures, retry tokens, start and stop, crashes, identity, access from a VCN."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import DataGuardError, EnvironmentFault
from gpucluster.localcloud import control
from gpucluster.localcloud.state import source
from tests.localcloud.api_harness import Api, running
from tests.stopping import stop

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cloud"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running(home) as api:
        yield api


# starting, stopping, crashing


def test_start_and_stop_may_be_repeated(api: Api) -> None:
    again = control.start(api.home, engine="null")
    assert (again.pid, again.endpoint) == (api.status.pid, api.endpoint)
    control.stop(api.home)
    control.stop(api.home)
    now = control.status(api.home)
    assert (now.running, now.pid, now.endpoint) == (False, None, "")
    assert now.to_dict()["running"] is False
    assert not (api.home / "endpoint.json").exists()
    api.start()
    assert api.endpoint == again.endpoint, "the port is remembered"
    assert control.stop_if_empty(api.home)


def test_many_starts_at_once_make_one_server(home: Path) -> None:
    found: list[control.LocalCloudStatus] = []
    threads = [threading.Thread(target=lambda: found.append(control.start(home, engine="null"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({status.pid for status in found}) == 1
        assert len(found) == 4
    finally:
        control.stop(home)


@pytest.mark.parametrize("content", [None, "rubbish", '{"endpoint": "http://127.0.0.1:1", "pid": 1, "identity": "x"}'])
def test_a_lost_or_stale_endpoint_file_is_healed(api: Api, content: str | None) -> None:
    before = (api.home / "endpoint.json").read_text()
    if content is None:
        (api.home / "endpoint.json").unlink()
    else:
        (api.home / "endpoint.json").write_text(content)
    assert control.start(api.home, engine="null").pid == api.status.pid
    assert json.loads((api.home / "endpoint.json").read_text()) == json.loads(before)


def test_a_home_whose_first_start_has_just_begun_is_empty(home: Path) -> None:
    home.mkdir()
    (home / "cloud.db").touch()  # as SQLite makes it, before it has tables
    now = control.status(home)
    assert (now.running, now.empty, now.instances) == (False, True, {})


def test_a_server_of_another_version_is_replaced(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "digest", lambda: "of other files")
    again = control.start(api.home, engine="null")
    assert again.running
    assert again.pid != api.status.pid
    assert again.endpoint == api.endpoint


def test_one_of_another_version_that_is_slow_to_answer_is_replaced_as_well(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, health = api.status.pid, control._health
    assert pid is not None

    def asked(endpoint: str, *more: Any) -> Mapping[str, str]:
        answer = health(endpoint, *more)
        if not answer:
            os.kill(pid, signal.SIGCONT)
        return answer

    monkeypatch.setattr(source, "digest", lambda: "of other files")
    monkeypatch.setattr(control, "_health", asked)
    stop(pid)
    assert control.start(api.home, engine="null").pid != pid


def test_stop_never_ends_a_stranger(api: Api) -> None:
    control.stop(api.home)
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        record = {"endpoint": api.endpoint, "pid": stranger.pid, "identity": "some boot:1"}
        (api.home / "endpoint.json").write_text(json.dumps(record))
        control.stop(api.home)
        assert stranger.poll() is None
        assert not control.status(api.home).running
    finally:
        stranger.kill()
        stranger.wait()


def test_a_start_that_fails_reports_why(home: Path) -> None:
    home.mkdir()
    (home / "cloud.db").write_text("this is no database, and it is long enough to be seen as none")
    with pytest.raises(EnvironmentFault) as caught:
        control.start(home, engine="null")
    assert "not a database" in str(caught.value)


def test_purge_refuses_while_something_lives_and_then_leaves_nothing(api: Api) -> None:
    vcn = api.vcn()
    with pytest.raises(DataGuardError, match="1 vcn"):
        control.purge(api.home)
    assert control.status(api.home).running
    assert not control.stop_if_empty(api.home)
    api.network.delete_vcn(vcn.id)
    control.purge(api.home)
    assert not api.home.exists()
