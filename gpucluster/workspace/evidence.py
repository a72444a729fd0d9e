"""What a run has measured, in `.gpucluster/runs/<run>/`, beside its log and deleted with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.node_agent import bounded
from gpucluster.paths import ClusterPaths, write_private


def keep(paths: ClusterPaths, run_id: str, evidence: Mapping[str, Any]) -> Path:
    """Write the evidence of a run. Only the owner may read it.

    Args:
        evidence: JSON values without secrets.

    Raises:
        EnvironmentFault: it can't be written.
    """
    folder = paths.runs / run_id
    number = len(list(folder.glob("evidence*.json"))) + 1  # a run may check more than once
    file = folder / ("evidence.json" if number == 1 else f"evidence-{number}.json")
    write_private(file, json.dumps(evidence, indent=1, default=str) + "\n")
    return file


def keep_output(paths: ClusterPaths, run_id: str, name: str, text: str) -> None:
    """Write what a program has printed into a file of its own beside the evidence.

    Args:
        name: of the file.
        text: without secrets.

    Raises:
        EnvironmentFault: it can't be written.
    """
    write_private(paths.runs / run_id / Path(name).name, text)


@dataclass(frozen=True)
class SavedEvidence:
    """What the last check of the cluster has left.

    Args:
        written_at: seconds since 1970.
        content: what `keep` was given.
    """

    file: Path
    written_at: float
    content: Mapping[str, Any]


def newest(paths: ClusterPaths) -> SavedEvidence | None:
    """The evidence that was written last on this machine; None if there is none, or it can't be read."""
    files: list[tuple[float, Path]] = []
    for file in paths.runs.glob("*/evidence*.json"):
        with suppress(OSError):  # another run deletes the oldest
            files.append((file.stat().st_mtime, file))
    for written_at, file in sorted(files, reverse=True):
        with suppress(OSError, ValueError):
            content = bounded.load(file)
            if isinstance(content, dict):
                return SavedEvidence(file, written_at, content)
    return None
