"""Containers that are stopped or removed without the local cloud. The engine is the null engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud import control
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.protocol import RunState
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.server.watch import ContainerWatch
from gpucluster.oci.states import LifecycleState
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


class Busy(NullEngine):
    """The null engine, in which something happens while the containers are listed."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    looked_at: Callable[[], object] = staticmethod(lambda: None)

    def states(self) -> Mapping[str, RunState] | None:
        self.meanwhile()
        return super().states()

    def state(self, name: str) -> RunState:
        self.looked_at()
        return super().state(name)


def test_what_is_stopped_while_the_containers_are_listed_is_not_started_again(api: Api) -> None:
    own = api.launch(api.subnet(api.vcn()), "asked").id
    control.stop(api.home)
    engine = Busy(api.home / "null")
    cloud = open_cloud(api.home, engine, open_authority(api.home))

    def stop() -> None:
        with cloud.store.transaction():
            _, work_request = lifecycle.begin_action(cloud, cloud.get("instance", own), "STOP", "InstanceAction")
        lifecycle.run_action(cloud, own, work_request)

    engine.meanwhile = stop
    try:
        ContainerWatch(cloud).look()
        row = cloud.get("instance", own)
        assert (row.state, row.hidden["stopped_by_itself"]) == ("STOPPED", False), "the next start would boot it"
    finally:
        cloud.close()


def test_a_request_that_comes_while_a_container_is_looked_at_is_not_undone(api: Api) -> None:
    own = api.launch(api.subnet(api.vcn()), "asked").id
    control.stop(api.home)
    engine = Busy(api.home / "null")
    cloud = open_cloud(api.home, engine, open_authority(api.home))
    name = next(instance.name for instance in engine.instances())

    def ask() -> None:
        engine.looked_at = lambda: None
        with cloud.store.transaction():
            lifecycle.begin_action(cloud, cloud.get("instance", own), "START", "InstanceAction")

    with cloud.store.transaction():
        cloud.set_state("instance", own, LifecycleState.STOPPED)  # and its container runs
    engine.looked_at = ask
    try:
        ContainerWatch(cloud).look()
        row = cloud.get("instance", own)
        assert (engine.state(name), row.state, row.hidden["action"]) == (RunState.RUNNING, "STARTING", "START")
    finally:
        cloud.close()
