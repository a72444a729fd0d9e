"""What a run has measured, beside its log: `.gpucluster/runs/<run>/evidence.json`. It is deleted with the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.paths import ClusterPaths, write_private


def keep(paths: ClusterPaths, run_id: str, evidence: Mapping[str, Any]) -> Path:
    """Write the evidence of a run. Only the owner may read it.

    Args:
        evidence: JSON values without secrets.

    Raises:
        EnvironmentFault: it can't be written.
    """
    file = paths.runs / run_id / "evidence.json"
    write_private(file, json.dumps(evidence, indent=1, default=str) + "\n")
    return file
