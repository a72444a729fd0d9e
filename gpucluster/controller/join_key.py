"""Rotation of the key with which the join service of the autoscaler logs in to new elastic nodes.

The autoscaler gives the public half to each instance that it launches, and reads it again for each; the service logs in
with the next key, or with the former one where an instance was launched before. When none of these is on its way any
more, no node lets the former one in, and it is deleted. Where it stands is in the files of the key, so each step may be
killed: the same request goes on. Nodes of baked images have no such key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucluster.controller import host_commands, join_files, rotation_parts, shared_keys
from gpucluster.controller.host_commands import ReachableHosts
from gpucluster.controller.rotation_parts import UnconfirmedHosts
from gpucluster.controller.shared_keys import FORMER, NEXT, beside, public_file
from gpucluster.controller.users import hosts
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.kubernetes import kubectl

NAME = "join-key"
KEY = join_files.FOLDER / join_files.KEY
UNCONFIRMED = Path("/etc/gpucluster/join-key.rotation")
#: The autoscaler's configuration, which may have another time for launches.
POLICY = Path("/etc/gpucluster/autoscaler.json")


def rotate(
    config: HostLogins, note: Callable[[str], None], key: Path = KEY, public: Path = join_files.PUBLIC
) -> dict[str, Any]:
    """Let new nodes be joined with another key, or complete a rotation that was interrupted.

    Raises:
        Refused: this controller joins no nodes.
        Failed: Slurm does not answer.
        Unconfirmed: nodes that were launched before may still join, or let the former key in.
    """
    if not key.is_file():
        raise Refused("this controller has no key for new nodes", "Only elastic pools without a baked image need it")
    is_new = _phase(key) == "complete"
    note("makes the next key of new nodes" if is_new else "goes on with a rotation that was interrupted")
    _switch(key, public)
    former = shared_keys.public(beside(public_file(key), FORMER))
    # Before the nodes in service are listed: one that joins meanwhile is in one of both.
    joining = _joining(config, key)
    cluster = ReachableHosts.of(config)
    names = [name for name in cluster.logins if name not in cluster.permanent]
    note(f"lets no node accept the former key: {len(names)} nodes")
    answers = shared_keys.bring(cluster, config, {"removed": [former]}, names)
    silent = host_commands.reasons(answers)
    off = cluster.off(silent)
    unconfirmed = {**{name: why for name, why in silent.items() if name not in off}, **joining}
    UnconfirmedHosts(UNCONFIRMED, NAME).keep(list(unconfirmed))
    result = {
        "new": is_new, "hosts": len(names) - len(silent), "away": sorted(off), "unconfirmed": sorted(unconfirmed),
    }  # fmt: skip
    if unconfirmed:
        raise Unconfirmed(
            f"the former key of new nodes is still accepted: {host_commands.named(unconfirmed)}",
            "New instances get the next key. Run the same command again when these nodes are in service, or gone",
            result,
        )
    for file in (join_files.former(key), beside(public_file(key), FORMER)):
        file.unlink(missing_ok=True)
    return result


def _phase(key: Path) -> str:
    """Where a rotation stands: `complete`, or `switched` as soon as the former key is kept."""
    return "switched" if beside(public_file(key), FORMER).exists() else "complete"


def _switch(key: Path, public: Path) -> None:
    """From now on the autoscaler gives instances the next key. It may be repeated."""
    following = beside(key, NEXT)
    if _phase(key) == "complete":
        for left in (following, beside(public_file(key), NEXT)):
            left.unlink(missing_ok=True)
        made, shown = shared_keys.pair(join_files.COMMENT)
        durable_file.replace(beside(public_file(key), NEXT), shown, mode=0o600)
        durable_file.replace(following, made, mode=0o600)
        # The private half first: the join service uses it where it is.
        durable_file.replace(join_files.former(key), key.read_text(), mode=0o600)
        durable_file.replace(beside(public_file(key), FORMER), f"{_public_of(key)}\n", mode=0o600)
    if following.exists():
        following.replace(key)
        durable_file.sync_folder(key.parent)
    half = beside(public_file(key), NEXT)
    if half.exists():
        durable_file.replace(public, half.read_text(), mode=0o644)
        half.unlink()


def _joining(config: HostLogins, key: Path) -> dict[str, str]:
    """The nodes that may have been launched with the former key, and have not joined yet, with the reason.

    Slurm knows which nodes power up. Kubernetes does not: there it is a matter of time.
    """
    ends = beside(public_file(key), FORMER).stat().st_mtime + _longest_launch()
    if time.time() > ends:
        return {}
    elastic = [name for name in config.login_user_by_host if hosts.is_hostlist(name)]
    if Path(kubectl.ADMIN).exists():
        why = f"nodes that were launched before may join until {rotation_parts.moment(ends)}"
        return dict.fromkeys(elastic, why)
    found: dict[str, str] = {}
    for nodes in elastic:
        argv = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t"]
        result = programs.call(argv, seconds=host_commands.SECONDS)
        if result.returncode != 0:
            raise Failed(f"Slurm does not tell which of {nodes} power up", "Run: gpucluster status")
        lines = (line.split() for line in result.stdout.splitlines())
        found.update({words[0]: "it powers up" for words in lines if len(words) > 1 and words[1].endswith("#")})
    return found


def _longest_launch() -> float:
    """Seconds from the request of an instance until it is configured, or given up: the autoscaler waits twice."""
    try:
        return 2 * float(json.loads(POLICY.read_text())["times"]["launch_deadline"])
    except (OSError, ValueError, TypeError, KeyError):
        return 2 * join_files.LAUNCH_SECONDS


def _public_of(key: Path) -> str:
    """The public half of a private key: there is no file with it beside it.

    Raises:
        Failed: the key can't be read.
    """
    done = programs.call(["ssh-keygen", "-y", "-f", str(key)])
    if done.returncode != 0:
        raise Failed(f"ssh-keygen: {done.stderr.strip()[-300:]}", "Run: systemctl status gpucluster-join")
    return " ".join(done.stdout.split()[:2])


def state(key: Path = KEY) -> list[dict[str, Any]]:
    """For the list of what can be rotated: when the key was made, and what is not complete. Empty without one."""
    if not key.is_file():
        return []
    return [UnconfirmedHosts(UNCONFIRMED, NAME).row(key.stat().st_mtime, _phase(key))]
