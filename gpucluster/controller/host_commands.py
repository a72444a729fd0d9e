"""Commands of the agent on many hosts at once, for a rotation of secrets: by ssh, from the controller."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.controller.users import hosts
from gpucluster.controller.users.config import HostLogins
from gpucluster.controller.users.hosts import HostLogin
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

AGENT = "/usr/local/bin/gpucluster-agent"
SECONDS = 60.0
#: Hosts that a message names; the result has all of them.
MOST_NAMED = 5

_AT_A_TIME = 32
# sshd that reads its keys again does not listen until it is done: on a busy host, for seconds. Before each further try:
_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)
# How ssh ends its message about a host that is off.
_UNREACHABLE = ("timed out", "no route to host")
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
    return reasons(answers_of(logins, key, words, seconds, text_by_host))


@dataclass(frozen=True)
class Answer:
    """What a program has printed, and why it failed: the last line of its errors; empty if it ended well."""

    text: str
    reason: str


def reasons(answers: Mapping[str, Answer]) -> dict[str, str]:
    """By host, why a command failed there."""
    return {host: each.reason for host, each in answers.items() if each.reason}


def answers_of(
    logins: Mapping[str, HostLogin],
    key: Path | None,
    words: Sequence[str],
    seconds: float = SECONDS,
    text_by_host: Mapping[str, str] = _NONE,
) -> dict[str, Answer]:
    """Run a command of the agent on hosts, as root: see `on_all`. Returns what each has answered."""

    def run(host: str) -> tuple[str, Answer]:
        argv = hosts.ssh_argv(host, logins[host], key, ["sudo", "-n", AGENT, *words])
        return host, answer(argv, text_by_host.get(host, ""), seconds)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return dict(pool.map(run, sorted(logins)))


def answer(argv: Sequence[str], text: str = "", seconds: float = SECONDS) -> Answer:
    """Run a program here. Never fails.

    Args:
        text: what it reads from standard input.
    """
    try:
        result = programs.call(argv, text, seconds=seconds)
    except Failed as error:
        return Answer("", error.message)
    said = result.stderr.strip().rpartition("\n")[2]
    return Answer(
        result.stdout, "" if result.returncode == 0 else said[-_LONGEST_REASON:] or f"status {result.returncode}"
    )


def on_this_one(words: Sequence[str], text: str = "", seconds: float = SECONDS) -> Answer:
    """Run a command of the agent on this host: see `answer`."""
    return answer([AGENT, *words], text, seconds)


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


def given_up(silent: Mapping[str, str], here: str) -> list[str]:
    """Those of the hosts, other than this one, that are out of service. Without Slurm, or without its answer, none is,
    and all are waited for.
    """
    try:
        return [name for name in away(silent) if name != here]
    except Failed:
        return []


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


@dataclass(frozen=True)
class ReachableHosts:
    """This host, and those that the controller can log in to: the permanent ones, and elastic nodes in service.

    Args:
        here: the name of this one.
        permanent: the names of permanent ones, and of this one.
        gone: those that could not be reached, with the reason. Each attempt takes seconds.
    """

    here: str
    logins: Mapping[str, HostLogin]
    permanent: Sequence[str]
    key: Path | None
    gone: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: HostLogins) -> ReachableHosts:
        """Those of a cluster.

        Raises:
            Failed: Slurm does not answer.
        """
        found, unknown = cls._of(config, hosts.in_service)
        if unknown:
            raise Failed(f"Slurm does not tell which of {', '.join(unknown)} are in service", "Run: gpucluster status")
        return found

    @classmethod
    def as_far_as_known(cls, config: HostLogins) -> ReachableHosts:
        """The same; without an answer of Slurm, the permanent hosts alone."""
        return cls._of(config, hosts.in_service)[0]

    @classmethod
    def permanent_of(cls, config: HostLogins) -> ReachableHosts:
        """The permanent hosts alone."""
        return cls._of(config, lambda _nodes: {})[0]

    @classmethod
    def _of(
        cls, config: HostLogins, in_service: Callable[[str], Mapping[str, str]]
    ) -> tuple[ReachableHosts, Sequence[str]]:
        """The hosts, and the hostlists of which Slurm does not tell what is in service."""
        here = socket.gethostname().split(".")[0]
        logins, unknown = hosts.remote(config, in_service)
        names = [name for name in config.login_user_by_host if not hosts.is_hostlist(name) and name in logins]
        return cls(here, logins, sorted({here, *names}), config.key), unknown

    def ask(
        self, names: Sequence[str], words: Sequence[str], text_by_host: Mapping[str, str], seconds: float
    ) -> dict[str, Answer]:
        """The answers of these hosts. This one is the last: whatever it does, it has asked the others. Those where the
        command fails are asked again; one that can't be reached is not, also not by later calls.

        Args:
            text_by_host: what each reads from standard input.
        """
        answers = {name: Answer("", self.gone[name]) for name in names if name in self.gone}
        silent = [name for name in names if name not in self.gone]
        for pause in (0.0, *_PAUSES_SECONDS):
            time.sleep(pause)
            there = {name: self.logins[name] for name in silent if name in self.logins}
            answers.update(answers_of(there, self.key, words, seconds, text_by_host))
            if self.here in silent:
                answers[self.here] = on_this_one(words, text_by_host.get(self.here, ""), seconds)
            failed = {name: answers[name].reason for name in silent if name in answers and answers[name].reason}
            silent = [name for name, why in failed.items() if not why.lower().endswith(_UNREACHABLE)]
            self.gone.update({name: why for name, why in failed.items() if name not in silent})
            if not silent:
                break
        gone = Answer("", "it is not a host of the cluster now")
        return {name: answers.get(name, gone) for name in names}

    @property
    def names(self) -> list[str]:
        """All hosts in service, this one among them."""
        return sorted({self.here, *self.logins})

    def off(self, silent: Mapping[str, str]) -> list[str]:
        """Those that Slurm has given up: see `given_up`."""
        return given_up(silent, self.here)

    def confirmation(self, silent: Mapping[str, str], off: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
        """How far all hosts have confirmed a rotation.

        Args:
            silent: hosts that have not, with the reason. `off`: those of them that Slurm has given up.

        Returns:
            Why hosts in service have not; and the result: `hosts` (a number), `away`, `unconfirmed` (names).
        """
        unconfirmed = {name: why for name, why in silent.items() if name not in off}
        counts = {"hosts": len(self.names) - len(silent), "away": sorted(off), "unconfirmed": sorted(unconfirmed)}
        return unconfirmed, counts

    def problems(self, silent: Mapping[str, str]) -> dict[str, str]:
        """Those in service, with the reason."""
        off = self.off(silent)
        return {name: why for name, why in silent.items() if name not in off}
