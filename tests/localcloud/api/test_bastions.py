"""The Bastion service: its resources with the real SDK, and connections with the real ssh.

Only the last test starts a container. The VCN of the others has loopback addresses, where a listener of the test is the
target.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from oci.bastion import models

from tests.listener import answering
from tests.localcloud.api_harness import Api, refused, running
from tests.waiting import PATIENCE_S

TARGET = "127.92.0.10"
HERE = ["127.0.0.0/8"]


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


def new_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def create(api: Api, subnet: Any, **changes: Any) -> Any:
    details = {
        "bastion_type": "STANDARD",
        "compartment_id": api.tenancy,
        "target_subnet_id": subnet.id,
        "name": "way-in",
        "client_cidr_block_allow_list": HERE,
        **changes,
    }
    made = api.bastions.create_bastion(models.CreateBastionDetails(**details)).data
    return api.wait(api.bastions.get_bastion, made.id, "ACTIVE")


def delete(api: Api, bastion: Any) -> None:
    api.bastions.delete_bastion(bastion.id)
    api.wait(api.bastions.get_bastion, bastion.id, "DELETED")


def session_details(bastion: Any, key: Path, **changes: Any) -> Any:
    target = models.CreatePortForwardingSessionTargetResourceDetails(
        target_resource_private_ip_address=changes.pop("address", TARGET), target_resource_port=changes.pop("port", 22)
    )
    details = {
        "bastion_id": bastion.id,
        "key_details": models.PublicKeyDetails(public_key_content=Path(f"{key}.pub").read_text()),
        "session_ttl_in_seconds": 1800,
        "target_resource_details": target,
        **changes,
    }
    return models.CreateSessionDetails(**details)


def session(api: Api, bastion: Any, key: Path, **changes: Any) -> Any:
    made = api.bastions.create_session(session_details(bastion, key, **changes)).data
    return api.wait(api.bastions.get_session, made.id, "ACTIVE")


@contextmanager
def listener() -> Iterator[int]:
    """A server at the target's address that answers every connection with a greeting. Returns its port."""
    with (
        socket.create_server((TARGET, 0)) as server,
        answering(server, lambda each, _: each.sendall(b"hello from the target\n")),
    ):
        yield int(server.getsockname()[1])


def forward(shown: Any, key: Path, address: str = TARGET, port: int | None = None) -> subprocess.CompletedProcess[str]:
    """The output of `ssh -W`, with the host, port and user of the session's command."""
    at = re.search(r"-p (\d+) (\S+)@(\S+)$", shown.ssh_metadata["command"])
    assert at is not None, shown.ssh_metadata
    wanted = port or shown.target_resource_details.target_resource_port
    argv = ["ssh", *options(key), "-p", at[1], "-W", f"{address}:{wanted}", f"{at[2]}@{at[3]}"]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )


def options(key: Path) -> list[str]:
    values = ("BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null",
              "LogLevel=INFO", f"ConnectTimeout={PATIENCE_S:.0f}")  # fmt: skip
    return ["-F", "none", "-i", str(key), *(word for value in values for word in ("-o", value))]


def test_a_bastion_comes_and_goes_with_work_requests(api: Api, subnet: Any) -> None:
    details = models.CreateBastionDetails(
        bastion_type="STANDARD", compartment_id=api.tenancy, target_subnet_id=subnet.id, name="way-in",
        client_cidr_block_allow_list=HERE, max_session_ttl_in_seconds=3600,
    )  # fmt: skip
    answer = api.bastions.create_bastion(details)
    assert answer.status == 201
    made = api.wait(api.bastions.get_bastion, answer.data.id, "ACTIVE")
    request = api.bastions.get_work_request(answer.headers["opc-work-request-id"]).data
    assert (request.operation_type, request.status, request.percent_complete) == ("CREATE_BASTION", "SUCCEEDED", 100)
    assert [(entry.entity_type, entry.action_type, entry.identifier) for entry in request.resources] == [
        ("bastion", "CREATED", made.id)
    ]
    assert (made.name, made.max_session_ttl_in_seconds, made.max_sessions_allowed) == ("way-in", 3600, 20)
    assert (made.target_vcn_id, made.private_endpoint_ip_address) == (subnet.vcn_id, "127.92.0.2")
    assert [one.id for one in api.bastions.list_bastions(api.tenancy, name="way-in").data] == [made.id]
    with refused(409, "Conflict"):
        api.network.delete_subnet(subnet.id)
    with refused(409, "Conflict"):
        create(api, subnet)
    update = models.UpdateBastionDetails(client_cidr_block_allow_list=["203.0.113.0/24"])
    answer = api.bastions.update_bastion(made.id, update)
    assert api.bastions.get_work_request(answer.headers["opc-work-request-id"]).data.status == "SUCCEEDED"
    assert api.bastions.get_bastion(made.id).data.client_cidr_block_allow_list == ["203.0.113.0/24"]
    answer = api.bastions.delete_bastion(made.id)
    api.wait(api.bastions.get_bastion, made.id, "DELETED")
    request = api.bastions.get_work_request(answer.headers["opc-work-request-id"]).data
    assert [entry.action_type for entry in request.resources] == ["DELETED"]
    assert api.bastions.list_work_request_errors(request.id).data == []
    assert api.bastions.list_bastions(api.tenancy).data == []
    assert api.network.list_private_ips(subnet_id=subnet.id).data == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bastion_type": "SMALL"}, "STANDARD"),
        ({"name": "a way in"}, "letters"),
        ({"client_cidr_block_allow_list": []}, "CIDR block allowlist"),
        ({"client_cidr_block_allow_list": ["anywhere"]}, "CIDR block allowlist"),
        ({"client_cidr_block_allow_list": ["10.0.0.0/8", "10.0.0.0/8"]}, "CIDR block allowlist"),
        ({"max_session_ttl_in_seconds": 1799}, "between 1800 and 10800"),
        ({"max_session_ttl_in_seconds": 10801}, "between 1800 and 10800"),
    ],
)
def test_a_bastion_that_is_not_made(api: Api, subnet: Any, changes: dict[str, Any], says: str) -> None:
    with refused(400, "InvalidParameter") as said:
        create(api, subnet, **changes)
    assert says in said[0]


def test_a_session_lasts_as_long_as_it_was_made_for(api: Api, bastion: Any, key: Path) -> None:
    import sqlite3

    with listener() as port:
        shown = session(api, bastion, key, port=port)
        # The shortest duration is 30 minutes, so the test changes the expiry of this row.
        with sqlite3.connect(api.home / "cloud.db") as db:
            db.execute(
                "UPDATE resource SET hidden = json_set(hidden, '$.expires_at', ?) WHERE id = ?",
                (time.time() - 1, shown.id),
            )
        assert "Permission denied" in forward(shown, key).stderr
        assert api.bastions.get_session(shown.id).data.lifecycle_state == "DELETED"


def test_a_session_outlives_a_restart_of_the_server(api: Api, bastion: Any, key: Path) -> None:
    with listener() as port:
        shown = session(api, bastion, key, port=port)
        api.kill()
        api.start()
        assert forward(shown, key).stdout == "hello from the target\n"
        again = session(api, bastion, key, port=port)
        assert again.bastion_public_host_key_info == shown.bastion_public_host_key_info


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"session_ttl_in_seconds": 60}, "between 1800 and 10800"),
        ({"address": "192.0.2.1"}, "bastion's VCN"),
        ({"port": 70000}, "not a port"),
        ({"key_details": models.PublicKeyDetails(public_key_content="ssh-ed25519 AAAA")}, "not a public key"),
        (
            {
                "target_resource_details": models.CreateManagedSshSessionTargetResourceDetails(
                    target_resource_operating_system_user_name="opc", target_resource_id="ocid1.instance.local..x"
                )
            },
            "PORT_FORWARDING only",
        ),
    ],
)
def test_a_session_that_is_not_made(api: Api, bastion: Any, key: Path, changes: dict[str, Any], says: str) -> None:
    with refused(400, "InvalidParameter") as said:
        api.bastions.create_session(session_details(bastion, key, **changes))
    assert says in said[0]


def test_a_bastion_has_twenty_sessions_and_takes_them_along(api: Api, bastion: Any, key: Path) -> None:
    made = [api.bastions.create_session(session_details(bastion, key)).data.id for _ in range(20)]
    with refused(400, "LimitExceeded"):
        api.bastions.create_session(session_details(bastion, key))
    api.bastions.delete_session(made[0])
    made.append(api.bastions.create_session(session_details(bastion, key)).data.id)
    delete(api, bastion)
    assert api.bastions.get_session(made[-1]).data.lifecycle_state == "DELETED"
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.bastions.create_session(session_details(bastion, key))
