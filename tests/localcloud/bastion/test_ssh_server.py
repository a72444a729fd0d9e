"""The ssh server of bastions: who is let in, for how long, and where a connection leads. Clients are the real ssh."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import oci
import pytest
from oci.bastion import models

from gpucluster.localcloud.image.contents import contents_of
from gpucluster.paths import write_private
from tests.addresses import free_range
from tests.containers import need_containers
from tests.localcloud.api.test_bastions import TARGET, create, delete, forward, listener, new_key, options, session
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("bastions")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn("127.92.0.0/24"), "127.92.0.0/25")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("keys") / "id")


@pytest.fixture
def bastion(api: Api, subnet: Any) -> Iterator[Any]:
    made = create(api, subnet)
    yield made
    if api.bastions.get_bastion(made.id).data.lifecycle_state == "ACTIVE":
        delete(api, made)


def test_a_session_lets_one_key_through_to_one_target(api: Api, bastion: Any, key: Path, tmp_path: Path) -> None:
    with listener() as port, listener() as other_port:
        shown = session(api, bastion, key, port=port, display_name="mine")
        assert (shown.display_name, shown.bastion_name, shown.key_type) == ("mine", "way-in", "PUB")
        assert shown.bastion_public_host_key_info.startswith("SHA256:")
        assert shown.target_resource_details.target_resource_private_ip_address == TARGET
        done = forward(shown, key)
        assert (done.returncode, done.stdout) == (0, "hello from the target\n"), done.stderr
        done = forward(shown, new_key(tmp_path / "other"))
        assert (done.returncode, done.stdout) == (255, "")
        assert "Permission denied" in done.stderr
        for address, wrong in ((TARGET, other_port), ("127.92.0.11", port), ("127.0.0.1", port)):
            done = forward(shown, key, address, wrong)
            assert done.stdout == "", (address, wrong)
            assert "administratively prohibited" in done.stderr
        at = re.search(r"-p (\d+) (\S+)$", shown.ssh_metadata["command"])
        assert at is not None
        done = subprocess.run(
            ["ssh", *options(key), "-p", at[1], at[2], "id"],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode != 0
        assert "uid=" not in done.stdout
    # No process listens there any more.
    assert "open failed: connect failed" in forward(shown, key).stderr


def test_a_session_that_ends_while_a_client_logs_in_refuses_the_login(api: Api, bastion: Any, key: Path) -> None:
    shown = session(api, bastion, key, port=22)
    at = re.search(r"-p (\d+) (\S+)@(\S+)$", shown.ssh_metadata["command"])
    assert at is not None

    class Client(asyncssh.SSHClient):
        def public_key_auth_requested(self) -> Any:
            """The server has looked the session up."""
            api.bastions.delete_session(shown.id)
            return asyncssh.read_private_key(key)

    async def log_in() -> None:
        client: dict[str, Any] = {"known_hosts": None, "config": None, "client_keys": None, "agent_path": None}
        try:
            connection, _ = await asyncssh.create_connection(Client, at[3], int(at[1]), username=at[2], **client)
        except (asyncssh.Error, OSError):
            return
        await asyncio.wait_for(connection.wait_closed(), PATIENCE_S)

    asyncio.run(log_in())


def test_a_session_ends_and_takes_its_connections_along(api: Api, bastion: Any, key: Path) -> None:
    with listener() as port:
        shown = session(api, bastion, key, port=port)
        at = re.search(r"-p (\d+) (\S+)$", shown.ssh_metadata["command"])
        assert at is not None
        held = subprocess.Popen(["ssh", *options(key), "-N", "-p", at[1], at[2]], stderr=subprocess.DEVNULL)
        try:
            assert forward(shown, key).returncode == 0
            assert held.poll() is None
            answer = api.bastions.delete_session(shown.id)
            request = api.bastions.get_work_request(answer.headers["opc-work-request-id"]).data
            assert (request.status, request.resources[0].action_type) == ("SUCCEEDED", "DELETED")
            assert held.wait(PATIENCE_S) != 0
        finally:
            held.kill()
            held.wait()
        assert api.bastions.get_session(shown.id).data.lifecycle_state == "DELETED"
        assert "Permission denied" in forward(shown, key).stderr
        active = api.bastions.list_sessions(bastion.id, session_lifecycle_state="ACTIVE").data
        assert active == []


def test_only_clients_of_the_allow_list_get_in(api: Api, bastion: Any, key: Path) -> None:
    with listener() as port:
        shown = session(api, bastion, key, port=port)
        assert forward(shown, key).returncode == 0
        elsewhere = models.UpdateBastionDetails(client_cidr_block_allow_list=["203.0.113.0/24"])
        api.bastions.update_bastion(bastion.id, elsewhere)
        assert "Permission denied" in forward(shown, key).stderr


@pytest.mark.containers
def test_ssh_reaches_a_container_as_the_user_of_its_image(tmp_path: Path) -> None:
    """With a bastion as ProxyCommand, to a stand-in for Oracle Linux, whose user is opc."""
    need_containers()
    key = new_key(tmp_path / "id")
    contents = contents_of("Oracle Linux", "8", tmp_path)
    with free_range() as net, running(tmp_path / "cloud", "podman", contents) as api:
        subnet = api.subnet(api.vcn(f"{net}.7.0/24"), f"{net}.7.0/26", prohibit_public_ip_on_vnic=True)
        image = api.named_image("Oracle-Linux-8.10-2025.08.31-0")
        instance = api.launch(
            subnet, "hidden", metadata={"ssh_authorized_keys": Path(f"{key}.pub").read_text()},
            source_details=oci.core.models.InstanceSourceViaImageDetails(image_id=image.id),
        )  # fmt: skip
        attachment = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data[0]
        address = api.network.get_vnic(attachment.vnic_id).data.private_ip
        shown = session(api, create(api, subnet), key, address=address)
        at = re.search(r"-p (\d+) (\S+)@(\S+)$", shown.ssh_metadata["command"])
        assert at is not None
        config = [
            "Host gateway", f"  HostName {at[3]}", f"  Port {at[1]}", f"  User {at[2]}",
            "Host node", f"  HostName {address}", "  User opc",
            f"  ProxyCommand ssh -F {tmp_path}/config -W %h:%p gateway",
            "Host *", f"  IdentityFile {key}", "  IdentitiesOnly yes", "  BatchMode yes", "  StrictHostKeyChecking no",
            "  UserKnownHostsFile /dev/null", "  LogLevel ERROR", f"  ConnectTimeout {PATIENCE_S:.0f}",
        ]  # fmt: skip
        write_private(tmp_path / "config", "\n".join(config) + "\n")
        argv = ["ssh", "-F", str(tmp_path / "config"), "node", "id -un; sudo -n id -un; getent passwd debian; :"]

        def logged_in() -> list[str]:
            done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
            return done.stdout.split()

        found = wait_for("a login succeeds", logged_in, interval=0.5, ignore=subprocess.CalledProcessError)
        assert found == ["opc", "root"]
