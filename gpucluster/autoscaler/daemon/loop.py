"""The daemon: look at Slurm, look at the cloud, decide, write it down, do it; again and again.

The order is what makes it safe to be killed anywhere. Slurm is asked before the cloud. What was decided is in the
ledger before the first of it is done. What was done is in the ledger before anything forgets that it was. Every deed
can be done twice. So the next process, or the next look, takes up whatever this one left.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gpucluster.autoscaler.daemon import join, prolog_markers, status
from gpucluster.autoscaler.daemon.clock import SteadyClock
from gpucluster.autoscaler.daemon.executor import Lane, Launcher, Sent
from gpucluster.autoscaler.daemon.logs import Log
from gpucluster.autoscaler.daemon.metrics import Metrics
from gpucluster.autoscaler.daemon.notify import notify
from gpucluster.autoscaler.daemon.timeline import Timeline
from gpucluster.autoscaler.decide import plan
from gpucluster.autoscaler.decide.phases import wanted
from gpucluster.autoscaler.decide.rate import Rate
from gpucluster.autoscaler.decide.world import (
    Action,
    Delay,
    Drain,
    Fault,
    Hold,
    Instance,
    Intent,
    Job,
    Join,
    Launch,
    MarkDown,
    Memory,
    Node,
    Observation,
    Outcome,
    Plan,
    PowerDown,
    SaveConsole,
    Slot,
    Tell,
    Terminate,
)
from gpucluster.autoscaler.policy import Policy
from gpucluster.errors import GpuClusterError
from gpucluster.paths import write_private

# Two looks are never closer than this, however often somebody pokes.
_SHORTEST = 0.2
# A look that takes long is followed by a pause in proportion, so that Slurm has time for its own work.
_PAUSE = 2.0
_CAUSES_AT_ONCE = 16
_CONSOLE_PATIENCE = 30.0
_COMMANDS = "slurm's commands"
_ENDINGS = "ending nodes"

log = Log("loop")


class Slurm(Protocol):
    """What the loop needs of Slurm (`slurm.Slurm`). Each call raises GpuClusterError when Slurm can't be asked."""

    def nodes(self) -> Mapping[str, Node]:
        """The nodes of elastic pools."""

    def node_states(self, names: Iterable[str]) -> Mapping[str, Node]:
        """Some of them, as they are now."""

    def jobs(self) -> Mapping[str, Job]:
        """The jobs that are not finished."""

    def apply(self, action: Action) -> None:
        """Carry out PowerDown, MarkDown, Drain, Delay, Hold or Tell."""


class Cloud(Protocol):
    """What the loop needs of the cloud (`oci.Cloud`)."""

    def instances(self, remembered: Collection[str] = ()) -> tuple[Instance, ...]:
        """The elastic instances."""

    def cause(self, instance_id: str) -> tuple[Fault, str] | None:
        """Why one that was accepted came to nothing."""

    def launch(self, pool: str, node: str, generation: int, token: str) -> tuple[str, str]:
        """Launch one; its id, and the request's."""

    def terminate(self, instance_id: str) -> bool:
        """Terminate one."""

    def address(self, instance_id: str) -> str:
        """Its private address."""

    def console(self, instance_id: str, patience: float) -> str:
        """What it wrote to its console."""


class Ledger(Protocol):
    """What the loop needs of the ledger (`ledger.Ledger`)."""

    def load(self) -> Memory:
        """What is written down."""

    def commit(self, memory: Memory, decided: Plan, now: float) -> None:
        """Write down what is remembered and what is about to be done."""


class Spool(Protocol):
    """What the loop needs of the hooks' spool (`spool.Spool`)."""

    def read(self) -> Sequence[tuple[str, Intent]]:
        """What hooks wrote, by the name of its file."""

    def remove(self, names: Collection[str]) -> None:
        """These are dealt with."""


class Doorbell:
    """Lets the loop sleep until a hook pokes it, another thread wakes it, or its time has come.

    Args:
        poke: where the datagram socket is made; anybody who may write to it may wake us, and no more.
    """

    def __init__(self, poke: Path | None) -> None:
        self._path = poke
        self._door: socket.socket | None = None
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        if poke is not None:
            poke.unlink(missing_ok=True)
            self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._door.bind(str(poke))
            # Slurm's user pokes us. The socket's folder says who else may; a poke carries nothing.
            os.chmod(poke, 0o666)  # noqa: S103
            self._door.setblocking(False)

    def ring(self, *_: object) -> None:
        """Wake the loop. May be called from any thread and from a signal's handler."""
        with contextlib.suppress(OSError):
            self._theirs.send(b"!")

    def wait(self, seconds: float) -> None:
        """Sleep, at most so long."""
        doors = [self._ours, *([self._door] if self._door else [])]
        ready, _, _ = select.select(doors, [], [], max(0.0, seconds))
        for door in ready:
            with contextlib.suppress(BlockingIOError):
                while door.recv(4096):
                    pass

    def close(self) -> None:
        """Remove the socket."""
        for door in (self._ours, self._theirs, self._door):
            if door is not None:
                door.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class Autoscaler:
    """The loop and its hands.

    Args:
        state: the folder for the status file and console histories.
        up: the folder that tells Slurm's prolog which nodes are in service; None where nobody asks.
        bell: wakes the loop; poked by hooks.
        clock: the loop's own time; it never jumps.
        decide: the plan. Another one is for tests only.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        slurm: Slurm,
        cloud: Cloud,
        ledger: Ledger,
        spool: Spool,
        state: Path,
        up: Path | None = None,
        bell: Doorbell | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] | None = None,
        decide: Callable[[Observation, Memory, Policy, float], Plan] = plan.decide,
    ) -> None:
        self._policy, self._slurm, self._cloud, self._ledger, self._spool = policy, slurm, cloud, ledger, spool
        self._state, self._up, self._decide = state, up, decide
        self._clock = clock or SteadyClock()
        self._bell = bell or Doorbell(None)
        self.metrics = metrics or Metrics()
        self._timeline = Timeline(self.metrics, policy)
        self._requests = join.Requests(state)
        self._memory: Memory | None = None
        self._problems: dict[str, str] = {}
        self._last_success: float | None = None
        self._last_seen = Observation(None, None, None)
        self._busy = False
        self._stopping = threading.Event()
        ring = self._bell.ring
        self._launcher = Launcher(self._launch, wanted=self._intended, wake=ring, clock=self._clock)
        self._endings: Lane[Terminate] = Lane(
            "terminate", self._end, on_end=self._ended, rate=Rate(), clock=self._clock
        )
        self._joins: Lane[Join] = Lane("join", self._ask_join, on_end=self._errand_ended, workers=8)
        self._consoles: Lane[SaveConsole] = Lane("console", self._save, on_end=self._errand_ended, workers=8)
        self._unasked: set[str] = set()
        self._asking = ThreadPoolExecutor(max_workers=_CAUSES_AT_ONCE, thread_name_prefix="cause")

    # --- for ever -----

    def run(self) -> None:
        """Look until told to stop. Whatever goes wrong in one look, there is another one."""
        notify("READY=1", "STATUS=looking")
        log.info("started", cluster=self._policy.cluster, pools=sorted(self._policy.pools))
        while not self._stopping.is_set():
            began = self._clock()
            self.tick()
            took = self._clock() - began
            times = self._policy.times
            pause = max(times.busy_tick if self._busy else times.tick, _PAUSE * took)
            notify("WATCHDOG=1")
            # A poke within the shortest pause is still there when it is over.
            self._stopping.wait(_SHORTEST)
            self._bell.wait(min(pause, times.tick) - _SHORTEST)
        log.info("stopped")

    def stop(self, *_: object) -> None:
        """End after the present look. What is queued is dropped: it is in the ledger."""
        self._stopping.set()
        self._bell.ring()

    def close(self) -> None:
        """Let go of everything but the ledger."""
        self._launcher.close()
        self._endings.close()
        self._joins.close()
        self._consoles.close()
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._bell.close()

    # --- one look -----

    def tick(self) -> Plan | None:
        """Look, decide, write down, do. Returns the plan, or None if this look came to nothing; it never raises."""
        began = self._clock()
        decided: Plan | None = None
        with self._part("look"):
            decided = self._tick()
        self.metrics.observe("loop_seconds", max(0.0, self._clock() - began))
        self.metrics.set("oci_throttle_tokens", self._launcher.rate.tokens)
        self.metrics.set("oci_launch_rate", self._launcher.rate.rate)
        self._report()
        return decided

    def _tick(self) -> Plan | None:
        memory: Memory | None = None
        with self._part("ledger"):
            memory = self._ledger.load()
        if memory is None:
            return None
        intents = self._intents()
        nodes, jobs = self._look_at_slurm()
        with self._part("presence"):
            if self._up is not None and nodes is not None and jobs is not None:
                prolog_markers.publish(self._up, nodes, jobs)
        sent, in_flight = self._launcher.collect()
        instances = self._look_at_cloud(memory)
        joined = self._requests.results()
        late = self._late(memory, instances)
        joining = self._requests.waiting() | {str(key) for key in self._joins.keys}
        unasked = self._left_unasked(memory, joining, joined)
        seen = Observation(
            nodes=nodes,
            jobs=jobs,
            instances=instances,
            outcomes=(*(one.outcome for one in sent), *late),
            intents=tuple(intent for _, intent in intents),
            in_flight=in_flight,
            joining=joining,
            join_failed={instance: result.message for instance, result in joined.items() if not result.ok},
            unasked=unasked,
        )
        # Looking takes a while; a pause that was asked for meanwhile counts already.
        memory = self._ledger.load()
        now = self._clock()
        decided = self._decide(seen, memory, self._policy, now)
        if not self._commit(decided, now):
            return None
        self._unasked -= unasked
        self._forget(sent, [name for name, _ in intents], joined)
        self._timeline.sent(sent, decided.memory)
        self._timeline.failures(seen.outcomes)
        self._timeline.look(seen, decided.memory, now)
        self._say_outcomes(seen.outcomes, decided.memory)
        self._carry_out(decided)
        self._busy = self._in_motion(seen, decided)
        self._remember_for_status(seen, now)
        return decided

    def _left_unasked(self, memory: Memory, joining: Collection[str], joined: Collection[str]) -> frozenset[str]:
        """Instances to be configured for whom nobody was asked: it went wrong, or the process before this one ended.

        Who was asked twice is none the worse for it: the playbook then finds nothing to do.
        """
        left = set(self._unasked)
        if self._memory is None:
            pools = self._policy.pools
            left |= {
                slot.instance_id
                for slot in memory.slots.values()
                if slot.state in ("joining", "running") and slot.pool in pools and not pools[slot.pool].baked
            }
        return frozenset(left - set(joining) - set(joined))

    def _intents(self) -> Sequence[tuple[str, Intent]]:
        found: Sequence[tuple[str, Intent]] = ()
        with self._part("spool"):
            found = self._spool.read()
        return found

    def _look_at_slurm(self) -> tuple[Mapping[str, Node] | None, Mapping[str, Job] | None]:
        with self._part("slurm"):
            nodes = self._slurm.nodes()
            notify("WATCHDOG=1")
            jobs = self._slurm.jobs()
            notify("WATCHDOG=1")
            return nodes, jobs
        return None, None

    def _look_at_cloud(self, memory: Memory) -> tuple[Instance, ...] | None:
        with self._part("cloud"):
            instances = self._cloud.instances({slot.instance_id for slot in memory.slots.values() if slot.instance_id})
            notify("WATCHDOG=1")
            return instances
        return None

    def _late(self, memory: Memory, instances: tuple[Instance, ...] | None) -> tuple[Outcome, ...]:
        """Launches that the cloud accepted and then gave up, with the cause from its own record of the work."""
        gone = {one.id for one in instances or () if not one.live}
        slots = [slot for slot in memory.slots.values() if slot.state == "launched" and slot.instance_id in gone]
        return tuple(outcome for outcome in self._asking.map(self._cause, slots) if outcome) if slots else ()

    def _cause(self, slot: Slot) -> Outcome | None:
        try:
            cause = self._cloud.cause(slot.instance_id)
        except Exception as error:
            log.warning(f"no cause was found: {error}", node=slot.node, instance=slot.instance_id)
            return None
        if cause is None:
            return None
        return Outcome(slot.token, slot.node, slot.instance_id, fault=cause[0], message=cause[1])

    def _commit(self, decided: Plan, now: float) -> bool:
        """Write-ahead. Without it nothing is launched or terminated, and nothing that is queued is sent."""
        with self._part("ledger"):
            self._ledger.commit(decided.memory, decided, now)
            self._memory = decided.memory
            return True
        self._memory = None
        return False

    def _forget(self, sent: tuple[Sent, ...], files: Sequence[str], joined: Mapping[str, join.Result]) -> None:
        """What the ledger knows now need not be kept elsewhere."""
        self._launcher.acknowledge(sent)
        with self._part("spool"):
            self._spool.remove(files)
        for instance_id, result in joined.items():
            log.info(f"configuration ended: {result.message}", instance=instance_id, ok=result.ok)
            self._requests.remove(instance_id)

    def _in_motion(self, seen: Observation, decided: Plan) -> bool:
        moving = any(node.powering_up or node.powering_down for node in (seen.nodes or {}).values())
        launching = any(slot.state == "intended" for slot in decided.memory.slots.values())
        return bool(moving or launching or decided.actions or seen.in_flight or seen.joining or self._endings.keys)

    # --- doing -----

    def _carry_out(self, decided: Plan) -> None:
        for note in decided.notes:
            if note.subject == plan.EVERYTHING:
                log.warning(note.text)
        self._timeline.done(decided.actions)
        endings = [action for action in decided.actions if isinstance(action, Terminate)]
        refused = False
        for action in decided.actions:
            refused |= not self._do(action)
            notify("WATCHDOG=1")
        if not refused:
            self._problems.pop(_COMMANDS, None)
        for ending in self._still_unwanted(endings):
            if self._endings.submit(ending.instance_id, ending):
                log.info("terminate", node=ending.node, pool=ending.pool, instance=ending.instance_id, why=ending.why)
                if ending.instance_id in decided.memory.orphans_seen:
                    self.metrics.count("orphans_total")

    def _do(self, action: Action) -> bool:
        """One action that is not a termination. One that fails (False) is decided again by the next look."""
        if isinstance(action, Launch):
            if self._launcher.submit(action):
                log.info("launch", node=action.node, pool=action.pool, generation=action.generation, why=action.why)
        elif isinstance(action, Join):
            if self._joins.submit(action.instance_id, action):
                log.info("join", node=action.node, pool=action.pool, instance=action.instance_id, why=action.why)
        elif isinstance(action, SaveConsole):
            self._consoles.submit(action.instance_id, action)
        elif isinstance(action, (PowerDown, MarkDown, Drain, Delay, Hold, Tell)):
            try:
                self._slurm.apply(action)
                log.info(_WORDS[type(action)], **_about(action))
            except Exception as error:
                self._trouble(_COMMANDS, error)
                return False
        return True

    def _still_unwanted(self, endings: Sequence[Terminate]) -> list[Terminate]:
        """Ask Slurm once more, just before: a node may have been given to a job since we looked."""
        names = {ending.node for ending in endings if ending.unless_wanted}
        if not names:
            return list(endings)
        nodes: Mapping[str, Node] | None = None
        with self._part("slurm"):
            nodes = self._slurm.node_states(names)
        if nodes is None:
            return []
        kept = []
        for ending in endings:
            node = nodes.get(ending.node)
            if ending.unless_wanted and node is not None and wanted(node.flags):
                log.info("not terminated: the node is wanted again", node=ending.node, instance=ending.instance_id)
            else:
                kept.append(ending)
        return kept

    def _intended(self, launch: Launch) -> bool:
        """Whether a queued launch is what the ledger still says."""
        memory = self._memory
        slot = memory.slots.get(launch.node) if memory else None
        return slot is not None and slot.state == "intended" and slot.token == launch.token

    def _launch(self, launch: Launch) -> tuple[str, str]:
        return self._cloud.launch(launch.pool, launch.node, launch.generation, launch.token)

    def _end(self, ending: Terminate) -> None:
        # The console goes with the instance; it is worth some seconds, and no more.
        until = self._clock() + _CONSOLE_PATIENCE
        while ending.instance_id in self._consoles.keys and self._clock() < until and not self._stopping.is_set():
            self._stopping.wait(0.1)
        self._cloud.terminate(ending.instance_id)

    def _ended(self, ending: Terminate, error: Exception | None) -> None:
        if error is None:
            self._problems.pop(_ENDINGS, None)
        else:
            log.warning(f"not terminated: {error}", node=ending.node, instance=ending.instance_id)
        if isinstance(error, GpuClusterError) and error.hint:
            # A person has to do something, and until then the node costs money.
            self._problems[_ENDINGS] = f"{_ENDINGS}: {error}"
        self._bell.ring()

    def _save(self, action: SaveConsole) -> None:
        content = self._cloud.console(action.instance_id, _CONSOLE_PATIENCE)
        write_private(self._state / "console" / f"{action.node}-{join.tail(action.instance_id)}.log", content)

    def _ask_join(self, action: Join) -> None:
        address = self._cloud.address(action.instance_id)
        if not address:
            raise GpuClusterError("the instance has no address yet", where=action.instance_id)
        self._requests.ask(join.Request(action.node, action.pool, action.instance_id, address))

    def _errand_ended(self, action: Join | SaveConsole, error: Exception | None) -> None:
        if error is not None:
            what = "not asked to be configured" if isinstance(action, Join) else "no console history"
            log.warning(f"{what}: {error}", node=action.node, instance=action.instance_id)
            if isinstance(action, Join):
                self._unasked.add(action.instance_id)

    # --- saying -----

    @contextmanager
    def _part(self, what: str) -> Iterator[None]:
        """A part of a look that may fail: it is a problem until it goes well again."""
        try:
            yield
        except Exception as error:
            self._trouble(what, error)
        else:
            if self._problems.pop(what, None):
                log.info(f"{what}: well again")

    def _trouble(self, what: str, error: Exception) -> None:
        known = isinstance(error, (GpuClusterError, OSError))
        words = f"{what}: {error}" if known else f"{what}: {error!r}"
        if self._problems.get(what) != words:
            log.error(words, trace=not known)
        self._problems[what] = words

    def _say_outcomes(self, outcomes: Sequence[Outcome], memory: Memory) -> None:
        for outcome in outcomes:
            slot = memory.slots.get(outcome.node)
            fields = {
                "node": outcome.node,
                "pool": self._policy.pool_of(outcome.node),
                "gang": slot.jobs if slot else (),
                "generation": slot.generation if slot else None,
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
        living = sum(one.live for one in self._last_seen.instances or ())
        notify(f"STATUS={'; '.join(dict(self._problems).values()) or f'{living} instances'}")


_WORDS: Mapping[type, str] = {
    PowerDown: "power down",
    MarkDown: "mark down",
    Drain: "drain",
    Delay: "delay",
    Hold: "hold",
    Tell: "tell",
}


def _about(action: PowerDown | MarkDown | Drain | Delay | Hold | Tell) -> dict[str, object]:
    if isinstance(action, (PowerDown, MarkDown, Drain)):
        return {"nodes": action.nodes, "why": action.why}
    return {"job": action.job, "why": action.why}
