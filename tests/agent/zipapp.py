"""The agent as hosts have it: one file."""

from __future__ import annotations

from pathlib import Path

from gpucluster.artifacts import agent_archive


def install(folder: Path) -> Path:
    """Write `gpucluster-agent` into a folder, executable; returns its path."""
    file = folder / "gpucluster-agent"
    file.write_bytes(agent_archive.build())
    file.chmod(0o755)
    return file
