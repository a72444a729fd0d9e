"""The API with real containers: launch, log in, share files, scale, terminate, and leave nothing behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.cloud.console import fingerprints
from gpucluster.localcloud.engine import containers
from gpucluster.localcloud.engine.protocol import LABEL_HOME
from tests.addresses import free_range
from tests.containers import need_containers
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def net() -> Iterator[str]:
    with free_range() as found:
        yield found


@pytest.fixture(scope="module")
def api(net: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    # Asked for `net`, so that its networks are gone before the range is free again.
    need_containers()
    with running(tmp_path_factory.mktemp("containers") / "cloud", "podman") as api:
        yield api


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def ssh(key: Path, address: str, command: str) -> str:
    argv = ["ssh", "-F", "none", "-i", str(key), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "BatchMode=yes", "-o", f"ConnectTimeout={PATIENCE_S:.0f}", "-o", "LogLevel=ERROR",
            f"debian@{address}", command]  # fmt: skip
    seen: list[subprocess.CompletedProcess[str]] = []

    def answered() -> bool:
        # 255: ssh itself failed, because the instance does not listen as yet.
        seen[:] = [subprocess.run(argv, capture_output=True, text=True, check=False)]
        return seen[0].returncode != 255

    wait_for(f"{address} lets the key in", answered, interval=0.3, state=lambda: seen)
    assert seen[0].returncode == 0, seen[0].stderr
    return seen[0].stdout.strip()


def ours(api: Api) -> list[Any]:
    return list(containers.listing(f"{LABEL_HOME}={api.home}"))


def address_of(api: Api, ocid: str, member: str = "private_ip") -> str:
    attachment = api.compute.list_vnic_attachments(api.tenancy, instance_id=ocid).data[0]
    return str(getattr(api.network.get_vnic(attachment.vnic_id).data, member))


def test_a_small_cluster_from_launch_to_nothing(api: Api, key: Path, net: str) -> None:
    subnet = api.subnet(api.vcn(f"{net}.7.0/24"), f"{net}.7.0/26")
    metadata = {"ssh_authorized_keys": key.with_suffix(".pub").read_text()}
    head = api.launch(subnet, "head", metadata=metadata)
    public = address_of(api, head.id, "public_ip")
    assert ssh(key, public, "hostname") == "head"
    assert ssh(key, public, "sudo id -u") == "0"
    ask = oci.core.models.CaptureConsoleHistoryDetails(instance_id=head.id)
    history = api.compute.capture_console_history(ask).data
    api.wait(api.compute.get_console_history, history.id, "SUCCEEDED")
    console = api.compute.get_console_history_content(history.id, length=1_000_000).data
    assert b"sshd" in console
    assert b"head" in console
    shown = ssh(key, public, "ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert fingerprints(console.decode()) == {shown}

    port = api.endpoint.rpartition(":")[2]
    probe = (
        f"import urllib.request as u; print(u.urlopen('http://{net}.7.1:{port}/health', timeout={PATIENCE_S}).status)"
    )
    assert ssh(key, public, f'python3 -c "{probe}"') == "200"

    fs = oci.file_storage.models
    common = {"compartment_id": api.tenancy, "availability_domain": api.domain}
    system = api.files.create_file_system(fs.CreateFileSystemDetails(**common)).data
    target = api.files.create_mount_target(fs.CreateMountTargetDetails(**common, subnet_id=subnet.id)).data
    export = fs.CreateExportDetails(export_set_id=target.export_set_id, file_system_id=system.id, path="/mnt/home")
    export_id = api.files.create_export(export).data.id
    server = api.network.get_private_ip(target.private_ip_ids[0]).data.ip_address
    mount = f"sudo mkdir -p /mnt/home && sudo mount -t nfs {server}:/mnt/home /mnt/home"
    ssh(key, public, f"{mount} && echo shared | sudo tee /mnt/home/token")

    for access, said in (("READ_ONLY", "Read-only file system"), ("READ_WRITE", "")):
        options = [fs.ClientOptions(source="0.0.0.0/0", access=access)]
        api.files.update_export(export_id, fs.UpdateExportDetails(export_options=options))
        assert said in ssh(key, public, "sudo touch /mnt/home/token 2>&1 || true")

    network = api.cluster_network(api.configuration(metadata=metadata), subnet, 1)
    network = api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    member = api.members(network.id)[0]
    address = address_of(api, member.id)
    assert ssh(key, address, f"{mount} && cat /mnt/home/token") == "shared"
    assert ssh(key, address, "hostname") == member.display_name

    for size in (2, 1):
        pool = oci.core.models.UpdateClusterNetworkInstancePoolDetails(id=network.instance_pools[0].id, size=size)
        details = oci.core.models.UpdateClusterNetworkDetails(instance_pools=[pool])
        api.management.update_cluster_network(network.id, details)
        api.wait(api.management.get_cluster_network, network.id, "RUNNING")
        assert len(ours(api)) == size + 1

    api.kill()
    api.start()
    assert ssh(key, public, "cat /mnt/home/token") == "shared"

    api.compute.instance_action(head.id, "STOP")
    api.wait(api.compute.get_instance, head.id, "STOPPED")
    api.compute.instance_action(head.id, "START")
    api.wait(api.compute.get_instance, head.id, "RUNNING")
    assert ssh(key, public, "hostname") == "head"

    image = api.compute.create_image(
        oci.core.models.CreateImageDetails(compartment_id=api.tenancy, instance_id=head.id, display_name="baked")
    ).data
    api.wait(api.compute.get_image, image.id, "AVAILABLE")
    source = oci.core.models.InstanceSourceViaImageDetails(image_id=image.id)
    clone = api.launch(subnet, "clone", metadata=metadata, source_details=source)
    assert ssh(key, address_of(api, clone.id), "hostname") == "clone"

    api.management.terminate_cluster_network(network.id)
    for instance in (head, clone):
        api.compute.terminate_instance(instance.id)
        api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    api.compute.delete_image(image.id)
    api.wait(api.management.get_cluster_network, network.id, "TERMINATED")
    assert ours(api) == []
    api.files.delete_export(export_id)
    api.files.delete_mount_target(target.id)
    api.files.delete_file_system(system.id)
    api.network.delete_subnet(subnet.id)
    api.network.delete_vcn(subnet.vcn_id)
    assert containers.networks(f"{LABEL_HOME}={api.home}") == []
