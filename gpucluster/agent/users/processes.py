"""End the processes of a user on this host and on every other host that answers."""

from __future__ import annotations

import pkgutil
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.agent import programs
from gpucluster.agent.errors import Failed
from gpucluster.agent.interpreter import PYTHON_IN_SHELL
from gpucluster.agent.kubernetes.kubectl import ADMIN, Kubectl
from gpucluster.agent.users.config import Hosts

_CONNECT_SECONDS = 5
_SECONDS = 30.0
_AT_A_TIME = 32
#: Suffixes of node states of `sinfo` that mean powering down, powering up and powered down: nothing runs there.
_AWAY = ("%", "#", "~")
#: The names of elastic nodes of a pool: `gpu-e[1-6]`. Others are plain names.
_HOSTLIST = re.compile(r"([^,\[\]]+)(?:\[([0-9]+)-([0-9]+)\])?")


@dataclass(frozen=True)
class Login:
    """The user with sudo on a host, and how to reach it: by name, or by address where the name may not resolve."""

    user: str
    address: str


def end(hosts: Hosts, uid: int, name: str, *, gone: bool) -> tuple[int, list[str]]:
    """End all processes of a uid.

    Args:
        gone: also delete what cron and at would start later.

    Returns:
        How many processes were ended, and the hosts (or hostlists) for which that is not known.
    """
    words = [str(uid), name, *(["gone"] if gone else [])]
    others, unreachable = remote(hosts, in_service)
    ended, missed_here = _ended(_here(words), "this host")
    unreachable += missed_here

    def ask(host: str) -> tuple[int, list[str]]:
        return _ended(_there(host, others[host], hosts.key, words), host)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for count, missed in pool.map(ask, sorted(others)):
            ended += count
            unreachable += missed
    return ended, unreachable


def remote(
    hosts: Hosts, addresses_in_service: Callable[[str], Mapping[str, str]]
) -> tuple[dict[str, Login], list[str]]:
    """The login of each host but this one. Hostlists of elastic nodes become the nodes that are in service.

    Returns:
        Host -> its login, and the hostlists for which the scheduler gave no answer.
    """
    found: dict[str, Login] = {}
    unknown: list[str] = []
    for name, user in hosts.login_user_by_host.items():
        try:
            addresses = addresses_in_service(name) if "[" in name or "," in name else {name: name}
            for host, address in addresses.items():
                found.setdefault(host, Login(user, address))
        except Failed:
            unknown.append(name)
    here = socket.gethostname()
    return {host: login for host, login in found.items() if host not in (here, here.split(".")[0])}, unknown


def in_service(nodes: str) -> dict[str, str]:
    """Node -> address, for the nodes of a hostlist that could run something.

    Elastic nodes are in no /etc/hosts, and OCI's DNS has them in the domain of a subnet that may be another one.

    Raises:
        Failed: Slurm does not answer, or Kubernetes where this host has its control plane.
    """
    if Path(ADMIN).exists():
        return of_hostlist(Kubectl(ADMIN).list("nodes"), nodes)
    argv = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t %o"]
    done = programs.call(argv, seconds=_SECONDS)
    if done.returncode != 0:
        raise Failed(f"Slurm does not know which of {nodes} are in service", "Run: systemctl status slurmctld")
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: address for name, state, address in lines if not state.endswith(_AWAY)}


def of_hostlist(items: Sequence[Mapping[str, Any]], nodes: str) -> dict[str, str]:
    """Node -> address, for the Node objects of Kubernetes that are ready and in a hostlist such as `gpu-e[1-6]`."""
    parts = [(name, first, last) for name, first, last in _HOSTLIST.findall(nodes)]

    def listed(node: str) -> bool:
        return any(
            (node.startswith(name) and _within(node[len(name) :], int(first), int(last))) if first else node == name
            for name, first, last in parts
        )

    found = {}
    for item in items:
        name, status = str(item["metadata"]["name"]), item.get("status") or {}
        ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}.get("Ready") == "True"
        addresses = [each["address"] for each in status.get("addresses") or () if each["type"] == "InternalIP"]
        if ready and addresses and listed(name):
            found[name] = str(addresses[0])
    return found


def _within(number: str, first: int, last: int) -> bool:
    return number.isdigit() and not number.startswith("0") and first <= int(number) <= last


def _here(words: Sequence[str]) -> Mapping[str, object]:
    return _run([sys.executable, "-I", "-", *words])


def _there(host: str, login: Login, key: Path | None, words: Sequence[str]) -> Mapping[str, object]:
    """The program is sent over ssh, so that a host needs nothing but Python."""
    identity = [f"-i{key}", "-oIdentitiesOnly=yes"] if key else []
    options = [
        *("-T", "-F", "none", "-oBatchMode=yes", f"-oConnectTimeout={_CONNECT_SECONDS}", "-oForwardAgent=no"),
        # The keys of permanent hosts are known, those of elastic nodes have certificates.
        *("-oStrictHostKeyChecking=yes", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"),
        # The host key is found by the host's name, whatever address is used.
        f"-oHostKeyAlias={host}",
    ]
    # ssh passes these words to a shell: the program's arguments are a number and a checked name.
    where = ["-l", login.user, "--", login.address]
    argv = ["ssh", *options, *identity, *where, "sudo", "-n", PYTHON_IN_SHELL, "-I", "-", *words]
    return _run(argv)


def _program() -> str:
    """The source of `end_processes`, also where this package is a zip file."""
    source = pkgutil.get_data(__package__ or "", "end_processes.py")
    assert source is not None
    return source.decode()


def _run(argv: list[str]) -> Mapping[str, object]:
    try:
        done = programs.call(argv, _program(), seconds=_SECONDS)
    except Failed:
        return {}
    words = done.stdout.split()
    if done.returncode != 0 or len(words) < 2 or not all(word.isdigit() for word in words[-2:]):  # noqa: PLR2004
        return {}
    return {"ended": int(words[-2]), "left": int(words[-1])}


def _ended(answer: Mapping[str, object], host: str) -> tuple[int, list[str]]:
    ended, left = answer.get("ended"), answer.get("left")
    if not isinstance(ended, int) or left != 0:
        return ended if isinstance(ended, int) else 0, [host]
    return ended, []
