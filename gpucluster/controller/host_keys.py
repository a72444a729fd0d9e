"""Rotation of the ssh host keys of permanent hosts. Elastic nodes have theirs for one life.

Each host makes its next keys and gets a certificate of the cluster's CA for one of them. All hosts accept the next
keys beside the present ones, then each host switches, and then no host accepts the ones before. Connections live on.
Where it stands is in a file, so each step may be killed: the same request goes on.

A host that is out of service keeps its keys. What others accept reaches it with the next `gpucluster apply`; until then
it believes the CA.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpucluster.controller import host_commands, rotation_parts, shared_keys
from gpucluster.controller.host_commands import ReachableHosts
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import Failed, Unconfirmed
from gpucluster.node_agent.passwords import write_file

NAME = "host-keys"
#: A rotation that is not complete.
BEGUN = Path("/etc/gpucluster/host-keys.rotation")
#: The first key of a host, which names its others, too.
_KEY = Path("/etc/ssh/ssh_host_ed25519_key.pub")
# A host makes an RSA key.
_PREPARE_SECONDS = 150.0


@dataclass(frozen=True)
class HostKeys:
    """The public keys of a host, as `type key`, the ed25519 one first: those before the rotation, and the next ones."""

    present: tuple[str, ...]
    following: tuple[str, ...]


@dataclass(frozen=True)
class KeyRotation:
    """A rotation that is not complete.

    Args:
        hosts: the hosts that take part, and have not confirmed it.
        accepted: whether all hosts accept the next keys; from then on hosts switch.
    """

    hosts: Mapping[str, HostKeys]
    accepted: bool = False

    @classmethod
    def load(cls, file: Path) -> KeyRotation | None:
        """What a file has; None if there is none.

        Raises:
            Failed: it can't be read.
        """

        def made(raw: Any) -> KeyRotation:
            keys = {
                str(name): HostKeys(tuple(map(str, each["present"])), tuple(map(str, each["following"])))
                for name, each in raw["hosts"].items()
            }
            return cls(keys, bool(raw["accepted"]))

        return rotation_parts.read(file, NAME, made)

    def save(self, file: Path) -> None:
        """Write it to the disk; nothing of it is secret."""
        write_file(file, json.dumps(asdict(self)))


def rotate(config: HostLogins, note: Callable[[str], None]) -> dict[str, Any]:
    """Give each permanent host in service other ssh host keys, or complete a rotation that was interrupted.

    Raises:
        Failed: a host in service does not take part, and no host has switched.
        Unconfirmed: hosts have not confirmed that they have switched, or that they accept no former key.
    """
    cluster = ReachableHosts.of(config)
    begun, off = KeyRotation.load(BEGUN), list[str]()
    is_new = begun is None
    if begun is None:
        note(f"makes the next host keys: {len(cluster.permanent)} hosts")
        begun, off = _prepared(cluster)
        begun.save(BEGUN)
    else:
        note("goes on with a rotation that was interrupted")
    if not begun.accepted:
        note(f"lets all hosts accept them: {len(cluster.names)} hosts")
        add = {old: new for each in begun.hosts.values() for old, new in zip(each.present, each.following)}
        silent = _everywhere(cluster, {"add": add, "drop": []})
        if problems := cluster.problems(silent):
            raise Failed(f"no host has switched: {host_commands.named(problems)}", rotation_parts.HINT)
        begun = replace(begun, accepted=True)
        begun.save(BEGUN)
    note("switches to them")
    text_by_host = {name: json.dumps(each.following[0]) for name, each in begun.hosts.items()}
    answers = cluster.ask(list(begun.hosts), ["host-keys", "switch"], text_by_host, host_commands.SECONDS)
    silent = host_commands.reasons(answers)
    shared_keys.save_to_volume(config)
    switched = [each for name, each in begun.hosts.items() if name not in silent]
    # A node may have joined since all were told of the next keys.
    add = {old: new for each in switched for old, new in zip(each.present, each.following)}
    not_told = _everywhere(cluster, {"add": add, "drop": list(add)})
    off += [name for name in cluster.off({**not_told, **silent}) if name not in off]
    silent = {name: why for name, why in silent.items() if name not in off}
    not_told = {name: why for name, why in not_told.items() if name not in off}
    # A host that still accepts a former key of another one has to be told of all of them.
    left = begun.hosts if not_told else {name: each for name, each in begun.hosts.items() if name in silent}
    return _ended(replace(begun, hosts=left), {**not_told, **silent}, begun, off, is_new=is_new)


def _prepared(cluster: ReachableHosts) -> tuple[KeyRotation, list[str]]:
    answers = cluster.ask(cluster.permanent, ["host-keys", "prepare"], {}, _PREPARE_SECONDS)
    found: dict[str, HostKeys] = {}
    silent: dict[str, str] = {}
    for name, each in answers.items():
        try:
            raw = bounded.loads(each.text) if not each.reason else {}
            found[name] = HostKeys(tuple(map(str, raw["present"])), tuple(map(str, raw["next"])))
            if not found[name].following or len(found[name].present) != len(found[name].following):
                raise KeyError(name)
        except (ValueError, KeyError, TypeError):
            found.pop(name, None)
            silent[name] = each.reason or "its answer can't be read"
    off = cluster.off(silent)
    problems = {name: why for name, why in silent.items() if name not in off}
    if problems:
        raise Failed(f"no host has switched: {host_commands.named(problems)}", rotation_parts.HINT)
    return KeyRotation(found), off


def _everywhere(cluster: ReachableHosts, changes: Mapping[str, Any]) -> dict[str, str]:
    """Change what hosts accept. Returns those that have not done it, with the reason."""
    text_by_host = dict.fromkeys(cluster.names, json.dumps(changes))
    answers = cluster.ask(cluster.names, ["host-keys", "known"], text_by_host, host_commands.SECONDS)
    return host_commands.reasons(answers)


def _ended(
    left: KeyRotation, unconfirmed: Mapping[str, str], begun: KeyRotation, off: Sequence[str], *, is_new: bool
) -> dict[str, Any]:
    """The result. A host that is off is not waited for: its keys are those that it has.

    Args:
        left: what the next request has to do. `begun`: what this one has done.
    """
    confirmed = {name: list(each.following) for name, each in begun.hosts.items() if name not in {*unconfirmed, *off}}
    result = {
        "new": is_new, "hosts": len(confirmed), "away": sorted(off), "unconfirmed": sorted(unconfirmed),
        "keys": confirmed,
    }  # fmt: skip
    if not unconfirmed:
        BEGUN.unlink(missing_ok=True)
        return result
    left.save(BEGUN)
    raise Unconfirmed(
        f"not every host has confirmed the next host keys: {host_commands.named(unconfirmed)}",
        "Run the same command again when they answer",
        result,
    )


def state() -> dict[str, Any]:
    """For the list of what can be rotated: when the controller's keys were made, and what is not complete."""
    begun = KeyRotation.load(BEGUN)
    return {
        "name": NAME,
        "changed": rotation_parts.moment(_KEY.stat().st_mtime) if _KEY.exists() else "",
        "state": "complete" if begun is None else "unconfirmed" if begun.accepted else "prepared",
        "unconfirmed": sorted(begun.hosts) if begun is not None and begun.accepted else [],
    }
