"""Whether a directory server accepts a password: a simple bind over TLS (RFC 4511), with the standard library alone.

Nodes have no program of OpenLDAP, and SSSD does not report why it can't bind.
"""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from gpucluster.node_agent.errors import Failed

_PORT = 636
_SECONDS = 10.0
_LONGEST = 4096
# Tags of RFC 4511 (sections 4.1.1, 4.2): LDAPMessage, BindRequest, BindResponse, and those of universal types.
_MESSAGE, _BIND, _BOUND = 0x30, 0x60, 0x61
_INTEGER, _TEXT, _ENUMERATED, _SIMPLE = 0x02, 0x04, 0x0A, 0x80
_UNBIND = bytes.fromhex("30050201024200")
#: Result codes: success, and the one for a name or a password that is wrong.
SUCCESS, INVALID_CREDENTIALS = 0, 49


def accepted(uri: str, authority: Path, dn: str, password: str) -> bool:
    """Whether the server accepts this password for an entry.

    Args:
        uri: of the server, `ldaps://HOST`.
        authority: the file with the CAs that it may prove itself with.

    Raises:
        Failed: there is no answer, or another one than yes or no.
    """
    import ssl  # what only reads the configuration does without it

    server = urlsplit(uri)
    try:
        context = ssl.create_default_context(cafile=str(authority))
        plain = socket.create_connection((server.hostname or "", server.port or _PORT), timeout=_SECONDS)
        with plain, context.wrap_socket(plain, server_hostname=server.hostname) as connection:
            connection.sendall(request(dn, password))
            code = result_code(_answer(connection))
            connection.sendall(_UNBIND)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise Failed(f"the directory does not answer: {error}", "Run there: journalctl -u slapd") from None
    if code not in (SUCCESS, INVALID_CREDENTIALS):
        raise Failed(f"the directory answers a bind with the result code {code}", "Run there: journalctl -u slapd")
    return code == SUCCESS


def request(dn: str, password: str) -> bytes:
    """A bind request, the first message of its connection."""
    version = _field(_INTEGER, b"\x03")
    bind = _field(_BIND, version + _field(_TEXT, dn.encode()) + _field(_SIMPLE, password.encode()))
    return _field(_MESSAGE, _field(_INTEGER, b"\x01") + bind)


def result_code(message: bytes) -> int:
    """The result of a bind response.

    Raises:
        ValueError: it is something else.
    """
    content, _rest = _read(message, _MESSAGE)
    _number, content = _read(content, _INTEGER)
    response, _rest = _read(content, _BOUND)
    code, _rest = _read(response, _ENUMERATED)
    return int.from_bytes(code, "big")


def _answer(connection: socket.socket) -> bytes:
    """The bytes of the first message that the server sends. It leaves the connection open after it.

    Raises:
        OSError: the connection is lost. ValueError: the message is too long.
    """
    data = b""
    while not _is_whole(data):
        part = connection.recv(_LONGEST)
        if not part:
            raise ConnectionError("it has closed the connection")
        data += part
        if len(data) > _LONGEST:
            raise ValueError("its answer is too long")
    return data


def _is_whole(data: bytes) -> bool:
    try:
        return len(data) >= _bounds(data)[1]
    except ValueError:
        return False


def _field(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:  # noqa: PLR2004 - the short form of a length
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _read(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the first field, and what follows it."""
    start, end = _bounds(data)
    if data[0] != tag or len(data) < end:
        raise ValueError("not an answer of a directory")
    return data[start:end], data[end:]


def _bounds(data: bytes) -> tuple[int, int]:
    """Where the content of the first field begins and ends.

    Raises:
        ValueError: its length is not there yet, or has no end.
    """
    if len(data) < 2:  # noqa: PLR2004 - tag and length
        raise ValueError("the answer of the directory is cut off")
    if data[1] < 0x80:  # noqa: PLR2004 - the short form of a length
        return 2, 2 + data[1]
    start = 2 + (data[1] & 0x7F)
    if start == 2 or len(data) < start:  # noqa: PLR2004 - LDAP has no indefinite form
        raise ValueError("the answer of the directory is cut off")
    return start, start + int.from_bytes(data[2:start], "big")
