"""The CAs of the cluster that this host trusts: those of the directory, of the munge key's server and of the REST API.

`gpucluster-agent directory-authority trust` takes them from standard input while the CA is rotated
(`controller/directory_authority`). `gpucluster-directory-authority.service` runs `await` before SSSD and munge start: a
host that was off, or boots from an image, has the CA of its day. It asks the controller for the present one, without
encryption: all of it is public. A chain of certificates proves it, which begins with the CA that this host trusts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpucluster.node_agent import bounded, directory_password, durable_file, host_certificates, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, report
from gpucluster.node_agent.notify import notify

TRUSTED = Path("/etc/gpucluster/authority.pem")
#: A request to the program that certifies hosts, in place of a key.
REQUEST = "authority"
#: Bytes of an answer, and of what is trusted.
LONGEST = 1 << 17

_PORT = 636
_CONNECT_SECONDS, _ANSWER_SECONDS, _SECONDS = 5.0, 20.0, 60.0
# Between two attempts, seconds, twice as long each time: each may start a program on the controller.
_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_BUNDLE = re.compile(r"(-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n)+")
# No CA of the system proves anything here. Not every openssl knows options for both places.
_ALONE = ("env", "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent", "openssl", "verify")


def own_directory(config: Path = directory_password.CONFIG) -> str:
    """Where SSSD finds the cluster's own directory, `ldaps://HOST`; empty where it uses another one, or none."""
    try:
        text = config.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    found = {key: re.search(rf"^{key} = (\S+)$", text, re.MULTILINE) for key in ("ldap_uri", "ldap_tls_cacert")}
    uri, authority = found["ldap_uri"], found["ldap_tls_cacert"]
    return uri[1] if uri and authority and authority[1] == str(TRUSTED) else ""


def is_proven(uri: str, authorities: Path) -> bool:
    """Whether a server proves itself by one of these CAs.

    Raises:
        Failed: it does not answer.
    """
    import ssl  # what has no server to try does without it

    server = urlsplit(uri)
    try:
        context = ssl.create_default_context(cafile=str(authorities))
        with socket.create_connection((server.hostname or "", server.port or _PORT), timeout=_CONNECT_SECONDS) as plain:
            plain.settimeout(_ANSWER_SECONDS)
            with context.wrap_socket(plain, server_hostname=server.hostname):
                return True
    except ssl.SSLCertVerificationError:
        return False
    except (OSError, ValueError) as error:  # another SSLError is an OSError
        raise Failed(f"the directory does not answer: {error}", "Run there: journalctl -u slapd") from None


def trust(text: str, file: Path = TRUSTED) -> None:
    """Trust these CAs, and no other. It may be repeated.

    Args:
        text: their certificates (PEM).

    Raises:
        Refused: it is something else.
        Failed: the directory does not prove itself by one of them, and nothing was changed; or SSSD does not start.
    """
    if not _BUNDLE.fullmatch(text):
        raise Refused("the request has no certificates", "Run: gpucluster rotate directory-ca")
    uri = own_directory()
    if uri:
        with tempfile.TemporaryDirectory(prefix="gpucluster-") as place:
            wanted = Path(place) / "authorities.pem"
            wanted.write_text(text)
            if not is_proven(uri, wanted):
                raise Failed("the directory does not prove itself by the CA of the request", "Run: gpucluster apply")
    _install(text, file)
    if uri:
        # SSSD reads the file when it first connects. Also after a kill between the two.
        directory_password.restart("try-restart")


def learn(file: Path = TRUSTED, settings_file: Path = host_certificates.SETTINGS) -> None:
    """Trust the CA of today instead of the one that this host knows, if they differ.

    Raises:
        Failed: the controller does not answer, or nothing proves what it answers.
    """
    uri = own_directory()
    if not file.is_file() or (uri and is_proven(uri, file)):
        return
    settings = json.loads(settings_file.read_text())
    text = proven(ask(str(settings["address"]), int(settings["port"])), file)
    if text == file.read_text():
        return
    _install(text, file)
    sys.stderr.write("the CA of the directory is the cluster's now\n")
    if uri:
        # At a boot it does not run yet, and waits for this program.
        directory_password.restart("--no-block", "try-restart")


def await_learned() -> None:
    """At each start of SSSD: have the CA of today. If the controller does not answer, systemd starts SSSD nevertheless,
    which has a cache, and this goes on.
    """
    last, pause = "", _PAUSE
    while True:
        try:
            learn()
            break
        except (Failed, OSError) as error:
            reason = error.message if isinstance(error, Failed) else str(error)
        notify("READY=1")
        if reason != last:
            sys.stderr.write(f"no news of the CA of the directory: {reason}\n")
            sys.stderr.flush()
            last = reason
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    notify("READY=1")


def ask(address: str, port: int) -> Any:
    """What the controller answers about its CA.

    Raises:
        Failed: there is no answer, or it can't be read.
    """
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as connection:
            connection.sendall(f"{REQUEST}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(_ANSWER_SECONDS)
            text = host_certificates.received(connection, LONGEST)
        return bounded.loads(text.decode())
    except OSError as error:
        raise Failed(f"the controller does not tell its CA: {error}", "See there: journalctl -e") from None
    except ValueError:
        raise Failed("the controller's answer about its CA can't be read", "Run: gpucluster apply") from None


def proven(answer: Any, trusted: Path) -> str:
    """The CA (PEM) in an answer of the controller. It has signed `proof`, and so has the last one of a chain of links
    that begins with a CA that this host trusts: only who has the key of that one can have made the chain.

    Raises:
        Failed: it is not an answer, or nothing proves it.
    """
    texts = [answer.get(name) if isinstance(answer, dict) else None for name in ("authority", "links", "proof")]
    authority, links, proof = (text if isinstance(text, str) else "" for text in texts)
    if not all(_BUNDLE.fullmatch(text) for text in (authority, proof)) or not re.fullmatch(
        f"({_BUNDLE.pattern})?", links
    ):
        raise Failed("the controller's answer about its CA can't be read", "Run: gpucluster apply")
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as place:
        files = {name: Path(place) / name for name in ("authority", "links", "proof")}
        for name, text in zip(files, (authority, links, proof)):
            files[name].write_text(text)
        chain = ["-untrusted", str(files["links"])] if links else []
        for anchor, more in ((trusted, chain), (files["authority"], [])):
            result = programs.call([*_ALONE, "-CAfile", str(anchor), *more, str(files["proof"])], seconds=_SECONDS)
            if result.returncode != 0:
                said = (result.stderr.strip() or result.stdout.strip()).rpartition("\n")[2][-200:]
                raise Failed(f"nothing proves the CA that the controller tells: {said}", "Run: gpucluster apply")
    return authority


def _install(text: str, file: Path) -> None:
    if not file.is_file() or file.read_text() != text:
        durable_file.replace(file, text, mode=0o644)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="gpucluster-agent directory-authority", description=(__doc__ or "").splitlines()[0]
    )
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("trust", help="trust the CAs on standard input, and no other: certificates in a JSON string")
    parts.add_parser("learn", help="trust the CA that the controller has now")
    parts.add_parser("await", help="the same, again and again until it works; for systemd")
    options = parser.parse_args(argv)
    os.umask(0o077)
    try:
        if options.part == "await":
            await_learned()
        elif options.part == "learn":
            learn()
        else:
            trust(str(bounded.loads(sys.stdin.read(LONGEST))))
    except ValueError:
        sys.stderr.write("gpucluster-agent directory-authority: the request is not JSON\n")
        return Refused.status
    except (AgentError, OSError) as error:
        return report(error, "directory-authority")
    return 0
