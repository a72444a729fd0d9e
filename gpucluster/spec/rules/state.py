"""Rules of `state`: the settings of each Terraform backend, which of them are required, and no secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.text import did_you_mean


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Backend:
    """The settings of a backend that a file in Git may contain.

    Args:
        settings: the names of its settings without secrets; settings that are mappings or lists are not supported.
        required: the required ones, each with an example.
        secrets: the names of secrets, each with what to do instead.
    """

    settings: frozenset[str]
    required: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


def _environment(variable: str) -> str:
    return f"Delete the line, and set the environment variable {variable}"


_AWS_KEYS = "Delete the line, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"

#: From the schemas of Terraform's own backends; `namespace` of s3 is ours, for the endpoint of OCI's Object Storage.
#: Settings with a default (gpucluster.terraform.backends), or that may come from the environment, are not required.
BACKENDS: Mapping[str, Backend] = {
    "local": Backend(frozenset()),
    "oci": Backend(
        _words(
            """
            auth bucket config_file_profile fingerprint key kms_key_id namespace private_key_path region
            sse_customer_algorithm sse_customer_key_sha256 tenancy_ocid user_ocid workspace_key_prefix
            """
        ),
        required={"bucket": "terraform", "namespace": "exampletenancy"},
        secrets={
            "private_key": "Delete the line, and name the key's file: private_key_path, or config_file_profile",
            "private_key_password": _environment("OCI_private_key_password"),
            "sse_customer_key": _environment("OCI_sse_customer_key"),
        },
    ),
    "s3": Backend(
        _words(
            """
            acl bucket custom_ca_bundle dynamodb_table encrypt endpoint http_proxy https_proxy insecure key kms_key_id
            max_retries namespace no_proxy profile region retry_mode shared_credentials_file skip_credentials_validation
            skip_metadata_api_check skip_region_validation skip_requesting_account_id skip_s3_checksum
            use_dualstack_endpoint use_fips_endpoint use_lockfile use_path_style workspace_key_prefix
            """
        ),
        required={"bucket": "terraform"},
        secrets={
            "access_key": _AWS_KEYS,
            "secret_key": _AWS_KEYS,
            "token": _environment("AWS_SESSION_TOKEN"),
            "sse_customer_key": _environment("AWS_SSE_CUSTOMER_KEY"),
        },
    ),
    "http": Backend(
        _words(
            """
            address client_ca_certificate_pem client_certificate_pem lock_address lock_method retry_max retry_wait_max
            retry_wait_min skip_cert_verification unlock_address unlock_method update_method username
            """
        ),
        secrets={
            "password": _environment("TF_HTTP_PASSWORD"),
            "client_private_key_pem": _environment("TF_HTTP_CLIENT_PRIVATE_KEY_PEM"),
        },
    ),
}


def _documented(name: str, backend: Backend) -> str:
    if not backend.settings:
        return f"`state.backend: {name}` has no settings."
    required = " and ".join(f"`{key}`" for key in backend.required) or "none of its settings"
    known = ", ".join(f"`{key}`" for key in sorted(backend.settings))
    secrets = ", ".join(f"`{key}`" for key in sorted(backend.secrets))
    return f"`state.backend: {name}` needs {required}, and accepts {known}. Secrets are refused: {secrets}."


RULES = tuple(_documented(name, backend) for name, backend in BACKENDS.items())

_PRE_AUTHENTICATED = re.compile(r"/p/[^/]+/n/")
_ADDRESSES = frozenset({"address", "lock_address", "unlock_address"})


def check(context: RuleContext) -> None:
    """Add every error of `state`."""
    state = context.section("state")
    name, config = state.get("backend"), state.get("config")
    backend = BACKENDS.get(name) if isinstance(name, str) else None
    if backend is None or not isinstance(config, dict):
        return
    for key, value in config.items():
        _check_setting(context, str(name), backend, key, value)
    for key, example in backend.required.items():
        if config.get(key) in (None, "") and not _is_invalid(context, key):
            hint = f"Add `config: {{{key}: {example}}}`"
            context.error(("state", "config", key), f"is missing: the backend {name} needs it", hint)
    if name == "http":
        _check_locks(context, config)


def _is_invalid(context: RuleContext, key: str) -> bool:
    return ("state", "config", key) in context.document.invalid


def _check_setting(context: RuleContext, name: str, backend: Backend, key: str, value: Any) -> None:
    path: Path = ("state", "config", key)
    if key in backend.secrets:
        context.error(path, "is a secret, which this file must not contain", backend.secrets[key], key=True)
    elif key not in backend.settings:
        known = f"Known: {', '.join(sorted(backend.settings))}" if backend.settings else "It has no settings"
        hint = did_you_mean(key, backend.settings) or known
        context.error(path, f"unknown setting of the backend {name}", hint, key=True)
    elif not isinstance(value, (str, int)):
        context.error(path, f"must be text, a whole number, true or false; got {shown(value)}")
    elif isinstance(value, str) and _PRE_AUTHENTICATED.search(value):
        hint = f"{_environment('TF_HTTP_ADDRESS')}. Such a state has no lock; the backends oci and s3 have one"
        context.error(path, "is a pre-authenticated request, a secret, which this file must not contain", hint)
    elif isinstance(value, str) and _has_password(value):
        # The value itself is not shown: it is the secret.
        hint = "Write it without `user:password@`, and set the environment variable of the backend for it"
        context.error(path, "contains a user's password, which this file must not contain", hint)
    elif key in _ADDRESSES and not re.match(r"https?://[^/\s]", str(value)):
        context.error(path, f"must be a URL; got {shown(value)}", "It begins with https:// or http://")


def _has_password(text: str) -> bool:
    """Whether a URL has a user before its host, which may come with a password or be a token."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*@", text) is not None


def _check_locks(context: RuleContext, config: Mapping[str, Any]) -> None:
    unlock, lock = config.get("unlock_address"), config.get("lock_address")
    if unlock is not None and lock is None and not _is_invalid(context, "lock_address"):
        message, hint = "has no meaning without lock_address", "Add lock_address, or delete the line"
        context.error(("state", "config", "unlock_address"), message, hint, key=True)
