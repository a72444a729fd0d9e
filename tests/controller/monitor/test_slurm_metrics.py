"""Series of Slurm: the states of nodes, and the numbers of sdiag."""

from __future__ import annotations

import pytest

from gpucluster.controller.monitor import slurm_metrics, slurm_text
from gpucluster.controller.rules.slurm_nodes import node_flags
from tests.controller.monitor.slurm_lines import SDIAG


def test_sdiag_is_read_up_to_what_users_do() -> None:
    found = slurm_text.scheduler(SDIAG)
    assert found["jobs_submitted_total"] == 7
    assert (found["last_cycle_seconds"], found["backfill_last_cycle_seconds"]) == (0.0015, 2.5)
    assert set(found) <= {name.replace("gpucluster_slurm_scheduler_", "") for name in slurm_metrics.METRICS}
    with pytest.raises(ValueError, match="gone"):
        slurm_text.scheduler("slurmctld is gone")


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("IDLE", "idle"), ("IDLE+CLOUD+POWERED_DOWN", "powered_down"), ("IDLE~", "powered_down"),
        ("MIXED#", "powering_up"),
        ("ALLOCATED+CLOUD+POWERING_UP+POWERED_DOWN", "powering_up"), ("IDLE+POWERING_DOWN", "powering_down"),
        ("DOWN*", "down"), ("IDLE+DRAIN", "drained"), ("ALLOCATED+DRAIN", "draining"),
        ("IDLE*+CLOUD", "not_responding"),
        ("MIXED+COMPLETING", "completing"), ("FUTURE", "unknown"),
    ],
)  # fmt: skip
def test_a_node_has_one_state(state: str, word: str) -> None:
    assert slurm_metrics.state_of(node_flags(state)) == word
