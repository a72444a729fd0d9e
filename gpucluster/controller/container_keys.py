"""Rotation of the keys with which containers on several nodes reach each other for MPI (the role `docker`).

A pair logs in, and one host key is that of all ssh servers in containers. All hosts accept the next ones beside the
present ones, then each gets them, and then none accepts the former ones. Containers have the folder mounted, so those
that run follow. An ssh server that runs may keep the host key with which it has begun: that one is believed until the
last such server has ended. Where it stands is in the files of the keys, so each step may be killed: the same request
goes on.

A host that is off gets them when it boots, and so does a node from a baked image (`node_agent/shared_keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucluster.controller import host_commands, rotation_parts, shared_keys
from gpucluster.controller.host_commands import Answer, ReachableHosts
from gpucluster.controller.rotation_parts import UnconfirmedHosts
from gpucluster.controller.shared_keys import FORMER, NEXT, beside
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent import durable_file
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.shared_keys import LOGIN, MESH, SERVER

NAME = "container-keys"
UNCONFIRMED = Path("/etc/gpucluster/container-keys.rotation")
# A host whose ssh servers are older than its key.
_WAITS = "ssh servers in containers have begun before, and may keep the former host key until they end"


def rotate(config: HostLogins, note: Callable[[str], None], mesh: Path = MESH) -> dict[str, Any]:
    """Give containers other keys, or complete a rotation that was interrupted.

    Raises:
        Refused: this cluster has no such keys.
        Failed: a host in service does not take part, and no host has switched.
        Unconfirmed: hosts have not switched, or have ssh servers with the former host key.
    """
    if not _file(mesh, LOGIN).is_file():
        raise Refused("this cluster has no keys for containers", "Only docker and containerd have them")
    cluster = ReachableHosts.of(config)
    is_new = _phase(mesh) == "complete"
    if not is_new:
        note("goes on with a rotation that was interrupted")
    if _phase(mesh) != "switched":
        _prepare(mesh)
        note(f"lets containers of all hosts accept the next keys: {len(cluster.names)} hosts")
        if problems := cluster.problems(host_commands.reasons(_bring(cluster, config, mesh))):
            raise Failed(f"no host has switched: {host_commands.named(problems)}", rotation_parts.HINT)
    _commit(mesh)
    note("gives containers the next keys")
    silent = host_commands.reasons(_bring(cluster, config, mesh))
    if not cluster.problems(silent):
        # Each host in service has the next key: the former one logs in nowhere any more.
        _former(mesh, LOGIN).unlink(missing_ok=True)
        answers = _bring(cluster, config, mesh)
        silent = host_commands.reasons(answers)
        busy = {name: _WAITS for name, answer in answers.items() if not answer.reason and shared_keys.servers(answer)}
        if not busy and not cluster.problems(silent):
            _former(mesh, SERVER).unlink(missing_ok=True)
            silent = host_commands.reasons(_bring(cluster, config, mesh))
        silent.update(busy)
    off = cluster.off({name: why for name, why in silent.items() if why != _WAITS})
    unconfirmed, counts = cluster.confirmation(silent, off)
    if unconfirmed and not _former(mesh, SERVER).exists():
        # A host has missed the very last step: what it still believes is known to the next request by this file.
        durable_file.replace(_former(mesh, SERVER), f"{shared_keys.public(_public(mesh, SERVER))}\n", mode=0o600)
    UnconfirmedHosts(UNCONFIRMED, NAME).keep(list(unconfirmed))
    result = {"new": is_new, **counts}
    if unconfirmed:
        raise Unconfirmed(
            f"not every host has the next keys of containers alone: {host_commands.named(unconfirmed)}",
            "Run the same command again when they answer, or when these containers have ended",
            result,
        )
    return result


def _bring(cluster: ReachableHosts, config: HostLogins, mesh: Path) -> dict[str, Answer]:
    """Send hosts what the files of containers are now. How the controller logs in is the matter of another rotation."""
    found = shared_keys.publish(config, mesh)
    return shared_keys.bring(cluster, config, {"containers": found["containers"]})


def _phase(mesh: Path) -> str:
    """Where a rotation stands: `complete`, `prepared`, or `switched` as soon as the former host key is noted."""
    if _former(mesh, SERVER).exists():
        return "switched"
    return "prepared" if beside(_file(mesh, LOGIN), NEXT).exists() else "complete"


def _prepare(mesh: Path) -> None:
    """Make the next keys; those of an interrupted rotation are taken up."""
    # The one that names the phase is made first, and so exists while the other one is missing.
    for name in (LOGIN, SERVER):
        private = beside(_file(mesh, name), NEXT)
        public = beside(_public(mesh, name), NEXT)
        if private.is_file() and public.is_file():
            continue
        comment = " ".join(shared_keys.public(_public(mesh, name)).split()[2:])
        made, shown = shared_keys.pair(comment)
        durable_file.replace(public, shown, mode=0o600)
        durable_file.replace(private, made, mode=0o600)


def _commit(mesh: Path) -> None:
    """From now on hosts get the next keys. It may be repeated."""
    if _phase(mesh) != "switched":
        # The second one shows that both are noted.
        for name in (LOGIN, SERVER):
            durable_file.replace(_former(mesh, name), f"{shared_keys.public(_public(mesh, name))}\n", mode=0o600)
    for name in (LOGIN, SERVER):
        for file in (_public(mesh, name), _file(mesh, name)):
            following = beside(file, NEXT)
            if following.exists():
                following.replace(file)
    durable_file.sync_folder(mesh)


def _file(mesh: Path, name: str) -> Path:
    return mesh / name


def _public(mesh: Path, name: str) -> Path:
    return shared_keys.public_file(mesh / name)


def _former(mesh: Path, name: str) -> Path:
    return beside(_public(mesh, name), FORMER)


def state(mesh: Path = MESH) -> list[dict[str, Any]]:
    """For the list of what can be rotated: when the keys were made, and what is not complete. Empty without them."""
    login = _file(mesh, LOGIN)
    if not login.is_file() or not _public(mesh, LOGIN).is_file():
        return []
    return [UnconfirmedHosts(UNCONFIRMED, NAME).row(login.stat().st_mtime, _phase(mesh))]
