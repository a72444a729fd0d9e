"""`gpucluster-agent facts`: the facts of this host that `gpucluster verify` judges. It changes nothing.

Standard input has one JSON object that states what is asked (gpucluster/handover/facts_requests.py), standard output
gets one with the facts. What takes a while is asked at the same time, and each question has a limit of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent import bounded, versions
from gpucluster.node_agent.facts import network, questions, system

_NAME = "gpucluster-agent facts"
_MOST = 1 << 20


class HostFacts:
    """The facts of this host. Make it before any thread: it starts processes by fork.

    Args:
        asked: `users` to look up; `share` {path, file, token}; `mesh` {user, next}: log in to another host as a user;
            `access`: which groups the ssh server lets in; `slurm`: try Slurm's commands; `rdma`: its place in the RDMA
            network; `checks` {profile, seconds, alone}; `monitoring` {wait}: ask Prometheus. What is missing is not
            asked.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._asked = asked
        # Which services a user without rights reaches; and whether root does, without which the first has no meaning.
        services = network.CLOUD_SERVICES
        self._nobody = network.Connecting(network.NOBODY, services)
        self._root = network.Connecting(0, {"metadata": services["metadata"]})

    def collect(self) -> dict[str, Any]:
        """Ask everything at the same time."""
        asked = self._asked
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        data = system.node_data(system.read(system.NODE_DATA))
        slow: dict[str, Callable[[], Any]] = {
            "versions": versions.described,
            "users": self._users,
            "cloud_services": lambda: {"nobody": self._nobody.reached(), "root": self._root.reached()},
            "physical_host": network.physical_host,
            "local_disk": lambda: system.local_disk(mounts, data),
        }
        if asked.get("share"):
            slow["share"] = lambda: system.share(mounts, asked["share"])
        if asked.get("rdma"):
            slow["rdma_place"] = network.place_in_network
        if asked.get("mesh"):
            slow["mesh"] = lambda: questions.hop(asked["mesh"])
        if asked.get("access"):
            slow["ssh_groups"] = questions.ssh_groups
        if asked.get("slurm"):
            slow["slurm_error"] = questions.slurm_error
        if asked.get("checks"):
            slow["agent_check"] = lambda: questions.agent_check(asked["checks"])
        if asked.get("monitoring"):
            slow["monitoring"] = lambda: questions.monitoring(asked["monitoring"])
        found = at_once(slow)
        return {
            "hostname": os.uname().nodename,
            **(found.pop("share", None) or {}),
            **(found.pop("users") or {}),
            **found,
            "firewall": system.outcome("firewall"),
            "rdma_addresses": system.outcome("rdma-addresses") if data.get("rdma_interfaces") else None,
            "certificates": system.certificates(),
            "secrets": system.secrets(),
        }

    def _users(self) -> dict[str, Any]:
        names = list(self._asked.get("users") or ())
        system.await_users(names)
        return {
            "user_ids": {name: system.ids(name) for name in names},
            "user_groups": {name: system.groups(name) for name in names},
            "group_ids": {name: system.group_id(name) for name in self._asked.get("groups") or ()},
        }


def at_once(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What some functions return that are called at the same time. Where one fails, its result is None, and
    NAME_error states why: a fact is missing, and the others are there.
    """
    found: dict[str, Any] = {}

    def run(name: str, call: Callable[[], Any]) -> None:
        try:
            found[name] = call()
        except Exception as error:  # of any kind: the others must not be lost
            found[name] = None
            found[f"{name}_error"] = getattr(error, "message", "") or f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def prepare() -> None:
    """The environment for programs, whatever sudo has left of it."""
    os.chdir("/")
    os.environ["LC_ALL"] = "C.UTF-8"
    # Oracle Linux: secure_path has no /usr/local/bin.
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/bin", "/usr/sbin"))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    argparse.ArgumentParser(prog=_NAME, description=(__doc__ or "").partition("\n")[0]).parse_args(argv)
    try:
        asked = bounded.loads(sys.stdin.read(_MOST))
        if not isinstance(asked, dict):
            raise ValueError("it is not an object")
    except ValueError as error:
        sys.stderr.write(f"{_NAME}: the request can't be read: {error}\n")
        return 2
    prepare()
    sys.stdout.write(json.dumps(HostFacts(asked).collect()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
