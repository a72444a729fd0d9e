"""Names that are asked for, at a DNS server that answers as one does."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from gpucluster.controller.kubernetes import dns
from gpucluster.controller.kubernetes.verify_facts import NAME
from gpucluster.node_agent.errors import Failed
from tests.waiting import PATIENCE_S

#: As a server sends them: the name of the answer is a pointer to the question's.
_RECORD = struct.pack("!HHHIH", 0xC00C, 1, 1, 30, 4) + bytes([10, 96, 0, 1])


def reply(asked: bytes, record: bytes) -> bytes:
    """The answer to a question: with one record, or that the name is not known."""
    flags, count = (0x8180, 1) if record else (0x8183, 0)
    return asked[:2] + struct.pack("!HHHHH", flags, 1, count, 0, 0) + asked[12:] + record


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int, list[bytes]]]:
    """A DNS server on the loopback interface; the list is what it puts behind the question, once each."""
    # Who asks again takes the answer to another question.
    monkeypatch.setattr(dns, "_ASK_S", PATIENCE_S)
    answers: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                asked, sender = listening.recvfrom(512)
                if asked == b"end":
                    return
                said = answers.pop(0)
                listening.sendto(reply(asked, said), sender)

        serving = threading.Thread(target=serve)
        serving.start()
        host, port = listening.getsockname()
        yield host, port, answers
        listening.sendto(b"end", (host, port))
        serving.join()


def test_the_address_of_a_name(server: tuple[str, int, list[bytes]]) -> None:
    host, port, answers = server
    answers.append(_RECORD)
    assert dns.ask(host, NAME, port) == "10.96.0.1"
    # Another name first, as for an alias.
    alias = struct.pack("!HHHIH", 0xC00C, 5, 1, 30, 2) + b"\xc0\x0c"
    answers.append(alias + _RECORD)
    with pytest.raises(Failed, match="knows no address"):
        # The header counts one answer, and that is the alias.
        dns.ask(host, NAME, port)


def test_a_name_that_is_not_known_and_an_answer_that_is_cut_off(server: tuple[str, int, list[bytes]]) -> None:
    host, port, answers = server
    answers.append(b"")
    with pytest.raises(Failed, match="error 3"):
        dns.ask(host, NAME, port)
    answers.append(_RECORD[:7])
    with pytest.raises(Failed, match="can't be read"):
        dns.ask(host, NAME, port)


def test_a_server_that_is_not_there() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(OSError, match=r"refused"):
        dns.ask("127.0.0.1", NAME, port)


@pytest.mark.parametrize(("record", "ends"), [(_RECORD, False), (b"", False), (b"", True)])
def test_a_name_is_asked_for_by_tcp(record: bytes, ends: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            talk, _sender = listening.accept()
            with talk, talk.makefile("rb") as stream:
                asked = stream.read(*struct.unpack("!H", stream.read(2)))
                said = reply(asked, record)
                # In two parts, as a network may deliver it.
                for part in () if ends else (struct.pack("!H", len(said)) + said[:5], said[5:]):
                    talk.sendall(part)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            if record:
                assert dns.ask_stream("127.0.0.1", NAME, listening.getsockname()[1]) == "10.96.0.1"
            else:
                with pytest.raises(Failed, match="ends the connection" if ends else "error 3"):
                    dns.ask_stream("127.0.0.1", NAME, listening.getsockname()[1])
        finally:
            serving.join()
