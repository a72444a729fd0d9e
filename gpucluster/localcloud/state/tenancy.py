"""The one tenancy, its operator, and the public keys that a request may be signed with."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from gpucluster.errors import EnvironmentFault

#: What the keyId of a signature begins with where it is a token (SDK: SECURITY_TOKEN_FORMAT_STRING).
TOKEN_PREFIX = "ST$"  # noqa: S105 - no password
#: Reads a token: the OCID of its instance, or None for a user's, and its session key; None if it does not hold.
TokenReader = Callable[[str], tuple[str | None, RSAPublicKey] | None]

PUBLIC_KEY_FILE = "public.pem"  # in the folder of an instance
_INSTANCE = re.compile(r"ocid1\.instance\.[a-z0-9.-]*\.[a-z0-9]+")


@dataclass(frozen=True)
class ApiUser:
    """A user of the API, who may do everything."""

    name: str
    description: str
    user: str
    public_key: RSAPublicKey


class Tenancy:
    """The tenancy, which is also the root compartment, its one user, and the keys of instances.

    Args:
        instances: keys that releases before the metadata service gave to controllers, until their next apply.
        read_token: for instance principals, and for sessions of users.
    """

    def __init__(
        self, tenancy: str, users: tuple[ApiUser, ...], instances: Path, read_token: TokenReader = lambda _: None
    ) -> None:
        self._read_token = read_token
        self.tenancy = tenancy
        self.users = users
        self._instances = instances
        self._keys = {key_id(tenancy, user.user, user.public_key): user.public_key for user in users}
        self._lock = threading.Lock()

    def key(self, key_name: str) -> RSAPublicKey | None:
        """The public key of a keyId (`tenancy/user or instance/fingerprint`, or a token); None if it is unknown."""
        if key_name.startswith(TOKEN_PREFIX):
            read = self._read_token(key_name.removeprefix(TOKEN_PREFIX))
            return read[1] if read else None
        with self._lock:
            if key_name not in self._keys:
                public_key = self._key_of_instance(key_name)
                if public_key is not None:
                    self._keys[key_name] = public_key
            return self._keys.get(key_name)

    def instance(self, key_name: str) -> str | None:
        """The OCID of the instance that a keyId belongs to; None if it belongs to a user."""
        if key_name.startswith(TOKEN_PREFIX):
            read = self._read_token(key_name.removeprefix(TOKEN_PREFIX))
            return read[0] if read else ""
        owner = key_name.split("/")[1]
        return None if any(user.user == owner for user in self.users) else owner

    def _key_of_instance(self, key_name: str) -> RSAPublicKey | None:
        tenancy, _, rest = key_name.partition("/")
        owner, _, _ = rest.partition("/")
        file = self._instances / owner / PUBLIC_KEY_FILE
        if tenancy != self.tenancy or not _INSTANCE.fullmatch(owner) or not file.is_file():
            return None
        public = load_public_key(file.read_text(), str(file))
        return public if key_id(tenancy, owner, public) == key_name else None


def key_id(tenancy: str, owner: str, key: RSAPublicKey) -> str:
    """The keyId of a signature."""
    return f"{tenancy}/{owner}/{fingerprint(key)}"


def load_public_key(public: str, where: str) -> RSAPublicKey:
    """The key of a PEM text; `where` goes into the error message."""
    loaded = load_pem_public_key(public.encode())
    if not isinstance(loaded, RSAPublicKey):
        raise EnvironmentFault(
            "a public key of the local cloud is not an RSA key",
            where=where,
            hint="Remove the folder of this local cloud and start it again",
        )
    return loaded


def fingerprint(key: RSAPublicKey) -> str:
    """The fingerprint of an API key as OCI writes it: MD5 of the DER encoding, as pairs with colons."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.md5(der, usedforsecurity=False).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))
