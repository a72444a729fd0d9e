"""The generated login key of a user (`generate_key` in cluster.yml): which one the directory has, and a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpucluster.errors import GpuClusterError, InputError
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.users import Users
from gpucluster.spec import ClusterSpec
from gpucluster.workspace.login_keys import LoginKeys


@dataclass(frozen=True)
class GeneratedKey:
    """The generated key of a user.

    Args:
        public: the public half in the directory; empty if the directory has none.
        private: the file with the private half on this machine; empty if it is on another one.
        login: what the user logs in with, in words.
    """

    name: str
    public: str
    private: str
    login: str

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class GeneratedKeys:
    """The generated keys of the users of a cluster."""

    def __init__(self, spec: ClusterSpec, login_keys: LoginKeys, users: Users) -> None:
        self._spec = spec
        self._login_keys = login_keys
        self._users = users

    def show(self, name: str) -> GeneratedKey:
        """The key that the directory has. Reads only.

        Raises:
            InputError: the user has no generated key, or there is no such user.
            ToolError: the controller gives no answer.
        """
        self._require_generated(name)
        public = self._login_keys.generated_among(name, self._users.show(name).ssh_keys)
        return self._described(name, public)

    def replace(self, name: str) -> GeneratedKey:
        """Generate a new key pair on this machine. The old one ends now, wherever it is.

        If it fails, the old one is still valid; what was generated is not used.

        Raises:
            InputError: the user has no generated key, or there is no such user.
            ToolError: the controller gives no answer.
        """
        self._require_generated(name)
        with self._login_keys.replacing(name) as public:
            self._users.replace_generated_key(name, public)
        return self._described(name, public)

    def private_key(self, name: str) -> Path:
        """Where the private half of a user's generated key is or would be on this machine. Calls no host."""
        return self._login_keys.private_key(name)

    def _described(self, name: str, public: str) -> GeneratedKey:
        private = str(self._login_keys.private_key(name)) if self._login_keys.is_here(name, public) else ""
        if public:
            return GeneratedKey(name, public, private, self._login_keys.whereabouts(name, public))
        return GeneratedKey(name, "", "", f"with no generated key yet: gpucluster user key {name} --replace makes one")

    def _require_generated(self, name: str) -> None:
        if not any(person.name == name and person.generate_key for person in self._spec.users.people):
            raise InputError(
                f"cluster.yml has no user {name} with generate_key",
                where=str(self._spec.file),
                hint=f"For a key of the user's own: gpucluster user edit {name} --ssh-key FILE",
            )


def keys_in_directory(spec: ClusterSpec, controller: ControllerConnection, users: Users) -> Mapping[str, Sequence[str]]:
    """All public keys in the directory, by user; empty if there is no directory, or none that answers."""
    if not spec.storage.home.enabled:
        return {}
    # Before a first apply there is no controller, and after its loss there is nothing to keep.
    with suppress(GpuClusterError):
        if controller.hosts():
            return {user.name: user.ssh_keys for user in users.list()}
    return {}
