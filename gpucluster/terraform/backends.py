"""The backends that may hold Terraform's state, as data, and what each of them needs.

A backend's settings are written into a file, so they must not contain a secret. Terraform itself reads secrets from the
environment. Settings and their names: Terraform's documentation of each backend; for Object Storage through its S3 API
also Oracle's "Using Object Storage for State Files".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.node_agent import bounded

# The first release of Terraform that has the backend, with the settings that we write.
_SINCE = {"local": (1, 5), "http": (1, 5), "s3": (1, 6), "oci": (1, 12)}
_NOT_IN_TOFU = frozenset({"oci"})
ADDRESS_VARIABLE = "TF_HTTP_ADDRESS"
# Settings of the backend `oci` that decide who asks, and not where the state is.
_WHO_ASKS = frozenset(
    {"auth", "config_file_profile", "fingerprint", "private_key_path", "tenancy_ocid", "user_ocid"}
)  # fmt: skip
# A store that only implements S3 does not have Amazon's regions, accounts and metadata service.
_NOT_AMAZON = {
    "use_path_style": True,
    "skip_region_validation": True,
    "skip_credentials_validation": True,
    "skip_requesting_account_id": True,
    "skip_metadata_api_check": True,
    "skip_s3_checksum": True,
}
# Since Terraform 1.11.2, Amazon's SDK sends trailing checksums by default. Other stores refuse them.
_NOT_AMAZON_ENVIRONMENT = {
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
}


@dataclass(frozen=True, eq=False)
class BackendConfig:
    """A backend with all its settings, as Terraform gets them. Equal ones are the same place with any credentials.

    Args:
        kind: local, oci, s3 or http.
        config: settings by Terraform's names, without secrets.
        cluster: the name of the cluster whose state it is. It does not decide where the state is: comparisons ignore
            it.
    """

    kind: str
    config: Mapping[str, Any]
    cluster: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BackendConfig) and self._place() == other._place()

    __hash__ = None  # type: ignore[assignment] # its settings are mappings

    def _place(self) -> tuple[str, dict[str, Any]]:
        ignored = _WHO_ASKS if self.kind == "oci" else frozenset[str]()
        return self.kind, {name: value for name, value in self.config.items() if name not in ignored}

    @property
    def remote(self) -> bool:
        """Whether other machines can reach it."""
        return self.kind != "local"

    @property
    def locks(self) -> bool:
        """Whether runs of several machines exclude each other. A local file is locked with the cluster's folder."""
        if self.kind == "http":
            return bool(self.config.get("lock_address") or os.environ.get("TF_HTTP_LOCK_ADDRESS"))
        return self.remote

    def __str__(self) -> str:
        place = self.config.get("path") or self.config.get("address") or self.config.get("key") or ""
        bucket = f"{self.config['bucket']}/" if "bucket" in self.config else ""
        return f"{self.kind} {bucket}{place}".strip()

    def text(self) -> str:
        """The file backend.tf.json."""
        return json.dumps({"terraform": {"backend": {self.kind: dict(self.config)}}}, indent=2) + "\n"

    def environment(self) -> dict[str, str]:
        """Variables for Terraform's environment, without secrets. Variables that are set already stay as they are."""
        if self.kind != "s3" or "endpoints" not in self.config:
            return {}
        return {name: os.environ.get(name, value) for name, value in _NOT_AMAZON_ENVIRONMENT.items()}

    def secret_address(self) -> str:
        """A digest of the address if it comes from the environment; empty if it is among the settings."""
        address = os.environ.get(ADDRESS_VARIABLE, "")
        if self.kind != "http" or "address" in self.config or not address:
            return ""
        return hashlib.sha256(address.encode()).hexdigest()

    def check_program(self, program: Path, version: str) -> None:
        """Refuse a program that does not have this backend.

        Args:
            version: such as "1.11.4".

        Raises:
            EnvironmentFault: the hint names what to install.
        """
        since = ".".join(map(str, _SINCE[self.kind]))
        others = "set `backend: s3` or `backend: http` under `state:` in cluster.yml"
        if self.kind in _NOT_IN_TOFU and program.name.startswith("tofu"):
            raise EnvironmentFault(
                f"OpenTofu has no backend {self.kind}",
                where=str(program),
                hint=f"Put terraform {since} or newer first on PATH, or {others}",
            )
        if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < _SINCE[self.kind]:
            raise EnvironmentFault(
                f"terraform {version} has no backend {self.kind} with these settings; {since} is the first that has it",
                where=str(program),
                hint=f"Put terraform {since} or newer first on PATH, or {others}",
            )


def desired(
    kind: str,
    config: Mapping[str, Any],
    *,
    cluster: str,
    local_file: Path,
    region: str = "",
    authentication: Mapping[str, str] = MappingProxyType({}),
) -> BackendConfig:
    """The backend that cluster.yml names, with our defaults: the object's name contains the name of the cluster.

    Args:
        kind: `state.backend`.
        config: `state.config`, as the spec has checked it: complete and without secrets. For `s3` also `namespace`, the
            tenancy's namespace of Object Storage, from which the endpoint is made, and `endpoint` for any other store
            that implements S3.
        local_file: the state file of kind `local`.
        region: that of the cluster.
        authentication: settings of the backend `oci` by which it authenticates.

    Raises:
        InputError: the backend http has an address neither in the settings nor in the environment.
    """
    if kind == "http" and not config.get("address") and not os.environ.get(ADDRESS_VARIABLE):
        raise InputError(
            "state: the backend http has no address",
            hint="Set `address` under `state.config` in cluster.yml. If the address is itself a secret, such as a "
            f"pre-authenticated request, set {ADDRESS_VARIABLE} in the environment instead",
        )
    key = f"gpucluster/{cluster}/terraform.tfstate"
    settings = dict(config)
    if kind == "local":
        settings = {"path": str(local_file)}
    elif kind == "oci":
        settings = {"key": key, **_set(region=region), **_unless_set(authentication, settings), **settings}
    elif kind == "s3":
        settings = {"key": key, **_set(region=region), **_s3(settings, region)}
    elif "lock_address" in settings:
        settings = {"unlock_address": settings["lock_address"], **settings}
    return BackendConfig(kind, settings, cluster)


def _unless_set(authentication: Mapping[str, str], settings: Mapping[str, Any]) -> Mapping[str, str]:
    """Our authentication; a file that names its own method for the state gets nothing of it."""
    return {} if "auth" in settings else authentication


def _set(**settings: str) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value}


def _s3(config: dict[str, Any], region: str) -> dict[str, Any]:
    namespace, endpoint = config.pop("namespace", ""), config.pop("endpoint", "")
    if namespace:
        endpoint = f"https://{namespace}.compat.objectstorage.{config.get('region', region)}.oraclecloud.com"
    if endpoint:
        config = {"endpoints": {"s3": endpoint}, **config}
    return {**_NOT_AMAZON, **config} if "endpoints" in config else config


@dataclass(frozen=True)
class StateLocation:
    """Where a state is, saved for later runs.

    Args:
        secret_address: digest of an address that is only in the environment; empty otherwise.
        left: the serial by lineage of states that were copied to another backend. The originals are still there.
    """

    backend: BackendConfig
    secret_address: str = ""
    left: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """The content of its file."""
        saved = {
            "backend": self.backend.kind,
            "config": dict(self.backend.config),
            "secret_address": self.secret_address,
            "left": dict(self.left),
        }
        return json.dumps(saved, indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> StateLocation:
        """Read what `text` wrote.

        Raises:
            ValueError: it is not such a text.
        """
        try:
            saved = bounded.loads(text)
            left = {str(lineage): int(serial) for lineage, serial in saved["left"].items()}
            return cls(BackendConfig(str(saved["backend"]), dict(saved["config"])), str(saved["secret_address"]), left)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(repr(error)) from error
