"""The identities of the local cloud: one tenancy, its operator, and any instance that somebody asks a key for.

An instance with a key stands in for an instance principal of OCI: there the key is a certificate that the instance gets
from its metadata service, here it lies in `<home>/credentials/instances/<OCID>` until it is carried to the instance.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import shutil
import threading
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
_INSTANCES, _PUBLIC_KEY = "instances", "public.pem"
_INSTANCE = re.compile(r"ocid1\.instance\.[a-z0-9.-]*\.[a-z0-9]+")


def new_ocid(kind: str) -> str:
    """An OCID of our own realm: ocid1.<kind>.local..<60 random characters> (syntax as OCI documents it)."""
    random = base64.b32encode(secrets.token_bytes(33)).decode().lower()[:52]
    return f"ocid1.{kind}.local..aaaaaaaa{random}"


@dataclass(frozen=True)
class User:
    """A person, who may do everything."""

    name: str
    description: str
    user: str
    public_key: RSAPublicKey


class Identity:
    """The one tenancy, which is also its root compartment, its one user, and the keys of instances."""

    def __init__(self, tenancy: str, users: tuple[User, ...], instances: Path) -> None:
        self.tenancy = tenancy
        self.users = users
        self._instances = instances
        self._keys = {key_id(tenancy, user.user, user.public_key): user.public_key for user in users}
        self._lock = threading.Lock()

    def key(self, wanted: str) -> RSAPublicKey | None:
        """The public key that a keyId (`tenancy/user or instance/fingerprint`) names; None if there is none."""
        with self._lock:
            if wanted not in self._keys:
                found = self._key_of_instance(wanted)
                if found is not None:
                    self._keys[wanted] = found
            return self._keys.get(wanted)

    def instance(self, wanted: str) -> str | None:
        """The OCID of the instance that a keyId belongs to; None if it is a user's."""
        owner = wanted.split("/")[1]
        return None if any(user.user == owner for user in self.users) else owner

    def _key_of_instance(self, wanted: str) -> RSAPublicKey | None:
        tenancy, _, rest = wanted.partition("/")
        owner, _, _ = rest.partition("/")
        file = self._instances / owner / _PUBLIC_KEY
        if tenancy != self.tenancy or not _INSTANCE.fullmatch(owner) or not file.is_file():
            return None
        public = _loaded(file.read_text(), str(file))
        return public if key_id(tenancy, owner, public) == wanted else None


def key_id(tenancy: str, owner: str, key: RSAPublicKey) -> str:
    """The keyId of a signature."""
    return f"{tenancy}/{owner}/{fingerprint(key)}"


def bootstrap(home: Path, store: Store) -> Identity:
    """Make tenancy, user and key at the first start; afterwards read them, and restore a lost configuration file.

    The operator's private key lies only in `<home>/credentials/api_key.pem` (0600). A lost one is replaced.
    """
    folder = home / "credentials"
    tenancy = _once(store, "tenancy", "tenancy")
    operator = User(
        "local", "The operator: may do everything", _once(store, "user", "user"),
        _public_key(store, "public_key", folder / "api_key.pem"),
    )  # fmt: skip
    _configure(folder / "config", tenancy, operator.user, operator.public_key, folder / "api_key.pem")
    _forget_keys(folder, store)
    return Identity(tenancy, (operator,), folder / _INSTANCES)


def instance_credentials(home: Path, tenancy: str, instance_id: str) -> Path:
    """The folder with the configuration (`config`) and the key (`key.pem`) of an instance, made where there is none.

    `config` names the file that the key becomes on a controller. The server believes the key from now on; what the
    instance may do, policies say.

    Args:
        home: of the local cloud.
    """
    folder = home / "credentials" / _INSTANCES / instance_id
    key, public = folder / "key.pem", folder / _PUBLIC_KEY
    for level in (folder.parent.parent, folder.parent, folder):
        level.mkdir(exist_ok=True, mode=0o700)
    if not (key.exists() and public.exists()):
        write_private(public, _new_key(key))
    _configure(folder / "config", tenancy, instance_id, _loaded(public.read_text(), str(public)), CONTROLLER_KEY_FILE)
    return folder


def _forget_keys(folder: Path, store: Store) -> None:
    """Remove the keys of instances that are gone, and the one that all controllers shared in an older version: it is
    believed no more, and the next apply gives each controller one of its own."""
    shutil.rmtree(folder / "controller", ignore_errors=True)
    known = folder / _INSTANCES
    for own in known.iterdir() if known.is_dir() else ():
        instance = store.get("instance", own.name)
        if instance is None or instance.gone_at is not None:
            shutil.rmtree(own, ignore_errors=True)


def _configure(file: Path, tenancy: str, owner: str, key: RSAPublicKey, key_file: Path) -> None:
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


def _public_key(store: Store, setting: str, key_file: Path) -> RSAPublicKey:
    key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_file.parent.chmod(0o700)
    public = store.setting(setting)
    if public is None or not key_file.exists():
        public = _register_key(store, setting, key_file)
    return _loaded(public, setting)


def _loaded(public: str, where: str) -> RSAPublicKey:
    loaded = load_pem_public_key(public.encode())
    if not isinstance(loaded, RSAPublicKey):
        raise EnvironmentFault("a public key of the local cloud is no RSA key", where=where, hint="Purge this home")
    return loaded


def fingerprint(key: RSAPublicKey) -> str:
    """MD5 of the public key's DER, in pairs with colons: how OCI names an API key."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.md5(der, usedforsecurity=False).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def _register_key(store: Store, setting: str, key_file: Path) -> str:
    public = _new_key(key_file)
    store.set_setting(setting, public)
    return public


def _new_key(key_file: Path) -> str:
    """Make a private key (0600); returns the public one."""
    private = generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    write_private(key_file, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"))
    os.chmod(key_file, 0o600)
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def _once(store: Store, key: str, kind: str) -> str:
    value = store.setting(key)
    if value is None:
        value = new_ocid(kind)
        store.set_setting(key, value)
    return value
