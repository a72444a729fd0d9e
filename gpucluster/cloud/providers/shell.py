"""The variables with which OCI's own tools work with the local cloud in a shell: oci-cli, the SDK, plain Terraform."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from gpucluster.cloud.credentials import OciProfile
from gpucluster.cloud.providers.local import bundled_provider_env, real_provider_env
from gpucluster.environment import without_proxy
from gpucluster.errors import EnvironmentFault
from gpucluster.paths import write_private

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


def shell_environment(home: Path, caller: Mapping[str, str], *, bundled: bool) -> dict[str, str | None]:
    """The variables for the local cloud of a home, sorted; None for one that must not be set.

    Args:
        caller: the environment of the shell.
        bundled: plain Terraform takes the local cloud's own provider, which is installed in the home.

    Raises:
        EnvironmentFault: the local cloud does not run.
    """
    from gpucluster.localcloud import control
    from gpucluster.localcloud.provider import installation

    if not (control.status(home).running or control.elsewhere(home)):
        raise EnvironmentFault("the local cloud does not run", where=str(home), hint="gpucluster local start")
    plugins = home / "providers"
    terraform_rc = plugins / "terraform.rc" if bundled else None
    if terraform_rc is not None:
        for registry in installation.REGISTRIES:
            installation.install(plugins, f"{registry}/oracle/oci")
        write_private(terraform_rc, installation.cli_config(plugins))
    config = home / "credentials" / "config"
    endpoint = str(json.loads((home / "endpoint.json").read_text())["endpoint"])
    return shell_variables(config, OciProfile.read(config, "DEFAULT"), endpoint, caller, terraform_rc)


def shell_variables(
    config: Path, profile: OciProfile, endpoint: str, caller: Mapping[str, str], terraform_rc: Path | None
) -> dict[str, str | None]:
    """The variables of a shell, sorted; None for one that must not be set.

    Args:
        config: the OCI configuration file of the local cloud; `profile` is its only one.
        caller: the environment of the shell, for its list of hosts that are reached without a proxy.
        terraform_rc: Terraform's CLI configuration with the bundled provider; None for the real one.
    """
    variables: dict[str, str | None] = dict.fromkeys(_CONTRARY)
    variables |= {
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
        **without_proxy(caller),
    }
    if terraform_rc is not None:
        variables |= bundled_provider_env(terraform_rc, endpoint)
    return dict(sorted(variables.items()))


def without_shell_environment() -> dict[str, str | None]:
    """What `shell_environment` sets, not set. The list of hosts that are reached without a proxy stays."""
    no_profile = OciProfile("", "", "", "", "")
    made = shell_variables(Path(), no_profile, "", {}, terraform_rc=Path())
    return {name: None for name, value in made.items() if value is not None}


def shell_text(variables: Mapping[str, str | None]) -> str:
    """What a POSIX shell reads: one `export` for each variable that is set, and one `unset` for the others."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value is not None]
    return "\n".join([*lines, " ".join(["unset", *(name for name, value in variables.items() if value is None)])])
