"""Containers that somebody stops or removes behind the local cloud's back. The engine is the null engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud import control
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.waiting import wait_until
from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(tmp_path / "cloud") as api:
        yield api


def test_the_api_shows_what_has_become_of_a_container(api: Api) -> None:
    subnet = api.subnet(api.vcn())
    removed, stopped, asked = (api.launch(subnet, name).id for name in ("removed", "stopped", "asked"))
    api.compute.instance_action(asked, "STOP")
    api.wait(api.compute.get_instance, asked, "STOPPED")
    engine = NullEngine(api.home / "null")
    name_of = {instance.ocid: instance.name for instance in engine.instances()}
    engine.terminate(name_of[removed])
    engine.stop(name_of[stopped])

    def states() -> dict[str, str]:
        listed: list[Any] = api.compute.list_instances(api.tenancy).data
        return {one.id: one.lifecycle_state for one in listed}

    _until(lambda: states() == {removed: "TERMINATED", stopped: "STOPPED", asked: "STOPPED"})
    assert dict(control.status(api.home).instances) == {"STOPPED": 2}
    assert "the container of removed" in (api.home / "log" / "server.log").read_text()
    # The next start boots what nobody has asked to stop.
    api.kill()
    api.start()
    _until(lambda: states()[stopped] == "RUNNING")
    assert states()[asked] == "STOPPED"


def _until(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, 60, 0.2)
