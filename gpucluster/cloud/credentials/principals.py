"""Identities that OCI itself gives to where gpucluster runs: an instance, another resource, or a pod of OKE.

The SDK and Terraform's provider each get a token of their own, from the metadata service or the variables that OCI
sets. What is missing is looked for first: the SDK repeats its questions for minutes before it gives up.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gpucluster.cloud.client import principal_signer
from gpucluster.cloud.credentials import jwt
from gpucluster.errors import EnvironmentFault
from gpucluster.oci.authentication import TERRAFORM_AUTH, Authentication
from gpucluster.text import reason_of

METADATA, _METADATA_DEFAULT = "OCI_METADATA_BASE_URL", "http://169.254.169.254/opc/v2"
VERSION, _REGION = "OCI_RESOURCE_PRINCIPAL_VERSION", "OCI_RESOURCE_PRINCIPAL_REGION"
_RPST, _PEM = "OCI_RESOURCE_PRINCIPAL_RPST", "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM"
_RPT_ENDPOINT, _RPST_ENDPOINT = "OCI_RESOURCE_PRINCIPAL_RPT_ENDPOINT", "OCI_RESOURCE_PRINCIPAL_RPST_ENDPOINT"
_API_SERVER, _CA = "KUBERNETES_SERVICE_HOST", "OCI_KUBERNETES_SERVICE_ACCOUNT_CERT_PATH"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = 5.0
#: Where an instance exchanges its certificate for a token, at an endpoint that is not Oracle's own.
FEDERATION = "/v1/x509"

#: The variables that a version of resource principals needs (oci-go-sdk: resource_principal_key_provider.go; the SDK:
#: get_resource_principals_signer). Others have a list of their own, which the SDK checks.
_NEEDED = {"2.2": (_RPST, _PEM, _REGION), "1.1": (_RPT_ENDPOINT, _RPST_ENDPOINT)}
_KINDS = {
    "instance_principal": "an instance principal",
    "resource_principal": "a resource principal",
    "workload_identity": "a workload identity",
}


class Principal:
    """The identity. Its token is asked for when it is first needed.

    Args:
        endpoint: of the API where it is not Oracle's own.
    """

    region = ""

    def __init__(self, method: Authentication, environ: Mapping[str, str], endpoint: str = "") -> None:
        self._method = method
        self._environ = environ
        self._endpoint = endpoint

    def check(self) -> None:
        """Look for what the method needs.

        Raises:
            EnvironmentFault: something is missing; the message names it.
        """
        if self._method == "instance_principal":
            _ask_metadata(self._environ.get(METADATA, "").strip() or _METADATA_DEFAULT)
        elif self._method == "resource_principal":
            self._check_variables(
                _NEEDED.get(self._environ.get(VERSION, ""), ()),
                "`cloud.auth: resource_principal` is for what OCI gives such an identity: a build run of OCI DevOps, a "
                "function, a container instance",
            )
        else:
            self._check_variables(
                (_REGION, _API_SERVER),
                "`cloud.auth: workload_identity` is for a pod of an enhanced cluster of OKE, with "
                f"{VERSION}=2.2 and {_REGION} in its `env`",
            )
            ca = Path(self._environ.get(_CA) or _SERVICE_ACCOUNT / "ca.crt")
            for file in (ca, _SERVICE_ACCOUNT / "token"):
                if not os.access(file, os.R_OK):
                    raise EnvironmentFault(
                        "the token of the pod's service account, or the CA for it, can't be read",
                        where=str(file),
                        hint="Set `automountServiceAccountToken: true` in the pod",
                    )

    def _check_variables(self, names: tuple[str, ...], hint: str) -> None:
        missing = [name for name in (VERSION, *names) if not self._environ.get(name)]
        if missing:
            raise EnvironmentFault(f"this is not {_KINDS[self._method]}: {', '.join(missing)} is not set", hint=hint)

    @cached_property
    def _signer(self) -> Any:
        self.check()
        return principal_signer(self._method, f"{self._endpoint}{FEDERATION}" if self._endpoint else "")

    def signer(self) -> Any:
        """The SDK's signer, which renews its token."""
        return self._signer

    @property
    def tenancy(self) -> str:
        """The tenancy of the instance or the resource, which its token names."""
        named = getattr(self._signer, "tenancy_id", "")
        read = jwt.claims(str(self._signer.api_key).removeprefix("ST$"))
        return str(named or read.get("res_tenant") or read.get("tenant") or "")

    def sdk_config(self, region: str) -> dict[str, str]:
        """The tenancy and the region: the signer has the rest."""
        return {"tenancy": self.tenancy, "region": region}

    def terraform_env(self, region: str) -> Mapping[str, str]:
        """The method. What the provider needs beside it, `gpucluster.environment` lets pass, but for one variable."""
        self.check()
        server = self._environ.get(_API_SERVER, "") if self._method == "workload_identity" else ""
        return {
            "OCI_AUTH": TERRAFORM_AUTH[self._method],
            "OCI_REGION": region,
            **({_API_SERVER: server} if server else {}),
        }

    def state_env(self) -> Mapping[str, str]:
        """Nothing beside the backend's settings."""
        return {}


def _ask_metadata(base: str) -> None:
    """Whether the metadata service answers.

    Raises:
        EnvironmentFault: it does not, or refuses.
    """
    hint = (
        "`cloud.auth: instance_principal` is for an instance of OCI. Behind a proxy, NO_PROXY must name "
        "169.254.169.254. On other machines, use `oidc` or `profile`"
    )
    url = f"{base}/instance/region"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer Oracle"})  # noqa: S310 - OCI's own
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT):  # noqa: S310 - the same
            return
    except urllib.error.HTTPError as error:
        error.close()
        raise EnvironmentFault(f"the metadata service answered {error.code}", where=url, hint=hint) from error
    except (OSError, ValueError) as error:
        raise EnvironmentFault(
            f"the metadata service does not answer: {reason_of(error)}", where=url, hint=hint
        ) from error
