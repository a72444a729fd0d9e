"""Nodes that jobs of users have, in the words of a real Slurm: a check does not call them bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from gpucluster.controller.facts import container_steps, slurm
from gpucluster.controller.rules.slurm_nodes import is_busy
from gpucluster.node_agent.programs import Completed, ProgramGroup
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

POOL = {"name": "c", "partition": "c", "nodes": ["c-1", "c-2"], "exclude": [], "elastic": ""}

NOTHING_TRIED = {"pools": (), "user": "", "job": "", "accounting": False, "at_once": 1}


@pytest.fixture(scope="module")
def harness() -> Iterator[SlurmHarness]:
    extra = {"SelectTypeParameters": "CR_Core_Memory"}
    with SlurmHarness([SlurmPool("c-", 2, partition="c", cloud=False)], extra=extra) as made:
        for node in ("c-1", "c-2"):
            made.start_slurmd(node)
        yield made


class Inside(ProgramGroup):
    """Slurm's commands, where that Slurm is."""

    def __init__(self, harness: SlurmHarness) -> None:
        super().__init__()
        self._prefix = harness.command_prefix

    def run(self, argv: Sequence[str], seconds: float, data: bytes = b"") -> Completed[str]:
        return super().run([*self._prefix, *argv], seconds, data)


def test_full_and_planned_nodes_are_in_use_and_not_bad(harness: SlurmHarness) -> None:
    programs = Inside(harness)

    def rows() -> list[dict[str, str]]:
        found: list[dict[str, str]] = slurm.SlurmFacts(NOTHING_TRIED, programs, "").collect()["sinfo"] or []
        return found

    def states() -> dict[str, str]:
        return {row["node"]: row["state"] for row in rows()}

    harness.until("both are idle", lambda: states() == {"c-1": "idle", "c-2": "idle"})
    # One processor and all of the memory; then a job that waits for both nodes.
    full = harness.sbatch("--nodelist=c-1", "--ntasks=1", "--mem=1000", "--time=60")
    harness.until("it runs", lambda: harness.squeue().get(full) == "RUNNING")
    harness.sbatch("--nodes=2", "--exclusive", "--time=60")
    harness.until("a node is planned for the next job", lambda: states().get("c-2") == "planned")

    harness.until("steps are tried on both", lambda: slurm.free(POOL, rows()) == ["c-1", "c-2"])
    step = ["srun", "--immediate=5", "--mem=64", "--ntasks=1", "--nodelist=c-1", "hostname"]
    done = programs.run(step, PATIENCE_S)
    assert done.returncode != 0
    assert is_busy(done.stderr), done.stderr
    # Each pass of the scheduler plans again.
    harness.until(
        "both are in use",
        lambda: container_steps.in_use(container_steps.states(POOL["nodes"], programs)) == {"c-1", "c-2"},
    )
    assert container_steps.closed(container_steps.states(POOL["nodes"], programs)) == []
