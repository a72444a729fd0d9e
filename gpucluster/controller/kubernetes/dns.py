"""Ask a DNS server for the IPv4 address of a name (RFC 1035): by UDP, as programs do, or by TCP."""

from __future__ import annotations

import secrets
import socket
import struct

from gpucluster.node_agent.errors import Failed

PORT = 53
_ASK_S, _ATTEMPTS = 2.0, 3
_HEADER = "!HHHHHH"
_LENGTH = struct.Struct("!H")
_POINTER = 0xC0
#: The kind of a record with an IPv4 address, and its bytes.
_IPV4 = (1, 4)


def ask(server: str, name: str, port: int = PORT) -> str:
    """The first IPv4 address of a name, asked by UDP.

    Raises:
        Failed: the server answers with an error, or without an address.
        OSError: it does not answer.
    """
    number = secrets.randbits(16)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as talk:
        talk.settimeout(_ASK_S)
        # Answers from other addresses are not taken.
        talk.connect((server, port))
        for attempt in range(_ATTEMPTS):
            talk.send(_question(name, number))
            try:
                return address_of(talk.recv(4096), number)
            except socket.timeout:
                if attempt == _ATTEMPTS - 1:
                    raise OSError(f"{server} does not answer within {_ASK_S * _ATTEMPTS:.0f} s") from None
    raise AssertionError


def ask_stream(server: str, name: str, port: int) -> str:
    """The first IPv4 address of a name, asked by TCP.

    Raises:
        Failed: the server answers with an error, or without an address, or ends the connection.
        OSError: it does not answer.
    """
    number = secrets.randbits(16)
    question = _question(name, number)
    with socket.create_connection((server, port), timeout=_ASK_S * _ATTEMPTS) as talk:
        talk.sendall(_LENGTH.pack(len(question)) + question)
        with talk.makefile("rb") as stream:
            length = stream.read(_LENGTH.size)
            answer = stream.read(*_LENGTH.unpack(length)) if len(length) == _LENGTH.size else b""
    if not answer:
        raise Failed("the DNS server ends the connection without an answer")
    return address_of(answer, number)


def _question(name: str, number: int) -> bytes:
    words = b"".join(bytes([len(word)]) + word.encode() for word in name.split("."))
    return struct.pack(_HEADER, number, 0x0100, 1, 0, 0, 0) + words + struct.pack("!BHH", 0, 1, 1)


def address_of(answer: bytes, number: int) -> str:
    """The first IPv4 address of an answer to one question.

    Raises:
        Failed: there is none.
    """
    try:
        got, flags, questions, answers, _authority, _more = struct.unpack_from(_HEADER, answer)
        if got != number or flags & 0x000F:
            raise Failed(f"the DNS server answers with error {flags & 0x000F}")
        place = struct.calcsize(_HEADER)
        for _each in range(questions):
            place = _after_name(answer, place) + 4
        for _each in range(answers):
            place = _after_name(answer, place)
            kind, _class, _ttl, length = struct.unpack_from("!HHIH", answer, place)
            place += 10
            if (kind, length) == _IPV4:
                return socket.inet_ntoa(answer[place : place + length])
            place += length
    except (struct.error, IndexError):
        raise Failed("the answer of the DNS server can't be read") from None
    raise Failed("the DNS server knows no address of this name")


def _after_name(answer: bytes, place: int) -> int:
    while answer[place]:
        if answer[place] & _POINTER == _POINTER:
            return place + 2
        place += answer[place] + 1
    return place + 1
