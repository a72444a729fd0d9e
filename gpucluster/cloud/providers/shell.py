"""The variables with which OCI's own tools work with the local cloud in a shell: oci-cli, the SDK, and plain Terraform."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpucluster.cloud.providers.local import real_provider_env
from gpucluster.cloud.providers.profile import OciProfile
from gpucluster.environment import direct

# These would send a tool to another cloud, or as another user: oci-cli and the provider prefer them to the profile, and
# the provider prefers its TF_VAR_ form to all others.
_CONTRARY = (
    "OCI_CLI_AUTH", "OCI_CLI_CERT_BUNDLE", "OCI_CLI_DELEGATION_TOKEN_FILE", "OCI_CLI_FEDERATION_ENDPOINT",
    "OCI_CLI_FINGERPRINT", "OCI_CLI_KEY_CONTENT", "OCI_CLI_KEY_FILE", "OCI_CLI_PASSPHRASE", "OCI_CLI_REGION",
    "OCI_CLI_SECURITY_TOKEN_FILE", "OCI_CLI_TENANCY", "OCI_CLI_USER",
    "OCI_AUTH", "OCI_CONFIG_FILE_PROFILE", "OCI_PRIVATE_KEY", "OCI_PRIVATE_KEY_PASSWORD",
    "TF_VAR_auth", "TF_VAR_config_file_profile", "TF_VAR_fingerprint", "TF_VAR_private_key",
    "TF_VAR_private_key_password", "TF_VAR_private_key_path", "TF_VAR_region", "TF_VAR_tenancy_ocid",
    "TF_VAR_user_ocid", "domain_name_override",
)  # fmt: skip
_PROXY_EXCEPTIONS = ("no_proxy", "NO_PROXY")


def shell_variables(
    config: Path, profile: OciProfile, endpoint: str, caller: Mapping[str, str], more: Mapping[str, str]
) -> dict[str, str | None]:
    """The variables of a shell, sorted; None for one that must not be set.

    Args:
        config: the OCI configuration file of the local cloud; `profile` is its only one.
        caller: the environment of the shell, for its list of hosts that are reached without a proxy.
        more: further variables for Terraform.
    """
    found: dict[str, str | None] = dict.fromkeys(_CONTRARY)
    found |= {
        "OCI_CONFIG_FILE": str(config),
        "OCI_CLI_CONFIG_FILE": str(config),
        "OCI_CLI_PROFILE": "DEFAULT",
        "OCI_CLI_ENDPOINT": endpoint,
        # Settings of another tenancy, such as a default compartment.
        "OCI_CLI_RC_FILE": "/dev/null",
        "SUPPRESS_LABEL_WARNING": "True",
        "OCI_TENANCY": profile.tenancy,
        **profile.terraform_env(profile.region),
        **real_provider_env(endpoint),
        **{name: direct(caller, name) for name in _PROXY_EXCEPTIONS},
        **more,
    }
    return dict(sorted(found.items()))


def shell_text(variables: Mapping[str, str | None]) -> str:
    """What a POSIX shell reads: one `export` for each variable, and one `unset`."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value is not None]
    return "\n".join([*lines, unset_text(name for name, value in variables.items() if value is None)])


def unset_text(names: Iterable[str]) -> str:
    """A command that removes these variables from a POSIX shell."""
    return " ".join(["unset", *names])
