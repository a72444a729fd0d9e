"""A session that an identity domain gives for the ID token of a CI system (`cloud.auth: oidc`).

The key pair is made here and lives as long as the process; the token lasts an hour and is renewed when half of its life
is over, for Terraform by a thread: an apply may take longer than a token.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from gpucluster.cloud.client import fingerprint, session_signer
from gpucluster.cloud.credentials import id_token, jwt
from gpucluster.cloud.credentials.session_folder import SessionFolder, home_env, session_env
from gpucluster.cloud.credentials.token_exchange import SECRET, TokenExchange, client_secret
from gpucluster.errors import GpuClusterError
from gpucluster.paths import write_private
from gpucluster.spec.sections.cloud import Oidc

_KEY_BITS = 2048
#: Seconds until a renewal that failed is tried again.
_AGAIN = 30.0


class ExchangedSession:
    """The session. It is begun when it is first needed.

    Args:
        environ: has the ID token, or where it comes from, and the secret of the OAuth client.
        clock: seconds since the epoch.
    """

    region = ""

    def __init__(self, oidc: Oidc, environ: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._oidc = oidc
        self._environ = environ
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""

    @cached_property
    def _key(self) -> tuple[str, bytes]:
        """The private key as PEM, and the public one as DER."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        private = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        der = private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return pem.decode("ascii"), der

    def token(self) -> str:
        """The token, which has at least half of its life before it.

        Raises:
            GpuClusterError: there is no ID token, or the domain refuses it. Not while the present one still holds.
        """
        with self._lock:
            since, until = jwt.times(jwt.claims(self._token)) or (0.0, 0.0)
            if self._clock() >= (since + until) / 2:
                try:
                    self._token = self._exchanged()
                except GpuClusterError:
                    if self._clock() >= until:
                        raise
            return self._token

    def _exchanged(self) -> str:
        secret = client_secret(self._environ.get(SECRET))
        given = id_token.read(self._environ, self._oidc.audience or "")
        return TokenExchange(self._oidc.domain_url, self._oidc.client_id, secret).session_token(given, self._key[1])

    @property
    def tenancy(self) -> str:
        """The tenancy that the token is of."""
        return str(jwt.claims(self.token()).get("tenant") or "")

    def sdk_config(self, region: str) -> dict[str, str]:
        """The tenancy and the region: the signer has the rest."""
        return {"tenancy": self.tenancy, "region": region}

    @cached_property
    def _signer(self) -> Any:
        return session_signer(self.token, self._key[0])

    def signer(self) -> Any:
        """Signs the requests of the SDK."""
        return self._signer

    @cached_property
    def _folder(self) -> SessionFolder:
        """The folder with the present token, which is kept fresh from now on."""
        folder = SessionFolder()
        write_private(folder.key, self._key[0])
        write_private(folder.token, self.token())
        # Without a region: the provider's block and the backend's settings name one.
        folder.write_config(
            {
                "tenancy": self.tenancy,
                "fingerprint": fingerprint(self._key[0].encode()),
                "key_file": str(folder.key),
                "security_token_file": str(folder.token),
            }
        )
        ended = threading.Event()
        weakref.finalize(self, ended.set)
        threading.Thread(target=_keep_fresh, args=(weakref.ref(self), ended), name="session token", daemon=True).start()
        return folder

    def renew(self) -> float:
        """Write the token into the folder. Returns the seconds until this is due again."""
        with suppress(GpuClusterError, OSError):  # tried again; at the end Terraform reports what OCI answers
            write_private(self._folder.token, self.token())
        return self.due_in()

    def due_in(self) -> float:
        """Seconds until half of the token's life is over."""
        since, until = jwt.times(jwt.claims(self._token)) or (0.0, 0.0)
        return max((since + until) / 2 - self._clock(), _AGAIN)

    def terraform_env(self, region: str) -> Mapping[str, str]:
        """The session as the provider reads it."""
        return session_env(self._folder.path, region)

    def state_env(self) -> Mapping[str, str]:
        """The same for the backend `oci`, whose settings name the profile and the region."""
        return home_env(self._folder.path)


def _keep_fresh(of: weakref.ref[ExchangedSession], ended: threading.Event) -> None:
    """Renew a session's token for Terraform as long as the session is in use."""
    session = of()
    while session is not None:
        pause = session.due_in()
        session = None  # it may go while this waits
        if ended.wait(pause):
            return
        session = of()
        if session is not None:
            session.renew()
