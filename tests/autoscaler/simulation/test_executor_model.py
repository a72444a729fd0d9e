"""The model of the executor: one outcome for each launch, and none for what is not needed any more."""

from __future__ import annotations

from gpucluster.autoscaler.decide.types import Fault, Launch
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.autoscaler.simulation.cloud_model import CloudModel, CloudSettings, FaultRates
from gpucluster.autoscaler.simulation.executor_model import ExecutorModel


class Executor(ExecutorModel):
    """With a cloud, and the names of nodes whose launches are not needed any more."""

    def __init__(self, rates: FaultRates | None = None, **settings: float) -> None:
        clock = Clock()
        self.dropped: set[str] = set()
        self.ends: list[float] = []
        cloud = CloudModel(clock, CloudSettings(**settings), rates or FaultRates(), 7)  # type: ignore[arg-type]
        super().__init__(
            clock, cloud, lambda node, _token: node not in self.dropped, lambda: self.ends.append(clock.now)
        )


def launch(number: int) -> Launch:
    return Launch(f"gpu-e{number}", "gpu", 1, f"token {number}", "why")


def submit(executor: Executor, count: int) -> None:
    for number in range(count):
        executor.submit(launch(number))


def test_each_launch_is_one_outcome_and_no_longer_in_flight() -> None:
    executor = Executor(call_seconds=2.0)
    submit(executor, 3)
    executor.submit(launch(0))  # the plan asks for it again
    assert executor.in_flight == {"token 0", "token 1", "token 2"}
    assert executor.take() == ()
    executor.clock.run_until(10)
    outcomes = executor.take()
    assert sorted(outcome.node for outcome in outcomes) == ["gpu-e0", "gpu-e1", "gpu-e2"]
    assert all(outcome.instance_id and outcome.fault is None for outcome in outcomes)
    assert (executor.in_flight, executor.sent, len(executor.ends)) == (set(), 3, 3)
    assert min(executor.ends) >= 2.0


def test_a_launch_that_is_not_needed_any_more_is_dropped_without_an_outcome() -> None:
    executor = Executor()
    submit(executor, 2)
    executor.dropped.add("gpu-e1")
    executor.clock.run_until(10)
    assert [outcome.node for outcome in executor.take()] == ["gpu-e0"]
    assert (executor.in_flight, executor.cloud.accepted) == (set(), 1)


def test_a_throttled_launch_is_sent_again_and_never_becomes_an_outcome() -> None:
    executor = Executor(calls_per_second=2.0)
    submit(executor, 40)
    executor.clock.run_until(300)
    outcomes = executor.take()
    assert len({outcome.token for outcome in outcomes}) == len(outcomes) == 40
    assert all(outcome.fault is None for outcome in outcomes)
    assert executor.throttled > 0
    assert (executor.sent, executor.cloud.accepted) == (40 + executor.throttled, 40)


def test_a_refusal_is_an_outcome_with_its_cause() -> None:
    executor = Executor(FaultRates(limit=1.0))
    submit(executor, 1)
    executor.clock.run_until(10)
    (outcome,) = executor.take()
    assert (outcome.fault, outcome.instance_id, outcome.message) == (Fault.LIMIT, "", "400 LimitExceeded")


def test_without_a_connection_the_result_is_not_known() -> None:
    executor = Executor()
    executor.offline = True
    submit(executor, 1)
    executor.clock.run_until(10)
    (outcome,) = executor.take()
    assert (outcome.fault, outcome.message) == (Fault.TRANSIENT, "no connection")
    assert executor.cloud.accepted == 0


def test_a_process_that_is_killed_forgets_its_queue_and_the_cloud_does_not() -> None:
    executor = Executor(call_seconds=2.0)
    submit(executor, 1)
    executor.clock.run_until(1)
    submit(executor, 20)
    executor.crash()
    executor.clock.run_until(100)
    assert (executor.take(), executor.in_flight, executor.ends) == ((), set(), [])
    assert executor.cloud.accepted >= 1
    # The next process sends the same launch: it is the same instance.
    before = executor.cloud.accepted
    executor.submit(launch(0))
    executor.clock.run_until(200)
    assert (len(executor.take()), executor.cloud.accepted) == (1, before)
