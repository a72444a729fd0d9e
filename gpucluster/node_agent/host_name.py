"""The name of this host."""

from __future__ import annotations

import socket

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed


def name_host(name: str) -> None:
    """Give this host the name of what it is now. Does nothing if it has it.

    Raises:
        Failed: the system refused.
    """
    if socket.gethostname() == name:
        return
    ended = programs.call(["hostnamectl", "set-hostname", name])
    if ended.returncode != 0:
        raise Failed(f"this host can't be called {name}: {ended.stderr.strip()}", "Try again")
