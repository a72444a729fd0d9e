"""The fifty scenarios that the autoscaler must survive, and steps that several of them have in common.

Each scenario has a number in the name of its test. The test sets the state of Slurm and the cloud (see builders);
nothing is simulated. It lies with the tests of the module that decides it, or in test_plan_scenarios.py. Where a
scenario is about the services, the test here proves the decision, and other tests prove the effects:
test_slurm_parsing.py (13, what scontrol prints), test_ledger.py (38, and 40, the lock), test_oci.py (43, signing),
test_hooks.py (44 and 45), and test_harness_*.py.
"""

from __future__ import annotations

from gpucluster.autoscaler.decide.types import (
    PowerDown,
)
from tests.autoscaler.builders import (
    LEAVING,
    World,
    names,
    policy,
)

LIMIT = "400 LimitExceeded: The following service limits were exceeded: gpu4-count"


def retry_until_given_up(world: World, refused: list[str], **refusal: object) -> int:
    """Refuse every launch of these nodes until the gang is given up; how many launches that took."""
    launches = 0
    for _ in range(100):
        world.reconcile(5)
        if world.the(PowerDown):
            return launches
        again = [name for name in world.launched() if name in refused]
        launches += len(again)
        world.refuses(*again)
    raise AssertionError("the gang is never given up")


def requeued(world: World, number: int, gave: list[str], **changes: object) -> None:
    """Slurm has carried out a PowerDown: the job waits, its nodes power down."""
    world.are(gave, LEAVING)
    values: dict[str, object] = {"reason": "BeginTime", "eligible_at": world.now + 31, "node_count": len(gave)}
    world.waits(number, **{**values, **changes})


ONE = "gpu-e1"


def failing() -> World:
    """A gang of two of which the second can't be launched; the pass in which it is given up is the last."""
    world = World(policy(gang_retry_window=0))
    world.starts(1, names(1, 2))
    world.reconcile()
    return world


def booting(world: World, *gang: str, number: int = 1) -> None:
    """A job's nodes are launched and run; slurmd has not registered yet."""
    world.starts(number, gang)
    world.reconcile()
    world.accepts(*gang, state="RUNNING")
    world.reconcile(1)
