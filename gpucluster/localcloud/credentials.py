"""The identities of the local cloud: one tenancy, two users with a key each, written as OCI configuration files."""

from __future__ import annotations

import base64
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
AVAILABILITY_DOMAINS = ("local:LOCAL-1-AD-1", "local:LOCAL-1-AD-2")
# Where nobody chooses, and for what does not belong to one here (a virtual cloud network's own addresses).
AVAILABILITY_DOMAIN = AVAILABILITY_DOMAINS[0]
FAULT_DOMAINS = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")
# Where the controller of a cluster has its key.
CONTROLLER_KEY_FILE = Path("/etc/gpucluster/oci/key.pem")
_KEY_BITS = 2048  # what OCI asks of an API key at least


def new_ocid(kind: str) -> str:
    """An OCID of our own realm: ocid1.<kind>.local..<60 random characters> (syntax as OCI documents it)."""
    random = base64.b32encode(secrets.token_bytes(33)).decode().lower()[:52]
    return f"ocid1.{kind}.local..aaaaaaaa{random}"


@dataclass(frozen=True)
class User:
    """Who may call, and what: `operations` None is everything."""

    name: str
    description: str
    user: str
    public_key: RSAPublicKey
    operations: frozenset[str] | None = None

    def may(self, operation: str) -> bool:
        """Whether this user is allowed an operation. No policy is looked at."""
        return self.operations is None or operation in self.operations


# What an autoscaler does. A stand-in for policies, which the local cloud keeps and does not enforce.
_CONTROLLER_OPERATIONS = frozenset(
    (
        "CaptureConsoleHistory", "CreateComputeCapacityReport", "DeleteConsoleHistory", "GetConsoleHistory",
        "GetConsoleHistoryContent", "GetInstance", "GetInstanceConfiguration", "GetVnic", "GetVnicAttachment",
        "GetWorkRequest", "LaunchInstance", "LaunchInstanceConfiguration", "ListConsoleHistories",
        "ListInstanceConfigurations", "ListInstances", "ListVnicAttachments", "ListWorkRequestErrors",
        "ListWorkRequestLogs", "ListWorkRequests", "TerminateInstance",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """The one tenancy, which is also its root compartment, and its users: the operator and the cluster's controller."""

    tenancy: str
    users: tuple[User, ...]

    def key_id(self, user: User) -> str:
        """The keyId of a signature by this user."""
        return f"{self.tenancy}/{user.user}/{fingerprint(user.public_key)}"


def bootstrap(home: Path, store: Store) -> Identity:
    """Make tenancy, users and keys at the first start; afterwards read them, and restore a lost configuration file.

    The private keys lie only in `<home>/credentials` (0600): `api_key.pem` is the operator's, `controller/key.pem` that
    of the controller, whose `controller/config` names the file that it becomes there. A lost one is replaced.
    """
    folder = home / "credentials"
    tenancy = _once(store, "tenancy", "tenancy")
    operator = User(
        "local", "The operator: may do everything", _once(store, "user", "user"),
        _public_key(store, "public_key", folder / "api_key.pem"),
    )  # fmt: skip
    controller = User(
        "controller", "The autoscaler of a cluster: may look, launch and terminate", _once(store, "controller", "user"),
        _public_key(store, "controller_public_key", folder / "controller" / "key.pem"), _CONTROLLER_OPERATIONS,
    )  # fmt: skip
    _configure(folder / "config", tenancy, operator, folder / "api_key.pem")
    _configure(folder / "controller" / "config", tenancy, controller, CONTROLLER_KEY_FILE)
    return Identity(tenancy, (operator, controller))


def _configure(file: Path, tenancy: str, user: User, key_file: Path) -> None:
    text = "\n".join(
        (
            "[DEFAULT]",
            f"user={user.user}",
            f"fingerprint={fingerprint(user.public_key)}",
            f"tenancy={tenancy}",
            f"region={REGION}",
            f"key_file={key_file}",
            "",
        )
    )
    if not file.exists() or file.read_text() != text:
        write_private(file, text)


def _public_key(store: Store, setting: str, key_file: Path) -> RSAPublicKey:
    key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_file.parent.chmod(0o700)
    public = store.setting(setting)
    if public is None or not key_file.exists():
        public = _register_key(store, setting, key_file)
    loaded = load_pem_public_key(public.encode())
    if not isinstance(loaded, RSAPublicKey):
        raise EnvironmentFault("a public key of the local cloud is no RSA key", where=setting, hint="Purge this home")
    return loaded


def fingerprint(key: RSAPublicKey) -> str:
    """MD5 of the public key's DER, in pairs with colons: how OCI names an API key."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.md5(der, usedforsecurity=False).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def _register_key(store: Store, setting: str, key_file: Path) -> str:
    private = generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    write_private(key_file, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"))
    os.chmod(key_file, 0o600)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
    store.set_setting(setting, public)
    return public


def _once(store: Store, key: str, kind: str) -> str:
    value = store.setting(key)
    if value is None:
        value = new_ocid(kind)
        store.set_setting(key, value)
    return value
