"""Addresses for tests that make real networks: each of them gets a range that nothing else on this machine has.

    with free_range() as net:       # "10.146": net + ".0.0/16" is this block's alone
        ...

A range is reserved by a lock on a file, which the kernel takes back when the process ends, however it ends; so two
suites at once never get the same one. A range for which the host already has a route (a demo cluster, another user's
containers) is left out. Tests that start nothing may use any address: a network of the null engine exists nowhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Second octets. No default of a configuration and no worked example lies there, and neither do the ranges of pods and
# services (10.244 and 10.96): a firewall that trusts pods must not trust a network of a test by chance.
_SECOND = range(140, 240)
# Not in TMPDIR, which each run has for itself.
_PODMAN_NETWORKS = Path("/etc/containers/networks")
_LOCKS = Path(f"/tmp/gpucluster-test-ranges-{os.getuid()}")


@contextlib.contextmanager
def free_range() -> Iterator[str]:
    """The first two octets of a /16 that is free, to the end of the block."""
    _LOCKS.mkdir(mode=0o700, exist_ok=True)
    used = _routes()
    order = list(_SECOND)
    secrets.SystemRandom().shuffle(order)
    for second in order:
        network = ipaddress.ip_network(f"10.{second}.0.0/16")
        if any(network.overlaps(route) for route in used):
            continue
        with (_LOCKS / str(second)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            yield f"10.{second}"
            return
    raise AssertionError(f"no free range: the host has routes for {sorted(map(str, used))}, the others are in use")


def _routes() -> list[ipaddress.IPv4Network]:
    listed = subprocess.run(["ip", "-4", "-json", "route"], capture_output=True, text=True, check=True)
    words = [str(route["dst"]) for route in json.loads(listed.stdout or "[]")]
    return [*_podman_ranges(), *(ipaddress.IPv4Network(word) for word in words if word != "default")]


def _podman_ranges() -> Iterator[ipaddress.IPv4Network]:
    """Networks without a running container have no route, and Podman refuses their ranges all the same."""
    for file in _PODMAN_NETWORKS.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):  # one that is being written or removed
            for subnet in json.loads(file.read_text())["subnets"]:
                yield ipaddress.IPv4Network(subnet["subnet"])


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago.

    For programs that can't be given a socket or port 0. Outside of the range from which the kernel takes ports of
    connections, so that none of these takes it in the meantime; and each process of tests has ports of its own.
    """
    low, high = 10240, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    _LOCKS.mkdir(mode=0o700, exist_ok=True)
    for _ in range(200):
        port = low + secrets.randbelow(high - low)
        lock = (_LOCKS / f"port-{port}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind((host, port))
        except OSError:
            lock.close()
            continue
        _HELD.append(lock)
        return port
    raise AssertionError("no free port was found")


#: Locks of ports, to the end of the process.
_HELD: list[object] = []
