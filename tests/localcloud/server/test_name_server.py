"""The resolver of a VCN: its answers, over real sockets, and the way to them from an instance: test_metadata_path.py.

The name server of the internet is a double: what other servers send may differ from what dnspython makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.connections import Bounds, Connections
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.server.name_server import NameListener, NameServer, of_this_machine
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow

LOOPBACK = "127.0.0.1"
OUTSIDE = "packages.example.org"
LARGE = "large.example.org"


class Internet:
    """The name server of the internet: it knows two names, one of them with an answer that no datagram holds."""

    def __init__(self) -> None:
        self._sockets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.create_server((LOOPBACK, 0))
        self._sockets[0].bind(self._sockets[1].getsockname())
        self.port = int(self._sockets[0].getsockname()[1])
        self.asked: list[str] = []
        for serve in (self._datagrams, self._streams):
            threading.Thread(target=serve, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _reply(self, wire: bytes) -> dns.message.Message:
        query = dns.message.from_wire(wire)
        name = query.question[0].name.to_text(omit_final_dot=True)
        self.asked.append(name)
        made = dns.message.make_response(query)
        if name == OUTSIDE:
            made.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", "192.0.2.7"))
        elif name == LARGE:
            texts = [f'"{number:03} {"x" * 200}"' for number in range(50)]
            made.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "TXT", *texts))
        else:
            made.set_rcode(dns.rcode.NXDOMAIN)
        return made

    def _datagrams(self) -> None:
        while True:
            try:
                wire, client = self._sockets[0].recvfrom(65535)
            except OSError:
                return
            with contextlib.suppress(dns.exception.DNSException):  # of another program, which had this port before
                self._sockets[0].sendto(self._reply(wire).to_wire(max_size=512, prefer_truncation=True), client)

    def _streams(self) -> None:
        while True:
            try:
                connection, _ = self._sockets[1].accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as sent:
                size = int.from_bytes(sent.read(2), "big")
                if wire := sent.read(size):  # nothing is sent by a client that has given up
                    connection.sendall(self._reply(wire).to_wire(prepend_length=True))


class Site:
    """Two VCNs with instances, and the resolver of each, served by a thread."""

    def __init__(self, home: Path, api: Api) -> None:
        self.api = api
        self.internet = Internet()
        first, second = api.vcn(name="one"), api.vcn("10.78.0.0/16", "two")
        self.public = api.subnet(first, "10.77.0.0/24", dns_label="pub")
        self.private = api.subnet(first, "10.77.1.0/24", dns_label="prv")
        self.node = api.launch(self.private, "Node-1")
        self.controller = api.launch(self.public, "controller")
        api.launch(api.subnet(second, "10.78.0.0/24", dns_label="prv"), "other")
        self.cloud = open_cloud(home, NullEngine(home / "null"), open_authority(home))
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.upstream = [(LOOPBACK, self.internet.port)]
        server = NameServer(self.cloud, Connections(Bounds()), lambda: self.upstream)
        self.first, self.second = (
            asyncio.run_coroutine_threadsafe(server.listen(LOOPBACK, vcn.id), self.loop).result(PATIENCE_S)
            for vcn in (first, second)
        )

    def close(self) -> None:
        for listener in (self.first, self.second):
            self.loop.call_soon_threadsafe(listener.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.internet.close()
        self.cloud.close()

    def address(self, instance: Any) -> str:
        attachment = self.api.compute.list_vnic_attachments(self.api.tenancy, instance_id=instance.id).data[0]
        return str(self.api.network.get_vnic(attachment.vnic_id).data.private_ip)

    def ask(self, name: str, kind: str = "A", at: NameListener | None = None) -> tuple[str, list[str]]:
        """The status and the records of an answer, by datagram."""
        query = dns.message.make_query(name, kind)
        reply = dns.query.udp(query, LOOPBACK, PATIENCE_S, (at or self.first).udp_port)
        return dns.rcode.to_text(reply.rcode()), [str(item) for records in reply.answer for item in records]

    def ask_patiently(self, name: str, kind: str = "A", at: NameListener | None = None) -> tuple[str, list[str]]:
        """The same, again if the name server of the internet has not answered within the seconds that it has."""
        seen: list[tuple[str, list[str]]] = []

        def answered() -> bool:
            seen[:] = [self.ask(name, kind, at)]
            return seen[0][0] != "SERVFAIL"

        wait_for(f"there is an answer to {name}", answered, state=lambda: seen)
        return seen[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("cloud")
    with running(home) as api:
        made = Site(home, api)
        yield made
        made.close()


def test_names_of_the_internet_come_from_its_name_servers(site: Site) -> None:
    assert site.ask_patiently(OUTSIDE) == ("NOERROR", ["192.0.2.7"])
    assert site.ask_patiently("none.example.org") == ("NXDOMAIN", [])


def test_an_answer_that_no_datagram_holds_comes_over_a_connection(site: Site) -> None:
    query = dns.message.make_query(LARGE, "TXT", use_edns=False)
    with pytest.raises(dns.message.Truncated):
        dns.query.udp(query, LOOPBACK, PATIENCE_S, site.first.udp_port, raise_on_truncation=True)
    reply = dns.query.tcp(query, LOOPBACK, PATIENCE_S, site.first.tcp_port)
    assert len(reply.answer[0]) == 50


def test_without_a_name_server_that_answers_the_client_hears_it(site: Site) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((LOOPBACK, 0))
        refused = silent.getsockname()[1]
    kept = site.upstream
    try:
        site.upstream = []
        assert site.ask(OUTSIDE) == ("SERVFAIL", [])
        site.upstream = [(LOOPBACK, refused), *kept]
        assert site.ask_patiently(OUTSIDE) == ("NOERROR", ["192.0.2.7"]), "the next one is asked"
    finally:
        site.upstream = kept


@pytest.mark.parametrize(
    "wire", [b"", b"\0", b"x" * 600, bytes(12), bytes.fromhex("00018180000100000000000000000100 01")]
)
def test_bytes_that_are_no_query_get_no_answer_and_end_nothing(site: Site, wire: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((LOOPBACK, site.first.udp_port))
        client.send(wire)
        # What is sent after it is answered, and nothing before that.
        query = dns.message.make_query("node-1.prv.one.oraclevcn.com", "A")
        client.send(query.to_wire())
        client.settimeout(PATIENCE_S)
        reply = dns.message.from_wire(client.recv(512))
        assert reply.rcode() == dns.rcode.FORMERR or reply.id == query.id
    with socket.create_connection((LOOPBACK, site.first.tcp_port), PATIENCE_S) as client:
        client.sendall(len(wire).to_bytes(2, "big") + wire)
        client.shutdown(socket.SHUT_WR)
        client.recv(512)
    assert site.ask("node-1.prv.one.oraclevcn.com")[0] == "NOERROR"


def test_the_name_servers_of_this_machine_are_those_that_it_uses() -> None:
    assert of_this_machine() == [(str(each), 53) for each in dns.resolver.Resolver().nameservers]
