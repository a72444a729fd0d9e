"""GPUs of this machine for instances: what a CDI specification offers, and who gets what and when it is free again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster import process
from gpucluster.cloud.providers.interface import MachineGpus
from gpucluster.cloud.providers.local import LocalCloudProvider
from gpucluster.errors import CloudError, EnvironmentFault, InputError
from gpucluster.events import ignore
from gpucluster.localcloud.compute import machine_gpus
from gpucluster.localcloud.podman import cdi
from gpucluster.localcloud.podman.command import podman
from gpucluster.oci import tags
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from tests.addresses import free_range
from tests.cdi import planted, uuid
from tests.containers import base_image, need_containers, of_this_run
from tests.localcloud.api_harness import Api, running
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S, wait_for

ONE, TWO, EIGHT = "VM.GPU.A10.1", "VM.GPU.A10.2", "BM.GPU4.8"
KIND = "vendor.test/gpu"


def test_each_cluster_of_a_home_has_its_own_choice(tmp_path: Path) -> None:
    machine_gpus.hand_out(tmp_path, "one", real=False)
    assert not (tmp_path / machine_gpus.CONFIG).exists()
    (tmp_path / machine_gpus.CONFIG).write_text(json.dumps({"clusters": ["one"], "kind": KIND}))
    machine_gpus.hand_out(tmp_path, "two", real=True)
    machine_gpus.hand_out(tmp_path, "one", real=False)
    assert machine_gpus.settings(tmp_path) == machine_gpus.MachineGpuSettings(("two",), KIND)
    for text in ("{", "[]", '{"clusters": "one"}', '{"clusters": [1]}', '{"clusters": [], "kind": 1}'):
        (tmp_path / machine_gpus.CONFIG).write_text(text)
        with pytest.raises(InputError, match="the clusters that get GPUs"):
            machine_gpus.settings(tmp_path)


# --- what this machine can do, before anything is created


def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, gpus: str = "real") -> LocalCloudProvider:
    """The local cloud of a cluster, in a home whose GPUs are of this kind."""
    home = tmp_path / "home"
    home.mkdir()
    (home / machine_gpus.CONFIG).write_text(json.dumps({"clusters": [], "kind": kind}))
    monkeypatch.setenv("GPUCLUSTER_HOME", str(home))
    spec = loads(LOCAL.replace("  provider: local\n", f"  provider: local\n  local: {{gpus: {gpus}}}\n"))
    return LocalCloudProvider(spec, ClusterPaths(tmp_path / "cluster.yml"), ignore)


def test_where_gpus_are_emulated_nothing_is_asked_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = provider(tmp_path, monkeypatch, "gctest-none.test/gpu", "emulated")
    cloud.check_gpus()
    assert cloud.machine_gpus() is None


@pytest.mark.containers
def test_a_machine_without_a_specification_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_containers()
    cloud = provider(tmp_path, monkeypatch, "gctest-none.test/gpu")
    with pytest.raises(EnvironmentFault, match=r"no CDI specification of gctest-none\.test/gpu") as caught:
        cloud.check_gpus()
    assert cdi.GENERATE in caught.value.hint


@pytest.mark.containers
def test_an_old_podman_can_not_hand_out_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_containers()
    with planted(tmp_path, [2, 3]) as kind:
        cloud = provider(tmp_path, monkeypatch, kind)
        cloud.check_gpus()
        assert cloud.machine_gpus() == MachineGpus(2, 2)
        # A double, which has no containers and reports another version.
        (tmp_path / "bin").mkdir()
        old = tmp_path / "bin" / "podman"
        old.write_text('#!/bin/sh\n[ "$1" != version ] || echo 4.0.3\n[ "$1" != ps ] || echo \'[]\'\n')
        old.chmod(0o755)
        monkeypatch.setenv("PATH", str(old.parent), prepend=os.pathsep)
        with pytest.raises(EnvironmentFault, match=r"Podman 4\.0\.3 can't give GPUs") as caught:
            cloud.check_gpus()
        assert "Podman 4.1 or later" in caught.value.hint


# --- who gets what


def settle(api: Api, kind: str) -> None:
    (api.home / machine_gpus.CONFIG).write_text(json.dumps({"clusters": ["demo"], "kind": kind}))


def launch(api: Api, subnet: Any, name: str, shape: str = ONE, cluster: str = "demo") -> Any:
    return api.launch(subnet, name, shape=shape, shape_config=None, freeform_tags={tags.CLUSTER: cluster})


def refused(api: Api, subnet: Any, shape: str = ONE) -> Any:
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        launch(api, subnet, "refused", shape)
    return caught.value


def end(api: Api, instance: Any) -> None:
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")


def recorded(api: Api) -> dict[str, list[str]]:
    """What the null engine was asked to give to each instance, by the beginning of its name."""
    found = {}
    for file in (api.home / "null" / "machines").glob("gpucluster-*"):
        found[file.name.split("-")[1]] = [
            name.rpartition("-")[2].lstrip("0") for name in json.loads(file.read_text()).get("devices", [])
        ]
    return found


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    need_containers()  # the specification is in a folder of root
    with running(tmp_path / "cloud") as api:
        yield api


@pytest.mark.containers
def test_a_gpu_has_one_instance_until_that_is_terminated(api: Api, tmp_path: Path) -> None:
    with planted(tmp_path, [1, 3, 5]) as kind:
        settle(api, kind)
        subnet = api.subnet(api.vcn())
        one, two = launch(api, subnet, "one"), launch(api, subnet, "two", TWO)
        assert recorded(api) == {"one": ["1"], "two": ["3", "5"]}
        assert one.shape_config.gpu_description == "1 x GPU of this machine"
        error = refused(api, subnet)
        assert (error.status, error.code, error.message) == (500, "InternalError", "Out of host capacity.")
        launch(api, subnet, "emulated", EIGHT, cluster="other")
        assert recorded(api)["emulated"] == []
        # It keeps them while it is stopped, and over a crash of the server.
        api.compute.instance_action(one.id, "STOP")
        api.wait(api.compute.get_instance, one.id, "STOPPED")
        assert refused(api, subnet).message == "Out of host capacity."
        api.kill()
        api.start()
        assert refused(api, subnet).message == "Out of host capacity."
        end(api, two)
        assert [gpu.number for gpu in machine_gpus.offer(api.home).free] == [3, 5]
        launch(api, subnet, "three")
        assert recorded(api)["three"] == ["3"]


@pytest.mark.containers
def test_a_gpu_that_an_older_specification_named_otherwise_is_not_handed_out_twice(api: Api, tmp_path: Path) -> None:
    with planted(tmp_path, [1, 3]) as kind:
        file = cdi.FOLDERS[0] / f"{kind.partition('.')[0]}.json"
        new = file.read_text()
        old = json.loads(new)
        old["devices"] = [each for each in old["devices"] if not each["name"].startswith("GPU-")]
        file.write_text(json.dumps(old))
        settle(api, kind)
        subnet = api.subnet(api.vcn())
        launch(api, subnet, "one")
        file.write_text(new)
        assert [gpu.number for gpu in machine_gpus.offer(api.home).free] == [3]
        launch(api, subnet, "two")
        assert recorded(api)["two"] == ["3"]
        assert refused(api, subnet).message == "Out of host capacity."


@pytest.mark.containers
def test_an_instance_keeps_its_gpus_and_their_number(api: Api, tmp_path: Path) -> None:
    with planted(tmp_path, [1, 3]) as kind:
        settle(api, kind)
        one = launch(api, api.subnet(api.vcn()), "one")
        models = oci.core.models
        image = api.compute.list_images(api.tenancy, operating_system="Debian", operating_system_version="12").data[0]
        source = models.UpdateInstanceSourceViaImageDetails(image_id=image.id)
        api.compute.update_instance(one.id, models.UpdateInstanceDetails(source_details=source))
        api.wait(api.compute.get_instance, one.id, "RUNNING")
        assert recorded(api) == {"one": ["1"]}
        with pytest.raises(oci.exceptions.ServiceError, match="has 1 GPUs of this machine"):
            api.compute.update_instance(one.id, models.UpdateInstanceDetails(shape=TWO))
        assert api.compute.get_instance(one.id).data.shape == ONE


@pytest.mark.containers
def test_without_a_specification_the_launch_reports_what_to_do(api: Api) -> None:
    settle(api, "gctest-none.test/gpu")
    error = refused(api, api.subnet(api.vcn()))
    assert (error.status, error.code) == (500, "InternalError")
    assert "there is no CDI specification of gctest-none.test/gpu" in error.message
    (api.home / machine_gpus.CONFIG).write_text("{")
    assert (
        "does not name the clusters" in refused(api, api.subnet(api.vcn("10.78.0.0/16", "two"), "10.78.0.0/24")).message
    )


# --- real containers


# Whether the device file can be opened: without a driver there is no such device (ENXIO), and control groups refuse it
# (EPERM).
OPEN = """
import errno, os, sys
path = sys.argv[1]
if not os.path.exists(path):
    os.mknod(path, 0o20666, os.makedev(195, int(sys.argv[2])))
try:
    os.open(path, os.O_RDWR)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def inside(instance: str, *argv: str, status: int = 0) -> str:
    done = process.run(["podman", "exec", instance, *argv], check=False, timeout=PATIENCE_S)
    assert done.returncode == status, done
    return done.stdout.strip()


@pytest.mark.containers
def test_a_real_instance_has_its_gpu_and_no_other(tmp_path: Path) -> None:
    """Real: Podman's CDI, the devices in the instance, its control groups. The driver and nvidia-smi are not."""
    need_containers()
    with free_range() as net, running(tmp_path / "cloud", "podman") as api, planted(tmp_path, [3, 5]) as kind:
        settle(api, kind)
        subnet = api.subnet(api.vcn(f"{net}.0.0/16"), f"{net}.0.0/24")
        one, two = launch(api, subnet, "one"), launch(api, subnet, "two")
        names = {}
        for container in json.loads(
            podman("ps", "--filter", f"label=gpucluster.home={api.home}", "--format=json").stdout
        ):
            names[container["Labels"]["gpucluster.ocid"]] = container["Names"][0]
        first, second = names[one.id], names[two.id]
        assert inside(first, "sh", "-c", "echo /dev/nvidia*") == "/dev/nvidia3"
        assert inside(second, "sh", "-c", "echo /dev/nvidia*") == "/dev/nvidia5"
        assert uuid(5) in inside(second, "nvidia-smi", "-L")
        assert inside(first, "python3", "-c", OPEN, "/dev/nvidia3", "3") == "ENXIO"
        assert inside(first, "python3", "-c", OPEN, "/root/other", "5") == "EPERM"
        api.compute.instance_action(one.id, "RESET")
        api.wait(api.compute.get_instance, one.id, "RUNNING")
        wait_for("the instance is up again", lambda: podman("exec", first, "true", check=False).returncode == 0)
        assert inside(first, "sh", "-c", "echo /dev/nvidia*") == "/dev/nvidia3"
        # Another home does not hand out what containers of this one have.
        another = tmp_path / "another"
        another.mkdir()
        (another / machine_gpus.CONFIG).write_text((api.home / machine_gpus.CONFIG).read_text())
        assert machine_gpus.offer(another).free == ()
        end(api, one)
        assert [gpu.number for gpu in machine_gpus.offer(api.home).free] == [3]
        assert refused(api, subnet, TWO).message == "Out of host capacity."


@pytest.mark.containers
def test_a_device_that_podman_does_not_know_ends_a_launch_with_its_words() -> None:
    image = base_image()
    with pytest.raises(CloudError, match=r"unresolvable CDI devices gctest-none\.test/gpu=0"):
        podman("run", "--rm", "--network=none", of_this_run(), "--device=gctest-none.test/gpu=0", image, "true")
