"""Tokens for a control plane of Oracle Kubernetes Engine, made by the identity of this instance.

A token is the URL of a signed request, GET https://containerengine.REGION.../cluster_request/CLUSTER, in base64: its
query has the headers `authorization` and `date` (oracle/oci-cli: `oci ce cluster generate-token`). It is valid for
some minutes. Policies of OCI decide what its owner may do. The private key of the session exists for the time of one
request, in a directory that only this process can read.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import json
import os
import re
import stat
import tempfile
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused

METADATA = "http://169.254.169.254/opc/v2"
CACHE = Path("/run/gpucluster/kubernetes-token.json")
#: oci-cli gives its tokens four minutes; OCI takes a signature whose date is up to five minutes old.
_VALID_S = 240
#: A token that was read from the file is valid for at least this time.
_LEFT_S = 60
_SECONDS = 20.0
_CLUSTER = re.compile(r"ocid1\.cluster\.[a-z0-9.-]+")
_IAM = "Look at the instance's dynamic group and policy: gpucluster policies"


def credential(cluster: str, cache: Path = CACHE, metadata: str = METADATA, federation: str = "") -> dict[str, Any]:
    """An ExecCredential of client-go with a token for a cluster; a recent one of the same cluster is taken again.

    Args:
        cluster: the OCID of the control plane.
        cache: where the recent token is; only root can read it.
        metadata: the address of the instance's metadata service.
        federation: the address of the service that gives session tokens; "" is the one of the instance's region.

    Raises:
        Refused: this is not the OCID of a cluster.
        Failed: the instance gets no token; the message names the service that did not give what is needed.
    """
    if not _CLUSTER.fullmatch(cluster):
        raise Refused(f"not the OCID of a cluster: {cluster[:60]!r}")
    now = time.time()
    entry = _recent(cache, cluster, now)
    if entry is None:
        entry = {"cluster": cluster, "token": _made(cluster, metadata, federation), "until": now + _VALID_S}
        _keep(cache, entry)
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(entry["until"])))
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": entry["token"], "expirationTimestamp": until},
    }


def _recent(cache: Path, cluster: str, now: float) -> dict[str, Any] | None:
    try:
        # Another owner, or a mode that lets others in: it was not written here.
        held = cache.lstat()
        if held.st_uid != os.geteuid() or stat.S_IMODE(held.st_mode) & 0o077 or not stat.S_ISREG(held.st_mode):
            return None
        entry = json.loads(cache.read_text(encoding="utf-8"))
        left = float(entry["until"]) - now
        return entry if entry["cluster"] == cluster and _LEFT_S < left <= _VALID_S and entry["token"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(cache: Path, entry: dict[str, Any]) -> None:
    """Without the file each call makes a token: slower, and no fault."""
    try:
        cache.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=cache.parent, prefix=".token-")  # its mode is 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(entry, file)
        os.replace(part, cache)
    except OSError:
        return


def _made(cluster: str, metadata: str, federation: str) -> str:
    try:
        instance = json.loads(_read(f"{metadata}/instance/"))
        region, tenancy = str(instance["canonicalRegionName"]), str(instance["tenantId"])
    except (ValueError, KeyError, TypeError):
        message = "the metadata service names no region and tenancy of this instance"
        raise Failed(message, f"Look at: {metadata}/instance/") from None
    domain = str((instance.get("regionInfo") or {}).get("realmDomainComponent") or "oraclecloud.com")
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as folder:
        key, key_id = _session(Path(folder), metadata, tenancy, federation or f"https://auth.{region}.{domain}/v1/x509")
        host, path = f"containerengine.{region}.{domain}", f"/cluster_request/{cluster}"
        date = email.utils.formatdate(usegmt=True)
        signed = _signature(key, [f"date: {date}", f"(request-target): get {path}", f"host: {host}"])
    query = {"authorization": _authorization(key_id, "date (request-target) host", signed), "date": date}
    return base64.urlsafe_b64encode(f"https://{host}{path}?{urllib.parse.urlencode(query)}".encode()).decode()


def _session(folder: Path, metadata: str, tenancy: str, federation: str) -> tuple[Path, str]:
    """A session key of this instance principal: the file with it, and the keyId of requests."""
    certificate = _read(f"{metadata}/identity/cert.pem")
    own, key = folder / "own.pem", folder / "session.pem"
    own.touch(mode=0o600)
    own.write_text(_read(f"{metadata}/identity/key.pem"))
    programs.run("openssl", "genrsa", "-out", str(key), "2048")
    public = programs.run("openssl", "rsa", "-in", str(key), "-pubout")
    body = json.dumps(
        {
            "certificate": _der(certificate),
            "publicKey": _der(public),
            "intermediateCertificates": [_der(_read(f"{metadata}/identity/intermediate.pem"))],
        }
    ).encode()
    # The fingerprint names the certificate in OCI's protocol; nothing relies on its hash.
    digest = hashlib.sha1(base64.b64decode(_der(certificate))).hexdigest().upper()  # noqa: S324
    fingerprint = ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
    date, content = email.utils.formatdate(usegmt=True), base64.b64encode(hashlib.sha256(body).digest()).decode()
    kind, target = "application/json", urllib.parse.urlsplit(federation).path
    lines = [
        f"date: {date}",
        f"(request-target): post {target}",
        f"content-length: {len(body)}",
        f"content-type: {kind}",
        f"x-content-sha256: {content}",
    ]
    names = "date (request-target) content-length content-type x-content-sha256"
    signed = _authorization(f"{tenancy}/fed-x509/{fingerprint}", names, _signature(own, lines))
    headers = {"date": date, "content-type": kind, "x-content-sha256": content, "authorization": signed}
    try:
        return key, f"ST${json.loads(_response(federation, headers, body))['token']}"
    except (ValueError, KeyError, TypeError):
        raise Failed(f"the answer of {federation} has no token", "Try again") from None


def _read(url: str) -> str:
    return _response(url, {"Authorization": "Bearer Oracle"})


def _response(url: str, headers: Mapping[str, str], body: bytes | None = None) -> str:
    """What a service answers. The request never goes through a proxy: keys of this instance are in the answers."""
    # Here, because these take longer to load than everything else.
    import ssl
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, data=body, headers=dict(headers))  # noqa: S310
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as error:
        raise Failed(f"{request.full_url} refuses this instance: {error.code} {error.reason}", _IAM) from None
    except (OSError, ValueError) as error:
        raise Failed(f"{request.full_url} gives no answer: {error}", "Try again") from None


def _der(pem: str) -> str:
    return "".join(line for line in pem.strip().splitlines() if not line.startswith("-----"))


def _signature(key: Path, lines: Sequence[str]) -> str:
    result = programs.call_with_data("openssl", "dgst", "-sha256", "-sign", str(key), text="\n".join(lines))
    if result.returncode != 0:
        raise Failed(f"openssl can't sign with the key of this instance: {programs.last_words(result)}", "Try again")
    return base64.b64encode(result.stdout).decode()


def _authorization(key_id: str, names: str, signed: str) -> str:
    return f'Signature version="1",keyId="{key_id}",algorithm="rsa-sha256",headers="{names}",signature="{signed}"'
