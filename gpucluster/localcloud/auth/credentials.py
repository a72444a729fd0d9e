"""Key files: of the operator, and of every instance that gets credentials.

An instance with a key replaces an instance principal of OCI. There an instance gets a certificate from its metadata
service; here its key is in `<home>/credentials/instances/<OCID>` until it is copied to the instance.
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
from gpucluster.localcloud.state.tenancy import PUBLIC_KEY_FILE, ApiUser, Identity, fingerprint, load_public_key
from gpucluster.paths import write_private

# The path of the key on the controller of a cluster.
CONTROLLER_KEY_FILE = Path("/etc/gpucluster/oci/key.pem")
_INSTANCES = "instances"
_KEY_BITS = 2048  # the minimum for an API key of OCI


def bootstrap(home: Path, store: ResourceStore) -> Identity:
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
    return Identity(tenancy, (operator,), folder / _INSTANCES)


def instance_credentials(home: Path, tenancy: str, instance_id: str) -> Path:
    """The folder with the configuration (`config`) and the key (`key.pem`) of an instance; created if it is missing.

    `config` names the path that the key gets on a controller. The server accepts the key from now on; policies decide
    what the instance may do.

    Args:
        home: of the local cloud.
    """
    folder = home / "credentials" / _INSTANCES / instance_id
    key, public = folder / "key.pem", folder / PUBLIC_KEY_FILE
    for level in (folder.parent.parent, folder.parent, folder):
        level.mkdir(exist_ok=True, mode=0o700)
    if not (key.exists() and public.exists()):
        write_private(public, _new_key(key))
    _write_config(
        folder / "config", tenancy, instance_id, load_public_key(public.read_text(), str(public)), CONTROLLER_KEY_FILE
    )
    return folder


def _remove_stale_keys(folder: Path, store: ResourceStore) -> None:
    """Remove the keys of instances that are gone, and the key that all controllers shared in an older version.

    The server does not accept that shared key; the next apply gives each controller its own key.
    """
    shutil.rmtree(folder / "controller", ignore_errors=True)
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
