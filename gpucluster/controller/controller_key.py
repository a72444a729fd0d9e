"""Rotation of the key with which the controller logs in to the other hosts: `~/.ssh/gpucluster` of its login user.

All hosts in service accept the next key beside the present one, and the controller logs in to each with it. Then it
takes the place of the present one, and no host accepts the former one any more. Its private half is kept until all
hosts in service have confirmed that: a node that joined meanwhile knows no other one. Where it stands is in the files
of the key, so each step may be killed: the same request goes on.

A host that is off learns the next key when it boots, and so does a node from a baked image (`node_agent/shared_keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster.controller import host_commands, rotation_parts, shared_keys
from gpucluster.controller.host_commands import ReachableHosts
from gpucluster.controller.rotation_parts import UnconfirmedHosts
from gpucluster.controller.shared_keys import FORMER, NEXT, beside
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.foreign_folder import Folder

NAME = "controller-key"
UNCONFIRMED = Path("/etc/gpucluster/controller-key.rotation")

_LONGEST = 1 << 16


def rotate(config: HostLogins, note: Callable[[str], None]) -> dict[str, Any]:
    """Let the controller log in with another key, or complete a rotation that was interrupted.

    Raises:
        Refused: this controller has no such key.
        Failed: a host in service does not let the next key in, and the present one is still used.
        Unconfirmed: hosts still accept the former one.
    """
    key = config.key
    if key is None or not key.is_file():
        raise Refused("this controller has no key for other hosts", "Run: gpucluster apply")
    cluster = ReachableHosts.of(config)
    is_new = _phase(key) == "complete"
    if not is_new:
        note("goes on with a rotation that was interrupted")
    if _phase(key) != "switched":
        _prepare(key)
        note(f"lets all hosts accept the next key: {len(cluster.names)} hosts")
        found = shared_keys.publish(config)
        silent = host_commands.reasons(shared_keys.bring(cluster, config, found))
        # By a login with the next key. A host that is off is not asked again.
        trial = replace(cluster, key=beside(key, NEXT))
        silent.update(host_commands.reasons(shared_keys.bring(trial, config, found)))
        if problems := cluster.problems(silent):
            raise Failed(f"the present key is still used: {host_commands.named(problems)}", rotation_parts.HINT)
    _commit(key)
    shared_keys.save_to_volume(config)
    note("lets no host accept the former one any more")
    found = shared_keys.publish(config)
    silent = host_commands.reasons(shared_keys.bring(cluster, config, found))
    # A node that began to join before knows the former one alone.
    late = [name for name in silent if name not in cluster.gone]
    if late:
        before = replace(cluster, key=beside(key, FORMER), gone={})
        answers = shared_keys.bring(before, config, found, late)
        silent = {name: why for name, why in silent.items() if name not in late or answers[name].reason}
    unconfirmed, counts = cluster.confirmation(silent, cluster.off(silent))
    UnconfirmedHosts(UNCONFIRMED, NAME).keep(list(unconfirmed))
    result = {"new": is_new, **counts}
    if unconfirmed:
        raise Unconfirmed(
            f"not every host has forgotten the former key of the controller: {host_commands.named(unconfirmed)}",
            "Run the same command again when they answer",
            result,
        )
    with Folder.open(key.parent) as folder:
        folder.delete(beside(key, FORMER).name)
    return result


def _phase(key: Path) -> str:
    """Where a rotation stands: `complete`, `prepared`, or `switched` as soon as the former key is kept."""
    if beside(key, FORMER).exists():
        return "switched"
    return "prepared" if beside(key, NEXT).exists() else "complete"


def _prepare(key: Path) -> None:
    """Make the next key; that of an interrupted rotation is taken up. The folder is its user's."""
    with Folder.open(key.parent) as folder:
        following, present = beside(key, NEXT), folder.look(key.name)
        if folder.look(following.name) is not None and folder.look(f"{following.name}.pub") is not None:
            return
        if present is None:
            raise Failed(f"there is no {key}", "Run: gpucluster apply")
        owner = (present.st_uid, present.st_gid)
        comment = " ".join(folder.read(f"{key.name}.pub", _LONGEST).decode().split()[2:])
        private, public = shared_keys.pair(comment)
        # The private one is last: where it exists, the pair is complete.
        folder.write(f"{following.name}.pub", public.encode(), 0o644, owner)
        folder.write(following.name, private.encode(), 0o600, owner)


def _commit(key: Path) -> None:
    """From now on the controller logs in with the next key. It may be repeated."""
    former, following = beside(key, FORMER).name, beside(key, NEXT).name
    with Folder.open(key.parent) as folder:
        if folder.look(former) is None:
            state = folder.status()
            folder.write(former, folder.read(key.name, _LONGEST), 0o600, (state.st_uid, state.st_gid))
        # An apply brings hosts what the public file has: it changes first.
        for old, new in ((f"{following}.pub", f"{key.name}.pub"), (following, key.name)):
            if folder.look(old) is not None:
                folder.move(old, folder, new)


def state(config: HostLogins) -> list[dict[str, Any]]:
    """For the list of what can be rotated: when the key was made, and what is not complete. Empty without one."""
    key = config.key
    if key is None or not key.is_file():
        return []
    return [UnconfirmedHosts(UNCONFIRMED, NAME).row(key.stat().st_mtime, _phase(key))]
