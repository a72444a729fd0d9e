"""A bind with the standard library: its bytes, and what other servers than a directory make of it.

The server is a double that sends bytes of the test over real TLS. tests/controller/test_host_passwords.py has slapd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket

import pytest

from gpucluster.node_agent import ldap_bind
from gpucluster.node_agent.errors import Failed
from tests.controller.certificates import server_of
from tests.listener import answering

# The answers of RFC 4511, section 4.2.2, as slapd sends them, and with the long form of a length.
SUCCESS = bytes.fromhex("300c02010161070a010004000400")
WRONG = bytes.fromhex("300c02010161070a013104000400")
LONG = bytes.fromhex("308400000010020101618400000007" + "0a010004000400")
BUSY = bytes.fromhex("300c02010161070a013304000400")


@contextmanager
def server(folder: Path, answer: Callable[[bytes], list[bytes]]) -> Iterator[tuple[str, Path]]:
    """A server.

    Args:
        answer: what it sends for a request, in these pieces. It closes the connection then.
    """
    ssl = pytest.importorskip("ssl")  # the Python of test_oldest_python comes without OpenSSL
    authority, certificate, key = server_of(folder, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(plain: socket, _other_end: object) -> None:
        # A client that refuses the certificate ends the connection.
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
            for piece in answer(connection.recv(4096)):
                connection.sendall(piece)

    with socket(AF_INET, SOCK_STREAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.listen()
        with answering(ear, serve):
            yield f"ldaps://127.0.0.1:{ear.getsockname()[1]}", authority


def test_the_request_is_that_of_the_standard() -> None:
    assert ldap_bind.request("cn=a", "pw").hex() == "3012020101" + "600d020103" + "0404636e3d61" + "80027077"
    long = ldap_bind.request("cn=" + "a" * 300, "p" * 200)
    assert long[:4] == bytes((0x30, 0x82, *(len(long) - 4).to_bytes(2, "big")))


@pytest.mark.parametrize(
    ("pieces", "accepted"),
    [
        ([SUCCESS], True),
        ([SUCCESS[:1], SUCCESS[1:5], SUCCESS[5:]], True),
        ([LONG[:3], LONG[3:]], True),
        ([WRONG], False),
    ],
)
def test_the_answer_is_read_however_it_is_cut(tmp_path: Path, pieces: list[bytes], accepted: bool) -> None:
    asked: list[bytes] = []

    def answer(request: bytes) -> list[bytes]:
        asked.append(request)
        return pieces

    with server(tmp_path, answer) as (uri, authority):
        assert ldap_bind.accepted(uri, authority, "cn=a", "pw") is accepted
    assert asked == [ldap_bind.request("cn=a", "pw")]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([], "closed the connection"),
        ([SUCCESS[:6]], "closed the connection"),
        ([b"HTTP/1.1 400 Bad Request\r\n" * 20], "not an answer of a directory"),
        ([b"\x30\x80" + b"\x00" * 20], "closed the connection"),
        ([b"\x30\x84\x7f\xff\xff\xff" + b"x" * 5000], "too long"),
        ([bytes.fromhex("3003020101")], "cut off"),
        ([BUSY], "result code 51"),
    ],
)
def test_anything_else_is_no_answer(tmp_path: Path, pieces: list[bytes], words: str) -> None:
    with server(tmp_path, lambda _request: pieces) as (uri, authority), pytest.raises(Failed, match=words):
        ldap_bind.accepted(uri, authority, "cn=a", "pw")


def test_the_password_goes_to_no_server_of_another_ca(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "here").mkdir()
    asked: list[bytes] = []

    def answer(request: bytes) -> list[bytes]:
        asked.append(request)
        return [SUCCESS]

    other, _certificate, _key = server_of(tmp_path / "other", "127.0.0.1")
    with server(tmp_path / "here", answer) as (uri, _own), pytest.raises(Failed, match="certificate verify failed"):
        ldap_bind.accepted(uri, other, "cn=a", "secret")
    assert asked in ([], [b""])


def test_nobody_listens() -> None:
    pytest.importorskip("ssl")
    with socket(AF_INET, SOCK_STREAM) as free:
        free.bind(("127.0.0.1", 0))
        uri = f"ldaps://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(Failed, match="does not answer"):
            ldap_bind.accepted(uri, Path("/etc/ssl/certs/ca-certificates.crt"), "cn=a", "pw")
