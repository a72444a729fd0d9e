"""The settings of backups on a schedule, and what is recorded of the runs: a state, and metrics for node_exporter."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.node_agent.durable_file import replace

#: What the metrics say; docs/reference/metrics.md is made from it.
METRICS = {
    "gpucluster_backup_last_success_timestamp_seconds": "When the last backup on a schedule was complete.",
    "gpucluster_backup_last_size_bytes": "The size of that backup, encrypted.",
    "gpucluster_backup_last_exit_code": "The exit status of the last run; 0 if it has made a backup.",
    "gpucluster_backup_overdue_seconds": "The age at which the last backup is too old.",
}
_STATE = "schedule.json"


@dataclass(frozen=True)
class Schedule:
    """Where backups on a schedule are written, and for whom they are encrypted.

    Args:
        certificate: a file with the certificate of the operator.
        directory: where they are.
        share: the mount point that the directory is below, where it is the default one; None for one of the operator.
        keep: how many stay.
        overdue: seconds after which the last one is too old.
        metrics: the folder of node_exporter's text files, which is there on a cluster with monitoring.
    """

    certificate: Path
    directory: Path
    share: Path | None
    keep: int
    overdue: int
    metrics: Path

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Schedule:
        """As the role `people` writes it."""
        share = Path(raw["share"]) if raw["share"] else None
        certificate, directory, metrics = (Path(raw[key]) for key in ("certificate", "directory", "metrics"))
        return cls(certificate, directory, share, int(raw["keep"]), int(raw["overdue_seconds"]), metrics)


def record(schedule: Schedule, folder: Path, status: int, size: int = 0) -> None:
    """Record how a run ended. After a failure, the time and the size of the last backup stay.

    Args:
        folder: of the state.
        status: the exit status of the run.
        size: bytes of the new backup, where the status is 0.
    """
    state: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        old = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        state = {name: float(old[name]) for name in METRICS if name in old and math.isfinite(old[name])}
    state["gpucluster_backup_last_exit_code"] = status
    state["gpucluster_backup_overdue_seconds"] = schedule.overdue
    if status == 0:
        state["gpucluster_backup_last_success_timestamp_seconds"] = time.time()
        state["gpucluster_backup_last_size_bytes"] = size
    replace(folder / _STATE, json.dumps(state) + "\n", mode=0o600)
    # It belongs to the exporters, and is not there without them.
    if schedule.metrics.is_dir():
        replace(schedule.metrics / "backup.prom", page(state), mode=0o644, durable=False)


def page(state: Mapping[str, float]) -> str:
    """The metrics as Prometheus reads them."""
    return "".join(
        f"# HELP {name} {words}\n# TYPE {name} gauge\n{name} {state[name]:.17g}\n"
        for name, words in METRICS.items()
        if name in state
    )
