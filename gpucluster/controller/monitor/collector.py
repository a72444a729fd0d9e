"""Asks Slurm in the background, and keeps the last answers as metrics.

A scrape never waits for Slurm: it gets what is known. There is never more than one query of a kind. A slurmctld that
hangs or is gone: its commands are killed after their time, `gpucluster_slurm_up` is 0, and what is too old is no longer
shown, so that it is not taken for new. Times are of the monotonic clock: one that is set back or forward changes
nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from gpucluster.controller.monitor import slurm_metrics, slurm_text, targets
from gpucluster.controller.monitor.prometheus import Prometheus, Query
from gpucluster.controller.monitor.settings import MonitorSettings
from gpucluster.controller.rules.slurm_nodes import NodeLine
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.exporter.exposition import page, sample

#: Seconds for one command, and bytes of its output: a hundred thousand jobs have twenty million.
SECONDS, MOST_BYTES = 20.0, 256 * 1024 * 1024
#: Seconds between two queries for nodes. Each takes at most a part of the time: of the controller, one core of which
#: works for it, and of slurmctld.
NODES_EVERY, _PART = 5.0, 10.0
#: After so many seconds without an answer nothing of Slurm is shown any more; more, where the intervals are longer.
_OLD, _INTERVALS = 60.0, 2.5
# Hosts that are asked at the same time whether a program listens, and the seconds that each has.
_LOOKS, _LOOK_SECONDS = 16, 1.0


class SlurmQueries:
    """Slurm's commands.

    Args:
        prefix: words before each command (to enter a container).
    """

    def __init__(self, prefix: Sequence[str] = (), seconds: float = SECONDS) -> None:
        self._prefix, self._seconds = tuple(prefix), seconds

    def nodes(self) -> str:
        """All nodes."""
        return self._ask("scontrol", "--oneliner", "--details", "show", "nodes")

    def jobs(self, word: str) -> str:
        """All jobs that are not finished; tasks of an array that wait are one row."""
        return self._ask("squeue", "--noheader", "--all", f"--format={slurm_text.job_format(word)}")

    def scheduler(self) -> str:
        """The statistics of slurmctld."""
        return self._ask("sdiag")

    def _ask(self, *argv: str) -> str:
        kept = {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}
        # Without SLURM_BITSTR_LEN the numbers of an array's tasks are cut.
        environment = {**kept, "TZ": "UTC", "LC_ALL": "C.UTF-8", "SLURM_BITSTR_LEN": "0"}
        words = [f"{name}={value}" for name, value in environment.items()]
        answer = programs.ask([*self._prefix, "env", "-i", *words, *argv], self._seconds, MOST_BYTES)
        if answer.fault:
            raise Failed(f"{argv[0]}: {answer.fault}")
        if answer.status != 0:
            message = (answer.errors.decode(errors="replace").strip() or "without a message")[-300:]
            raise Failed(f"{argv[0]} ends with status {answer.status}: {message}")
        return answer.output.decode(errors="replace")


@dataclass(frozen=True)
class _Part:
    """The answer to one query: its samples, when they were taken, and how long that took."""

    lines: tuple[str, ...]
    taken: float
    seconds: float


class SlurmCollector:
    """The last answers.

    Args:
        told: called with the nodes of each answer.
        clock: seconds, of a clock that only runs forward.
    """

    KINDS = ("nodes", "jobs", "scheduler")

    def __init__(
        self,
        settings: MonitorSettings,
        slurm: SlurmQueries,
        on_nodes: Callable[[list[NodeLine]], None] = lambda _nodes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._slurm, self._on_nodes, self._clock = settings, slurm, on_nodes, clock
        self._pool_of = settings.pool_of()
        self._lock = threading.Lock()
        self._parts: dict[str, _Part] = {}
        self._failed: dict[str, str] = {}

    def nodes(self) -> float:
        """Ask for nodes; returns the seconds until the next time."""
        began = self._clock()
        seen: list[NodeLine] = []

        def made() -> Iterable[str]:
            rows = list(slurm_text.nodes(self._slurm.nodes()))
            seen.extend(row.node for row in rows)
            return slurm_metrics.of_nodes(rows, self._pool_of)

        if self._keep("nodes", made):
            self._on_nodes(seen)
        return max(NODES_EVERY, (self._clock() - began) * _PART) - (self._clock() - began)

    def jobs(self) -> float:
        """Ask for jobs, and for the scheduler; returns the seconds until the next time."""
        began = self._clock()

        def made() -> Iterable[str]:
            word = f"|{secrets.token_hex(8)}|"
            return slurm_metrics.of_jobs(slurm_text.jobs(self._slurm.jobs(word), word))

        self._keep("jobs", made)
        self._keep("scheduler", lambda: slurm_metrics.of_scheduler(slurm_text.scheduler(self._slurm.scheduler())))
        took = self._clock() - began
        return max(self._settings.interval, took * _PART) - took

    def _keep(self, kind: str, made: Callable[[], Iterable[str]]) -> bool:
        began = self._clock()
        try:
            lines = tuple(made())
        except (Failed, ValueError) as error:
            words = error.message if isinstance(error, Failed) else f"{kind}: not understood: {error}"
            with self._lock:
                was = self._failed.get(kind)
                self._failed[kind] = words
            if was is None:
                log(f"no answer of Slurm: {words}")
            return False
        now = self._clock()
        with self._lock:
            self._parts[kind] = _Part(lines, now, now - began)
            if self._failed.pop(kind, None) is not None:
                log(f"Slurm answers again: {kind}")
        return True

    def page(self) -> bytes:
        """The page of metrics. It never waits for a query."""
        now, old = self._clock(), max(_OLD, self._settings.interval * _INTERVALS)
        with self._lock:
            fresh = {kind: part for kind, part in self._parts.items() if now - part.taken <= old}
            up = len(fresh) == len(self.KINDS) and not self._failed
        lines = [sample("gpucluster_slurm_up", int(up))] if self._settings.slurm else []
        for kind, part in fresh.items():
            lines += part.lines
            lines.append(sample("gpucluster_slurm_scrape_seconds", part.seconds, query=kind))
            lines.append(sample("gpucluster_slurm_age_seconds", now - part.taken, query=kind))
        return page(lines, slurm_metrics.METRICS).encode(errors="replace")


class ElasticNodes:
    """Asks Prometheus which elastic nodes the autoscaler knows: it knows their addresses, and no secret is needed.

    Args:
        told: called with the nodes of each answer.
    """

    def __init__(self, prometheus: Prometheus, on_nodes: Callable[[list[NodeLine]], None]) -> None:
        self._prometheus, self._on_nodes, self._failed = prometheus, on_nodes, ""

    def look(self) -> float:
        """Ask once; returns the seconds until the next time. Without an answer nothing is called."""
        try:
            # An autoscaler that has just started knows no node, and a scrape that failed makes its series end.
            if self._prometheus.run(Query("looked", targets.HAS_LOOKED)):
                nodes = self._prometheus.run(Query("nodes", targets.ELASTIC_NODES))
                self._on_nodes(targets.of_series(nodes))
            self._failed = ""
        except (Failed, AttributeError, KeyError, TypeError, ValueError) as error:
            words = error.message if isinstance(error, Failed) else f"the answer of Prometheus can't be read: {error!r}"
            if words != self._failed:
                log(f"which elastic nodes there are, is not known: {words}")
            self._failed = words
        return NODES_EVERY


class Lists:
    """The files of targets in a folder."""

    def __init__(self, settings: MonitorSettings, folder: Path) -> None:
        self._settings, self._folder, self._failed = settings, folder, ""
        self._elastic = targets.remembered(folder, settings)
        self._listening: frozenset[tuple[str, int]] = frozenset()
        self._lock = threading.Lock()

    def update(self, nodes: list[NodeLine]) -> None:
        """Write the lists with these nodes of the scheduler."""
        self._elastic = targets.elastic_hosts(self._settings, nodes)
        self.write()

    def look(self) -> float:
        """Find out which hosts have what is optional; returns the seconds until the next time. A host that does not
        answer at all keeps what it had: that it is down is for alerts."""
        places = [
            (host.address, self._settings.jobs[job])
            for host in (*self._settings.hosts, *self._elastic)
            for job in self._settings.optional.intersection(host.jobs)
        ]
        with ThreadPoolExecutor(_LOOKS) as pool:
            answers = dict(zip(places, pool.map(_listens, places)))
        self._listening = frozenset(
            place for place, answer in answers.items() if (place in self._listening if answer is None else answer)
        )
        self.write()
        return NODES_EVERY

    def write(self) -> None:
        """Write what is known. A full disk leaves the files as they are; the next time tries again."""
        with self._lock:
            listening = self._listening
            lists = targets.lists(self._settings, self._elastic, lambda *place: place in listening)
            try:
                targets.write(self._folder, lists)
                self._failed = ""
            except OSError as error:
                if not self._failed:
                    log(f"the lists in {self._folder} can't be written: {error}")
                self._failed = str(error)


def _listens(place: tuple[str, int]) -> bool | None:
    """Whether a program listens there; None if the host does not answer."""
    try:
        socket.create_connection(place, timeout=_LOOK_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


def repeat(what: Callable[[], float]) -> None:
    """Do something for ever. It returns the seconds until the next time."""
    while True:
        try:
            pause = what()
        except Exception as error:  # an unexpected error must not end the service
            log(f"unexpected: {error!r}")
            pause = SECONDS
        time.sleep(max(0.1, pause))


def log(words: str) -> None:
    """One line for the journal."""
    sys.stderr.write("".join(sign if sign.isprintable() else " " for sign in words)[:2000] + "\n")
    sys.stderr.flush()
