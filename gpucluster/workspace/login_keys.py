"""The people of a cluster: the keys that let them in, and what they type to log in."""

from __future__ import annotations

from pathlib import Path

from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import Host, SshClient, ensure_key, public_key

_THROUGH_BASTION = ", through a session of the bastion (docs/how-to/private-cluster.md)"


class People:
    """Who is named under `users.people`."""

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths) -> None:
        self._spec = spec
        self._paths = paths

    def key(self, name: str) -> Path:
        """Where the generated private key of a person lies."""
        return self._paths.ssh / f"{name}_ed25519"

    def public_keys(self) -> dict[str, tuple[str, ...]]:
        """The public keys of each person; a pair of its own is made for whoever asks for one."""
        keys = {}
        for person in self._spec.users.people:
            mine = tuple(person.ssh_keys)
            if person.generate_key:
                pair = ensure_key(self.key(person.name), f"{person.name}@{self._spec.name}")
                mine += (public_key(pair),)
            keys[person.name] = mine
        return keys

    def logins(self, controller: Host) -> dict[str, str]:
        """The command line with which each person logs in."""
        config = SshClient(self._paths, None).config
        ways = {}
        for person in self._spec.users.people:
            # With our configuration, ssh knows the host's key; a person with a key of their own is somewhere else.
            ways[person.name] = (
                f"ssh -F {config} -i {self.key(person.name)} {person.name}@{controller.name}"
                if person.generate_key
                else f"ssh {person.name}@{controller.address}{_THROUGH_BASTION if controller.jump else ''}"
            )
        return ways
