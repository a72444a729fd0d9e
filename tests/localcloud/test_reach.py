"""Who reaches an instance of the local cloud: this machine does, its neighbours do not."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from gpucluster.localcloud.engine.link_local import METADATA_ADDRESS, rules, table_name
from gpucluster.localcloud.engine.protocol import NetworkListeners
from tests.addresses import free_range
from tests.containers import need_containers
from tests.localcloud.api_harness import Api, running
from tests.waiting import wait_for


def test_the_networks_of_one_vcn_reach_each_other_and_those_of_two_do_not() -> None:
    paths = {
        name: NetworkListeners(f"10.{number}.0.1", 1, 2, 3, 4, vcn)
        for number, (name, vcn) in enumerate({"podman1": "a", "podman2": "a", "podman3": "b", "podman4": ""}.items())
    }
    text = rules("t", paths)
    end = "ct state != { established, related } drop"
    assert f'oifname "podman1" iifname != {{ "podman1", "podman2" }} {end}' in text
    assert f'oifname "podman2" iifname != {{ "podman1", "podman2" }} {end}' in text
    assert f'oifname "podman3" iifname != {{ "podman3" }} {end}' in text
    assert f'oifname "podman4" iifname != {{ "podman4" }} {end}' in text
    assert f'ip daddr 10.2.0.1 iifname != {{ "lo", "podman3" }} {end}' in text


class Neighbour:
    """A network namespace with a route over this machine: a machine of the same network, or any other container."""

    def __init__(self, name: str, address: str) -> None:
        self.address = address
        self._enter = ["ip", "netns", "exec", name]

    def connects(self, address: str, port: int, kind: str = "STREAM") -> bool:
        """Whether something answers at a port."""
        return connects(address, port, *self._enter, kind=kind)

    @contextmanager
    def listens(self, port: int) -> Iterator[None]:
        """Something in it that accepts connections, to the end of the block."""
        program = f"import signal, socket; s = socket.create_server(('{self.address}', {port})); signal.pause()"
        argv = [*self._enter, sys.executable, "-c", program]
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for("the neighbour listens", lambda: connects(self.address, port))
            yield
        finally:
            server.kill()
            server.wait()


def connects(address: str, port: int, *enter: str, kind: str = "STREAM") -> bool:
    """Whether something answers at a port, seen from where `enter` leads; with DGRAM, a name server."""
    question = b"\0\1\1\0\0\1\0\0\0\0\0\0\3one\0\0\1\0\1"
    program = (
        f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_{kind}); s.settimeout(3)\n"
        f"s.connect(('{address}', {port}))\n"
        f"if '{kind}' == 'DGRAM': s.send({question!r}); s.recv(512)\n"
    )
    return subprocess.run([*enter, "python3", "-c", program], capture_output=True, check=False).returncode == 0


def reaches(address: str, port: int, *enter: str, kind: str = "STREAM") -> None:
    """Require that something answers there. A busy server may need longer than one attempt waits."""
    where = f"{address}:{port} answers{' in ' if enter else ''}{' '.join(enter)}"
    wait_for(where, lambda: connects(address, port, *enter, kind=kind))


@contextmanager
def a_neighbour(net: str) -> Iterator[Neighbour]:
    here, there = f"{net}.255.1", f"{net}.255.2"
    name = f"gcn{secrets.token_hex(3)}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("address", "add", f"{here}/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "address", "add", f"{there}/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", here)
        yield Neighbour(name, there)
    finally:
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
        ip("netns", "delete", name)


@pytest.fixture(scope="module")
def net() -> Iterator[str]:
    with free_range() as found:
        yield found


@pytest.fixture(scope="module")
def api(net: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    # Asked for `net`, so that its networks are gone before the range is free again.
    need_containers()
    with running(tmp_path_factory.mktemp("reach") / "cloud", "podman") as api:
        yield api


def address_of(api: Api, ocid: str) -> str:
    attachment = api.compute.list_vnic_attachments(api.tenancy, instance_id=ocid).data[0]
    return str(api.network.get_vnic(attachment.vnic_id).data.private_ip)


def listening(kind: str, address: str) -> set[int]:
    """The ports at an address of this machine where something listens: to connections (t) or datagrams (u)."""
    ports = subprocess.run(["ss", f"-Hl{kind}n", "src", address], capture_output=True, text=True, check=True).stdout
    return {int(line.split()[3].rpartition(":")[2]) for line in ports.splitlines()}


def tables() -> str:
    return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout


@pytest.mark.containers
def test_a_neighbour_with_a_route_reaches_neither_instance_nor_gateway(api: Api, net: str) -> None:
    subnet = api.subnet(api.vcn(f"{net}.10.0/24"), f"{net}.10.0/26")
    instance, gateway = address_of(api, api.launch(subnet, "one").id), f"{net}.10.1"
    port = urlsplit(api.endpoint).port
    assert port is not None
    listed = ["podman", "ps", "--filter", f"label=gpucluster.home={api.home}", "--format", "{{.Names}}"]
    container = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.strip()
    inside = ["podman", "exec", container]
    # The ways are made while the instance is launched: API, API with TLS, metadata service and name server, then rules.
    wait_for("all listen", lambda: len(listening("t", gateway)) >= 4, state=lambda: listening("t", gateway))
    wait_for("the rules are there", lambda: table_name(api.home) in tables())
    served, asked = listening("t", gateway), listening("u", gateway)
    assert port in served
    assert len(asked) == 1, "the name server"
    reaches(instance, 22)
    with a_neighbour(net) as neighbour:
        # The way is there: it ends at the machine itself.
        with neighbour.listens(8080):
            reaches(neighbour.address, 8080, *inside)  # as this machine does
        assert not neighbour.connects(instance, 22)
        assert [found for found in (*served, 443, 53) if neighbour.connects(gateway, found)] == []
        assert [found for found in (*asked, 53) if neighbour.connects(gateway, found, "DGRAM")] == []
    # What must work, works.
    reaches(instance, 22)
    reaches(METADATA_ADDRESS, 53, *inside, kind="DGRAM")
    for found in (port, 443):
        reaches(gateway, found, *inside)
