"""The login keys of the users that cluster.yml names, and the command line with which each of them logs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import Host, SshClient, ensure_key, public_key

_ELSEWHERE = (
    "with the private key that was generated on another machine (.gpucluster/ssh/ there). Copy it here, or set "
    "ssh_public_keys instead of generate_key in cluster.yml"
)
_THROUGH_BASTION = ", through a session of the bastion (docs/how-to/private-cluster.md)"


class LoginKeys:
    """The keys of the users under `users.people`.

    A private key that was generated stays on the machine that generated it. The public half is in Terraform's state,
    and every other machine uses that one: a second key would lock the user out who has the first.

    Args:
        in_state: reads the public halves in the state, by user.
    """

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths, in_state: Callable[[], Mapping[str, str]]) -> None:
        self._spec = spec
        self._paths = paths
        self._in_state = in_state

    def private_key(self, name: str) -> Path:
        """The path of a user's generated private key."""
        return self._paths.ssh / f"{name}_ed25519"

    def generated(self) -> dict[str, str]:
        """The public half of each user with `generate_key`, by user. A key pair is generated here for a user who has
        none: neither in the state nor here."""
        users = [person.name for person in self._spec.users.people if person.generate_key]
        known = self._in_state() if users else {}
        return {name: known.get(name) or self._own(name) for name in users}

    def public_keys(self) -> dict[str, tuple[str, ...]]:
        """The public keys of each user."""
        generated = self.generated()
        return {
            person.name: (*person.ssh_keys, *([generated[person.name]] if person.generate_key else []))
            for person in self._spec.users.people
        }

    def login_commands(self, controller: Host) -> dict[str, str]:
        """The command line with which each user logs in."""
        config = SshClient(self._paths, None).config
        generated = self.generated()
        commands = {}
        for person in self._spec.users.people:
            # Our ssh configuration has the host's key. A user with a key of their own logs in from another machine.
            plain = f"ssh {person.name}@{controller.address}{_THROUGH_BASTION if controller.jump else ''}"
            if not person.generate_key:
                commands[person.name] = plain
            elif self._is_here(person.name, generated[person.name]):
                key = self.private_key(person.name)
                commands[person.name] = f"ssh -F {config} -i {key} {person.name}@{controller.name}"
            else:
                commands[person.name] = f"{plain}, {_ELSEWHERE}"
        return commands

    def _own(self, name: str) -> str:
        return public_key(ensure_key(self.private_key(name), f"{name}@{self._spec.name}"))

    def _is_here(self, name: str, public: str) -> bool:
        """Whether this machine has the private half."""
        try:
            return (
                self.private_key(name).exists() and public_key(self.private_key(name)).split()[:2] == public.split()[:2]
            )
        except OSError:
            return False
