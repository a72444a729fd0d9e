"""The engine that runs nothing: its records, which are all that tests of the API see of an instance."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.protocol import LABEL_OCID, EngineInstance, LaunchRequest, RunState

REQUEST = LaunchRequest(
    name="gpucluster-one",
    hostname="one",
    image="null/debian:13",
    network="net",
    ip="10.0.0.2",
    user_data=None,
    metadata={},
    ssh_authorized_keys=(),
    labels={LABEL_OCID: "ocid1.instance.local..one"},
    exports_dir=Path("/nowhere"),
)


@pytest.fixture
def engine(tmp_path: Path) -> NullEngine:
    return NullEngine(tmp_path)


def test_an_instance_runs_stops_starts_and_goes(engine: NullEngine) -> None:
    assert engine.state(REQUEST.name) is RunState.ABSENT
    engine.launch(REQUEST)
    assert engine.instances() == [EngineInstance(REQUEST.name, RunState.RUNNING, "ocid1.instance.local..one")]
    engine.stop(REQUEST.name)
    assert engine.states() == {REQUEST.name: RunState.STOPPED}
    assert engine.console(REQUEST.name) == b"gpucluster-one is stopped\n"
    engine.start(REQUEST.name)
    assert engine.state(REQUEST.name) is RunState.RUNNING
    engine.terminate(REQUEST.name)
    engine.terminate(REQUEST.name)
    assert (engine.instances(), engine.state(REQUEST.name)) == ([], RunState.ABSENT)


def test_another_process_sees_the_same_instances(engine: NullEngine, tmp_path: Path) -> None:
    engine.launch(REQUEST)
    engine.stop(REQUEST.name)
    assert NullEngine(tmp_path).state(REQUEST.name) is RunState.STOPPED


def test_a_record_that_is_being_written_is_not_an_instance(engine: NullEngine, tmp_path: Path) -> None:
    (tmp_path / "machines" / ".gpucluster-two.part").write_text("{")
    assert engine.instances() == []


def test_devices_are_in_use_while_their_instance_is_there(engine: NullEngine) -> None:
    engine.launch(dataclasses.replace(REQUEST, devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1")))
    engine.stop(REQUEST.name)
    assert engine.devices_in_use() == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    engine.terminate(REQUEST.name)
    assert engine.devices_in_use() == []


def test_networks_and_images_are_there_until_they_are_removed(engine: NullEngine, tmp_path: Path) -> None:
    engine.create_network("b", "10.0.0.0/16", {})
    engine.create_network("a", "10.1.0.0/16", {})
    assert engine.networks() == ["a", "b"]
    engine.remove_network("a")
    engine.remove_network("a")
    assert engine.networks() == ["b"]
    engine.commit(REQUEST.name, "local/image:1")
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["local_image:1"]
    engine.remove_image("local/image:1")
    assert list((tmp_path / "images").iterdir()) == []


def test_volumes_of_several_instances_may_come_and_go_at_once(engine: NullEngine, tmp_path: Path) -> None:
    def come_and_go(number: int) -> None:
        for turn in range(20):
            file = tmp_path / f"volume-{number}-{turn}"
            engine.attach_volume(f"gpucluster-{number}", "/dev/oracleoci/oraclevdb", file)
            if turn % 2:
                engine.detach_volume(f"gpucluster-{number}", "/dev/oracleoci/oraclevdb", file)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(8)))
    assert len(json.loads((tmp_path / "volumes.json").read_text())) == 8 * 10
