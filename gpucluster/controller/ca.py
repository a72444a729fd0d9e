"""The cluster's own certificate authority (CA), and the certificates of its servers: the directory, and the REST API.

`gpucluster-agent ca` creates what is missing, renews a server certificate that expires soon or names another host, and
prints {"changed": bool, "ca": PEM}. The CA's key stays in /etc/gpucluster/authority on this host, for root only.

The CA may be rotated (`directory_authority`). What hosts trust meanwhile depends on the files here alone, so whatever
publishes it agrees. A link is a certificate for the key of a CA, by the CA before it (RFC 4210, 4.4: "new with old"):
by it a host that was off, or boots from an image, learns the CA of today from the one that it knows.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused

FOLDER = Path("/etc/gpucluster/authority")
DAY = 86400
CA_DAYS, SERVER_DAYS, RENEW_DAYS = 3650, 825, 60
#: What a certificate of a server is for.
DIRECTORY, REST = "server", "rest"
#: `prepared`: hosts are to trust the next CA beside the present one. `switched`: the next one signs, and hosts may
#: trust the former one.
Phase = Literal["complete", "prepared", "switched"]

# Older links are dropped. A host has one of these CAs, or gets the present one by `gpucluster apply`.
_MOST_LINKS = 32
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\n")

REQUEST = """
[req]
distinguished_name = subject
prompt = no
x509_extensions = ca
[subject]
CN = {name}
[ca]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[link]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {alternatives}
"""


def openssl(*words: str) -> None:
    """Run openssl.

    Raises:
        Failed: with openssl's own message.
    """
    result = programs.call(["openssl", *words])
    if result.returncode != 0:
        raise Failed(f"openssl {words[0]}: {result.stderr.strip()}")


def install(source: Path, target: Path, mode: int, group: str | None = None) -> None:
    """Put a file in its place with a rename: it is never half written, and never readable by others meanwhile."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(source.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    if group:
        shutil.chown(new, "root", group)
    new.chmod(mode)
    new.replace(target)


def digest(file: Path) -> str:
    """SHA-256 of a file, empty if there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def make_ca(cluster: str, work: Path) -> bool:
    """Create the CA unless it exists; returns whether it was created.

    Raises:
        Failed: only its key or only its certificate exists.
    """
    key, certificate = FOLDER / "ca.key", FOLDER / "ca.pem"
    if key.is_file() and certificate.is_file():
        return False
    if key.is_file() or certificate.is_file():
        raise Failed(
            f"only one of {key} and {certificate} exists",
            "Restore the other from your backup, or remove both and run `gpucluster apply`: every host gets a new CA",
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    FOLDER.chmod(0o700)
    _sign_itself(_config(work, f"{cluster} cluster authority"), work)
    # The certificate is last: where it exists, the pair is complete.
    install(work / "ca.key", key, 0o600)
    install(work / "ca.pem", certificate, 0o644)
    return True


def _config(work: Path, name: str, alternatives: str = "DNS:none") -> Path:
    config = work / "openssl.cnf"
    config.write_text(REQUEST.format(name=name, alternatives=alternatives))
    return config


def _make_key(file: Path) -> None:
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(file))


def _sign_itself(config: Path, work: Path) -> None:
    """Make a CA: ca.key and ca.pem in the folder."""
    _make_key(work / "ca.key")
    openssl(
        *("req", "-x509", "-new", "-sha256", "-config", str(config), "-days", str(CA_DAYS)),
        *("-key", str(work / "ca.key"), "-out", str(work / "ca.pem")),
    )


def _sign(config: Path, extensions: str, days: int, key: Path, target: Path) -> None:
    """Make a certificate of the CA for a key."""
    request = target.with_suffix(".csr")
    openssl("req", "-new", "-sha256", "-config", str(config), "-key", str(key), "-out", str(request))
    openssl(
        *("x509", "-req", "-sha256", "-days", str(days), "-set_serial", f"0x{secrets.token_hex(16)}"),
        *("-in", str(request), "-CA", str(FOLDER / "ca.pem"), "-CAkey", str(FOLDER / "ca.key")),
        *("-extfile", str(config), "-extensions", extensions, "-out", str(target)),
    )


# ---- certificates of servers


@dataclass(frozen=True)
class Server:
    """A server with a certificate of the CA.

    Args:
        purpose: DIRECTORY or REST.
        directory: the folder with its certificate, its key and the CA.
        names: that it is for, as `DNS:name` or `IP:address`; the first one is a name.
        group: of the server's process, which may read the key; None for that of this process.
    """

    purpose: str
    directory: Path
    names: tuple[str, ...]
    group: str | None


def make_server(server: Server, work: Path) -> bool:
    """Create or renew a server's certificate; returns whether it changed. A record has what it is for."""
    key, certificate = server.directory / "server.key", server.directory / "server.pem"
    record_file = FOLDER / f"{server.purpose}.json"

    def record(expires: float) -> dict[str, Any]:
        files = {"authority": FOLDER / "ca.pem", "key": key, "certificate": certificate}
        about = {"names": list(server.names), "directory": str(server.directory), "group": server.group}
        return {**about, "expires": expires, **{what: digest(file) for what, file in files.items()}}

    if record_file.is_file() and key.is_file() and certificate.is_file():
        old = json.loads(record_file.read_text())
        if old == record(old.get("expires", 0)) and old["expires"] - time.time() > RENEW_DAYS * DAY:
            return False
    _make_key(work / "server.key")
    config = _config(work, server.names[0].partition(":")[2], ",".join(server.names))
    _sign(config, "server", SERVER_DAYS, work / "server.key", work / "server.pem")
    install(FOLDER / "ca.pem", server.directory / "ca.pem", 0o644)
    install(work / "server.key", key, 0o640, server.group)
    install(work / "server.pem", certificate, 0o644)
    (work / "server.json").write_text(json.dumps(record(time.time() + SERVER_DAYS * DAY)))
    install(work / "server.json", record_file, 0o600)
    return True


def servers() -> list[Server]:
    """Those that have a certificate of the CA.

    Raises:
        Refused: a release before this one has made a certificate, and has not recorded all of it.
    """
    found = []
    for purpose in (DIRECTORY, REST):
        file = FOLDER / f"{purpose}.json"
        if not file.is_file():
            continue
        raw = json.loads(file.read_text())
        if "directory" not in raw:
            raise Refused(f"{file} does not tell where the certificate is", "Run: gpucluster apply")
        if (Path(raw["directory"]) / "server.pem").is_file():
            found.append(Server(purpose, Path(raw["directory"]), tuple(raw["names"]), raw["group"]))
    return found


# ---- rotation: the next CA, and the one before


def phase() -> Phase:
    """How far a rotation is."""
    if (FOLDER / "next.pem").is_file():
        return "prepared"
    return "switched" if (FOLDER / "former.pem").is_file() else "complete"


def authority() -> str:
    """The certificate (PEM) of the CA that signs."""
    return (FOLDER / "ca.pem").read_text()


def trusted() -> str:
    """The certificates (PEM) of the CAs that hosts are to trust now: in an order that a switch does not change."""
    files = (FOLDER / f"{name}.pem" for name in ("ca", "next", "former"))
    return "".join(sorted({file.read_text() for file in files if file.is_file()}))


def prepare() -> None:
    """Make the next CA, with a link from the present one; that of an interrupted rotation is taken up.

    Raises:
        Refused: there is no CA. Failed: openssl refused.
    """
    if not ((FOLDER / "ca.pem").is_file() and (FOLDER / "ca.key").is_file()):
        raise Refused(f"there is no CA in {FOLDER}", "Run: gpucluster apply")
    if (FOLDER / "next.pem").is_file():
        return
    with _work() as work:
        # The same name: a link between CAs of one name does not count in the length of a path (RFC 5280, 4.2.1.9).
        config = _config(work, _common_name(FOLDER / "ca.pem"))
        _sign_itself(config, work)
        _sign(config, "link", CA_DAYS, work / "ca.key", work / "link.pem")
        # The certificate is last: where it exists, there is all of it.
        install(work / "ca.key", FOLDER / "next.key", 0o600)
        install(work / "link.pem", FOLDER / "next-link.pem", 0o644)
        install(work / "ca.pem", FOLDER / "next.pem", 0o644)
    durable_file.sync_folder(FOLDER)


def switch() -> None:
    """From now on the next CA signs. It may be repeated."""
    following, link = FOLDER / "next.pem", FOLDER / "next-link.pem"
    if not following.is_file():
        return
    if not (FOLDER / "former.pem").is_file():
        install(FOLDER / "ca.pem", FOLDER / "former.pem", 0o644)
    if link.is_file():
        links = _CERTIFICATE.findall(_text(FOLDER / "links.pem"))
        if link.read_text() not in links:
            kept = [*links, link.read_text()][-_MOST_LINKS:]
            durable_file.replace(FOLDER / "links.pem", "".join(kept), mode=0o644)
        link.unlink()
    if (FOLDER / "next.key").is_file():
        (FOLDER / "next.key").replace(FOLDER / "ca.key")
    # The certificate is last: until then there is a next one, and this is repeated.
    following.replace(FOLDER / "ca.pem")
    durable_file.sync_folder(FOLDER)


def end() -> None:
    """No host trusts the former CA any more."""
    (FOLDER / "former.pem").unlink(missing_ok=True)


def issue() -> list[str]:
    """Give each server a certificate of the CA that signs. Returns the purposes of all of them.

    Raises:
        Refused: see `servers`. Failed: openssl refused.
    """
    found = servers()
    for server in found:
        with _work() as work:
            make_server(server, work)
    return [server.purpose for server in found]


def published() -> dict[str, str]:
    """What a host learns the CA of today by: `authority`, the `links` to it, and `proof`, a certificate that it signed.

    Raises:
        Failed: there is none.
    """
    for server in servers():
        proof = (server.directory / "server.pem").read_text()
        return {"authority": authority(), "links": _text(FOLDER / "links.pem"), "proof": proof}
    raise Failed("the cluster's CA has no certificate yet", "Run: gpucluster apply")


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


def _common_name(certificate: Path) -> str:
    result = programs.call(["openssl", "x509", "-in", str(certificate), "-noout", "-subject", "-nameopt", "RFC2253"])
    _subject, found, name = result.stdout.strip().partition("CN=")
    if result.returncode != 0 or not found:
        raise Failed(f"{certificate} can't be read: {result.stderr.strip()}", "Restore it from your backup")
    return name


@contextlib.contextmanager
def _work() -> Iterator[Path]:
    """A folder in memory, which only root can read."""
    with tempfile.TemporaryDirectory(prefix="gpucluster-ca-", dir="/run") as place:
        yield Path(place)


# ---- the program


def main(argv: Sequence[str] | None = None) -> int:
    """Create or renew what is needed; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent ca", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cluster", required=True, help="the cluster's name")
    parser.add_argument("--name", action="append", required=True, help="a host name of the server; may be repeated")
    parser.add_argument("--address", action="append", default=[], help="an address of the server; may be repeated")
    parser.add_argument("--directory", type=Path, required=True, help="the folder for the server's certificate")
    parser.add_argument(
        "--publish", type=Path, required=True, help="the file for the CA's certificate that hosts trust"
    )
    parser.add_argument(
        "--purpose", choices=(DIRECTORY, REST), default=DIRECTORY, help="which of the certificates it is"
    )
    parser.add_argument("--group", required=True, help="the group of the server's process")
    options = parser.parse_args(argv)
    try:
        return _make(options)
    except AgentError as error:
        hint = f"\n  {error.hint}" if error.hint else ""
        sys.stderr.write(f"gpucluster-agent ca: {error.message}{hint}\n")
        return error.status


def _make(options: argparse.Namespace) -> int:
    os.umask(0o077)
    names = (*(f"DNS:{name}" for name in options.name), *(f"IP:{address}" for address in options.address))
    # A switch that was interrupted: the key may be that of the next CA already.
    if phase() == "prepared" and (FOLDER / "former.pem").is_file():
        switch()
    with _work() as work:
        changed = make_ca(options.cluster, work)
        changed = make_server(Server(options.purpose, options.directory, names, options.group), work) or changed
    if _text(options.publish) != trusted():
        durable_file.replace(options.publish, trusted(), mode=0o644)
        changed = True
    # The umask protects the keys. The folders of the certificates are public.
    for public in (FOLDER.parent, options.directory):
        public.chmod(0o755)
    sys.stdout.write(json.dumps({"changed": changed, "ca": authority()}) + "\n")
    return 0
