"""The server itself: signatures, retry tokens, start and stop, crashes, identity, access from a VCN."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from email.utils import formatdate
from pathlib import Path
from typing import Any

import oci
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from oci.core import models

from gpucluster import process
from gpucluster.errors import DataGuardError, EnvironmentFault
from gpucluster.localcloud import control
from gpucluster.localcloud.auth.signing import SignatureRefused, verify
from gpucluster.localcloud.state import source
from gpucluster.localcloud.state.tenancy import fingerprint
from tests.localcloud.api_harness import Api, refused, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cloud"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running(home) as api:
        yield api


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("server") / "cloud") as api:
        yield api


# who may call


def test_another_key_is_refused(shared: Api, tmp_path: Path) -> None:
    key = tmp_path / "other.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    stranger = shared.client("identity.IdentityClient", key_file=str(key))
    with refused(401, "NotAuthenticated"):
        stranger.list_availability_domains(shared.tenancy)
    unknown = fingerprint(generate_private_key(public_exponent=65537, key_size=2048).public_key())
    with refused(401, "NotAuthenticated"):
        shared.client("identity.IdentityClient", fingerprint=unknown).list_availability_domains(shared.tenancy)


def raw(api: Api, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(api.endpoint.removeprefix("http://"), timeout=60)
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, json.loads(text) if text else None


def signed(api: Api, method: str, path: str, body: bytes = b"", date: str | None = None) -> dict[str, str]:
    signer = oci.signer.Signer(
        api.tenancy, api.config["user"], api.config["fingerprint"], private_key_file_location=api.config["key_file"]
    )
    requests = oci._vendor.requests
    headers = {"content-type": "application/json"}
    if date:
        headers["date"] = date
    request = requests.Request(method, api.endpoint + path, headers=headers, data=body, auth=signer).prepare()
    return {str(name): str(value) for name, value in request.headers.items()}


def test_what_is_not_signed_or_was_changed_is_refused(shared: Api) -> None:
    path = f"/20160918/vcns?compartmentId={shared.tenancy}"
    assert raw(shared, "GET", path, {})[0] == 401
    good = signed(shared, "GET", path)
    assert raw(shared, "GET", path, good)[0] == 200
    assert raw(shared, "GET", path + "&limit=1", good)[0] == 401
    assert raw(shared, "GET", path, {**good, "authorization": good["authorization"].replace("date ", "")})[0] == 401
    broken = {**good, "authorization": 'Signature version="1",keyId="x"'}
    status, answer = raw(shared, "GET", path, broken)
    assert (status, answer["code"]) == (401, "NotAuthenticated")
    assert "keyId" not in answer["message"]


def test_a_changed_body_is_refused(shared: Api) -> None:
    body = json.dumps({"compartmentId": shared.tenancy, "cidrBlock": "10.50.0.0/16"}).encode()
    headers = signed(shared, "POST", "/20160918/vcns", body)
    changed = body.replace(b"10.50", b"10.51")
    assert raw(shared, "POST", "/20160918/vcns", headers, changed)[0] == 401
    assert raw(shared, "POST", "/20160918/vcns", headers, body)[0] == 200


@pytest.mark.parametrize(("skew", "accepted"), [(-301, False), (-300, True), (300, True), (301, False)])
def test_the_clock_may_differ_by_five_minutes(shared: Api, skew: int, accepted: bool) -> None:
    then, path = 1_800_000_000, f"/20160918/vcns?compartmentId={shared.tenancy}"
    headers = {
        name.lower(): text for name, text in signed(shared, "GET", path, date=formatdate(then, usegmt=True)).items()
    }
    headers["host"] = shared.endpoint.removeprefix("http://")
    key = load_pem_private_key(Path(shared.config["key_file"]).read_bytes(), None).public_key()
    with nullcontext() if accepted else pytest.raises(SignatureRefused, match="301 s off"):
        verify(method="GET", target=path, headers=headers, body=b"", key_of=lambda _: key, now=then + skew)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(("skew", "status"), [(-3600, 401), (-100, 200), (100, 200), (3600, 401)])
def test_the_server_compares_the_date_with_its_clock(shared: Api, skew: int, status: int) -> None:
    path = f"/20160918/vcns?compartmentId={shared.tenancy}"
    headers = signed(shared, "GET", path, date=formatdate(time.time() + skew, usegmt=True))
    assert raw(shared, "GET", path, headers)[0] == status


def test_requests_that_are_no_json_or_too_large(shared: Api) -> None:
    for body, expected in ((b"{no", (400, "CannotParseRequest")), (b"[]", (400, "CannotParseRequest"))):
        status, answer = raw(shared, "POST", "/20160918/vcns", signed(shared, "POST", "/20160918/vcns", body), body)
        assert (status, answer["code"]) == expected
    large = b" " * (3 * 1024 * 1024)
    assert raw(shared, "POST", "/20160918/vcns", signed(shared, "POST", "/20160918/vcns", large), large)[0] == 413
    put = signed(shared, "PUT", "/20160918/vcns", b"{}")
    assert raw(shared, "PUT", "/20160918/vcns", put, b"{}")[0] == 405


@pytest.mark.parametrize("deep", [33, 5_000, 900_000])
def test_deep_nesting_is_a_bad_request(shared: Api, deep: int) -> None:
    body = b'{"a":' + b"[" * deep + b"]" * deep + b"}"
    status, answer = raw(shared, "POST", "/20160918/vcns", signed(shared, "POST", "/20160918/vcns", body), body)
    assert (status, answer["code"]) == (400, "CannotParseRequest")
    # Before a signature is checked, too.
    assert raw(shared, "POST", "/v1/x509", {}, body)[0] == 401
    page = base64.urlsafe_b64encode(b"[" * min(deep, 20_000)).decode()
    path = f"/20160918/vcns?compartmentId={shared.tenancy}&page={page}"
    assert raw(shared, "GET", path, signed(shared, "GET", path))[0] == 400


def test_a_client_that_goes_before_the_end_of_its_body_is_not_a_fault_of_the_server(shared: Api) -> None:
    host, _, port = shared.endpoint.removeprefix("http://").partition(":")
    marker = f"/20160918/vcns/{secrets.token_hex(8)}"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST {marker} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nno".encode())
    file = shared.home / "log" / "server.log"
    lines = wait_for(
        "the log has the request", lambda: [line for line in file.read_text().splitlines() if marker in line]
    )
    assert " 400 " in lines[0]
    assert "Traceback" not in file.read_text()


def test_the_request_id_of_the_caller_comes_back(shared: Api) -> None:
    reply = shared.identity.get_tenancy(shared.tenancy)
    assert "/" in reply.headers["opc-request-id"]


# identity


def test_identity(shared: Api) -> None:
    domain = shared.domain
    assert domain == "local:LOCAL-1-AD-1"
    faults = shared.identity.list_fault_domains(shared.tenancy, domain).data
    assert [one.name for one in faults] == ["FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3"]
    assert shared.identity.list_region_subscriptions(shared.tenancy).data[0].region_name == "local-1"
    assert shared.identity.list_regions().data[0].name == "local-1"
    assert shared.identity.get_compartment(shared.tenancy).data.lifecycle_state == "ACTIVE"
    assert shared.identity.get_user(shared.config["user"]).data.lifecycle_state == "ACTIVE"
    details = oci.identity.models.CreateCompartmentDetails(
        compartment_id=shared.tenancy, name="gpu", description="for the cluster"
    )
    compartment = shared.identity.create_compartment(details).data
    with refused(409, "Conflict"):
        shared.identity.create_compartment(details)
    assert shared.network.list_vcns(compartment.id).data == []
    group = shared.identity.create_dynamic_group(
        oci.identity.models.CreateDynamicGroupDetails(
            compartment_id=shared.tenancy, name="nodes", description="d", matching_rule="any {instance.id = 'x'}"
        )
    ).data
    assert group.matching_rule == "any {instance.id = 'x'}"
    shared.identity.delete_dynamic_group(group.id)
    shared.identity.delete_compartment(compartment.id)
    assert shared.identity.get_compartment(compartment.id).data.lifecycle_state == "DELETED"


def test_the_private_key_belongs_to_one_user_and_is_in_no_log(shared: Api) -> None:
    folder = shared.home / "credentials"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("config", "api_key.pem"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    log = (shared.home / "log" / "server.log").read_text()
    assert "BEGIN" not in log
    assert 'signature="' not in log


# retry tokens


def test_a_retry_token_makes_one_thing(shared: Api) -> None:
    details = models.CreateVcnDetails(compartment_id=shared.tenancy, cidr_blocks=["10.60.0.0/16"])
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: shared.client("core.VirtualNetworkClient").create_vcn(
            details, opc_retry_token="one").data.id, range(4)))  # fmt: skip
    assert len(set(made)) == 1
    other = models.CreateVcnDetails(compartment_id=shared.tenancy, cidr_blocks=["10.61.0.0/16"])
    with refused(409, "InvalidatedRetryToken"):
        shared.network.create_vcn(other, opc_retry_token="one")
    shared.network.delete_vcn(made[0])
    with refused(409, "InvalidatedRetryToken"):
        shared.network.create_vcn(details, opc_retry_token="one")


def test_a_retried_launch_has_the_same_work_request(shared: Api) -> None:
    details = shared.launch_details(shared.subnet(shared.vcn("10.62.0.0/16"), "10.62.0.0/24"), "once")
    first = shared.compute.launch_instance(details, opc_retry_token="launch")
    second = shared.compute.launch_instance(details, opc_retry_token="launch")
    assert first.data.id == second.data.id
    assert first.headers["opc-work-request-id"] == second.headers["opc-work-request-id"]
    assert len(shared.compute.list_instances(shared.tenancy, display_name="once").data) == 1


# starting, stopping, crashing


def test_start_and_stop_may_be_repeated(api: Api) -> None:
    again = control.start(api.home, engine="null")
    assert (again.pid, again.endpoint) == (api.status.pid, api.endpoint)
    control.stop(api.home)
    control.stop(api.home)
    now = control.status(api.home)
    assert (now.running, now.pid, now.endpoint) == (False, None, "")
    assert now.to_dict()["running"] is False
    assert not (api.home / "endpoint.json").exists()
    api.start()
    assert api.endpoint == again.endpoint, "the port is remembered"
    assert control.stop_if_empty(api.home)


def test_many_starts_at_once_make_one_server(home: Path) -> None:
    found: list[control.LocalCloudStatus] = []
    threads = [threading.Thread(target=lambda: found.append(control.start(home, engine="null"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({status.pid for status in found}) == 1
        assert len(found) == 4
    finally:
        control.stop(home)


@pytest.mark.parametrize("content", [None, "rubbish", '{"endpoint": "http://127.0.0.1:1", "pid": 1, "identity": "x"}'])
def test_a_lost_or_stale_endpoint_file_is_healed(api: Api, content: str | None) -> None:
    before = (api.home / "endpoint.json").read_text()
    if content is None:
        (api.home / "endpoint.json").unlink()
    else:
        (api.home / "endpoint.json").write_text(content)
    assert control.start(api.home, engine="null").pid == api.status.pid
    assert json.loads((api.home / "endpoint.json").read_text()) == json.loads(before)


def test_a_server_of_another_version_is_replaced(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "digest", lambda: "of other files")
    again = control.start(api.home, engine="null")
    assert again.running
    assert again.pid != api.status.pid
    assert again.endpoint == api.endpoint


def test_stop_never_ends_a_stranger(api: Api) -> None:
    control.stop(api.home)
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        record = {"endpoint": api.endpoint, "pid": stranger.pid, "identity": "some boot:1"}
        (api.home / "endpoint.json").write_text(json.dumps(record))
        control.stop(api.home)
        assert stranger.poll() is None
        assert not control.status(api.home).running
    finally:
        stranger.kill()
        stranger.wait()


def test_a_start_that_fails_reports_why(home: Path) -> None:
    home.mkdir()
    (home / "cloud.db").write_text("this is no database, and it is long enough to be seen as none")
    with pytest.raises(EnvironmentFault) as caught:
        control.start(home, engine="null")
    assert "not a database" in str(caught.value)


def test_a_taken_port_is_given_up(api: Api) -> None:
    control.stop(api.home)
    port = int(api.endpoint.rpartition(":")[2])
    import socket

    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        assert control.start(api.home, engine="null").endpoint != api.endpoint


def test_purge_refuses_while_something_lives_and_then_leaves_nothing(api: Api) -> None:
    vcn = api.vcn()
    with pytest.raises(DataGuardError, match="1 vcn"):
        control.purge(api.home)
    assert control.status(api.home).running
    assert not control.stop_if_empty(api.home)
    api.network.delete_vcn(vcn.id)
    control.purge(api.home)
    assert not api.home.exists()


def test_a_restart_keeps_everything(api: Api) -> None:
    subnet = api.subnet(api.vcn())
    instance = api.launch(subnet, "stays")
    network = api.cluster_network(api.configuration(), subnet, 2)
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    members = {one.id for one in api.members(network.id)}
    control.stop(api.home)
    down = control.status(api.home)
    assert (down.running, down.instances) == (False, {"RUNNING": 3})
    api.start()
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "RUNNING"
    assert {one.id for one in api.members(network.id)} == members


def test_after_a_crash_work_is_finished_and_orphans_are_removed(api: Api) -> None:
    subnet = api.subnet(api.vcn())
    steady, ending, booting, lost = (api.launch(subnet, name) for name in ("steady", "ending", "booting", "lost"))
    network = api.cluster_network(api.configuration(), subnet, 2)
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    api.kill()
    # After a crash there are rows without containers, and containers without rows.
    machines = api.home / "null" / "machines"
    with sqlite3.connect(api.home / "cloud.db") as database:
        for ocid, state in ((ending.id, "TERMINATING"), (booting.id, "PROVISIONING")):
            database.execute(
                "UPDATE resource SET body = json_set(body, '$.lifecycleState', ?) WHERE id = ?", (state, ocid)
            )
        database.execute(
            "UPDATE resource SET body = json_set(body, '$.size', 3, '$.lifecycleState', 'SCALING')"
            " WHERE kind = 'instancepool'"
        )
        database.execute(
            "UPDATE resource SET body = json_set(body, '$.lifecycleState', 'SCALING') WHERE kind = 'clusternetwork'"
        )
    database.close()
    (machines / f"gpucluster-booting-{booting.id[-12:]}").unlink()
    (machines / f"gpucluster-lost-{lost.id[-12:]}").unlink()
    (machines / "gpucluster-orphan").write_text('{"state": "running", "ocid": "ocid1.instance.local..gone"}')
    (api.home / "null" / "networks" / "gpucluster-orphan-net").write_text("{}")
    stopped = machines / f"gpucluster-steady-{steady.id[-12:]}"
    stopped.write_text(stopped.read_text().replace("running", "stopped"))

    api.start()
    assert set(api.status.orphans) == {"gpucluster-orphan", "gpucluster-orphan-net"}
    assert not (machines / "gpucluster-orphan").exists()
    api.wait(api.compute.get_instance, ending.id, "TERMINATED")
    api.wait(api.compute.get_instance, lost.id, "TERMINATED")
    api.wait(api.compute.get_instance, booting.id, "RUNNING")
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    assert len(api.members(network.id)) == 3
    wait_for("the stopped machine runs", lambda: '"running"' in stopped.read_text())
    running_now = {one.id for one in api.compute.list_instances(api.tenancy, lifecycle_state="RUNNING").data}
    assert len(running_now) == 5
    assert len(list(machines.iterdir())) == 5


def test_killed_anywhere_in_the_middle_of_launches_it_converges(api: Api) -> None:
    subnet, configuration = api.subnet(api.vcn()), api.configuration()
    network = api.cluster_network(configuration, subnet, 12)
    api.kill()
    api.start()
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    assert len(api.members(network.id)) == 12
    addresses = [one.ip_address for one in api.network.list_private_ips(subnet_id=subnet.id).data]
    assert len(set(addresses)) == 12
    api.management.terminate_cluster_network(network.id)
    api.kill()
    api.start()
    api.wait(api.management.get_cluster_network, network.id, "TERMINATED")
    assert list((api.home / "null" / "machines").iterdir()) == []
    api.network.delete_subnet(subnet.id)


def test_a_network_that_is_gone_is_made_again(api: Api) -> None:
    vcn = api.vcn()
    network = api.home / "null" / "networks" / f"gpucluster-{vcn.id[-12:]}"
    api.kill()
    network.unlink()
    api.start()
    assert network.exists()


def test_sigterm_stops_it_by_itself(api: Api) -> None:
    pid = api.status.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_for("the server ends", lambda: process.identity(pid) is None)
    assert not control.status(api.home).running
    assert "instances continue to run" in (api.home / "log" / "server.log").read_text()


# access from a VCN


def test_the_api_answers_at_the_gateway_of_each_vcn(api: Api) -> None:
    # A part of the loopback network: every machine can bind it, and no route leads there.
    vcn = api.vcn("127.90.0.0/24", "loop")
    port = int(api.endpoint.rpartition(":")[2])

    def through() -> str:
        client = oci.identity.IdentityClient(
            api.config, service_endpoint=f"http://127.90.0.1:{port}", retry_strategy=oci.retry.NoneRetryStrategy()
        )
        return str(client.list_availability_domains(api.tenancy).data[0].name)

    assert through() == api.domain
    control.stop(api.home)
    api.start()
    assert through() == api.domain
    api.network.delete_vcn(vcn.id)

    def refuses() -> bool:
        try:
            through()
        except oci.exceptions.RequestException:
            return True
        return False

    wait_for("the gateway answers no longer", refuses)
