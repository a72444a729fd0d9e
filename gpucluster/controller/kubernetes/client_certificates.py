"""Short-lived certificates of clients: users and operators keep their keys, the controller signs the public half.

The CA of the control plane signs here, by openssl: Kubernetes' own way for certificate requests can't limit how
long a certificate is valid before 1.22. Nothing of a request is used but its key.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused

AUTHORITY = Path("/etc/kubernetes/pki")
#: A clock that is a little late must not refuse a new certificate.
_EARLIER_S = 300
_HOUR_S = 3600
MOST_HOURS = 720
_MOST_CHARACTERS = 16384
_CONFIG = """
[ca]
default_ca = main
[main]
database = {work}/index
new_certs_dir = {work}
rand_serial = yes
default_md = sha256
policy = names
x509_extensions = client
copy_extensions = none
unique_subject = no
[names]
organizationName = optional
commonName = supplied
[client]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = clientAuth
authorityKeyIdentifier = keyid
"""


def checked_hours(hours: object, what: str) -> int:
    """The number of hours in a request.

    Args:
        what: is valid for so long, for the error.

    Raises:
        Refused: it is something else.
    """
    if not isinstance(hours, int) or isinstance(hours, bool) or not 1 <= hours <= MOST_HOURS:
        raise Refused(f"{what} is valid for 1 to {MOST_HOURS} hours")
    return hours


def sign(
    request: object,
    user: str,
    groups: Sequence[str],
    hours: object,
    authority: Path = AUTHORITY,
    now: float | None = None,
) -> str:
    """A certificate as PEM.

    Args:
        request: a certificate request as PEM. Its own names and extensions count for nothing.
        user: the name of the user in Kubernetes.
        groups: at most one.
        hours: for which it is valid.
        now: seconds since 1970; None takes the clock.

    Raises:
        Refused: the request or the hours are not usable.
        Failed: there is no CA here, or openssl failed.
    """
    if not isinstance(request, str) or len(request) > _MOST_CHARACTERS or "BEGIN CERTIFICATE REQUEST" not in request:
        raise Refused("not a certificate request", "Write it as PEM")
    valid = checked_hours(hours, "a certificate")
    if not (authority / "ca.key").is_file():
        raise Failed(f"there is no CA of Kubernetes in {authority}", "Run: gpucluster apply")
    start = time.time() if now is None else now
    dates = [time.strftime("%Y%m%d%H%M%SZ", time.gmtime(at)) for at in (start - _EARLIER_S, start + valid * _HOUR_S)]
    subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as folder:
        work = Path(folder)
        (work / "index").touch()
        (work / "config").write_text(_CONFIG.format(work=work))
        (work / "request").write_text(request)
        argv = [
            *("openssl", "ca", "-batch", "-notext", "-config", str(work / "config"), "-in", str(work / "request")),
            *("-cert", str(authority / "ca.crt"), "-keyfile", str(authority / "ca.key"), "-subj", subject),
            *("-startdate", dates[0], "-enddate", dates[1], "-out", str(work / "certificate")),
        ]
        result = programs.call(argv)
        if result.returncode != 0:
            words = (result.stderr.strip().splitlines() or [f"status {result.returncode}"])[-1]
            raise Refused("the certificate request can't be signed", words[:200])
        return (work / "certificate").read_text()
