"""The listening socket of the server, and its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.localcloud import control
from tests.localcloud.api_harness import Api, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cloud"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running(home) as api:
        yield api


def test_a_taken_port_is_given_up(api: Api) -> None:
    control.stop(api.home)
    port = int(api.endpoint.rpartition(":")[2])
    import socket

    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        assert control.start(api.home, engine="null").endpoint != api.endpoint


def test_sigterm_stops_it_by_itself(api: Api) -> None:
    pid = api.status.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_for("the server ends", lambda: process.identity(pid) is None)
    assert not control.status(api.home).running
    assert "instances continue to run" in (api.home / "log" / "server.log").read_text()
