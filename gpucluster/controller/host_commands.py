"""Commands of the agent on many hosts at once, for a rotation of secrets: by ssh, from the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpucluster.controller.users import hosts
from gpucluster.controller.users.hosts import HostLogin
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

AGENT = "/usr/local/bin/gpucluster-agent"
SECONDS = 60.0
#: Hosts that a message names; the result has all of them.
MOST_NAMED = 5

_AT_A_TIME = 32
_LONGEST_REASON = 300
_NONE: Mapping[str, str] = {}


def on_all(
    logins: Mapping[str, HostLogin],
    key: Path | None,
    words: Sequence[str],
    seconds: float = SECONDS,
    text_by_host: Mapping[str, str] = _NONE,
) -> dict[str, str]:
    """Run a command of the agent on hosts, as root. Returns those on which it failed, with the reason.

    Args:
        text_by_host: what it reads from standard input, where a secret is on no command line.
    """

    def run(host: str) -> tuple[str, str]:
        argv = hosts.ssh_argv(host, logins[host], key, ["sudo", "-n", AGENT, *words])
        return host, reason(argv, text_by_host.get(host, ""), seconds)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return {host: why for host, why in pool.map(run, sorted(logins)) if why}


def reason(argv: Sequence[str], text: str = "", seconds: float = SECONDS) -> str:
    """Why a program fails: the last line that it writes; empty if it ends well."""
    try:
        result = programs.call(argv, text, seconds=seconds)
    except Failed as error:
        return error.message
    said = result.stderr.strip().rpartition("\n")[2]
    return "" if result.returncode == 0 else said[-_LONGEST_REASON:] or f"status {result.returncode}"


def away(silent: Mapping[str, str]) -> tuple[str, ...]:
    """Those of the hosts that are out of service: nodes that Slurm has given up, and other hosts that are off.

    Raises:
        Failed: Slurm does not answer.
    """
    if not silent:
        return ()
    result = programs.call(["sinfo", "--noheader", "--Node", "--format=%N %T"], seconds=SECONDS)
    if result.returncode != 0:
        raise Failed("Slurm does not tell which hosts are down", "Run: gpucluster status")
    state_by_node = dict(line.split()[:2] for line in result.stdout.splitlines() if len(line.split()) > 1)
    return tuple(sorted(host for host in silent if _is_out_of_service(state_by_node.get(host, "down*"))))


def _is_out_of_service(state: str) -> bool:
    """Whether a node in this state of `sinfo` runs nothing: down, not responding, or without power."""
    return state.endswith(("*", "~", "%", "!")) or state.startswith(("down", "powered_down", "powering_down"))


def named(problems: Mapping[str, str]) -> str:
    """Hosts with what is wrong there, for a message."""
    reasons = [f"{host}: {why}" for host, why in sorted(problems.items())]
    more = [f"{len(reasons) - MOST_NAMED} more hosts"] if len(reasons) > MOST_NAMED else []
    return "; ".join(reasons[:MOST_NAMED] + more)


def listed(names: Sequence[str]) -> str:
    """The names of hosts, for a message."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
