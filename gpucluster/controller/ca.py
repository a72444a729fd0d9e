"""The cluster's own certificate authority (CA), and the directory server's certificate.

`gpucluster-agent ca` creates what is missing, renews a server certificate that expires soon or names another host, and
prints {"changed": bool, "ca": PEM}. The CA's key stays in /etc/gpucluster/authority on this host, for root only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import AgentError, Failed

FOLDER = Path("/etc/gpucluster/authority")
DAY = 86400
CA_DAYS, SERVER_DAYS, RENEW_DAYS = 3650, 825, 60

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
    """Create the CA unless it exists; returns whether it was created. It is never renewed: every host trusts it.

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
    config = work / "ca.cnf"
    config.write_text(REQUEST.format(name=f"{cluster} cluster authority", alternatives="DNS:none"))
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(work / "ca.key"))
    openssl(
        *("req", "-x509", "-new", "-sha256", "-config", str(config), "-days", str(CA_DAYS)),
        *("-key", str(work / "ca.key"), "-out", str(work / "ca.pem")),
    )
    # The certificate is last: where it exists, the pair is complete.
    install(work / "ca.key", key, 0o600)
    install(work / "ca.pem", certificate, 0o644)
    return True


def make_server(options: argparse.Namespace, work: Path) -> bool:
    """Create or renew the server's certificate; returns whether it changed. A record has the names that it is for."""
    key, certificate = options.directory / "server.key", options.directory / "server.pem"
    record_file = FOLDER / f"{options.purpose}.json"
    names: list[str] = [*(f"DNS:{name}" for name in options.name), *(f"IP:{address}" for address in options.address)]

    def record(expires: float) -> dict[str, Any]:
        files = {"authority": FOLDER / "ca.pem", "key": key, "certificate": certificate}
        return {"names": names, "expires": expires, **{what: digest(file) for what, file in files.items()}}

    if record_file.is_file() and key.is_file() and certificate.is_file():
        old = json.loads(record_file.read_text())
        if old == record(old.get("expires", 0)) and old["expires"] - time.time() > RENEW_DAYS * DAY:
            return False
    config = work / "server.cnf"
    config.write_text(REQUEST.format(name=options.name[0], alternatives=",".join(names)))
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(work / "server.key"))
    openssl(
        *("req", "-new", "-sha256", "-config", str(config)),
        *("-key", str(work / "server.key"), "-out", str(work / "server.csr")),
    )
    openssl(
        *("x509", "-req", "-sha256", "-days", str(SERVER_DAYS), "-set_serial", f"0x{secrets.token_hex(16)}"),
        *("-in", str(work / "server.csr"), "-CA", str(FOLDER / "ca.pem"), "-CAkey", str(FOLDER / "ca.key")),
        *("-extfile", str(config), "-extensions", "server", "-out", str(work / "server.pem")),
    )
    install(FOLDER / "ca.pem", options.directory / "ca.pem", 0o644)
    install(work / "server.key", key, 0o640, options.group)
    install(work / "server.pem", certificate, 0o644)
    (work / "server.json").write_text(json.dumps(record(time.time() + SERVER_DAYS * DAY)))
    install(work / "server.json", record_file, 0o600)
    return True


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
        "--purpose", choices=("server", "rest"), default="server", help="which of the certificates it is"
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
    with tempfile.TemporaryDirectory(prefix="gpucluster-ca-", dir="/run") as place:
        changed = make_ca(options.cluster, Path(place))
        changed = make_server(options, Path(place)) or changed
    if digest(options.publish) != digest(FOLDER / "ca.pem"):
        install(FOLDER / "ca.pem", options.publish, 0o644)
        changed = True
    # The umask protects the keys. The folders of the certificates are public.
    for public in (FOLDER.parent, options.directory):
        public.chmod(0o755)
    sys.stdout.write(json.dumps({"changed": changed, "ca": (FOLDER / "ca.pem").read_text()}) + "\n")
    return 0
