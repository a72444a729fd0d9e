"""The reconcile loop: observe Slurm, observe the cloud, decide, write the plan to the ledger, carry it out, repeat.

The order makes it safe to kill the process at any point. Slurm is asked before the cloud. A plan is in the ledger
before its first action is carried out. A result is in the ledger before its other copy is removed. Every action can be
carried out twice. So the next pass, or the next process, continues from any state that this one left.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpucluster.autoscaler.daemon import join_requests, prolog_markers, status
from gpucluster.autoscaler.daemon.boot_reports import BootReports
from gpucluster.autoscaler.daemon.booting_nodes import BootingNodes
from gpucluster.autoscaler.daemon.budgets import BudgetReader
from gpucluster.autoscaler.daemon.clock import SteadyClock
from gpucluster.autoscaler.daemon.executor import InstanceLauncher, Sent, WorkQueue
from gpucluster.autoscaler.daemon.instance_record import FILE as INSTANCE_FILE
from gpucluster.autoscaler.daemon.instance_record import InstanceRecord
from gpucluster.autoscaler.daemon.interfaces import CloudApi, HookSpool, LedgerStore, Slurm
from gpucluster.autoscaler.daemon.logs import DaemonLog
from gpucluster.autoscaler.daemon.metrics import Metrics
from gpucluster.autoscaler.daemon.oci import RequestFailed, RequestFault
from gpucluster.autoscaler.daemon.timeline import Timeline
from gpucluster.autoscaler.daemon.wake_up import WakeUp
from gpucluster.autoscaler.decide import plan
from gpucluster.autoscaler.decide.rate import Rate
from gpucluster.autoscaler.decide.types import (
    BOOTING,
    Action,
    ClaimState,
    CloudInstance,
    DrainNodes,
    Intent,
    Job,
    Join,
    Launch,
    MarkDown,
    Memory,
    Node,
    NodeClaim,
    Observation,
    Outcome,
    PowerDown,
    SaveConsole,
    ScalingPlan,
    SlurmAction,
    Terminate,
)
from gpucluster.autoscaler.decide.words import VERBS
from gpucluster.autoscaler.policy import Policy
from gpucluster.cost.budget import Spending
from gpucluster.errors import GpuClusterError
from gpucluster.node_agent.notify import notify
from gpucluster.paths import write_private
from gpucluster.slurm.states import power_requested
from gpucluster.text import count

# Seconds between two passes at least, however often the daemon's own work wakes the loop. For hooks see `_rest`.
_SHORTEST = 0.2
# The rest between two passes is shorter; after a longer one the machine was stopped.
_INTERRUPTION = 60.0
# A pass is followed by a pause of so many times its own duration, so that Slurm has time for its own work. Only a part
# of a pass is Slurm's time, and jobs wait for the next one.
_PAUSE = 0.5
# Work requests that are read at the same time.
_CAUSES_AT_ONCE = 16
# Seconds to wait for a console history.
_CONSOLE_TIMEOUT = 30.0
# Names of problems in the status.
_TERMINATIONS = "terminations"

log = DaemonLog("loop")


class AutoscalerLoop:
    """The loop, with the queues and threads that carry out its plans.

    Args:
        state: the folder for the status file and console histories.
        up: the folder of prolog markers (`prolog_markers`); None writes none.
        boot_reports: the folder with the reports of booting nodes (`boot_reports`); None reads none.
        booting: the file with the nodes that boot from baked images (`booting_nodes`); None writes none.
        wake_up: wakes the loop; hooks send to it.
        clock: the daemon's own time; it never jumps.
        decide: makes the plan. Only tests pass another function.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        slurm: Slurm,
        cloud: CloudApi,
        ledger: LedgerStore,
        spool: HookSpool,
        state: Path,
        up: Path | None = None,
        boot_reports: Path | None = None,
        booting: Path | None = None,
        wake_up: WakeUp | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] | None = None,
        decide: Callable[[Observation, Memory, Policy, float], ScalingPlan] = plan.decide,
    ) -> None:
        self._policy, self._slurm, self._cloud, self._ledger, self._spool = policy, slurm, cloud, ledger, spool
        self._state, self._up, self._decide = state, up, decide
        self._commands = f"{policy.scheduler}'s commands"
        self._clock = clock or SteadyClock()
        self._wake_up = wake_up or WakeUp(None)
        self.metrics = metrics or Metrics()
        self._timeline = Timeline(self.metrics, policy)
        self._requests = join_requests.Requests(state)
        self._boot_reports = BootReports(boot_reports, cloud.address) if boot_reports else None
        self._booting = BootingNodes(booting, cloud.address, clock=self._clock) if booting else None
        self._record = InstanceRecord(state)
        self._budgets = BudgetReader(policy.budgets, state / INSTANCE_FILE) if policy.budgets else None
        self._memory: Memory | None = None
        self._problems: dict[str, str] = {}
        self._last_success: float | None = None
        self._looking_since = self._looked_at = self._clock()
        self._last_seen = Observation(None, None, None)
        self._busy = False
        self._stopping = threading.Event()
        wake = self._wake_up.wake
        self._launcher = InstanceLauncher(self._launch, is_needed=self._still_intended, wake=wake, clock=self._clock)
        self._terminations: WorkQueue[Terminate] = WorkQueue(
            "terminate", self._terminate, on_end=self._terminated, rate=Rate(), clock=self._clock
        )
        self._joins: WorkQueue[Join] = WorkQueue("join", self._request_join, on_end=self._work_ended, workers=8)
        self._consoles: WorkQueue[SaveConsole] = WorkQueue("console", self._save, on_end=self._work_ended, workers=8)
        self._unasked: set[str] = set()
        self._asking = ThreadPoolExecutor(max_workers=_CAUSES_AT_ONCE, thread_name_prefix="cause")

    # --- the service -----

    def run(self) -> None:
        """Reconcile until stopped. Whatever fails in one pass, another pass follows."""
        notify("READY=1", "STATUS=observing")
        log.info("started", cluster=self._policy.cluster, pools=sorted(self._policy.pools))
        while not self._stopping.is_set():
            began = self._clock()
            self.reconcile()
            took = self._clock() - began
            times = self._policy.times
            pause = max(times.busy_tick if self._busy else times.tick, _PAUSE * took)
            notify("WATCHDOG=1")
            self._rest(min(pause, times.tick))
        log.info("stopped")

    def _rest(self, seconds: float) -> None:
        """Sleep until the next pass: for so many seconds, or until work has ended, or a hook or an operator wants one.

        Each pass asks the cloud for its instances, and any program that may write to the socket can wake the loop. So a
        datagram alone is not a reason for a pass, and one that comes with a reason gets its pass at the pace of
        `busy_tick`.
        """
        began = self._clock()
        end = began + seconds
        self._stopping.wait(_SHORTEST)
        while not self._stopping.is_set() and (left := end - self._clock()) > 0:
            woken = self._wake_up.wait(left)
            if woken.by_work:
                return
            if woken.by_hook:
                if self._has_work():
                    end = min(end, began + self._policy.times.busy_tick)
                self._stopping.wait(max(0.0, min(_SHORTEST, end - self._clock())))

    def _has_work(self) -> bool:
        """Whether a hook has written a record, or an operator has paused or resumed, since the last pass."""
        try:
            if self._spool.waits() or self._memory is None:
                return True
            memory = self._ledger.load()
            return (memory.paused, memory.resumed_at) != (self._memory.paused, self._memory.resumed_at)
        except GpuClusterError:
            return (
                True  # the pass meets the same error, and logs it once; here it would be logged several times a second
            )

    def stop(self, *_: object) -> None:
        """End after the present pass. The queues are dropped: their items are in the ledger."""
        self._stopping.set()
        self._wake_up.wake()

    def close(self) -> None:
        """Close everything but the ledger."""
        self._launcher.close()
        self._terminations.close()
        self._joins.close()
        self._consoles.close()
        self._asking.shutdown(wait=False, cancel_futures=True)
        if self._booting is not None:
            self._booting.close()
        self._wake_up.close()

    # --- one pass -----

    def reconcile(self) -> ScalingPlan | None:
        """One pass: observe, decide, commit, carry out. Returns the plan, or None if the pass failed. Never raises."""
        began = self._clock()
        if began - self._looked_at > max(_INTERRUPTION, 3 * self._policy.times.tick):
            self._looking_since = began
        decided: ScalingPlan | None = None
        with self._part("reconcile"):
            decided = self._pass()
        self._looked_at = self._clock()
        self.metrics.observe("loop_seconds", max(0.0, self._clock() - began))
        self.metrics.set("oci_throttle_tokens", self._launcher.rate.tokens)
        self.metrics.set("oci_launch_rate", self._launcher.rate.rate)
        self._report()
        return decided

    def _pass(self) -> ScalingPlan | None:
        memory: Memory | None = None
        with self._part("ledger"):
            memory = self._ledger.load()
        if memory is None:
            return None
        intents = self._intents()
        nodes, jobs = self._observe_slurm()
        with self._part("prolog markers"):
            if self._up is not None and nodes is not None and jobs is not None:
                prolog_markers.publish(self._up, nodes, jobs)
        sent, in_flight = self._launcher.collect()
        instances = self._observe_cloud(memory)
        with self._part("instance record"):
            if instances is not None:
                self._record.observe(instances, self._policy.pools, self._clock())
        spent = self._spent()
        joined = self._requests.results()
        late = self._late(memory, instances)
        joining = self._requests.waiting() | {str(key) for key in self._joins.keys}
        unasked = self._left_unasked(memory, joining, joined)
        seen = Observation(
            nodes=nodes,
            jobs=jobs,
            instances=instances,
            outcomes=(*(launch.outcome for launch in sent), *late),
            intents=tuple(intent for _, intent in intents),
            in_flight=in_flight,
            joining=joining,
            join_failed={instance: result.message for instance, result in joined.items() if not result.ok},
            unasked=unasked,
            unfit=self._unfit(memory),
            looking_since=self._looking_since,
            spent=spent.accounts if spent else None,
        )
        # The observation takes a while. A pause that was requested meanwhile counts already.
        memory = self._ledger.load()
        now = self._clock()
        decided = self._decide(seen, memory, self._policy, now)
        if not self._commit(decided, now):
            return None
        self._publish_booting(decided.memory, instances)
        self._unasked -= unasked
        self._forget(sent, [name for name, _ in intents], joined)
        self._timeline.sent(sent, decided.memory)
        self._timeline.failures(seen.outcomes)
        self._timeline.observe(seen, decided.memory, now)
        self._log_outcomes(seen.outcomes, decided.memory)
        self._carry_out(decided)
        self._busy = self._in_motion(seen, decided)
        self._remember_for_status(seen, now)
        return decided

    def _unfit(self, memory: Memory) -> Mapping[str, str]:
        with self._part("boot reports"):
            return self._boot_reports.unfit(memory.claims.values()) if self._boot_reports else {}
        return {}

    def _publish_booting(self, memory: Memory, instances: tuple[CloudInstance, ...] | None) -> None:
        with self._part("booting nodes"):
            # Without a listing the last one stands. The ledger ends a claim that stays too long in any case.
            if self._booting is not None and instances is not None:
                pools = self._policy.pools
                baked = [claim for claim in memory.claims.values() if claim.pool in pools and pools[claim.pool].baked]
                self._booting.publish(baked, {instance.id for instance in instances if instance.live})

    def _spent(self) -> Spending | None:
        """What accounts with a budget have spent; what fails there is a problem in the status."""
        if self._budgets is None:
            return None
        spent = self._budgets.read(self._clock())
        with self._part("budgets"):
            if self._budgets.error is not None:
                raise self._budgets.error
            if spent and spent.unpriced:
                names = ", ".join(spent.unpriced)
                raise GpuClusterError(f"no price is known of pool {names}: its jobs are not counted for budgets")
        return spent

    def _left_unasked(self, memory: Memory, joining: Collection[str], joined: Collection[str]) -> frozenset[str]:
        """Instances to be configured whose request is not written: that failed, or the process before this one ended.

        A second request does no harm: the playbook then finds nothing to do.
        """
        left = set(self._unasked)
        if self._memory is None:
            pools = self._policy.pools
            left |= {
                claim.instance_id
                for claim in memory.claims.values()
                if claim.state in BOOTING and claim.pool in pools and not pools[claim.pool].baked
            }
        return frozenset(left - set(joining) - set(joined))

    def _intents(self) -> Sequence[tuple[str, Intent]]:
        records: Sequence[tuple[str, Intent]] = ()
        with self._part("spool"):
            records = self._spool.read()
        return records

    def _observe_slurm(self) -> tuple[Mapping[str, Node] | None, Mapping[str, Job] | None]:
        with self._part(self._policy.scheduler):
            nodes = self._slurm.nodes()
            notify("WATCHDOG=1")
            jobs = self._slurm.jobs()
            notify("WATCHDOG=1")
            return nodes, jobs
        return None, None

    def _observe_cloud(self, memory: Memory) -> tuple[CloudInstance, ...] | None:
        with self._part("cloud"):
            instances = self._cloud.instances(
                {claim.instance_id for claim in memory.claims.values() if claim.instance_id}
            )
            notify("WATCHDOG=1")
            return instances
        return None

    def _late(self, memory: Memory, instances: tuple[CloudInstance, ...] | None) -> tuple[Outcome, ...]:
        """Launches that the cloud accepted and that failed later, with the cause from the cloud's work request."""
        gone = {instance.id for instance in instances or () if not instance.live}
        claims = [
            claim
            for claim in memory.claims.values()
            if claim.state == ClaimState.LAUNCHED and claim.instance_id in gone
        ]
        return tuple(outcome for outcome in self._asking.map(self._cause, claims) if outcome) if claims else ()

    def _cause(self, claim: NodeClaim) -> Outcome | None:
        try:
            cause = self._cloud.cause(claim.instance_id)
        except GpuClusterError as error:
            log.warning(
                f"the cause of the failed launch was not found: {error}", node=claim.node, instance=claim.instance_id
            )
            return None
        if cause is None:
            return None
        return Outcome(claim.token, claim.node, claim.instance_id, fault=cause[0], message=cause[1])

    def _commit(self, decided: ScalingPlan, now: float) -> bool:
        """Write the plan to the ledger. If that fails nothing is launched or terminated, and nothing queued is sent."""
        with self._part("ledger"):
            self._ledger.commit(decided.memory, decided, now)
            self._memory = decided.memory
            return True
        self._memory = None
        return False

    def _forget(
        self, sent: tuple[Sent, ...], files: Sequence[str], joined: Mapping[str, join_requests.JoinResult]
    ) -> None:
        """Remove the other copies of what is now in the ledger."""
        self._launcher.acknowledge(sent)
        with self._part("spool"):
            self._spool.remove(files)
        for instance_id, result in joined.items():
            log.info(f"configuration ended: {result.message}", instance=instance_id, ok=result.ok)
            self._requests.remove(instance_id)

    def _in_motion(self, seen: Observation, decided: ScalingPlan) -> bool:
        moving = any(node.powering_up or node.powering_down for node in (seen.nodes or {}).values())
        launching = any(claim.state == ClaimState.INTENDED for claim in decided.memory.claims.values())
        return bool(moving or launching or decided.actions or seen.in_flight or seen.joining or self._terminations.keys)

    # --- carrying out -----

    def _carry_out(self, decided: ScalingPlan) -> None:
        for note in decided.notes:
            if note.subject == plan.EVERYTHING:
                log.warning(note.text)
        self._timeline.decisions(decided.actions)
        terminations = [action for action in decided.actions if isinstance(action, Terminate)]
        refused = False
        for action in decided.actions:
            refused |= not self._do(action)
            notify("WATCHDOG=1")
        if not refused:
            self._problems.pop(self._commands, None)
        for termination in self._still_unwanted(terminations):
            if self._terminations.submit(termination.instance_id, termination):
                log.info(
                    "terminate",
                    node=termination.node,
                    pool=termination.pool,
                    instance=termination.instance_id,
                    why=termination.why,
                )
                if termination.instance_id in decided.memory.orphans_seen:
                    self.metrics.count("orphans_total")

    def _do(self, action: Action) -> bool:
        """Carry out an action that is not a termination. If it fails (False), the next pass decides it again."""
        if isinstance(action, Launch):
            if self._launcher.submit(action):
                log.info("launch", node=action.node, pool=action.pool, generation=action.generation, why=action.why)
        elif isinstance(action, Join):
            if self._joins.submit(action.instance_id, action):
                log.info("join", node=action.node, pool=action.pool, instance=action.instance_id, why=action.why)
        elif isinstance(action, SaveConsole):
            self._consoles.submit(action.instance_id, action)
        elif isinstance(action, SlurmAction):
            try:
                self._slurm.apply(action)
                log.info(VERBS[type(action)], **_fields_of(action))
            except Exception as error:  # as in `_part`: logged, with a traceback if it is of an unknown kind
                self._trouble(self._commands, error)
                return False
        return True

    def _still_unwanted(self, terminations: Sequence[Terminate]) -> list[Terminate]:
        """Ask Slurm again: a node may have been given to a job since the observation."""
        names = {termination.node for termination in terminations if termination.unless_wanted}
        if not names:
            return list(terminations)
        nodes: Mapping[str, Node] | None = None
        with self._part(self._policy.scheduler):
            nodes = self._slurm.node_states(names)
        if nodes is None:
            return []
        unwanted = []
        for termination in terminations:
            node = nodes.get(termination.node)
            if termination.unless_wanted and node is not None and power_requested(node.flags):
                log.info(
                    "not terminated: the node is wanted again",
                    node=termination.node,
                    instance=termination.instance_id,
                )
            else:
                unwanted.append(termination)
        return unwanted

    def _still_intended(self, launch: Launch) -> bool:
        """Whether the ledger still has the claim of a queued launch."""
        memory = self._memory
        claim = memory.claims.get(launch.node) if memory else None
        return claim is not None and claim.state == ClaimState.INTENDED and claim.token == launch.token

    def _launch(self, launch: Launch) -> tuple[str, str]:
        return self._cloud.launch(launch.pool, launch.node, launch.generation, launch.token)

    def _terminate(self, termination: Terminate) -> None:
        # The console output is lost with the instance; waiting some seconds for a copy is worth it.
        until = self._clock() + _CONSOLE_TIMEOUT
        while termination.instance_id in self._consoles.keys and self._clock() < until and not self._stopping.is_set():
            self._stopping.wait(0.1)
        if termination.bad_host:
            self._report_host(termination)
        self._cloud.terminate(termination.instance_id)

    def _report_host(self, termination: Terminate) -> None:
        """Report the physical host of an instance before the instance is terminated, with the evidence in a file. What
        the cloud refuses is a warning: a bad node must not stay because of that."""
        name = f"{termination.node}-{join_requests.tail(termination.instance_id)}.json"
        file = self._state / "host-reports" / name
        evidence = {"node": termination.node, "instance": termination.instance_id, "fault": termination.bad_host}
        subject = {"node": termination.node, "instance": termination.instance_id, "evidence": str(file)}
        try:
            write_private(file, json.dumps(evidence, indent=1) + "\n")
            if self._cloud.report_host(termination.instance_id):
                log.info("its physical host is reported to Oracle", why=termination.bad_host, **subject)
                self.metrics.count("hosts_reported_total")
        except (GpuClusterError, OSError) as error:
            if isinstance(error, RequestFailed) and error.kind is RequestFault.THROTTLED:
                raise  # the termination would be throttled as well, and both are tried again
            log.warning(f"its physical host is not reported to Oracle: {error}", **subject)

    def _terminated(self, termination: Terminate, error: Exception | None) -> None:
        if error is None:
            self._problems.pop(_TERMINATIONS, None)
        else:
            log.warning(f"not terminated: {error}", node=termination.node, instance=termination.instance_id)
        if isinstance(error, GpuClusterError) and error.hint:
            # An administrator has to act, and until then the node costs money.
            self._problems[_TERMINATIONS] = f"{_TERMINATIONS}: {error}"
        self._wake_up.wake()

    def _save(self, action: SaveConsole) -> None:
        content = self._cloud.console(action.instance_id, _CONSOLE_TIMEOUT)
        write_private(self._state / "console" / f"{action.node}-{join_requests.tail(action.instance_id)}.log", content)

    def _request_join(self, action: Join) -> None:
        address = self._cloud.address(action.instance_id)
        if not address:
            raise GpuClusterError("the instance has no address yet", where=action.instance_id)
        self._requests.submit(join_requests.JoinRequest(action.node, action.pool, action.instance_id, address))

    def _work_ended(self, action: Join | SaveConsole, error: Exception | None) -> None:
        if error is not None:
            what = "its configuration was not requested" if isinstance(action, Join) else "no console history"
            log.warning(f"{what}: {error}", node=action.node, instance=action.instance_id)
            if isinstance(action, Join):
                self._unasked.add(action.instance_id)

    # --- reporting -----

    @contextmanager
    def _part(self, what: str) -> Iterator[None]:
        """A part of a pass that may fail: it is a problem in the status until it succeeds again."""
        try:
            yield
        except Exception as error:  # of any kind: one part of a pass must not end the daemon, nor the other parts
            self._trouble(what, error)
        else:
            if self._problems.pop(what, None):
                log.info(f"{what}: works again")

    def _trouble(self, what: str, error: Exception) -> None:
        known = isinstance(error, (GpuClusterError, OSError))
        words = f"{what}: {error}" if known else f"{what}: {error!r}"
        if self._problems.get(what) != words:
            log.error(words, trace=not known)
        self._problems[what] = words

    def _log_outcomes(self, outcomes: Sequence[Outcome], memory: Memory) -> None:
        for outcome in outcomes:
            claim = memory.claims.get(outcome.node)
            fields = {
                "node": outcome.node,
                "pool": self._policy.pool_of(outcome.node),
                "gang": claim.jobs if claim else (),
                "generation": claim.generation if claim else None,
                "instance": outcome.instance_id,
                "opc_request_id": outcome.request_id,
            }
            if outcome.fault is None:
                log.info("launched", **fields)
            else:
                log.warning(f"not launched: {outcome.message}", fault=outcome.fault.value, **fields)

    def _remember_for_status(self, seen: Observation, now: float) -> None:
        if seen.nodes is not None and seen.jobs is not None and seen.instances is not None:
            self._last_success = now
            self.metrics.set("last_success_timestamp", now)
            self._last_seen = seen
        else:
            older = self._last_seen
            self._last_seen = replace(
                seen,
                nodes=older.nodes if seen.nodes is None else seen.nodes,
                instances=older.instances if seen.instances is None else seen.instances,
            )

    def _report(self) -> None:
        memory = self._memory or Memory(id="")
        content = status.report(
            self._last_seen,
            memory,
            self._policy,
            now=self._clock(),
            problems=list(dict(self._problems).values()),
            last_success=self._last_success,
        )
        with self._part("status file"):
            status.write(self._state, content)
        live = sum(instance.live for instance in self._last_seen.instances or ())
        notify(f"STATUS={'; '.join(dict(self._problems).values()) or count(live, 'instance')}")


def _fields_of(action: SlurmAction) -> dict[str, object]:
    if isinstance(action, (PowerDown, MarkDown, DrainNodes)):
        return {"nodes": action.nodes, "why": action.why}
    return {"job": action.job, "why": action.why}
