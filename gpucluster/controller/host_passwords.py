"""Rotation of the passwords with which hosts bind to the directory, one for each host.

An entry of the directory accepts two passwords: the next one is made and accepted, then brought to its host, which
proves it with a bind and gives it to SSSD, and then the one before ends. No host is without a password at any time, so
hosts need not switch at the same moment, and nothing stops. What has to be done is in the controller's file of
passwords (`host_entries`), so each step may be killed: the same request goes on.

A host that does not answer keeps both, and so works on when it boots. `gpucluster apply` brings it the next one, too.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gpucluster.controller import host_commands, rotation_parts
from gpucluster.controller.users import base_tree, hosts
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.host_entries import HostEntry
from gpucluster.node_agent.errors import Failed, Unconfirmed

NAME = "passwords"
_WORDS = ("directory-password", "take")


def rotate(config: Config, note: Callable[[str], None]) -> dict[str, Any]:
    """Give each host in service another password, or complete a rotation that was interrupted.

    Raises:
        Refused: this cluster has no directory.
        Failed: the directory, or Slurm, does not answer.
        Unconfirmed: hosts have not confirmed that they use it. Their former one is still accepted.
    """
    here = socket.gethostname().split(".")[0]
    logins, unknown = hosts.remote(config.hosts, hosts.in_service)
    if unknown:
        raise Failed(f"Slurm does not tell which of {', '.join(unknown)} are in service", "Run: gpucluster status")
    names = [here, *logins]

    def brought(off: Collection[str] = ()) -> tuple[bool, int, dict[str, str], list[str]]:
        waiting, is_new = base_tree.renew(config, names, off)
        verb = "brings another password to hosts" if is_new else "asks the hosts again that have not confirmed theirs"
        note(f"{verb}: {len(waiting)}")
        silent = _brought(config, waiting, logins, here)
        base_tree.confirm(config, {name: entry.hash for name, entry in waiting.items() if name not in silent})
        return is_new, len(waiting) - len(silent), silent, host_commands.given_up(silent, here)

    is_new, number, silent, off = brought()
    if not is_new and number == 0 and len(off) == len(silent):
        # What is off does not hold up the others.
        earlier = off
        is_new, number, silent, off = brought(earlier)
        off = sorted({*off, *earlier})
    unconfirmed = {name: why for name, why in silent.items() if name not in off}
    result = {"new": is_new, "hosts": number, "away": off, "unconfirmed": sorted(unconfirmed)}
    if unconfirmed:
        raise Unconfirmed(
            f"not every host has taken its next password for the directory: {host_commands.named(unconfirmed)}",
            "Run the same command again when they answer. Until then they work on with the one before",
            result,
        )
    return result


def _brought(
    config: Config, waiting: Mapping[str, HostEntry], logins: Mapping[str, hosts.HostLogin], here: str
) -> dict[str, str]:
    """Give hosts their passwords. Returns those that have not taken it, with the reason."""
    text_by_host = {name: json.dumps(entry.password) for name, entry in waiting.items()}
    there = {name: logins[name] for name in waiting if name in logins}
    silent = host_commands.on_all(there, config.hosts.key, _WORDS, text_by_host=text_by_host)
    for name in waiting:
        if name == here:
            why = host_commands.on_this_one(_WORDS, text_by_host[name]).reason
            silent.update({name: why} if why else {})
        elif name not in there:
            silent[name] = "it is not in service"
    return silent


def state(config: Config) -> dict[str, Any]:
    """For the list of what can be rotated: the oldest password, and the hosts that have not confirmed theirs."""
    entries = base_tree.present(config)
    waiting = sorted(name for name, entry in entries.items() if entry.former)
    oldest = min((entry.made for entry in entries.values()), default=0)
    changed = rotation_parts.moment(oldest) if oldest else ""
    return {
        "name": NAME,
        "changed": changed,
        "state": "unconfirmed" if waiting else "complete",
        "unconfirmed": waiting,
    }
