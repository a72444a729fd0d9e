"""What this host and every other host that answers does about a change of the directory, and whether it holds there."""

from __future__ import annotations

import json
import pkgutil
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.controller.users.config import HostLogins
from gpucluster.controller.users.state import DirectoryState, DirectoryUser
from gpucluster.node_agent import bounded, programs
from gpucluster.node_agent.errors import Failed, Unconfirmed
from gpucluster.node_agent.interpreter import PYTHON_IN_SHELL
from gpucluster.node_agent.kubernetes.kubectl import ADMIN, Kubectl

_CONNECT_SECONDS = 5
#: For how long SSSD of a host may answer something else than the directory. It asks a server that was away again within
#: 12 s (offline_timeout in sssd.conf).
_PATIENCE_SECONDS = 13.0
_SECONDS = 40.0
#: More for each user of an import: four programs are asked about each.
_SECONDS_A_USER = 0.2
#: Bytes of an answer, with what a host prints at a login before it; characters of a reason in it.
_LONGEST_ANSWER, _LONGEST_REASON = 10_000, 200
#: The largest pid_max of Linux.
_MOST_PROCESSES = 1 << 22
#: Hosts that an error names; the result has all of them.
_MOST_NAMED = 5
_AT_A_TIME = 32
#: Suffixes of node states of `sinfo` that mean powering down, powering up and powered down: nothing runs there.
_AWAY = ("%", "#", "~")
_POWERED_DOWN = ("~",)
#: The names of elastic nodes of a pool: `gpu-e[1-6]`. Others are plain names.
_HOSTLIST = re.compile(r"([^,\[\]]+)(?:\[([0-9]+)-([0-9]+)\])?")


@dataclass(frozen=True)
class HostLogin:
    """The user with sudo on a host, and how to reach it: by name, or by address where the name may not resolve."""

    user: str
    address: str


@dataclass(frozen=True)
class HostsReport:
    """How far a change holds on all hosts.

    Args:
        ended: how many processes were ended.
        unreachable: the hosts, or hostlists, that did not answer.
        unconfirmed: host -> why the change does not hold there yet.
    """

    ended: int = 0
    unreachable: tuple[str, ...] = ()
    unconfirmed: Mapping[str, str] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, Any]:
        """What answers have of it."""
        return {"unreachable": list(self.unreachable), "unconfirmed": dict(self.unconfirmed)}

    def require(self, result: dict[str, Any], so_far: str) -> dict[str, Any]:
        """`result`, if every host has confirmed the change.

        Raises:
            Unconfirmed: one has not.
        """
        if not self.unreachable and not self.unconfirmed:
            return result
        reasons = [f"{host} does not answer" for host in self.unreachable]
        reasons += [f"{host}: {why}" for host, why in self.unconfirmed.items()]
        more = [f"{len(reasons) - _MOST_NAMED} more hosts"] if len(reasons) > _MOST_NAMED else []
        what = f"{so_far} not every host confirms it: {'; '.join(reasons[:_MOST_NAMED] + more)}"
        raise Unconfirmed(
            what, "Run the same command again when they do. It ends with 0 once every host confirms", result
        )


def of_user(state: DirectoryState, user: DirectoryUser) -> dict[str, Any]:
    """What every host should answer for a user of the directory."""
    gids = {user.gid, *(state.groups[name].gid for name in state.groups_of(user.name))}
    return {
        "name": user.name,
        "uid": user.uid,
        "state": "enabled" if user.enabled else "disabled",
        "gids": sorted(gids),
        "keys": list(user.ssh_keys) if user.enabled else [],
    }


def removed_user(user: DirectoryUser) -> dict[str, Any]:
    """What every host should answer for a user who was removed."""
    return {"name": user.name, "uid": user.uid, "state": "removed", "gids": [], "keys": []}


def ending(user: DirectoryUser, *, gone: bool) -> dict[str, Any]:
    """A request to end all processes of a user.

    Args:
        gone: also delete what cron and at would start later.
    """
    return {"name": user.name, "uid": user.uid, "gone": gone}


def confirm(
    hosts: HostLogins,
    users: Sequence[Mapping[str, Any]] = (),
    removed_groups: Sequence[str] = (),
    end: Mapping[str, Any] | None = None,
) -> HostsReport:
    """Make a change of the directory hold on every host that answers, and let each confirm it.

    Args:
        users: `of_user` and `removed_user`. `removed_groups`: names of groups that no host should know.
        end: `ending` of a user whose processes are ended.
    """
    changes = {"users": list(users), "removed_groups": list(removed_groups), "end": end}
    request = json.dumps({**changes, "patience_s": _PATIENCE_SECONDS})
    # It is sent over ssh, so that a host needs nothing but Python.
    program = f"{_program()}\n\nmain({request!r})\n"
    seconds = _SECONDS + _SECONDS_A_USER * len(users)
    others, unreachable = remote(hosts, _present)
    here = socket.gethostname().split(".")[0]
    argv_by_host = {here: [sys.executable, "-I", "-"]}
    python = ("sudo", "-n", PYTHON_IN_SHELL, "-I", "-")
    argv_by_host |= {host: ssh_argv(host, login, hosts.key, python) for host, login in others.items()}

    def ask(host: str) -> tuple[str, tuple[int, list[str]] | None]:
        return host, _ask(argv_by_host[host], program, seconds)

    ended, unconfirmed = 0, {}
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for host, answer in pool.map(ask, sorted(argv_by_host)):
            if answer is None:
                unreachable.append(host)
            else:
                ended += answer[0]
                if answer[1]:
                    unconfirmed[host] = "; ".join(answer[1])
    return HostsReport(ended, tuple(unreachable), unconfirmed)


def remote(
    hosts: HostLogins, addresses_in_service: Callable[[str], Mapping[str, str]]
) -> tuple[dict[str, HostLogin], list[str]]:
    """The login of each host but this one. Hostlists of elastic nodes become the nodes that are in service.

    Returns:
        Host -> its login, and the hostlists for which the scheduler gave no answer.
    """
    logins: dict[str, HostLogin] = {}
    unknown: list[str] = []
    for name, user in hosts.login_user_by_host.items():
        try:
            addresses = addresses_in_service(name) if is_hostlist(name) else {name: name}
            for host, address in addresses.items():
                logins.setdefault(host, HostLogin(user, address))
        except Failed:
            unknown.append(name)
    here = socket.gethostname()
    return {host: login for host, login in logins.items() if host not in (here, here.split(".")[0])}, unknown


def in_service(nodes: str) -> dict[str, str]:
    """Node -> address, for the nodes of a hostlist that could run something.

    Elastic nodes are in no /etc/hosts, and OCI's DNS has them in the domain of a subnet that may be another one.

    Raises:
        Failed: Slurm does not answer, or Kubernetes where this host has its control plane.
    """
    if Path(ADMIN).exists():
        return of_hostlist(Kubectl(ADMIN).list("nodes"), nodes)
    return _in_slurm(nodes)


def _present(nodes: str) -> dict[str, str]:
    """Like `in_service`, with nodes of Kubernetes that are not ready: users may have processes there.

    Raises:
        Failed: Slurm does not answer, or Kubernetes where this host has its control plane.
    """
    if Path(ADMIN).exists():
        return of_hostlist(Kubectl(ADMIN).list("nodes"), nodes, ready=False)
    return _in_slurm(nodes)


def existing(nodes: str) -> frozenset[str]:
    """The nodes of a hostlist that have an instance, as far as the scheduler knows: with Slurm also those that power up
    or down, with Kubernetes those that have joined.

    Raises:
        Failed: Slurm does not answer, or Kubernetes where this host has its control plane.
    """
    if Path(ADMIN).exists():
        return frozenset(of_hostlist(Kubectl(ADMIN).list("nodes"), nodes, ready=False))
    return frozenset(_in_slurm(nodes, away=_POWERED_DOWN))


def is_hostlist(name: str) -> bool:
    """Whether a name of the configuration stands for nodes that may exist or not."""
    return "[" in name or "," in name


def lists(nodes: str, name: str) -> bool:
    """Whether a hostlist such as `gpu-e[1-6]` has this name."""
    return any(
        (name.startswith(prefix) and _within(name[len(prefix) :], int(first), int(last))) if first else name == prefix
        for prefix, first, last in _HOSTLIST.findall(nodes)
    )


def _in_slurm(nodes: str, away: tuple[str, ...] = _AWAY) -> dict[str, str]:
    argv = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t %o"]
    result = programs.call(argv, seconds=_SECONDS)
    if result.returncode != 0:
        raise Failed(f"Slurm does not know which of {nodes} are in service", "Run: systemctl status slurmctld")
    lines = [line.split() for line in result.stdout.splitlines()]
    return {name: address for name, state, address in lines if not state.endswith(away)}


def of_hostlist(items: Sequence[Mapping[str, Any]], nodes: str, *, ready: bool = True) -> dict[str, str]:
    """Node -> address, for the Node objects of Kubernetes in a hostlist such as `gpu-e[1-6]`.

    Args:
        ready: only those that are ready.
    """
    address_by_node = {}
    for item in items:
        name, status = str(item["metadata"]["name"]), item.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        addresses = [each["address"] for each in status.get("addresses") or () if each["type"] == "InternalIP"]
        is_shown = not ready or conditions.get("Ready") == "True"
        if is_shown and addresses and lists(nodes, name):
            address_by_node[name] = str(addresses[0])
    return address_by_node


def _within(number: str, first: int, last: int) -> bool:
    return number.isdigit() and not number.startswith("0") and first <= int(number) <= last


def ssh_argv(host: str, login: HostLogin, key: Path | None, command: Sequence[str]) -> list[str]:
    """The command line that runs a command on another host.

    Args:
        command: words that a shell there reads.
    """
    identity = [f"-i{key}", "-oIdentitiesOnly=yes"] if key else []
    options = [
        *("-T", "-F", "none", "-oBatchMode=yes", f"-oConnectTimeout={_CONNECT_SECONDS}", "-oForwardAgent=no"),
        # The keys of permanent hosts are known, those of elastic nodes have certificates.
        *("-oStrictHostKeyChecking=yes", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"),
        # The host key is found by the host's name, whatever address is used.
        f"-oHostKeyAlias={host}",
    ]
    where = ["-l", login.user, "--", login.address]
    return ["ssh", *options, *identity, *where, *command]


def _program() -> str:
    """The source of `on_host`, also where this package is a zip file."""
    source = pkgutil.get_data(__package__ or "", "on_host.py")
    assert source is not None
    return source.decode()


def _ask(argv: list[str], program: str, seconds: float) -> tuple[int, list[str]] | None:
    """How many processes were ended, and what does not hold; None if there is no answer. Root of a host may have
    written it: it counts for that host only.
    """
    with tempfile.TemporaryFile() as file:
        file.write(program.encode())
        file.seek(0)
        result = programs.ask(argv, seconds, _LONGEST_ANSWER, stdin=file)
    try:
        answer = bounded.loads(result.output.decode(errors="replace").strip().rpartition("\n")[2])
    except ValueError:
        return None
    if result.fault or result.status != 0 or not isinstance(answer, dict):
        return None
    ended, wrong = answer.get("ended"), answer.get("wrong")
    if type(ended) is not int or not 0 <= ended <= _MOST_PROCESSES or not isinstance(wrong, list):
        return None
    return ended, [str(text)[:_LONGEST_REASON] for text in wrong]
