"""What Slurm's REST API answers on the controller to a request without a token, and which certificate it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_FOLDER = Path("/etc/gpucluster/rest")
_ADDRESS = "127.0.0.1"
_PATH = "/openapi/v3"
_SECONDS = 20.0
# X509_V_FLAG_PARTIAL_CHAIN of OpenSSL, which Python names from 3.10 on.
_PARTIAL_CHAIN = 0x80000


def rest(port: int, folder: Path = _FOLDER) -> dict[str, Any]:
    """{"status": of the answer, "ends": of the certificate, seconds since 1970}, or {"error": why there is none}.

    The certificate must be the one that the role has installed, or of the cluster's CA. Its names are not compared: the
    question comes from this host.
    """
    # Most clusters have no such server, and these take longest to load of all that collects facts.
    import http.client
    import ssl

    own = folder / "own.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags(_PARTIAL_CHAIN)
    connection = http.client.HTTPSConnection(_ADDRESS, port, timeout=_SECONDS, context=context)
    try:
        context.load_verify_locations(str(own if own.is_file() else folder / "ca.pem"))
        connection.connect()
        shown = connection.sock.getpeercert() or {}
        connection.request("GET", _PATH)
        answer = connection.getresponse()
        answer.read()
        return {"status": answer.status, "ends": int(ssl.cert_time_to_seconds(str(shown["notAfter"])))}
    except (OSError, http.client.HTTPException, KeyError, TypeError, ValueError) as error:
        return {"error": str(error) or type(error).__name__}
    finally:
        connection.close()
