"""The cluster's munge key on the controller: who gets it, and the next one while it is rotated.

`gpucluster-agent munge-keys answer` serves one connection of a host: systemd starts it with the connection as its
standard streams. The connection is encrypted with the certificate of the directory's server. As for certificates
(`ssh_ca`), a host is who the cloud gives the address to, and only root there has a port below 1024.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.controller import shared_keys, ssh_ca
from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.munge_key import LONGEST, MESSAGE, digest, digest_of, install

#: What every host should have now, and what it should have after the rotation that has begun.
SECRET = Path("/etc/gpucluster/munge.key")
NEXT = Path("/etc/gpucluster/munge.key.next")

_SECONDS = 20.0


def prepare(following: Path = NEXT) -> str:
    """Make the next key, or take up the one of a rotation that was interrupted. Returns its name."""
    if not following.exists():
        install(secrets.token_bytes(LONGEST), following, owner=None)
    return digest_of(following)


def commit(name: str, secret: Path = SECRET, following: Path = NEXT) -> None:
    """From now on every host that asks gets the next key. It may be repeated.

    Raises:
        Failed: there is no such key.
    """
    if digest_of(secret) != name:
        if digest_of(following) != name:
            raise Failed(f"{following} is not the key of this rotation", "Run: gpucluster rotate munge")
        # One rename: a host that asks gets one or the other.
        install(following.read_bytes(), secret, owner=None)
    # Also after a kill between the two: the next rotation would take up the key that is used already.
    following.unlink(missing_ok=True)


def answer(
    address: str,
    port: int,
    text: str,
    known: Mapping[str, Any],
    files: tuple[Path, Path],
    shared: Path = shared_keys.DOCUMENT,
) -> dict[str, Any]:
    """What the host at the other end of a connection gets.

    Args:
        text: {"which": "current" or "next", "has": the name of the key that it has}; or "shared", for `shared_keys`.
        known: see `ssh_ca.names_of`.
        files: with the present key, and the next one.
        shared: with the keys that are not munge's; there is none before their first rotation.

    Raises:
        Refused: another user than root has asked, no host of the cluster, or for nothing that there is.
        Failed: the scheduler does not tell who has the address.
    """
    ssh_ca.proven_names(address, port, known)
    try:
        request = bounded.loads(text)
        which, has = request["which"], request["has"]
        if which == "shared":
            return {"shared": json.loads(shared.read_text()) if shared.is_file() else None}
        file = {"current": files[0], "next": files[1]}[which]
    except (ValueError, KeyError, TypeError):
        raise Refused("the request can't be read", "Run: gpucluster apply") from None
    if not file.is_file():
        raise Refused(f"there is no {which} munge key", "Run: gpucluster rotate munge")
    key = file.read_bytes()
    return {"same": True} if digest(key) == has else {"key": base64.b64encode(key).decode()}


def serve(certificate: Path, key: Path) -> None:
    """Serve the connection that is this process's standard input."""
    import ssl  # rotation imports this module, and does without it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(str(certificate), str(key))
    address, port = ssh_ca.caller()
    with socket.socket(fileno=os.dup(0)) as plain:
        plain.settimeout(_SECONDS)
        with context.wrap_socket(plain, server_side=True) as connection:
            try:
                text = _line(connection)
                known = json.loads(ssh_ca.KNOWN.read_text())
                reply = answer(address, port, text, known, (SECRET, NEXT))
            except AgentError as error:
                sys.stderr.write(f"no munge key for {address}: {error.message}\n")
                reply = {"refused": error.message}
            connection.sendall(json.dumps(reply).encode())
            with contextlib.suppress(OSError):
                connection.unwrap()


def _line(connection: socket.socket) -> str:
    text = b""
    while b"\n" not in text and len(text) < MESSAGE and (part := connection.recv(MESSAGE - len(text))):
        text += part
    return text.decode(errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent munge-keys", description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    served = parts.add_parser("answer", help="serve one host")
    served.add_argument("--certificate", type=Path, required=True)
    served.add_argument("--key", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        serve(options.certificate, options.key)
    except OSError as error:  # an SSLError is one
        sys.stderr.write(f"gpucluster-agent munge-keys: {error}\n")
        return 1
    return 0
