"""The loop with doubles for Slurm and the cloud, and the real ledger, spool and plan. A failure costs one pass."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.daemon import hooks
from gpucluster.autoscaler.daemon.clock import SteadyClock
from gpucluster.autoscaler.daemon.ledger import Ledger
from gpucluster.autoscaler.daemon.loop import AutoscalerLoop
from gpucluster.autoscaler.daemon.oci import RequestFailed
from gpucluster.autoscaler.daemon.spool import Spool
from gpucluster.autoscaler.daemon.wake_up import WakeUp, Woken
from gpucluster.autoscaler.decide import plan
from gpucluster.autoscaler.decide.types import (
    ClaimState,
    CloudInstance,
    Fault,
    Join,
    Memory,
    NodeClaim,
    Observation,
    SaveConsole,
    ScalingPlan,
    Terminate,
)
from gpucluster.autoscaler.policy import Policy
from gpucluster.controller import booting_nodes
from gpucluster.errors import CloudError
from tests.autoscaler.slurm_double import COMING, LEAVING, UP, SlurmDouble, SlurmFile, job
from tests.doubles.clock import Clock
from tests.waiting import PATIENCE_S, wait_for

POOL = {
    "partition": "compute", "prefix": "c-e", "names": 4, "max_nodes": 4, "shape": "X", "availability_domain": "AD-1",
    "instance_configuration_id": "ocid1.instanceconfiguration.x",
}  # fmt: skip
RAW: dict[str, Any] = {
    "version": 1, "cluster": "demo", "compartment_id": "c", "region": "r", "authentication": {"method": "none"},
    "pools": {"compute": {**POOL, "baked": True}},
}  # fmt: skip


class CloudDouble:
    """Instances in a dictionary; the next answers can be set."""

    def __init__(self) -> None:
        self.there: dict[str, CloudInstance] = {}
        self.launches: list[str] = []
        self.terminated: list[str] = []
        self.born = "RUNNING"
        self.fails: Exception | None = None
        self.refusal: Exception | None = None
        self.reported: list[str] = []
        self.report_refusal: Exception | None = None
        self.listings = 0
        self.causes: dict[str, tuple[Fault, str]] = {}
        self.before_console: Callable[[], object] = lambda: None
        self.address_of: Callable[[str], str] = lambda _instance: "10.0.0.9"

    def instances(self, remembered: Collection[str] = ()) -> tuple[CloudInstance, ...]:
        self.listings += 1
        if self.fails:
            raise self.fails
        return tuple(one for one in self.there.values() if one.state != "TERMINATED" or one.id in remembered)

    def cause(self, instance_id: str) -> tuple[Fault, str] | None:
        return self.causes.get(instance_id)

    def launch(self, pool: str, node: str, generation: int, token: str) -> tuple[str, str]:
        self.launches.append(token)
        if self.refusal:
            raise self.refusal
        found = self.there.setdefault(
            token, CloudInstance(f"id-{node}-{generation}", node, pool, generation, self.born, time.time())
        )
        return found.id, "request"

    def state(self, state: str) -> None:
        self.there = {token: replace(one, state=state) for token, one in self.there.items()}

    def terminate(self, instance_id: str) -> bool:
        self.terminated.append(instance_id)
        return True

    def report_host(self, instance_id: str) -> bool:
        assert instance_id not in self.terminated
        if self.report_refusal:
            raise self.report_refusal
        self.reported.append(instance_id)
        return True

    def address(self, instance_id: str) -> str:
        return self.address_of(instance_id)

    def console(self, instance_id: str, timeout: float) -> str:
        self.before_console()
        assert instance_id not in self.terminated
        return "kernel panic"


class Rig:
    """An autoscaler and its surroundings."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.state, self.spool = folder / "state", folder / "spool"
        self.state.mkdir(mode=0o700)
        self.spool.mkdir()
        self.slurm = SlurmFile(folder / "slurm.json", ("c-e1", "c-e2", "c-e3", "c-e4"))
        self.slurm.write()
        self.cloud = CloudDouble()
        self.ledger = Ledger(self.state)
        self.autoscaler = AutoscalerLoop(
            Policy.parse(options.pop("raw", RAW)),
            slurm=options.pop("slurm", None) or SlurmDouble(self.slurm.file),
            cloud=self.cloud,
            ledger=self.ledger,
            spool=Spool(self.spool),
            state=self.state,
            **options,
        )

    def reconcile(self) -> ScalingPlan | None:
        return self.autoscaler.reconcile()

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        """`wait_for` a condition, with a pass before each look but the first."""

        def look() -> Any:
            if found := holds():
                return found
            self.reconcile()
            return None

        wait_for(what, look, interval=0.02)

    @property
    def claims(self) -> list[NodeClaim]:
        return list(self.ledger.load().claims.values())

    @property
    def problems(self) -> list[str]:
        found = json.loads((self.state / "status.json").read_text())["problems"]
        assert isinstance(found, list)
        return found


@contextmanager
def rig(folder: Path, **options: Any) -> Iterator[Rig]:
    made = Rig(folder, **options)
    try:
        yield made
    finally:
        made.autoscaler.close()
        made.ledger.close()


def test_nothing_is_sent_before_it_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path) as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        commit = one.ledger.commit
        written: list[str] = []

        def watched(memory: Memory, decided: ScalingPlan | None = None, now: float | None = None) -> None:
            assert not one.cloud.launches or written
            commit(memory, decided, now)
            written.extend(claim.token for claim in memory.claims.values())

        monkeypatch.setattr(one.ledger, "commit", watched)
        one.until("it is launched", lambda: one.cloud.launches)
        assert one.cloud.launches[0] in written


def test_an_unwritable_ledger_launches_and_ends_nothing_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 38."""
    with rig(tmp_path) as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        with monkeypatch.context() as broken:

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            broken.setattr(one.ledger, "commit", full)
            hooks.record(str(one.spool), "resume", "c-e1", None, time.time_ns())
            assert one.reconcile() is None
            assert one.reconcile() is None
            assert one.problems == ["ledger: [Errno 28] No space left on device"]
            assert not one.cloud.launches
            assert len(list(one.spool.iterdir())) == 1  # it is read again
        one.until("it is launched", lambda: one.cloud.launches)
        assert one.problems == []
        assert not list(one.spool.iterdir())


@pytest.mark.parametrize(
    "error", [RequestFailed("list_instances", 500, "InternalError", "?"), RuntimeError("a bug"), OSError(5, "I/O")]
)
def test_whatever_the_hands_raise_is_a_look_without_them(tmp_path: Path, error: Exception) -> None:
    """Scenario 14: the cloud can't be asked."""
    with rig(tmp_path) as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.cloud.fails = error
        for _ in range(3):
            assert one.reconcile() is not None
        assert not one.cloud.launches
        assert one.problems[0].startswith("cloud: ")
        one.cloud.fails = None
        one.until("it is launched", lambda: one.cloud.launches)
        assert one.problems == []


def test_a_bug_in_the_plan_does_not_end_the_daemon(tmp_path: Path) -> None:
    bugs = [True]

    def decide(seen: Observation, memory: Memory, policy: Policy, now: float) -> ScalingPlan:
        if bugs:
            raise KeyError("a name that nobody knows")
        return plan.decide(seen, memory, policy, now)

    with rig(tmp_path, decide=decide) as one:
        assert one.reconcile() is None
        assert "reconcile: KeyError" in one.problems[0]
        bugs.clear()
        assert one.reconcile() is not None
        assert one.problems == []


def test_a_late_failure_is_told_to_the_plan_with_its_cause(tmp_path: Path) -> None:
    """Scenario 3."""
    seen: list[Observation] = []

    def decide(observation: Observation, memory: Memory, policy: Policy, now: float) -> ScalingPlan:
        seen.append(observation)
        return plan.decide(observation, memory, policy, now)

    with rig(tmp_path, decide=decide) as one:
        one.cloud.born = "PROVISIONING"
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it is launched", lambda: any(claim.state == "launched" for claim in one.claims))
        one.cloud.causes["id-c-e1-1"] = (Fault.CAPACITY, "InternalError: Out of host capacity.")
        one.cloud.state("TERMINATED")
        one.reconcile()
        [outcome] = [outcome for outcome in seen[-1].outcomes if outcome.fault]
        assert (outcome.fault, outcome.instance_id) == (Fault.CAPACITY, "id-c-e1-1")
        assert "capacity_errors_total" in one.autoscaler.metrics.text()
        assert 'gpucluster_capacity_errors_total{ad="AD-1",shape="X"} 1.0' in one.autoscaler.metrics.text()


def test_a_node_that_is_wanted_again_is_not_terminated(tmp_path: Path) -> None:
    """Scenario 23: between the observation and the termination Slurm has given the node to a job."""

    class Quick(SlurmDouble):
        def node_states(self, names: Any) -> Any:
            one.slurm.write({"c-e1": UP}, [job("6", ["c-e1"], "RUNNING")])
            return super().node_states(names)

    with rig(tmp_path, slurm=Quick(tmp_path / "slurm.json")) as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it is launched", lambda: any(claim.state != "intended" for claim in one.claims))
        one.slurm.write({"c-e1": LEAVING})
        decided = one.reconcile()
        assert decided is not None
        assert any(isinstance(action, Terminate) for action in decided.actions)
        assert not one.autoscaler._terminations.keys, "nothing was queued"
        assert one.cloud.terminated == []


def acting(*actions: Any) -> Callable[..., ScalingPlan]:
    """A plan that is always the same."""
    return lambda _seen, memory, _policy, _now: ScalingPlan(actions, memory)


class WatchedEvent(threading.Event):
    """An event that knows whether a thread waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = False

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited = True
        return super().wait(timeout)


def test_the_console_is_saved_before_its_instance_goes(tmp_path: Path) -> None:
    actions = SaveConsole("id-of-it", "c-e1", "no boot"), Terminate("id-of-it", "c-e1", "compute", "no boot", False)
    with rig(tmp_path, decide=acting(*actions)) as one:
        one.autoscaler._stopping = stopping = WatchedEvent()
        one.cloud.before_console = lambda: wait_for(
            "the termination waits for the console, or does not", lambda: stopping.awaited or one.cloud.terminated
        )
        one.until("it is terminated", lambda: one.cloud.terminated)
        assert stopping.awaited
        [file] = (one.state / "console").iterdir()
        assert file.read_text() == "kernel panic"
        assert file.stat().st_mode & 0o777 == 0o600


BAD = Terminate("id-of-it", "c-e1", "compute", "bad", False, bad_host="gpu_count: 7 of 8 GPUs")


def test_a_bad_host_is_reported_with_evidence_before_its_instance_goes(tmp_path: Path) -> None:
    with rig(tmp_path, decide=acting(BAD)) as one:
        one.until("it is terminated", lambda: one.cloud.terminated)
        assert one.cloud.reported == ["id-of-it"]
        assert "gpucluster_hosts_reported_total 1.0" in one.autoscaler.metrics.text()
        [file] = (one.state / "host-reports").iterdir()
        assert json.loads(file.read_text())["fault"] == "gpu_count: 7 of 8 GPUs"
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "refusal",
    [
        RequestFailed("update_instance", 404, "NotAuthorizedOrNotFound", "Authorization failed"),
        CloudError("the cloud has accepted the tag, and the instance does not have it"),
    ],
)
def test_a_host_that_can_not_be_reported_is_given_back_all_the_same(
    tmp_path: Path, refusal: CloudError, caplog: pytest.LogCaptureFixture
) -> None:
    with rig(tmp_path, decide=acting(BAD)) as one:
        one.cloud.report_refusal = refusal
        one.until("it is terminated", lambda: one.cloud.terminated)
        assert "not reported to Oracle" in caplog.text
        assert "gpucluster_hosts_reported_total 0.0" in one.autoscaler.metrics.text()


def test_a_report_that_is_throttled_is_sent_again_before_the_termination(tmp_path: Path) -> None:
    with rig(tmp_path, decide=acting(BAD)) as one:
        throttled = RequestFailed("update_instance", 429, "TooManyRequests", "slow down")
        real, refusals = one.cloud.report_host, [throttled]

        def report(instance_id: str) -> bool:
            if refusals:
                raise refusals.pop()
            return real(instance_id)

        one.cloud.report_host = report  # type: ignore[method-assign]
        one.until("it is terminated", lambda: one.cloud.terminated)
        assert one.cloud.reported == ["id-of-it"]


def test_a_node_that_may_not_be_ended_is_a_problem_until_it_may(tmp_path: Path) -> None:
    with rig(tmp_path, decide=acting(Terminate("id-of-it", "c-e1", "compute", "idle", False))) as one:
        real, said = one.cloud.terminate, "Compare with: gpucluster policies"

        def denied(_instance_id: str) -> bool:
            raise RequestFailed("terminate_instance", 404, "NotAuthorizedOrNotFound", "Authorization failed", hint=said)

        def reported() -> bool:
            one.reconcile()
            return any(
                problem.startswith("terminations: terminate_instance") and said in problem for problem in one.problems
            )

        one.cloud.terminate = denied  # type: ignore[assignment,method-assign]
        one.until("the refusal is a problem", reported)
        one.cloud.terminate = real  # type: ignore[method-assign]
        one.until("no problem is left", lambda: one.reconcile() is not None and not one.problems)


def test_a_new_instance_is_asked_to_be_configured_once_and_its_end_is_told(tmp_path: Path) -> None:
    seen: list[Observation] = []

    def decide(observation: Observation, memory: Memory, policy: Policy, now: float) -> ScalingPlan:
        seen.append(observation)
        known = observation.joining or observation.join_failed or len(seen) > 1
        return ScalingPlan(() if known else (Join("c-e1", "compute", "id-of-it", "it runs"),), memory)

    with rig(tmp_path, decide=decide) as one:
        one.until("its configuration is asked for", lambda: list((one.state / "join").glob("*.json")))
        [file] = (one.state / "join").glob("*.json")
        content = json.loads(file.read_text())
        assert content == {"node": "c-e1", "pool": "compute", "instance_id": "id-of-it", "address": "10.0.0.9"}
        one.reconcile()
        assert seen[-1].joining == {"id-of-it"}
        file.with_name(f"{file.stem}.result.json").write_text('{"ok": false, "message": "ldap : Join: no"}')
        one.reconcile()
        assert (seen[-1].join_failed, seen[-1].joining) == ({"id-of-it": "ldap : Join: no"}, frozenset())
        assert not list((one.state / "join").iterdir())
        one.reconcile()
        assert not seen[-1].join_failed


def test_a_configuration_that_could_not_be_asked_for_is_told_once(tmp_path: Path) -> None:
    seen: list[Observation] = []

    def decide(observation: Observation, memory: Memory, policy: Policy, now: float) -> ScalingPlan:
        seen.append(observation)
        return ScalingPlan((Join("c-e1", "compute", "id-of-it", "it runs"),) if len(seen) == 1 else (), memory)

    with rig(tmp_path, decide=decide) as one:
        one.cloud.address = lambda instance_id: ""  # type: ignore[method-assign]
        one.until("the plan is told", lambda: seen and seen[-1].unasked)
        assert seen[-1].unasked == {"id-of-it"}
        one.reconcile()
        assert not seen[-1].unasked


def test_a_new_process_asks_again_for_configurations_without_a_worker(tmp_path: Path) -> None:
    seen: list[Observation] = []

    def decide(observation: Observation, memory: Memory, policy: Policy, now: float) -> ScalingPlan:
        seen.append(observation)
        return ScalingPlan((), memory)

    claims = {
        name: NodeClaim(name, "compute", 1, f"token-{name}", state, 1.0, 1.0, (), f"id-{name}")
        for name, state in (
            ("c-e1", ClaimState.JOINING),
            ("c-e2", ClaimState.RUNNING),
            ("c-e3", ClaimState.JOINING),
            ("c-e4", ClaimState.UP),
        )
    }
    raw = {**RAW, "pools": {"compute": {**POOL, "baked": False}}}
    with rig(tmp_path, decide=decide, raw=raw) as one:
        one.ledger.commit(replace(one.ledger.load(), claims=claims), ScalingPlan((), one.ledger.load()), 1.0)
        (one.state / "join").mkdir(exist_ok=True)
        (one.state / "join" / "request-c-e3.json").write_text(
            '{"node": "c-e3", "pool": "compute", "instance_id": "id-c-e3", "address": "10.0.0.9"}'
        )
        one.reconcile()
        assert seen[-1].unasked == {"id-c-e1", "id-c-e2"}
        one.reconcile()
        assert not seen[-1].unasked


def test_a_refused_command_of_slurm_is_not_an_end(tmp_path: Path) -> None:
    from gpucluster.autoscaler.decide.types import Annotate
    from gpucluster.errors import ToolError

    class Refusing(SlurmDouble):
        def apply(self, action: Any) -> None:
            raise ToolError("Slurm refused: Invalid job id")

    with rig(tmp_path, slurm=Refusing(tmp_path / "slurm.json"), decide=acting(Annotate("5", "words"))) as one:
        assert one.reconcile() is not None
        assert one.problems == ["slurm's commands: Slurm refused: Invalid job id"]
        one.autoscaler._decide = acting()
        one.reconcile()
        assert one.problems == []  # nothing is asked of Slurm any more that it refuses


def test_an_unwritable_status_file_is_not_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path) as one:
        one.reconcile()
        monkeypatch.setattr("gpucluster.autoscaler.daemon.status.write", lambda *_: os.listdir(tmp_path / "nowhere"))
        assert one.reconcile() is not None


def test_the_clock_never_jumps() -> None:
    """Scenario 39."""
    wall, monotonic = [1000.0], [0.0]
    clock = SteadyClock(lambda: wall[0], lambda: monotonic[0])
    assert clock() == 1000.0
    for jump in (3600.0, -7200.0):
        wall[0] += jump
        before = clock()
        assert abs(before - clock()) < 1e-6
        for _ in range(10):
            wall[0] += 10
            monotonic[0] += 10
            clock()
        assert 95 - 1e-6 <= clock() - before <= 105 + 1e-6
    for _ in range(10000):  # and at last it agrees again
        wall[0] += 10
        monotonic[0] += 10
        clock()
    assert clock() == pytest.approx(wall[0])


class CountedWakeUp(WakeUp):
    """Counts how often the loop has gone to sleep, and knows whether it sleeps."""

    sleeps = 0
    asleep = False

    def wait(self, seconds: float) -> Woken:
        self.asleep = True
        self.sleeps += 1
        try:
            return super().wait(seconds)
        finally:
            self.asleep = False


class Poked(Rig):
    """An idle autoscaler that runs, a user who can write to its socket, and a clock that the test moves on."""

    BUSY_TICK = 0.5

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "poke"
        self.clock = Clock()
        self.wake_up = CountedWakeUp(self._socket)
        raw = {**RAW, "times": {"tick": 600.0, "busy_tick": self.BUSY_TICK}}
        super().__init__(folder, raw=raw, wake_up=self.wake_up, clock=self.clock)

    def poke(self) -> None:
        """Wake the loop, and wait until it has looked why, and sleeps again."""
        before = self.wake_up.sleeps
        hooks.send(str(self._socket), b"resume")
        wait_for("it sleeps again", lambda: self.wake_up.sleeps > before, interval=0.01)

    def hook(self) -> None:
        hooks.record(str(self.spool), "resume", "c-e1", None, time.time_ns())
        self.poke()

    def looked(self, times: int) -> bool:
        """Whether it has asked the cloud so often, and sleeps."""
        return self.cloud.listings == times and not list(self.spool.iterdir()) and self.wake_up.asleep


@pytest.fixture
def poked(tmp_path: Path) -> Iterator[Poked]:
    made = Poked(tmp_path)
    thread = threading.Thread(target=made.autoscaler.run)
    thread.start()
    try:
        wait_for("it sleeps after its first pass", lambda: made.wake_up.sleeps)
        yield made
    finally:
        made.autoscaler.stop()
        thread.join(timeout=PATIENCE_S)
        made.autoscaler.close()
        made.ledger.close()


def test_a_wake_up_without_a_reason_asks_the_cloud_nothing(poked: Poked) -> None:
    for _ in range(5):
        poked.clock.now += Poked.BUSY_TICK
        poked.poke()
    assert poked.cloud.listings == 1
    # It slept all the time and is not deaf: with a record of a hook it looks.
    hooks.record(str(poked.spool), "resume", "c-e1", None, time.time_ns())
    poked.poke()
    wait_for("it looks", lambda: poked.looked(2))


def test_who_pokes_with_a_reason_has_the_cloud_asked_at_the_pace_of_the_autoscaler(poked: Poked) -> None:
    for times in (2, 3):
        for _ in range(5):
            poked.hook()
        assert poked.cloud.listings == times - 1, "the pause is not over"
        poked.clock.now += Poked.BUSY_TICK
        wait_for("it looks, and sleeps again", lambda times=times: poked.looked(times))  # type: ignore[misc]


def test_a_pause_of_an_operator_takes_effect_at_the_same_pace(poked: Poked) -> None:
    with Ledger(poked.state, exclusive=False) as second:
        second.pause("by hand")
    poked.poke()
    poked.clock.now += Poked.BUSY_TICK
    status = poked.state / "status.json"
    wait_for("it is paused", lambda: json.loads(status.read_text())["paused"] == "by hand")


# Seconds.
AT_ONCE = 0.0


def test_pokes_wake_and_never_block_the_one_who_pokes(tmp_path: Path) -> None:
    wake_up = WakeUp(tmp_path / "poke")
    try:
        for _ in range(5000):
            hooks.send(str(tmp_path / "poke"), b"resume")
            wake_up.wake()
        assert wake_up.wait(PATIENCE_S) == Woken(by_work=True, by_hook=True)
        wait_for("nothing is left to read", lambda: wake_up.wait(AT_ONCE) == Woken())
    finally:
        wake_up.close()
    assert not (tmp_path / "poke").exists()


def test_a_socket_that_a_killed_daemon_left_is_not_a_hindrance(tmp_path: Path) -> None:
    first = WakeUp(tmp_path / "poke")
    second = WakeUp(tmp_path / "poke")
    hooks.send(str(tmp_path / "poke"), b"resume")
    assert second.wait(PATIENCE_S) == Woken(by_hook=True)
    second.close()
    first.close()


def test_a_boot_report_counts_only_from_the_address_of_the_instance(tmp_path: Path) -> None:
    folder = tmp_path / "booting"
    folder.mkdir()

    def says(address: str, reason: str, node: str = "c-e1") -> None:
        content = {"address": address, "node": node, "reason": reason, "at": {"wall": time.time()}}
        (folder / f"{address}.json").write_text(json.dumps(content))

    with rig(tmp_path, boot_reports=folder) as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it runs", lambda: [claim.state for claim in one.claims] == [ClaimState.RUNNING])
        # Root of another host may report what it likes from its own address, and a file may be damaged.
        says("10.0.0.7", "gpucluster: check failed: gpu: none")
        (folder / "10.0.0.8.json").write_text("{")
        says("10.0.0.9", "")
        for _ in range(3):
            one.reconcile()
        assert one.cloud.terminated == []
        says("10.0.0.9", "gpucluster: check failed: gpu: 7 of 8")
        one.until("it is terminated", lambda: one.cloud.terminated)
        assert one.cloud.terminated == ["id-c-e1-1"]
        assert "7 of 8" in one.ledger.load().claims["c-e1"].message


def test_a_node_of_a_baked_image_is_named_while_it_boots(tmp_path: Path) -> None:
    """The ssh CA reads it: see tests/security/test_entries_at_boot.py."""
    file = tmp_path / "nodes.json"
    with rig(tmp_path, booting=file) as one:
        one.cloud.born = "PROVISIONING"
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it is launched", lambda: [claim.state for claim in one.claims] == [ClaimState.LAUNCHED])
        one.reconcile()
        assert booting_nodes.find("10.0.0.9", file) is None
        one.cloud.state("RUNNING")
        one.until("it is named", lambda: booting_nodes.find("10.0.0.9", file))
        assert booting_nodes.find("10.0.0.9", file) == booting_nodes.BootingNode("c-e1", "id-c-e1-1")
        # Without a listing the last word stands.
        one.cloud.fails = RequestFailed("list_instances", 500, "InternalError", "no")
        one.reconcile()
        assert booting_nodes.find("10.0.0.9", file)
        one.cloud.fails = None
        # Its slurmd has registered.
        one.slurm.write({"c-e1": UP}, [job("5", ["c-e1"])])
        one.until("it is up", lambda: [claim.state for claim in one.claims] == [ClaimState.UP])
        assert booting_nodes.find("10.0.0.9", file) is None
        assert file.stat().st_mode & 0o777 == 0o644


def test_a_node_whose_instance_ends_is_named_no_more(tmp_path: Path) -> None:
    """The cloud may give its address to another one."""
    file = tmp_path / "nodes.json"
    with rig(tmp_path, booting=file) as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it is named", lambda: booting_nodes.find("10.0.0.9", file))
        one.cloud.state("TERMINATING")
        one.reconcile()
        assert booting_nodes.find("10.0.0.9", file) is None


def test_a_node_that_is_configured_after_its_boot_is_not_named(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    with rig(tmp_path, booting=file, raw={**RAW, "pools": {"compute": POOL}}) as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it joins", lambda: [claim.state for claim in one.claims] == [ClaimState.JOINING])
        for _ in range(3):
            one.reconcile()
        assert json.loads(file.read_text()) == {"nodes": {}}


def test_an_address_that_the_cloud_does_not_report_yet_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    with rig(tmp_path, booting=file) as one:
        answers: list[Any] = ["", RequestFailed("get_vnic", 500, "InternalError", "no"), "10.0.0.9", "10.0.0.7"]
        asked: list[str] = []

        def address(instance_id: str) -> str:
            asked.append(instance_id)
            found = answers[len(asked) - 1]
            if isinstance(found, Exception):
                raise found
            return str(found)

        one.cloud.address_of = address
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it is named", lambda: booting_nodes.find("10.0.0.9", file))
        for _ in range(3):
            one.reconcile()
        # Once that it is known: the cloud counts requests.
        assert asked == ["id-c-e1-1"] * 3
        assert one.problems == []


def test_a_file_that_can_not_be_written_is_a_problem_and_launches_go_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with rig(tmp_path, booting=tmp_path / "file" / "nodes.json") as one:
        one.slurm.write({"c-e1": COMING}, [job("5", ["c-e1"])])
        one.until("it runs", lambda: [claim.state for claim in one.claims] == [ClaimState.RUNNING])
        assert [problem for problem in one.problems if problem.startswith("booting nodes: ")]
