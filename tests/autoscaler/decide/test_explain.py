"""What `explain` reports of nodes, jobs and gangs."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.decide.explain import explain, explain_job, explain_node
from gpucluster.autoscaler.decide.types import Job, Memory, Observation
from tests.autoscaler.builders import (
    IDLE,
    World,
)
from tests.autoscaler.decide.scenario_steps import ONE
from tests.autoscaler.policies import KUBERNETES, SLURM


def test_messages_name_the_scheduler_in_use() -> None:
    nobody = Observation(nodes={}, jobs={}, instances=())
    for policy, name, other in ((SLURM, "Slurm", "Kubernetes"), (KUBERNETES, "Kubernetes", "Slurm")):
        said = (*explain_node("gpu-e1", nobody, Memory(id=""), policy, 0.0),
                *explain_job("a/b", nobody, Memory(id=""), policy, 0.0))  # fmt: skip
        assert any(name in line for line in said)
        assert not any(other in line for line in said)


def _job(name: str, *called: str, state: str = "PENDING", reason: str = "Resources") -> Job:
    names = frozenset(f"user-ada/{each}" for each in (name, *called))
    return Job(f"user-ada/{name}", f"user-ada/{name}", state, reason, ("gpu",), (), 1, called=names)


def _explained(subject: str, *jobs: Job) -> str:
    seen = Observation(nodes={}, jobs={each.id: each for each in jobs}, instances=())
    return "\n".join(explain(subject, seen, Memory(id=""), KUBERNETES, 0.0))


@pytest.mark.parametrize("name", ["train", "user-ada/train", "train-0", "user-ada/train-0", "trainer"])
def test_a_gang_is_explained_by_each_of_its_names(name: str) -> None:
    gang = _job("train", "train-0", "train-1", "trainer")
    assert "Job user-ada/train waits for 1 node (Resources)" in _explained(name, gang, _job("other"))


def test_of_many_with_one_name_a_few_are_explained_those_that_wait_first() -> None:
    jobs = [_job(f"rank-{number}", "sweep", state="RUNNING" if number < 3 else "PENDING") for number in range(8)]
    said = _explained("sweep", *jobs)
    assert said.startswith("Job user-ada/rank-3 waits")
    assert "There are 3 more of this name: user-ada/rank-0, user-ada/rank-1, user-ada/rank-2" in said


def test_an_unknown_name_is_reported_with_the_names_to_give() -> None:
    said = _explained("nothing", _job("train"))
    assert "no elastic node nothing, and no pod, job or gang of this name that has not ended" in said
    assert "NAMESPACE/NAME" in said
    assert "Kubernetes lists no node gpu-e1" in _explained("gpu-e1")
    silent = explain("train", Observation(None, None, ()), Memory(id=""), KUBERNETES, 0.0)
    assert silent == ("Kubernetes does not answer",)


def test_a_job_that_is_not_admitted_yet_is_explained() -> None:
    said = _explained("train", _job("train", reason="SchedulingGated"))
    assert (
        "(SchedulingGated): its pods have scheduling gates. What has set them, such as Kueue, has to admit it" in said
    )


def test_a_node_at_rest_is_explained_without_a_note() -> None:
    world = World()
    world.serve("gpu-e2", words=IDLE)
    world.reconcile()
    assert world.plan.notes == ()
    off = explain_node(ONE, world.observation(), world.memory, world.policy, world.now)
    assert "is powered down" in off[0]
    up = explain_node("gpu-e2", world.observation(), world.memory, world.policy, world.now)
    assert "is in service" in up[0]
    assert any("ocid.gpu-e2.1" in line for line in up)
    nobody = explain_node("nobody", world.observation(), world.memory, world.policy, world.now)
    assert nobody == ("Slurm lists no node nobody",)
