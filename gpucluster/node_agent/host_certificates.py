"""Certificates for the ssh host keys of the cluster's hosts, and the directory entries of nodes from baked images.

The role `base` creates the cluster's ssh CA on the controller, and `gpucluster-agent host-certificate answer` serves
one connection there (`ssh_ca`). `request` asks, on every host, until the host has a certificate for its key. It needs
no secret, so a node that boots from a baked image can ask too.

Such a node has no entry in the directory yet. It makes a password, and sends the hash with the same request: what is
on the network opens nothing.
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
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent import bounded, durable_file, passwords, programs
from gpucluster.node_agent.errors import AgentError, Failed, report
from gpucluster.node_agent.notify import notify

#: What `request` needs, on every host.
SETTINGS = Path("/etc/gpucluster/host-certificate.json")
HOST_KEY = Path("/etc/ssh/ssh_host_ed25519_key.pub")

#: The type of the keys.
TYPE = "ssh-ed25519"
_CERTIFICATE = "ssh-ed25519-cert-v01@openssh.com"
#: Bytes of a request, and of an answer.
LONGEST = 4096
# A connection's own ports; those below 600 belong to services.
_PORTS = range(1023, 600, -1)
_ANSWER_SECONDS = 20.0
# Seconds between two requests, twice as long each time: each one starts a program on the controller. A node that needs
# an entry can do nothing else, and is known to the autoscaler within seconds of its boot.
_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_PAUSE_FOR_ENTRY, _LONGEST_PAUSE_FOR_ENTRY = 1.0, 10.0
# The second line of an answer.
_ENTRY = re.compile(r"directory entry ([a-z0-9][a-z0-9-]{0,62})\n?")


#: Adds a part of the program: its name, its line of help, and what runs it.
Add = Callable[[str, str, Callable[[], None]], None]


@dataclass(frozen=True)
class HostCertificate:
    """The content of a host certificate. Keys are `type base64`, as in a public key file."""

    key: str
    authority: str
    names: frozenset[str]


def parse(text: str) -> HostCertificate | None:
    """Read a certificate for an ed25519 host key; None if it is something else. (PROTOCOL.certkeys of OpenSSH.)"""
    words = text.split()
    if len(words) < 2 or words[0] != _CERTIFICATE:  # noqa: PLR2004 - type and content
        return None
    try:
        fields = base64.b64decode(words[1], validate=True)
        _type, rest = read_string(fields)
        _nonce, rest = read_string(rest)
        point, rest = read_string(rest)
        _serial, kind = struct.unpack_from(">QI", rest)
        _id, rest = read_string(rest[12:])
        principals, rest = read_string(rest)
        rest = rest[16:]  # valid after, valid before
        for _ in range(3):  # critical options, extensions, reserved
            _field, rest = read_string(rest)
        authority, _rest = read_string(rest)
        if kind != 2:  # noqa: PLR2004 - SSH_CERT_TYPE_HOST
            return None
        names = []
        while principals:
            name, principals = read_string(principals)
            names.append(name.decode())
        signer = read_string(authority)[0].decode()
    except (ValueError, struct.error):
        return None
    key = struct.pack(">I", len(TYPE)) + TYPE.encode() + struct.pack(">I", len(point)) + point
    return HostCertificate(
        f"{TYPE} {base64.b64encode(key).decode()}",
        f"{signer} {base64.b64encode(authority).decode()}",
        frozenset(names),
    )


def read_string(data: bytes) -> tuple[bytes, bytes]:
    """The first string of ssh's format, and the rest."""
    (size,) = struct.unpack_from(">I", data)
    if size > len(data) - 4:
        raise ValueError(size)
    return data[4 : 4 + size], data[4 + size :]


def is_valid(certificate: HostCertificate | None, host_key: str, authority: str, name: str) -> bool:
    """Whether a host needs no other certificate."""
    return (
        certificate is not None
        and certificate.key == host_key
        and certificate.authority == authority
        and name in certificate.names
    )


def ask(address: str, port: int, public_key: str, hashed: str = "") -> str:
    """What the CA answers.

    Args:
        hashed: of the password of the entry that the host needs; empty if it needs none.

    Raises:
        OSError: there is no answer.
    """
    with from_a_port_of_root(address, port) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        lines = [public_key, *([f"directory {hashed}"] if hashed else [])]
        connection.sendall("".join(f"{line}\n" for line in lines).encode())
        connection.shutdown(socket.SHUT_WR)
        return received(connection, LONGEST).decode(errors="replace")


def received(connection: socket.socket, most: int) -> bytes:
    """What the other end sends until it closes, and not more than so many bytes.

    Raises:
        OSError: the connection is lost.
    """
    parts: list[bytes] = []
    while most > 0 and (part := connection.recv(most)):
        most -= len(part)
        parts.append(part)
    return b"".join(parts)


def from_a_port_of_root(address: str, port: int) -> socket.socket:
    """A connection from a port below 1024, which only root has: the controller believes such a one.

    Raises:
        OSError: there is no connection.
    """
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
    """Wait until this host has a certificate for its key, and reload sshd with it.

    A node that boots from a baked image gets its entry in the directory first. systemd, and so what follows this
    service, waits for the entry alone.
    """
    target = host_key.with_name(host_key.name.replace(".pub", "-cert.pub"))
    entry = Entry.needed(settings)
    if entry is None:
        notify("READY=1")
    last_reason, pause = "", _PAUSE if entry is None else _PAUSE_FOR_ENTRY
    while True:
        try:
            text, answer = _missing(settings, host_key, target, entry)
            if entry is not None and entry.take(answer):
                entry, pause = None, _PAUSE
                notify("READY=1")
            elif entry is not None:
                raise Failed(answer.strip()[:200] or "the controller makes no directory entry")
            _check(text, settings, host_key, any_authority=True)
            break
        except (OSError, Failed) as error:
            reason = error.message if isinstance(error, Failed) else str(error)
        if reason != last_reason:
            sys.stderr.write(f"no {'certificate' if entry is None else 'directory entry'} yet: {reason}\n")
            sys.stderr.flush()
            last_reason = reason
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE if entry is None else _LONGEST_PAUSE_FOR_ENTRY)
    if text:
        _write(target, text)
        # As sshd's unit reloads it. One that does not run reads its configuration when it starts.
        signal_unit(str(settings["sshd"]), signal.SIGHUP)


def renew(authority: str, file: Path = SETTINGS, host_key: Path = HOST_KEY) -> None:
    """Have a certificate of another CA, which is the cluster's now. It may be repeated.

    Args:
        authority: its public key, as `type key`.

    Raises:
        Failed: the CA gives none, or another one does.
        OSError: it does not answer.
    """
    text = file.read_text(encoding="utf-8")
    settings = {**json.loads(text), "authority": authority}
    target = host_key.with_name(host_key.name.replace(".pub", "-cert.pub"))
    certificate, _ = _missing(settings, host_key, target, None)
    _check(certificate, settings, host_key)
    if certificate:
        _write(target, certificate)
    # As the role writes it: the next run finds nothing to change.
    durable_file.replace(file, text.replace(str(json.loads(text)["authority"]), authority), mode=0o644)
    # Also after a kill between the two.
    signal_unit(str(settings["sshd"]), signal.SIGHUP)


def _write(target: Path, certificate: str) -> None:
    new = target.with_name(f".{target.name}.new")
    new.write_text(certificate)
    new.chmod(0o644)
    new.replace(target)


def signal_unit(unit: str, number: int) -> None:
    """Send a signal to what a unit runs; nothing if it does not run. To ask systemd itself would need a right that this
    host's services do not have (CAP_SYS_ADMIN).
    """
    main = programs.call(["systemctl", "show", "--property=MainPID", "--value", unit]).stdout.strip()
    if main.isdigit() and int(main) > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(main), number)


def _missing(settings: Mapping[str, Any], host_key: Path, target: Path, entry: Entry | None) -> tuple[str, str]:
    """The certificate that this host lacks, or the answer instead, and the answer about its entry. Empty where it
    needs none.

    Raises:
        OSError: there is no host key yet, or no answer.
    """
    key = _own_key(host_key)
    has_one = target.is_file() and is_valid(parse(target.read_text()), key, settings["authority"], _own_name())
    if has_one and entry is None:
        return "", ""
    text = ask(settings["address"], settings["port"], key, entry.hashed if entry else "")
    first, _, rest = text.partition("\n")
    # Without a certificate all of it is the reason.
    return ("" if has_one else f"{first}\n"), rest or first


def _check(text: str, settings: Mapping[str, Any], host_key: Path, *, any_authority: bool = False) -> None:
    """Refuse what is not a certificate for this host and its key, if there is anything.

    Args:
        any_authority: also of another CA than this host knows. An image has that of its day, and the cluster's may be
            another one by now: others believe it, and this host does not need to.

    Raises:
        Failed: it is something else.
    """
    certificate = parse(text)
    signer = certificate.authority if certificate is not None and any_authority else settings["authority"]
    if text and not is_valid(certificate, _own_key(host_key), signer, _own_name()):
        raise Failed(text.strip()[:200] or "no answer")


def _own_key(host_key: Path) -> str:
    return " ".join(host_key.read_text().split()[:2])


def _own_name() -> str:
    # At the first boot the name may come later than this program.
    return socket.gethostname().partition(".")[0]


class Entry:
    """The entry with which this node is to bind to the directory, and the password that only this node knows.

    Args:
        sssd: the configuration of SSSD, which has neither.
    """

    def __init__(self, sssd: Path) -> None:
        self._sssd = sssd
        ((self._password, self.hashed),) = passwords.made(1)

    @classmethod
    def needed(cls, settings: Mapping[str, Any]) -> Entry | None:
        """The entry of a node that needs one.

        Args:
            settings: `directory` names the configuration of SSSD, in baked images alone.

        Raises:
            Failed: openssl is missing.
        """
        file = settings.get("directory")
        if not file or re.search(r"^ldap_default_authtok = \S", Path(file).read_text(), re.MULTILINE):
            return None
        return cls(Path(file))

    def take(self, answer: str) -> bool:
        """Write name and password where SSSD reads them, if the controller answers that it has made the entry."""
        made = _ENTRY.fullmatch(answer)
        if made is None:
            return False
        text = self._sssd.read_text()
        text = re.sub(r"^(ldap_default_bind_dn = cn=)[^,\n]*", rf"\g<1>{made[1]}", text, flags=re.MULTILINE)
        text = re.sub(r"^(ldap_default_authtok =).*", rf"\1 {self._password}", text, flags=re.MULTILINE)
        passwords.write_file(self._sssd, text, like=self._sssd.stat())
        return True


# ---- the program


def add_parts(add: Add) -> None:
    """Add what every host can do."""
    add("request", "get a certificate for this host", lambda: request(json.loads(SETTINGS.read_text())))
    add("renew", "get one of another CA, whose public key is on standard input, as JSON", _renew)


def _renew() -> None:
    try:
        renew(str(bounded.loads(sys.stdin.read(LONGEST))))
    except (OSError, ValueError) as error:
        raise Failed(f"no certificate of the next CA: {error}", "Run: gpucluster apply") from None


def main(
    argv: Sequence[str] | None = None,
    description: str | None = __doc__,
    parts_of: Callable[[Add], None] = add_parts,
) -> int:
    """Run one of the parts; returns the exit status.

    Args:
        argv: the arguments; those of this process by default.
        description: its first line is shown.
        parts_of: adds the parts.
    """
    parser = argparse.ArgumentParser(
        prog="gpucluster-agent host-certificate", description=(description or "").splitlines()[0]
    )
    parts = parser.add_subparsers(dest="part", required=True)

    def add(name: str, text: str, run: Callable[[], None]) -> None:
        parts.add_parser(name, help=text).set_defaults(run=run)

    parts_of(add)
    options = parser.parse_args(argv)
    try:
        options.run()
    except AgentError as error:
        return report(error, "host-certificate")
    return 0
