"""The keys that hosts have from the controller, as its files are now: by which it logs in, and those of containers.

Their rotations (`controller_key`, `container_keys`, `join_key`) change files here, and then bring hosts the whole of
it: a host that joined in between, or missed a step, is right after the next one. The same document answers hosts that
boot (`munge_keys`).
"""

from __future__ import annotations

import json
import os
import pwd
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.controller.host_commands import Answer, ReachableHosts
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent import bounded, programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.passwords import write_file
from gpucluster.node_agent.shared_keys import LOGIN, MESH, SERVER
from gpucluster.node_agent.state_volume import layout
from gpucluster.node_agent.state_volume.mounting import StateVolume

#: What hosts that boot get; it is there from the first rotation of one of these keys on.
DOCUMENT = Path("/etc/gpucluster/shared-keys.document")
#: Endings of the files of a pair while it is rotated.
NEXT, FORMER = ".next", ".former"

_WORDS = ("shared-keys", "take")
_SECONDS = 60.0


def pair(comment: str) -> tuple[str, str]:
    """A new key pair: the private key, and the public one.

    Raises:
        Failed: ssh-keygen makes none.
    """
    with tempfile.TemporaryDirectory(prefix="gpucluster-key-") as scratch:
        file = Path(scratch) / "key"
        done = programs.call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)])
        if done.returncode != 0:
            raise Failed(f"ssh-keygen: {done.stderr.strip()[-300:]}", "Install openssh-client, or openssh")
        return file.read_text(), file.with_name("key.pub").read_text()


def beside(file: Path, ending: str) -> Path:
    """The next or the former file of one: `gpucluster.next`, and of a public key `gpucluster.next.pub`."""
    if file.suffix == ".pub":
        return file.with_name(f"{file.name[: -len('.pub')]}{ending}.pub")
    return file.with_name(f"{file.name}{ending}")


def public_file(private: Path) -> Path:
    """The file of the public half of a pair."""
    return private.with_name(f"{private.name}.pub")


def public(file: Path) -> str:
    """The public key in a file, in one line."""
    return file.read_text().strip()


def document(config: HostLogins, mesh: Path = MESH) -> dict[str, Any]:
    """What each host should have now."""
    found: dict[str, Any] = {}
    if config.key is not None and config.key.is_file():
        found["controller"] = _all_of(config.key, (NEXT,))
    login, server = mesh / LOGIN, mesh / SERVER
    if login.is_file() and server.is_file():
        found["containers"] = {
            "login": login.read_text(),
            "server": server.read_text(),
            "authorized": _all_of(login, (NEXT, FORMER)),
            "known": _all_of(server, (NEXT, FORMER)),
        }
    return found


def _all_of(private: Path, endings: Sequence[str]) -> list[str]:
    """The public keys that are accepted now: the present one, and those of a rotation."""
    present = public_file(private)
    files = [present, *(beside(present, ending) for ending in endings)]
    return list(dict.fromkeys(public(file) for file in files if file.is_file()))


def publish(config: HostLogins, mesh: Path = MESH) -> dict[str, Any]:
    """Store for hosts that boot what is in the files now, and return it."""
    found = document(config, mesh)
    write_file(DOCUMENT, json.dumps(found))
    return found


def bring(
    cluster: ReachableHosts, config: HostLogins, found: Mapping[str, Any], names: Sequence[str] | None = None
) -> dict[str, Answer]:
    """Send these keys to hosts, which then use them.

    Args:
        names: which; all in service by default.
    """
    asked = cluster.names if names is None else names
    text_by_host = {name: json.dumps({"user": _user(cluster, config, name), "document": found}) for name in asked}
    return cluster.ask(asked, _WORDS, text_by_host, _SECONDS)


def servers(answer: Answer) -> int:
    """How many ssh servers of containers a host has that have begun before it got their present key."""
    try:
        return int(bounded.loads(answer.text.strip().rpartition("\n")[2])["servers"])
    except (ValueError, KeyError, TypeError):
        return 0


def _user(cluster: ReachableHosts, config: HostLogins, name: str) -> str:
    if name in cluster.logins:
        return cluster.logins[name].user
    own = config.login_user_by_host.get(name, "")
    return own or (owner(config.key) if config.key is not None else "root")


def owner(file: Path) -> str:
    """The account that a file belongs to."""
    return pwd.getpwuid(file.stat().st_uid).pw_name


def save_to_volume(config: HostLogins) -> None:
    """The next controller gets its keys from the volume with the state, if there is one."""
    if config.key is not None and os.path.ismount(layout.MOUNT):
        StateVolume().save(owner(config.key))
