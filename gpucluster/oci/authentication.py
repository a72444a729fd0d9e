"""How a program proves to OCI who it is, by the names of cluster.yml and of Terraform.

Sources: oracle/oci 8.28.0 (internal/globalvar/constants.go, internal/provider/provider.go) and Terraform's backend
`oci` (internal/backend/remote-state/oci), which accepts the same names but for OKEWorkloadIdentity. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Authentication = Literal["profile", "instance_principal", "resource_principal", "workload_identity", "oidc"]

#: The argument `auth` of Terraform's provider and backend. A profile has an API key unless it is a session's.
TERRAFORM_AUTH: Mapping[Authentication, str] = {
    "profile": "ApiKey",
    "instance_principal": "InstancePrincipal",
    "resource_principal": "ResourcePrincipal",
    "workload_identity": "OKEWorkloadIdentity",
    "oidc": "SecurityToken",
}
#: Methods that the backend `oci` refuses, although it has code for them.
NOT_IN_BACKEND: frozenset[Authentication] = frozenset({"workload_identity"})
#: The profile of the configuration file that is written for a session.
SESSION_PROFILE = "gpucluster"


def backend_settings(authentication: Authentication, profile: str) -> dict[str, str]:
    """The settings of Terraform's backend `oci` by which it authenticates as the rest of a run does.

    Args:
        profile: of the operator's OCI configuration file.
    """
    if authentication == "profile":
        return {"config_file_profile": profile}
    session = {"config_file_profile": SESSION_PROFILE} if authentication == "oidc" else {}
    return {"auth": TERRAFORM_AUTH[authentication], **session}
