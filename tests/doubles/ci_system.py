"""A double of a CI system that gives ID tokens to its jobs: GitHub's service, and the public keys of an issuer.

What it does not prove: the claims of GitHub and GitLab beyond the few that are here, and their limits on requests.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

CLIENT, SECRET, AUDIENCE = "runner-app", "planted-client-secret", "oci"
SUBJECT = "repo:example/site:ref:refs/heads/main"
_BEARER = "job-bearer"


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


class CiSystem:
    """The service, and the key that it signs with. `asked` counts the tokens that it has given."""

    def __init__(self) -> None:
        self.key = generate_private_key(public_exponent=65537, key_size=2048)
        self.asked = 0
        self.seconds = 300
        system = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = system.answer(self.path, self.headers.get("authorization", ""))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        url = urlsplit(path)
        if url.path == "/jwks":
            numbers = self.key.public_key().public_numbers()
            named = {"n": numbers.n.to_bytes(256, "big"), "e": numbers.e.to_bytes(3, "big")}
            return 200, {"keys": [{"kid": "one", "kty": "RSA", **{k: encoded(v) for k, v in named.items()}}]}
        if url.path != "/token" or authorization != f"bearer {_BEARER}":
            return 403, {"message": "Resource not accessible by integration"}
        self.asked += 1
        audience = parse_qs(url.query).get("audience", ["https://github.com/example"])[0]
        return 200, {"value": self.token(aud=audience)}

    def token(self, **changes: Any) -> str:
        """An ID token, signed; `changes` replace its claims."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": SUBJECT, "iat": now, "exp": now + self.seconds}
        parts = ({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims | changes)
        text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        return f"{text}.{encoded(self.key.sign(text.encode(), PKCS1v15(), SHA256()))}"

    def trusts(self, **changes: Any) -> str:
        """The file of a local cloud's identity domain that trusts this issuer."""
        trust = {
            "name": "ci", "type": "JWT", "active": True, "issuer": self.issuer, "oauthClients": [CLIENT],
            "publicKeyEndpoint": f"{self.issuer}/jwks", "clockSkewSeconds": 0, "clientClaimName": "aud",
            "clientClaimValues": [AUDIENCE], "allowImpersonation": True,
            "impersonationServiceUsers": [{"rule": "sub sw repo:example/site:"}],
        }  # fmt: skip
        return json.dumps({"clients": {CLIENT: SECRET, "other-app": "x"}, "trusts": [trust | changes]})

    def trusted_by(self, home: Path, **changes: Any) -> None:
        file = home / "credentials" / "identity_propagation_trusts.json"
        file.parent.mkdir(exist_ok=True, mode=0o700)
        file.write_text(self.trusts(**changes))

    def of_github(self) -> Mapping[str, str]:
        """The variables of a job with the permission `id-token: write`."""
        return {
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.issuer}/token?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": _BEARER,
        }

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def ci_system() -> Iterator[CiSystem]:
    system = CiSystem()
    thread = threading.Thread(target=system.run, daemon=True)
    thread.start()
    try:
        yield system
    finally:
        system.stop()
        thread.join()
