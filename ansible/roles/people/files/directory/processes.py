"""The end of what somebody runs: here, and on every other host that answers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from directory import programs
from directory.config import Hosts
from directory.errors import Failed

_PROGRAM = Path(__file__).with_name("ending.py")
_CONNECT_SECONDS = 5
_SECONDS = 30.0
_AT_A_TIME = 32
#: States of Slurm's nodes in which nothing runs there, as `sinfo` shortens them.
_AWAY = ("%", "#", "~")


@dataclass(frozen=True)
class Login:
    """Who may do anything on a host, and where it is: its name, or its address where names may not be known."""

    user: str
    address: str


def end(hosts: Hosts, uid: int, name: str, *, gone: bool) -> tuple[int, list[str]]:
    """End everything that runs for a uid.

    Args:
        gone: also what cron and at would start later.

    Returns:
        How many processes there were, and the hosts (or lists of them) of which that is not known.
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
    """The way to each host that is not this one; lists of elastic nodes become those that are in service.

    Returns:
        Host -> its login, and the lists of which nobody knows who is in service.
    """
    found: dict[str, Login] = {}
    unknown: list[str] = []
    for name, user in hosts.login_user_by_host.items():
        try:
            some = addresses_in_service(name) if "[" in name or "," in name else {name: name}
            for host, address in some.items():
                found.setdefault(host, Login(user, address))
        except Failed:
            unknown.append(name)
    here = socket.gethostname()
    return {host: login for host, login in found.items() if host not in (here, here.split(".")[0])}, unknown


def in_service(nodes: str) -> dict[str, str]:
    """Those nodes of a list of Slurm's that could run something, each with its address.

    Elastic nodes stand in no file of hosts, and OCI's DNS has them in the domain of a subnet that need not be ours.

    Raises:
        Failed: Slurm does not say.
    """
    argv = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t %o"]
    done = programs.call(argv, seconds=_SECONDS)
    if done.returncode != 0:
        raise Failed(f"Slurm does not know which of {nodes} are in service", "Look at: systemctl status slurmctld")
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: address for name, state, address in lines if not state.endswith(_AWAY)}


def _here(words: Sequence[str]) -> Mapping[str, object]:
    return _run([sys.executable, "-I", str(_PROGRAM), *words], "")


def _there(host: str, login: Login, key: Path | None, words: Sequence[str]) -> Mapping[str, object]:
    """The program goes over the wire, so that a host needs to have nothing but Python."""
    identity = [f"-i{key}", "-oIdentitiesOnly=yes"] if key else []
    options = [
        *("-T", "-F", "none", "-oBatchMode=yes", f"-oConnectTimeout={_CONNECT_SECONDS}", "-oForwardAgent=no"),
        # The keys of hosts that stay are known; those of elastic nodes are known for as long as nobody looks.
        *("-oStrictHostKeyChecking=accept-new", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"),
        # Known by its name, whatever it is reached by.
        f"-oHostKeyAlias={host}",
    ]
    # ssh hands these words to a shell: a number and a name that was checked.
    where = ["-l", login.user, "--", login.address]
    argv = ["ssh", *options, *identity, *where, "sudo", "-n", "python3", "-I", "-", *words]
    return _run(argv, _PROGRAM.read_text(encoding="utf-8"))


def _run(argv: list[str], text: str) -> Mapping[str, object]:
    try:
        done = programs.call(argv, text, seconds=_SECONDS)
    except Failed:
        return {}
    words = done.stdout.split()
    if done.returncode != 0 or len(words) < 2 or not all(word.isdigit() for word in words[-2:]):  # noqa: PLR2004
        return {}
    return {"ended": int(words[-2]), "left": int(words[-1])}


def _ended(said: Mapping[str, object], host: str) -> tuple[int, list[str]]:
    ended, left = said.get("ended"), said.get("left")
    if not isinstance(ended, int) or left != 0:
        return ended if isinstance(ended, int) else 0, [host]
    return ended, []
