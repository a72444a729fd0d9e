"""Containers that are stopped or removed without the local cloud. The engine is the null engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud import control
from gpucluster.localcloud.engine.null_engine import NullEngine
from tests.localcloud.api_harness import Api, running
from tests.waiting import wait_for

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

    seen = {removed: "TERMINATED", stopped: "STOPPED", asked: "STOPPED"}
    wait_for("the API shows what the engine has", lambda: states() == seen, state=states)
    assert dict(control.status(api.home).instances) == {"STOPPED": 2}
    assert "the container of removed" in (api.home / "log" / "server.log").read_text()
    # The next start boots what no request has stopped.
    api.kill()
    api.start()
    wait_for("what nobody has stopped runs", lambda: states()[stopped] == "RUNNING", state=states)
    assert states()[asked] == "STOPPED"
