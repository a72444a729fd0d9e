"""How a run proves to OCI who it is: one place for the SDK, Terraform's provider and Terraform's backend `oci`.

`open_credentials` makes what `cloud.auth` names. Nothing is asked before it is needed: a command that only reads
cluster.yml sends no request. The controller's own programs are instance principals always, and not in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, get_args

from gpucluster.cloud.credentials.profile import OciProfile
from gpucluster.errors import InputError
from gpucluster.oci.authentication import Authentication
from gpucluster.spec.sections.cloud import Cloud
from gpucluster.text import did_you_mean

__all__ = ["VARIABLE", "Credentials", "OciProfile", "authentication_of", "open_credentials"]

#: Replaces `cloud.auth` on one machine: an operator has a profile, and the runner of the same file has none.
VARIABLE = "GPUCLUSTER_CLOUD_AUTH"


class Credentials(Protocol):
    """One identity, for all programs of a run."""

    @property
    def tenancy(self) -> str:
        """The OCID of the tenancy.

        Raises:
            GpuClusterError: it has to be asked for, and what is asked refuses or does not answer.
        """

    @property
    def region(self) -> str:
        """The region that the identity itself names; may be empty."""

    def sdk_config(self, region: str) -> dict[str, str]:
        """The configuration of the SDK's clients. Raises as `tenancy`."""

    def signer(self) -> Any:
        """What signs the requests of the SDK; None where `sdk_config` has a key. Raises as `tenancy`."""

    def terraform_env(self, region: str) -> Mapping[str, str]:
        """Variables for Terraform's provider, which reads them from its environment. Raises as `tenancy`."""

    def state_env(self) -> Mapping[str, str]:
        """Variables for Terraform's backend `oci`, beside its settings. Raises as `tenancy`."""


def authentication_of(cloud: Cloud, environ: Mapping[str, str]) -> Authentication:
    """The method: that of cluster.yml, or of the environment.

    Raises:
        InputError: the environment names an unknown one, or one for which cluster.yml lacks a section.
    """
    named = environ.get(VARIABLE, "")
    if not named:
        return cloud.auth
    known: tuple[Authentication, ...] = get_args(Authentication)
    for method in known:
        if method == named:
            if method == "oidc" and cloud.oidc is None:
                hint = "Add `oidc:` with `domain_url` and `client_id` below `cloud:` in cluster.yml"
                raise InputError("there is no identity domain to exchange an ID token at", where=VARIABLE, hint=hint)
            return method
    hint = did_you_mean(named, known) or f"Known: {', '.join(known)}"
    raise InputError(f"unknown method of authentication: {named}", where=VARIABLE, hint=hint)


def open_credentials(
    cloud: Cloud, environ: Mapping[str, str], *, profile: tuple[Path, str], endpoint: str = ""
) -> Credentials:
    """The identity that `cloud.auth` names.

    Args:
        environ: the environment of this process.
        profile: the OCI configuration file and the profile in it, for the method `profile`.
        endpoint: of the API where it is not Oracle's own.

    Raises:
        InputError: the configuration file, its profile or one of its entries is missing.
    """
    method = authentication_of(cloud, environ)
    if method == "profile":
        return OciProfile.read(*profile)
    if method == "oidc":
        from gpucluster.cloud.credentials.session import ExchangedSession

        assert cloud.oidc is not None
        return ExchangedSession(cloud.oidc, environ)
    from gpucluster.cloud.credentials.principals import Principal

    return Principal(method, environ, endpoint)
