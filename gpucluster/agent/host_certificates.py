"""Certificates for the ssh host keys of the cluster's hosts, from the cluster's own ssh authority on the controller.

The role `base` creates the authority. `gpucluster-agent host-certificate answer` serves one connection of a host that
asks: systemd starts it with the connection as its standard streams. `request` asks, on every host, until the host has a
certificate for its key.

A host proves by the network who it is. The cloud delivers packets for an address only to the instance that has it, and
on that instance only root may use a port below 1024. The names in the certificate are those that the controller knows
for this address; the request names none. It needs no secret, so a node that boots from a baked image can ask too.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import re
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.agent import programs
from gpucluster.agent.errors import AgentError, Failed, Refused
from gpucluster.agent.users.hosts import in_service

KEY = Path("/etc/gpucluster/authority/ssh_ca")
#: What `answer` knows of the hosts, on the controller; what `request` needs, on every host.
KNOWN = Path("/etc/gpucluster/host-names.json")
SETTINGS = Path("/etc/gpucluster/host-certificate.json")
HOST_KEY = Path("/etc/ssh/ssh_host_ed25519_key.pub")

_TYPE = "ssh-ed25519"
_CERTIFICATE = "ssh-ed25519-cert-v01@openssh.com"
_LONGEST = 4096
_FIRST_UNPRIVILEGED = 1024
# A connection's own ports; those below 600 belong to services.
_PORTS = range(1023, 600, -1)
_ANSWER_SECONDS = 20.0
# Seconds between two requests, twice as long each time: each one starts a program on the controller.
_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


@dataclass(frozen=True)
class Certificate:
    """What a host certificate says. Keys are `type base64`, as in a public key file."""

    key: str
    authority: str
    names: frozenset[str]


def parse(text: str) -> Certificate | None:
    """Read a certificate for an ed25519 host key; None if it is none. (PROTOCOL.certkeys of OpenSSH.)"""
    words = text.split()
    if len(words) < 2 or words[0] != _CERTIFICATE:  # noqa: PLR2004 - type and content
        return None
    try:
        fields = base64.b64decode(words[1], validate=True)
        _type, rest = _string(fields)
        _nonce, rest = _string(rest)
        point, rest = _string(rest)
        _serial, kind = struct.unpack_from(">QI", rest)
        _id, rest = _string(rest[12:])
        principals, rest = _string(rest)
        rest = rest[16:]  # valid after, valid before
        for _ in range(3):  # critical options, extensions, reserved
            _field, rest = _string(rest)
        authority, _rest = _string(rest)
        if kind != 2:  # noqa: PLR2004 - SSH_CERT_TYPE_HOST
            return None
        names = []
        while principals:
            name, principals = _string(principals)
            names.append(name.decode())
        signer = _string(authority)[0].decode()
    except (ValueError, struct.error):
        return None
    key = struct.pack(">I", len(_TYPE)) + _TYPE.encode() + struct.pack(">I", len(point)) + point
    return Certificate(
        f"{_TYPE} {base64.b64encode(key).decode()}",
        f"{signer} {base64.b64encode(authority).decode()}",
        frozenset(names),
    )


def _string(data: bytes) -> tuple[bytes, bytes]:
    """The first string of ssh's format, and the rest."""
    (size,) = struct.unpack_from(">I", data)
    if size > len(data) - 4:
        raise ValueError(size)
    return data[4 : 4 + size], data[4 + size :]


# ---- the authority


def sign(public_key: str, names: Sequence[str], key: Path = KEY) -> str:
    """A certificate for a host key.

    Args:
        names: those that the certificate is for; the first one is its id.

    Raises:
        Refused: it is no ed25519 key.
        Failed: there is no authority, or ssh-keygen refused.
    """
    words = public_key.split()
    try:
        good = len(words) == 2 and words[0] == _TYPE and _string(base64.b64decode(words[1]))[0] == _TYPE.encode()  # noqa: PLR2004
    except (ValueError, struct.error):
        good = False
    if not good:
        raise Refused("the request is no ed25519 host key", "Run: ssh-keygen -A")
    if not key.is_file():
        raise Failed(f"there is no ssh authority in {key}", "Run: gpucluster apply")
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as folder:
        file = Path(folder) / "host.pub"
        file.write_text(f"{words[0]} {words[1]}\n")
        _keygen("-q", "-s", str(key), "-I", names[0], "-h", "-n", ",".join(names), str(file))
        return (Path(folder) / "host-cert.pub").read_text()


def _keygen(*words: str) -> str:
    done = programs.call(["ssh-keygen", *words])
    if done.returncode != 0:
        raise Failed(f"ssh-keygen: {done.stderr.strip()}", "Install openssh-client, or openssh")
    return done.stdout


def names_of(address: str, known: Mapping[str, Any]) -> list[str]:
    """The names of the host with this address; empty if none of the cluster's hosts has it.

    Args:
        known: `hosts` are the permanent ones, with their names by address; `elastic` the hostlists of the others, whose
            addresses the scheduler knows while they are in service; `domain` is that of the nodes, and may be empty.

    Raises:
        Failed: the scheduler does not answer.
    """
    found: list[str] = list(known["hosts"].get(address, ()))
    if not found and known["elastic"]:
        found = [name for name, there in in_service(",".join(known["elastic"])).items() if there == address]
        # An address that two nodes have says nothing about either.
        found = found if len(found) == 1 else []
    domain = known["domain"]
    return [*found, *([f"{found[0]}.{domain}"] if domain else []), address] if found else []


def answer(address: str, port: int, text: str, known: Mapping[str, Any], key: Path = KEY) -> str:
    """The certificate for the host at the other end of a connection.

    Raises:
        Refused: another user than root has asked, or no host of the cluster.
        Failed: the certificate could not be made.
    """
    if port >= _FIRST_UNPRIVILEGED:
        raise Refused(f"port {port} of {address} may belong to any user", "Ask as root")
    names = names_of(address, known)
    if not names:
        raise Refused(f"no host of this cluster has the address {address} now", "Ask again when the scheduler knows it")
    return sign(text, names, key)


# ---- a host that asks


def is_valid(certificate: Certificate | None, host_key: str, authority: str, name: str) -> bool:
    """Whether a host needs no other certificate."""
    return (
        certificate is not None
        and certificate.key == host_key
        and certificate.authority == authority
        and name in certificate.names
    )


def ask(address: str, port: int, public_key: str) -> str:
    """What the authority answers.

    Raises:
        OSError: there is no answer.
    """
    with _from_a_port_of_root(address, port) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.sendall(public_key.encode() + b"\n")
        connection.shutdown(socket.SHUT_WR)
        parts = list(_received(connection))
    return b"".join(parts).decode(errors="replace")


def _received(connection: socket.socket) -> Iterator[bytes]:
    left = _LONGEST
    while left > 0 and (part := connection.recv(left)):
        left -= len(part)
        yield part


def _from_a_port_of_root(address: str, port: int) -> socket.socket:
    for own in _PORTS:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ANSWER_SECONDS)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.bind(("", own))
            connection.connect((address, port))
        except OSError as error:
            connection.close()
            if error.errno in (98, 99):  # EADDRINUSE, EADDRNOTAVAIL: this port is in use
                continue
            raise
        return connection
    raise OSError(98, "all ports of root are in use")


def request(settings: Mapping[str, Any], host_key: Path = HOST_KEY) -> None:
    """Wait until this host has a certificate for its key, and let sshd use it."""
    target = host_key.with_name(host_key.name.replace(".pub", "-cert.pub"))
    told, pause = "", _PAUSE
    while True:
        try:
            text = _missing(settings, host_key, target)
            break
        except (OSError, Failed) as error:
            reason = error.message if isinstance(error, Failed) else str(error)
        if reason != told:
            sys.stderr.write(f"no certificate yet: {reason}\n")
            sys.stderr.flush()
            told = reason
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    if text:
        new = target.with_name(f".{target.name}.new")
        new.write_text(text)
        new.chmod(0o644)
        new.replace(target)
        _reload(str(settings["sshd"]))


def _reload(unit: str) -> None:
    """As sshd's unit does it; systemd itself would want a right that this service does not have (CAP_SYS_ADMIN)."""
    main = programs.call(["systemctl", "show", "--property=MainPID", "--value", unit]).stdout.strip()
    # One that does not run reads its configuration when it starts.
    if main.isdigit() and int(main) > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(main), signal.SIGHUP)


def _missing(settings: Mapping[str, Any], host_key: Path, target: Path) -> str:
    """The certificate that this host lacks; empty if it has a good one.

    Raises:
        OSError: there is no host key yet, or no answer.
        Failed: the answer is no certificate for this host and its key.
    """
    key = " ".join(host_key.read_text().split()[:2])
    # At the first boot the name may come later than this program.
    name = socket.gethostname().partition(".")[0]
    if target.is_file() and is_valid(parse(target.read_text()), key, settings["authority"], name):
        return ""
    text = ask(settings["address"], settings["port"], key)
    if not is_valid(parse(text), key, settings["authority"], name):
        raise Failed(text.strip()[:200] or "no answer")
    return text


# ---- the program


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the two parts; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent host-certificate", description=_summary())
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("answer", help="serve one host")
    parts.add_parser("request", help="get a certificate for this host")
    options = parser.parse_args(argv)
    try:
        if options.part == "answer":
            _serve()
        else:
            request(json.loads(SETTINGS.read_text()))
    except AgentError as error:
        sys.stderr.write(f"gpucluster-agent host-certificate: {error.message}\n")
        return error.status
    return 0


def _summary() -> str:
    return (__doc__ or "").splitlines()[0]


def _serve() -> None:
    """One connection. What is refused is told to the host as well: only root there can have asked, or nobody."""
    address, port = os.environ.get("REMOTE_ADDR", ""), os.environ.get("REMOTE_PORT", "")
    # An IPv4 address, as systemd shows it for a socket that serves both.
    address = re.sub("^::ffff:", "", address)
    try:
        text = answer(
            address, int(port or _FIRST_UNPRIVILEGED), sys.stdin.read(_LONGEST), json.loads(KNOWN.read_text())
        )
    except AgentError as error:
        sys.stdout.write(f"{error.message}\n")
        raise
    sys.stdout.write(text)
