"""The identity of the local cloud: one tenancy, one user, one API key, written as an OCI configuration file."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.store import Store
from gpucluster.paths import write_private

REGION = "local-1"
AVAILABILITY_DOMAIN = "local:LOCAL-1-AD-1"
FAULT_DOMAINS = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")
_KEY_BITS = 2048  # what OCI asks of an API key at least


def new_ocid(kind: str) -> str:
    """An OCID of our own realm: ocid1.<kind>.local..<60 random characters> (syntax as OCI documents it)."""
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    return f"ocid1.{kind}.local..aaaaaaaa{''.join(secrets.choice(alphabet) for _ in range(52))}"


@dataclass(frozen=True)
class Identity:
    """Who may call: the one tenancy (which is also its root compartment), user and public key."""

    tenancy: str
    user: str
    fingerprint: str
    public_key: RSAPublicKey

    @property
    def key_id(self) -> str:
        """The keyId of a signature by this user."""
        return f"{self.tenancy}/{self.user}/{self.fingerprint}"


def bootstrap(home: Path, store: Store) -> Identity:
    """Make tenancy, user and key at the first start; afterwards read them, and restore a lost configuration file.

    The private key lies only in `<home>/credentials/api_key.pem` (0600); if it is lost, a new one is registered.
    """
    folder = home / "credentials"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    key_file = folder / "api_key.pem"
    public = store.setting("public_key")
    if public is None or not key_file.exists():
        public = _register_key(store, key_file)
    loaded = load_pem_public_key(public.encode())
    if not isinstance(loaded, RSAPublicKey):
        raise EnvironmentFault(
            "the public key of the local cloud is no RSA key", where=str(home / "cloud.db"), hint="Purge this home"
        )
    identity = Identity(
        tenancy=_once(store, "tenancy", "tenancy"),
        user=_once(store, "user", "user"),
        fingerprint=fingerprint(loaded),
        public_key=loaded,
    )
    text = "\n".join(
        (
            "[DEFAULT]",
            f"user={identity.user}",
            f"fingerprint={identity.fingerprint}",
            f"tenancy={identity.tenancy}",
            f"region={REGION}",
            f"key_file={key_file}",
            "",
        )
    )
    config = folder / "config"
    if not config.exists() or config.read_text() != text:
        write_private(config, text)
    return identity


def fingerprint(key: RSAPublicKey) -> str:
    """MD5 of the public key's DER, in pairs with colons: how OCI names an API key."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.md5(der, usedforsecurity=False).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def _register_key(store: Store, key_file: Path) -> str:
    private = generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    write_private(key_file, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"))
    os.chmod(key_file, 0o600)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
    store.set_setting("public_key", public)
    return public


def _once(store: Store, key: str, kind: str) -> str:
    value = store.setting(key)
    if value is None:
        value = new_ocid(kind)
        store.set_setting(key, value)
    return value
