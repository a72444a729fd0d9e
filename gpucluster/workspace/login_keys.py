"""The login keys of the users that cluster.yml names, and the command line with which each of them logs in."""

from __future__ import annotations

from pathlib import Path

from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import Host, SshClient, ensure_key, public_key

_THROUGH_BASTION = ", through a session of the bastion (docs/how-to/private-cluster.md)"


class LoginKeys:
    """The keys of the users under `users.people`."""

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths) -> None:
        self._spec = spec
        self._paths = paths

    def private_key(self, name: str) -> Path:
        """The path of a user's generated private key."""
        return self._paths.ssh / f"{name}_ed25519"

    def public_keys(self) -> dict[str, tuple[str, ...]]:
        """The public keys of each user. A user with `generate_key` gets a key pair here, if there is none yet."""
        keys = {}
        for person in self._spec.users.people:
            own = tuple(person.ssh_keys)
            if person.generate_key:
                pair = ensure_key(self.private_key(person.name), f"{person.name}@{self._spec.name}")
                own += (public_key(pair),)
            keys[person.name] = own
        return keys

    def login_commands(self, controller: Host) -> dict[str, str]:
        """The command line with which each user logs in."""
        config = SshClient(self._paths, None).config
        commands = {}
        for person in self._spec.users.people:
            # Our ssh configuration has the host's key. A user with a key of their own logs in from another machine.
            commands[person.name] = (
                f"ssh -F {config} -i {self.private_key(person.name)} {person.name}@{controller.name}"
                if person.generate_key
                else f"ssh {person.name}@{controller.address}{_THROUGH_BASTION if controller.jump else ''}"
            )
        return commands
