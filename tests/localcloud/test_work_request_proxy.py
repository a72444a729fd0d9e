"""The proxy through which the real provider reads work requests, used by Oracle's Python SDK as Go's client uses it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import oci
import pytest

from gpucluster.localcloud.server.work_requests import FILE
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

HOST = "iaas.local-1.invalid"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("proxy") / "cloud") as api:
        yield api


def _where(api: Api) -> dict[str, str]:
    found: dict[str, str] = json.loads((api.home / FILE).read_text())
    return found


def test_a_client_whose_endpoint_cannot_be_set_reads_why_a_launch_failed(api: Api) -> None:
    where = _where(api)
    client = oci.work_requests.WorkRequestClient(api.config, service_endpoint=f"https://{HOST}")
    client.base_client.session.trust_env = False  # REQUESTS_CA_BUNDLE goes before `verify`
    client.base_client.session.proxies = {"https": where["proxy"]}
    client.base_client.session.verify = where["certificate"]
    subnet = api.subnet(api.vcn())
    api.faults({"operation": "BootInstance", "message": "Out of host capacity.", "delay": 0.05})
    launched = api.compute.launch_instance(api.launch_details(subnet, "failing"))
    work = launched.headers["opc-work-request-id"]
    found = oci.wait_until(client, client.get_work_request(work), "status", "FAILED", max_wait_seconds=PATIENCE_S).data
    assert found.resources[0].identifier == launched.data.id
    assert [each.message for each in client.list_work_request_errors(work).data] == ["Out of host capacity."]


def test_without_its_certificate_no_client_takes_it_for_the_host(api: Api) -> None:
    proxy = urlsplit(_where(api)["proxy"])
    connection = http.client.HTTPSConnection(proxy.hostname or "", proxy.port, timeout=PATIENCE_S)
    connection.set_tunnel(HOST, 443)
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        connection.request("GET", "/")


def test_any_other_host_is_reached_as_it_is(api: Api) -> None:
    """Terraform's backend may be one."""
    proxy = urlsplit(_where(api)["proxy"])
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(5)[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        with socket.create_connection((proxy.hostname or "", proxy.port or 0), timeout=PATIENCE_S) as client:
            client.sendall(f"CONNECT 127.0.0.1:{server.getsockname()[1]} HTTP/1.1\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            client.sendall(b"hello")
            assert client.recv(100) == b"olleh"
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    with socket.create_connection((proxy.hostname or "", proxy.port or 0), timeout=PATIENCE_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 405")


def test_the_file_goes_with_the_server(tmp_path: Path) -> None:
    with running(tmp_path / "cloud") as other:
        assert (other.home / FILE).exists()
    assert not (tmp_path / "cloud" / FILE).exists()
