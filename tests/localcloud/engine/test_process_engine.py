"""Instances as processes: started after the boot time, killed completely, found after a crash. `sleep` is a node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster import process
from gpucluster.errors import InputError
from gpucluster.localcloud import control
from gpucluster.localcloud.engine.process_engine import ProcessEngine
from tests.localcloud.api_harness import Api, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def configure(home: Path, *argv: str, **more: Any) -> None:
    home.mkdir(exist_ok=True)
    (home / "process-engine.json").write_text(json.dumps({"argv": argv, **more}))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    home = tmp_path / "cloud"
    configure(home, "sh", "-c", 'echo "{hostname} {ip} {ocid}"; exec sleep 600')
    with running(home, "process") as api:
        yield api


@pytest.fixture
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn(), "10.77.0.0/22")


def record_of(api: Api, instance: Any) -> dict[str, Any]:
    name = f"gpucluster-{instance.display_name}-{instance.id[-12:]}"
    return dict(json.loads((api.home / "processes" / "machines" / name).read_text()))


def log_of(api: Api, instance: Any) -> str:
    return (api.home / "processes" / "log" / f"gpucluster-{instance.display_name}-{instance.id[-12:]}.log").read_text()


def marked(api: Api) -> tuple[int, ...]:
    return process.pids_with_variable("GPUCLUSTER_PROCESS_HOME", str(api.home))


def test_an_instance_is_a_process_with_its_names_filled_in(api: Api, subnet: Any) -> None:
    instance = api.launch(subnet, "n1")
    record = record_of(api, instance)
    assert record["identity"] == process.identity(record["pid"])
    assert os.getsid(record["pid"]) == record["pid"]
    wait_for("it writes its names", lambda: log_of(api, instance) == f"n1 {record['ip']} {instance.id}\n")
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert process.identity(record["pid"]) is None
    assert not Path(f"/proc/{record['pid']}").exists(), "it was not reaped"


def test_it_is_provisioning_while_it_boots_and_no_call_waits_for_it(api: Api, subnet: Any) -> None:
    configure(api.home, "sleep", "600", boot_seconds=3600)
    with ThreadPoolExecutor(8) as pool:
        launched = list(pool.map(lambda n: api.compute.launch_instance(
            api.launch_details(subnet, f"n{n}")).data, range(24)))  # fmt: skip
    assert {one.lifecycle_state for one in launched} == {"PROVISIONING"}
    # There are four workers. If boots occupied them, this one would never come.
    configure(api.home, "sleep", "600", boot_seconds=0.1)
    later = api.launch(subnet, "later")
    assert marked(api) == (record_of(api, later)["pid"],)
    states = {api.compute.get_instance(one.id).data.lifecycle_state for one in launched}
    assert states == {"PROVISIONING"}


def test_one_that_is_terminated_while_it_boots_never_starts(api: Api, subnet: Any) -> None:
    configure(api.home, "sleep", "600", boot_seconds=2)
    instance = api.compute.launch_instance(api.launch_details(subnet, "brief")).data
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    # The end of this later boot comes after the end of the other.
    witness = api.launch(subnet, "witness")
    assert marked(api) == (record_of(api, witness)["pid"],)
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "TERMINATED"


def test_a_child_that_left_the_group_ends_as_well(api: Api, subnet: Any) -> None:
    configure(api.home, "sh", "-c", "setsid -f sleep 600; exec sleep 600")
    stays, goes = api.launch(subnet, "stays"), api.launch(subnet, "goes")
    wait_for("both have a child", lambda: len(marked(api)) == 4)
    api.compute.terminate_instance(goes.id)
    wait_for("those of one are gone", lambda: len(marked(api)) == 2)
    assert record_of(api, stays)["pid"] in marked(api)


def test_the_stop_command_is_run_first(api: Api, subnet: Any) -> None:
    told = api.home / "told"
    configure(api.home, "sleep", "600", stop_argv=["sh", "-c", f"echo {{hostname}} >> {told}"])
    instance = api.launch(subnet, "polite")
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert told.read_text() == "polite\n"


def test_power_actions(api: Api, subnet: Any) -> None:
    instance = api.launch(subnet, "power")
    first = record_of(api, instance)["pid"]
    api.compute.instance_action(instance.id, "STOP")
    api.wait(api.compute.get_instance, instance.id, "STOPPED")
    assert marked(api) == ()
    api.compute.instance_action(instance.id, "START")
    api.wait(api.compute.get_instance, instance.id, "RUNNING")
    assert record_of(api, instance)["pid"] != first
    assert len(marked(api)) == 1


def _update(api: Api, instance: Any, **changes: Any) -> Any:
    api.compute.update_instance(instance.id, oci.core.models.UpdateInstanceDetails(**changes))
    return api.wait(api.compute.get_instance, instance.id, "RUNNING")


def _boot_volume(api: Api, instance: Any) -> Any:
    listed = api.compute.list_boot_volume_attachments(api.domain, api.tenancy, instance_id=instance.id).data
    (attached,) = [each for each in listed if each.lifecycle_state == "ATTACHED"]
    return api.block.get_boot_volume(attached.boot_volume_id).data


def test_another_image_replaces_the_boot_volume_under_the_same_ocid(api: Api, subnet: Any) -> None:
    instance = api.launch(subnet, "swapped")
    before, volume = record_of(api, instance), _boot_volume(api, instance)
    image = api.named_image("Debian-12-local")
    source = oci.core.models.UpdateInstanceSourceViaImageDetails(image_id=image.id)
    after = _update(api, instance, source_details=source)
    assert (after.id, after.image_id, after.source_details.image_id) == (instance.id, image.id, image.id)
    assert record_of(api, instance)["ip"] == before["ip"]
    assert record_of(api, instance)["pid"] != before["pid"]
    new = _boot_volume(api, instance)
    assert (new.id != volume.id, new.image_id, new.size_in_gbs) == (True, image.id, volume.size_in_gbs)
    assert api.block.get_boot_volume(volume.id).data.lifecycle_state == "TERMINATED"
    # The same image again is not a change.
    assert _update(api, instance, source_details=source).lifecycle_state == "RUNNING"
    assert _boot_volume(api, instance).id == new.id


def test_a_replacement_that_a_crash_interrupted_is_finished_at_the_next_start(api: Api, subnet: Any) -> None:
    told = api.home / "told"
    # The first stop hangs, the ones after it do not.
    hang = f"[ ! -e {told} ] || exit 0; echo $$ > {told}.part; mv {told}.part {told}; exec sleep 600"
    configure(api.home, "sleep", "600", stop_argv=["sh", "-c", hang])
    instance = api.launch(subnet, "cut")
    before = record_of(api, instance)["pid"]
    image = api.named_image("Debian-12-local")
    source = oci.core.models.UpdateInstanceSourceViaImageDetails(image_id=image.id)
    details = oci.core.models.UpdateInstanceDetails(source_details=source)
    assert api.compute.update_instance(instance.id, details).data.lifecycle_state == "STOPPING"
    wait_for("it is being stopped", told.exists)
    api.kill()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(told.read_text()), signal.SIGKILL)
    api.start()
    after = api.wait(api.compute.get_instance, instance.id, "RUNNING")
    assert after.image_id == image.id
    assert record_of(api, instance)["pid"] != before


def test_other_cores_or_memory_reboot_an_instance_and_it_keeps_its_disk(api: Api, subnet: Any) -> None:
    instance = api.launch(subnet, "resized")
    pid, volume = record_of(api, instance)["pid"], _boot_volume(api, instance)
    shape = oci.core.models.UpdateInstanceShapeConfigDetails
    assert _update(api, instance, shape_config=shape(ocpus=2, memory_in_gbs=8)).shape_config.ocpus == 2
    assert record_of(api, instance)["pid"] != pid
    assert _boot_volume(api, instance).id == volume.id
    pid = record_of(api, instance)["pid"]
    _update(api, instance, display_name="renamed", shape_config=shape(ocpus=2, memory_in_gbs=8))
    assert record_of(api, instance)["pid"] == pid


def test_processes_outlive_the_server_and_are_known_again(api: Api, subnet: Any) -> None:
    configure(api.home, "sleep", "600", boot_seconds=0.3)
    steady = api.launch(subnet, "steady")
    pid = record_of(api, steady)["pid"]
    api.launch(subnet, "cut")
    booting = [api.compute.launch_instance(api.launch_details(subnet, f"b{n}")).data for n in range(3)]
    api.kill()
    # Processes without a record, because the crash came before it was written.
    env = {**os.environ, "GPUCLUSTER_PROCESS_HOME": str(api.home), "GPUCLUSTER_PROCESS_NAME": "gpucluster-lost-1"}
    stray = process.spawn_daemon(["sleep", "600"], log=api.home / "stray.log", env=env)
    cut = next(path for path in (api.home / "processes" / "machines").glob("*-cut-*"))
    cut.write_text(json.dumps({key: value for key, value in json.loads(cut.read_text()).items() if key != "pid"}))
    api.start()
    wait_for("the one without a pid is started", lambda: "pid" in json.loads(cut.read_text()))
    for one in booting:
        api.wait(api.compute.get_instance, one.id, "RUNNING")
    assert record_of(api, steady)["pid"] == pid
    assert pid in marked(api)
    wait_for("one of steady, one of cut, three that booted", lambda: len(marked(api)) == 5, state=lambda: marked(api))
    assert stray not in marked(api)
    os.waitpid(stray, 0)
    api.compute.terminate_instance(steady.id)
    api.wait(api.compute.get_instance, steady.id, "TERMINATED")
    assert pid not in marked(api)
    control.stop(api.home)
    assert len(marked(api)) == 4


def test_a_pid_that_belongs_to_another_process_by_now_is_left_alone(tmp_path: Path) -> None:
    engine = ProcessEngine(tmp_path)
    configure(tmp_path, "sleep", "600")
    other = process.spawn_daemon(["sleep", "600"], log=tmp_path / "log")
    (tmp_path / "processes" / "machines" / "n").write_text(
        json.dumps({"ocid": "o", "ip": "1", "hostname": "n", "pid": other, "identity": "an earlier one"})
    )
    try:
        assert engine.state("n") == "stopped"
        engine.terminate("n")
        assert process.identity(other) is not None
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


def test_a_process_that_had_ended_before_it_was_looked_at_is_stopped(tmp_path: Path) -> None:
    engine = ProcessEngine(tmp_path)
    configure(tmp_path, "true")
    ended = process.spawn_daemon(["true"], log=tmp_path / "log")
    wait_for("it has ended", lambda: process.identity(ended) is None)
    (tmp_path / "processes" / "machines" / "n").write_text(
        json.dumps({"ocid": "o", "ip": "1", "hostname": "n", "pid": ended, "identity": process.identity(ended)})
    )
    assert engine.state("n") == "stopped"
    engine.terminate("n")
    assert engine.state("n") == "absent"


def test_a_launch_without_a_usable_command_fails_and_reports_it(api: Api, subnet: Any) -> None:
    for text in ("{", '{"argv": "sleep"}', '{"argv": ["/no/such/program"]}'):
        (api.home / "process-engine.json").write_text(text)
        reply = api.compute.launch_instance(api.launch_details(subnet, "bad"))
        api.wait(api.compute.get_instance, reply.data.id, "TERMINATED")
        errors = api.work.list_work_request_errors(reply.headers["opc-work-request-id"]).data
        assert "process-engine.json" in errors[0].message or "/no/such/program" in errors[0].message
    with pytest.raises(InputError, match="can't be read"):
        ProcessEngine(api.home / "elsewhere").boot_seconds()
