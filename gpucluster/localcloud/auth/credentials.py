"""The key files of the operator.

Releases before the metadata service gave the controller of a cluster a key, which is in
`<home>/credentials/instances/<OCID>`. It is accepted until the instance is gone: such a controller uses it until the
next apply makes it an instance principal.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from gpucluster.localcloud.state.names import new_ocid
from gpucluster.localcloud.state.region import REGION
from gpucluster.localcloud.state.store import ResourceStore
from gpucluster.localcloud.state.tenancy import ApiUser, Tenancy, TokenReader, fingerprint, load_public_key
from gpucluster.paths import write_private

_INSTANCES = "instances"
_KEY_BITS = 2048  # the minimum for an API key of OCI


def bootstrap(home: Path, store: ResourceStore, read_token: TokenReader = lambda _: None) -> Tenancy:
    """Create tenancy, user and key at the first start; later read them, and restore a missing configuration file.

    The operator's private key is only in `<home>/credentials/api_key.pem` (0600). A missing key is replaced.
    """
    folder = home / "credentials"
    tenancy = _stored_ocid(store, "tenancy", "tenancy")
    operator = ApiUser(
        "local", "The operator: may do everything", _stored_ocid(store, "user", "user"),
        _public_key(store, "public_key", folder / "api_key.pem"),
    )  # fmt: skip
    _write_config(folder / "config", tenancy, operator.user, operator.public_key, folder / "api_key.pem")
    _remove_stale_keys(folder, store)
    return Tenancy(tenancy, (operator,), folder / _INSTANCES, read_token)


def _remove_stale_keys(folder: Path, store: ResourceStore) -> None:
    """Remove the keys of instances that are gone."""
    parent = folder / _INSTANCES
    for own in parent.iterdir() if parent.is_dir() else ():
        instance = store.get("instance", own.name)
        if instance is None or instance.gone_at is not None:
            shutil.rmtree(own, ignore_errors=True)


def _write_config(file: Path, tenancy: str, owner: str, key: RSAPublicKey, key_file: Path) -> None:
    text = "\n".join(
        (
            "[DEFAULT]",
            f"user={owner}",
            f"fingerprint={fingerprint(key)}",
            f"tenancy={tenancy}",
            f"region={REGION}",
            f"key_file={key_file}",
            "",
        )
    )
    if not file.exists() or file.read_text() != text:
        write_private(file, text)


def _public_key(store: ResourceStore, setting: str, key_file: Path) -> RSAPublicKey:
    key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_file.parent.chmod(0o700)
    public = store.setting(setting)
    if public is None or not key_file.exists():
        public = _register_key(store, setting, key_file)
    return load_public_key(public, setting)


def _register_key(store: ResourceStore, setting: str, key_file: Path) -> str:
    public = _new_key(key_file)
    store.set_setting(setting, public)
    return public


def _new_key(key_file: Path) -> str:
    """Create a private key (0600). Returns the public key as PEM."""
    private = generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    write_private(key_file, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"))
    os.chmod(key_file, 0o600)
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def _stored_ocid(store: ResourceStore, key: str, kind: str) -> str:
    value = store.setting(key)
    if value is None:
        value = new_ocid(kind)
        store.set_setting(key, value)
    return value
