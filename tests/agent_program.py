"""The agent as hosts have it: one file."""

from __future__ import annotations

from pathlib import Path

from gpucluster.artifacts import agent_archive
from gpucluster.node_agent.interpreter import PYTHON


def install(folder: Path, *, node: bool = False) -> Path:
    """Write `gpucluster-agent` of the controller, which has all commands, into a folder, executable; returns its path.

    Its interpreter is the system's own Python: neither this machine nor a container that never booted has the link to
    the hosts' Python.

    Args:
        node: the one of nodes instead.
    """
    file = folder / "gpucluster-agent"
    first, _newline, rest = (agent_archive.of_node() if node else agent_archive.of_controller()).partition(b"\n")
    assert first == f"#!{PYTHON} -I".encode()
    # Of the same length, because the archive has absolute offsets. The kernel ignores spaces at the end.
    file.write_bytes(b"#!/usr/bin/python3 -I".ljust(len(first)) + b"\n" + rest)
    file.chmod(0o755)
    return file
