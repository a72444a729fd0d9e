"""A pool of nodes with jobs, and what a rollout does to it: a model for tests of the decision, without any effects.

It does not prove how Slurm, the cloud or a host behave: tests/lifecycle and tests/e2e do that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpucluster.rollout.decide import (
    Change,
    Drain,
    End,
    Prove,
    Release,
    RolloutNode,
    RolloutPolicy,
    Step,
    TakeBack,
    Wait,
    decide,
)
from gpucluster.rollout.record import RolloutRecord, begin, parse, with_answer, with_outcomes, with_request

OLD, NEW = "ocid1.image..old", "ocid1.image..new"


@dataclass
class ModelNode:
    """A node: its image, whether it takes jobs, who has drained it, and the ticks that its job has left."""

    image: str = OLD
    reason: str = ""
    job: int = 0
    answers: bool = True


@dataclass
class PoolModel:
    """A pool under a rollout.

    Args:
        bad: what is wrong with an image on a node: "" if nothing is, "silent" if the node does not come back, else what
            its checks find.
        killed: whether the run is killed between a step and the next.
    """

    nodes: dict[str, ModelNode]
    policy: RolloutPolicy
    chance: random.Random
    bad: Callable[[str, str], str] = lambda _node, _image: ""
    killed: Callable[[], bool] = lambda: False
    record: RolloutRecord = field(default_factory=RolloutRecord)
    jobs_killed: int = 0
    lowest: int = 10**9
    steps: list[Step] = field(default_factory=list)
    most_at_once: int = 0

    def begin(self) -> None:
        """Start, or start again."""
        self.record = begin({name: node.image for name, node in self.nodes.items()}, NEW, self.record)

    def seen(self) -> dict[str, RolloutNode]:
        """The nodes as the scheduler reports them."""
        return {
            name: RolloutNode(
                serves=not node.reason and node.answers,
                busy=node.job > 0,
                ours=node.reason == "rollout",
                reason=node.reason,
            )
            for name, node in self.nodes.items()
        }

    def run(self, ticks: int = 5000) -> End:
        """Take steps until the end."""
        for _ in range(ticks):
            step = decide(self.record, self.policy, self.seen())
            self.steps.append(step)
            if isinstance(step, End):
                return step
            self._take(step)
            self._time_passes()
            if self.killed():  # what is stored is all that the next run has
                restored = parse(self.record.to_json())
                assert restored == self.record
                self.record = restored
        raise AssertionError(f"no end after {ticks} steps: {self.record.text}")

    def _take(self, step: Step) -> None:
        if isinstance(step, Drain):
            for name in step.nodes:
                self.nodes[name].reason = "rollout"
        elif isinstance(step, Release):
            for name in step.nodes:
                self.nodes[name].reason = ""
        elif isinstance(step, TakeBack):
            self.record = RolloutRecord(**{**vars(self.record), "taking_back": step.why})
        elif isinstance(step, Change):
            self._change(step.images)
        elif isinstance(step, Prove):
            outcomes = {name: self.bad(name, self.nodes[name].image) for name in step.nodes}
            self.record = with_outcomes(self.record, outcomes)
            if not self.killed():
                for name, why in outcomes.items():
                    self.nodes[name].reason = "rollout" if why else ""
        else:
            assert isinstance(step, Wait)

    def _change(self, images: Mapping[str, str]) -> None:
        self.record = with_request(self.record, images)
        if self.killed():
            return
        for name, image in images.items():
            node = self.nodes[name]
            self.jobs_killed += node.job > 0
            node.image = image
            node.answers = self.bad(name, image) != "silent"
        self.most_at_once = max(
            self.most_at_once, sum(not node.answers or bool(node.reason) for node in self.nodes.values())
        )
        silent = {name: "it does not answer" for name in images if not self.nodes[name].answers}
        self.record = with_answer(self.record, [name for name in images if name not in silent])
        self.record = with_outcomes(self.record, silent, silent=True)

    def _time_passes(self) -> None:
        for node in self.nodes.values():
            node.job = max(0, node.job - 1)
            if not node.reason and node.answers and not node.job and self.chance.random() < 0.5:
                node.job = self.chance.randint(1, 20)
        self.lowest = min(self.lowest, sum(node.serves for node in self.seen().values()))
