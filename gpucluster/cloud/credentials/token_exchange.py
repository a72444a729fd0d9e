"""The exchange of an ID token for a session token of OCI (UPST) at an identity domain.

Sources: Oracle's page "Token Exchange Grant Type: Exchanging a JSON Web Token for a UPST", and the SDK's
TokenExchangeSigner, which sends the same request. The request is sent here and not by the SDK because the SDK drops the
domain's reason. The token is for a key of ours: without it, nothing can be signed with the token.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.credentials import jwt
from gpucluster.errors import CloudError, EnvironmentFault
from gpucluster.text import reason_of

#: The secret of the OAuth client. Never in cluster.yml.
SECRET = "GPUCLUSTER_OIDC_CLIENT_SECRET"  # noqa: S105 - the name of a variable
PATH = "/oauth2/v1/token"
_TIMEOUT = 30.0
_MOST = 300  # characters of an answer that is not JSON
_UNAUTHORIZED = 401


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The client's secret goes to the domain alone."""

    def redirect_request(self, *_args: Any) -> None:
        return None


@dataclass(frozen=True)
class TokenExchange:
    """An identity domain, and the OAuth client (confidential application) that may exchange tokens there.

    Args:
        domain_url: such as https://idcs-1234.identity.oraclecloud.com.
    """

    domain_url: str
    client_id: str
    client_secret: str

    def session_token(self, id_token: str, public_key: bytes) -> str:
        """A session token of OCI.

        Args:
            id_token: the JSON Web Token of the CI system.
            public_key: of the key that requests will be signed with, DER (SubjectPublicKeyInfo).

        Raises:
            CloudError: the domain refuses, can't be reached, or its answer can't be read.
        """
        fields = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:oci:token-type:oci-upst",
            "subject_token": id_token,
            "subject_token_type": "jwt",
            "public_key": base64.b64encode(public_key).decode("ascii"),
        }
        basic = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode("ascii")
        url = self.domain_url.rstrip("/") + PATH
        request = urllib.request.Request(  # noqa: S310 - the spec permits https, and http to this machine alone
            url, urllib.parse.urlencode(fields).encode("ascii"), {"Authorization": f"Basic {basic}"}
        )
        try:
            with urllib.request.build_opener(_NoRedirects()).open(request, timeout=_TIMEOUT) as answer:
                token = json.loads(answer.read())["token"]
        except urllib.error.HTTPError as error:
            raise _refused(error, url, id_token) from error
        except OSError as error:
            raise CloudError(
                f"the identity domain can't be reached: {reason_of(error)}",
                where=url,
                hint="Check cloud.oidc.domain_url (the domain's page in the console shows it), the network and "
                "HTTPS_PROXY",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CloudError(
                f"the answer of the identity domain has no token: {reason_of(error)}",
                where=url,
                hint="Check that cloud.oidc.domain_url is the URL of an identity domain",
            ) from error
        if not isinstance(token, str) or jwt.times(jwt.claims(token)) is None:
            raise CloudError(
                "the session token of the identity domain can't be read",
                where=url,
                hint="Check that cloud.oidc.domain_url is the URL of an identity domain",
            )
        return token


def _refused(error: urllib.error.HTTPError, url: str, id_token: str) -> CloudError:
    """The domain's reason, and what to compare."""
    text = error.read(65536).decode(errors="replace")
    error.close()
    try:
        answer = json.loads(text)
        code, why = str(answer["error"]), str(answer.get("error_description") or "")
    except (ValueError, KeyError, TypeError):
        code, why = "", text[:_MOST].strip()
    reason = ": ".join(part for part in (f"{error.code} {code}".strip(), why) if part)
    return CloudError(
        f"the identity domain refuses to exchange the ID token: {reason}",
        where=url,
        hint=_advice(error.code, code, id_token),
        status=error.code,
        code=code,
    )


def _advice(status: int, code: str, id_token: str) -> str:
    if status == _UNAUTHORIZED or code in ("invalid_client", "unauthorized_client"):
        return (
            f"Compare cloud.oidc.client_id and {SECRET} with the confidential application of the domain, and check "
            "that it is active and among the `oauthClients` of the identity propagation trust"
        )
    read = jwt.claims(id_token)
    said = ", ".join(f"{name} {json.dumps(read[name])}" for name in ("iss", "aud", "sub") if name in read)
    return (
        f"The ID token has {said}: compare it with issuer, clientClaimValues and the rules of the identity "
        "propagation trust (docs/how-to/gitops.md)"
    )


def client_secret(value: str | None) -> str:
    """The secret of the OAuth client, out of the environment.

    Raises:
        EnvironmentFault: it is not set.
    """
    if not value:
        raise EnvironmentFault(
            f"{SECRET} is not set, and the identity domain wants the secret of the OAuth client",
            hint="Put it into the secrets of the CI system, and give the job this variable",
        )
    return value
