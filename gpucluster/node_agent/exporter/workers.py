"""Collectors side by side, each in a process of its own that lives from scrape to scrape.

A process and not a thread: a file of the kernel can put its reader to sleep for good (a network device whose firmware
is gone). Such a process is killed at its limit. What it had read until then is used, and its successor leaves out
what it hung on for a while. While the kernel does not end more than a few of them, no further one is started: a hanging
device costs a fixed number of processes, whatever the number of scrapes.

`gpucluster.node_agent.checks.side_by_side` starts a process for each measurement instead: right for a program that
ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from gpucluster.node_agent import in_child
from gpucluster.node_agent.exporter.collect import Collector, Place, Spec
from gpucluster.node_agent.exporter.exposition import sample

#: Processes of one collector that the kernel does not end, before no further one is started.
MOST_HUNG = 3
#: Seconds for which something that hung is left out.
AVOIDED_S = 600.0
#: Bytes of all samples of a collector.
MOST_BYTES = 16 << 20
# Seconds for which the end of a killed process is waited for.
_BURIAL_S = 0.1
# Different faults that a process logs.
_MOST_FAULTS = 100
# A line of ours begins with a character that no sample has.
_OURS = b"\0"


@dataclass
class Result:
    """What a collector gave.

    Attributes:
        lines: samples of the subjects that are complete.
        complete: there was no fault.
        seconds: how long it took.
        left_out: samples above the limit.
        cpu: processor seconds of its process so far.
    """

    lines: list[str] = field(default_factory=list)
    complete: bool = False
    seconds: float = 0.0
    left_out: int = 0
    cpu: float = 0.0


class Worker:
    """One collector: its present process, what it is doing, and what is left of earlier ones."""

    def __init__(self, name: str, spec: Spec, place: Place) -> None:
        self.name, self._spec, self._place = name, spec, place
        self._pid = 0
        self._ask = self._answer = -1
        self._hung: list[int] = []
        self._avoided: dict[str, float] = {}
        self._cpu_before = 0.0
        self._good: float | None = None
        self._begun = time.monotonic()
        self._buffer = b""
        self._received = 0
        # What it reads now, and what it has said of it.
        self._subject: str | None = None
        self._pending: list[str] = []
        self.result = Result()
        self.busy = False

    # --- a scrape -----

    def begin(self) -> None:
        """Ask for samples. `busy` until they are there, or the limit is over."""
        self._begun = time.monotonic()
        self._cpu_before += self.result.cpu if not self._pid else 0.0
        self.result = Result(cpu=self.result.cpu if self._pid else 0.0)
        self._buffer, self._received, self._subject, self._pending = b"", 0, None, []
        if not self._pid and not self._start():
            return
        avoided = [subject for subject, until in self._avoided.items() if until > self._begun]
        self._avoided = {subject: self._avoided[subject] for subject in avoided}
        try:
            os.write(self._ask, json.dumps(avoided).encode() + b"\n")
        except OSError:
            self._end()
            return
        self.busy = True

    @property
    def descriptor(self) -> int:
        """What becomes readable while it is busy."""
        return self._answer

    @property
    def deadline(self) -> float:
        """Its limit, by time.monotonic()."""
        return self._begun + self._spec.seconds

    def read(self) -> None:
        """Take what has come."""
        data = os.read(self._answer, 1 << 18)
        self._received += len(data)
        if not data or self._received > MOST_BYTES:
            self._fail()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(line)

    def expire(self) -> None:
        """Its limit is over."""
        what = f"{self.name} gave no answer within {self._spec.seconds:g} s"
        if self._subject is not None:
            self._avoided[self._subject] = time.monotonic() + AVOIDED_S
            what += f": {self._subject} is left out for {AVOIDED_S:g} s"
        _log(what)
        self._fail()

    def _take(self, line: bytes) -> None:
        if not line.startswith(_OURS):
            self._pending.append(line.decode())
            return
        message = json.loads(line[1:])
        if "begin" in message:
            self._subject, self._pending = message["begin"], []
        elif "end" in message:
            self.result.lines += self._pending
            self._subject = None
        else:
            self.result.complete = bool(message["complete"])
            self.result.seconds = time.monotonic() - self._begun
            self.result.left_out, self.result.cpu = message["left_out"], message["cpu"]
            self.busy = False
            if self.result.complete:
                self._good = time.monotonic()

    def _fail(self) -> None:
        self.busy = False
        self.result.complete = False
        self.result.seconds = time.monotonic() - self._begun
        self._end()

    # --- what the page shows of it ----

    def state(self) -> Iterator[str]:
        """Samples about the collector itself."""
        yield sample("gpucluster_exporter_collector_up", int(self.result.complete), collector=self.name)
        yield sample("gpucluster_exporter_collector_seconds", round(self.result.seconds, 6), collector=self.name)
        if self._good is not None:
            age = max(0.0, time.monotonic() - self._good)
            yield sample("gpucluster_exporter_collector_age_seconds", round(age, 3), collector=self.name)
        yield sample("gpucluster_exporter_collector_hung", len(self._hung), collector=self.name)
        yield sample("gpucluster_exporter_series_left_out", self.result.left_out, collector=self.name)

    @property
    def cpu(self) -> float:
        """Processor seconds of all its processes."""
        return self._cpu_before + self.result.cpu

    # --- its process -----

    def _start(self) -> bool:
        """Start the process; False while too many of its predecessors hang."""
        self._hung = [pid for pid in self._hung if not in_child.reap(pid, 0.0)]
        if len(self._hung) >= MOST_HUNG:
            return False
        (questions, self._ask), (self._answer, answer) = os.pipe(), os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            for descriptor in (self._ask, self._answer):
                os.close(descriptor)
        else:
            if not self._pid:
                _live(self._spec, self._place, questions, answer)
        for descriptor in (questions, answer):
            os.close(descriptor)
        return bool(self._pid)

    def _end(self) -> None:
        """Kill the process with all that it has started. If it does not end at once, it is looked at again later."""
        pid, self._pid = self._pid, 0
        os.close(self._ask)
        os.close(self._answer)
        in_child.kill(pid)
        if not in_child.reap(pid, _BURIAL_S):
            self._hung.append(pid)

    def close(self) -> None:
        """End the process: it sees the end of its questions, or is killed."""
        if self._pid:
            self._end()


class Workers:
    """All collectors of an exporter."""

    def __init__(self, specs: Mapping[str, Spec], place: Place) -> None:
        self._all = [Worker(name, spec, place) for name, spec in specs.items()]

    def begin(self) -> None:
        """Ask all of them."""
        for worker in self._all:
            worker.begin()

    def busy(self) -> list[Worker]:
        """Those that have not answered; one whose limit is over is no longer among them."""
        now = time.monotonic()
        for worker in self._all:
            if worker.busy and now >= worker.deadline:
                worker.expire()
        return [worker for worker in self._all if worker.busy]

    def lines(self) -> Iterator[str]:
        """The samples of all, and about all."""
        for worker in self._all:
            yield from worker.result.lines
        for worker in self._all:
            yield from worker.state()
        cpu = time.process_time() + sum(worker.cpu for worker in self._all)
        yield sample("gpucluster_exporter_cpu_seconds_total", round(cpu, 4))

    def collect(self) -> list[str]:
        """Ask all of them, and wait."""
        self.begin()
        while True:
            busy = self.busy()
            if not busy:
                return list(self.lines())
            left = min(worker.deadline for worker in busy) - time.monotonic()
            ready = select.select([worker.descriptor for worker in busy], [], [], max(0.0, left))[0]
            for worker in busy:
                if worker.descriptor in ready:
                    worker.read()

    def close(self) -> None:
        """End all processes."""
        for worker in self._all:
            worker.close()


# --- inside of the process -----


def _live(spec: Spec, place: Place, source: int, answer: int) -> NoReturn:
    """Answer until there are no more questions."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _close_all_but({source, answer})
        collector = spec.make(place)
        with open(source, "rb") as questions:
            known_faults: set[str] = set()
            for line in questions:
                _write(answer, _answer(collector, spec.most, set(json.loads(line)), answer, known_faults))
        collector.close()
        status = 0
    finally:
        os._exit(status)


def _answer(collector: Collector, most: int, avoided: Collection[str], answer: int, known_faults: set[str]) -> bytes:
    """Write what each subject gives, and return the line that ends the answer.

    Args:
        known_faults: faults that were logged already; a fault that stays is logged once.
    """
    sample_count = left_out = 0
    complete = True

    def failed(what: str, error: Exception) -> None:
        words = f"{what}: {type(error).__name__}: {error}"
        if words not in known_faults and len(known_faults) < _MOST_FAULTS:
            known_faults.add(words)
            _log(words)

    try:
        subjects = collector.subjects()
    except Exception as error:  # of this scrape; it is asked again
        failed(type(collector).__name__, error)
        subjects, complete = [], False
    for subject in subjects:
        if subject in avoided:
            complete = False
            continue
        _write(answer, _ours({"begin": subject}))
        lines: list[str] = []
        try:
            for line in collector.samples(subject):
                if sample_count + len(lines) < most:
                    lines.append(line)
                else:
                    left_out += 1
        except Exception as error:  # a device that went away while it was read, or a fault of ours: the others count
            failed(subject, error)
            lines, complete = [], False
        sample_count += len(lines)
        _write(answer, "".join(f"{line}\n" for line in lines).encode() + _ours({"end": subject}))
    return _ours({"complete": complete, "left_out": left_out, "cpu": round(time.process_time(), 4)})


def _log(words: str) -> None:
    """For the journal; what a device or a tool prints is one line of it."""
    line = "".join(sign if sign.isprintable() else " " for sign in words)[:500]
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="replace"))


def _ours(content: Mapping[str, object]) -> bytes:
    return _OURS + json.dumps(content).encode() + b"\n"


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _close_all_but(kept: Collection[int]) -> None:
    """A connection that we inherited would stay open as long as we live, and so would our starter's output."""
    null = os.open(os.devnull, os.O_RDWR)
    # Errors are still said.
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor > 2 and descriptor not in kept:  # noqa: PLR2004 - the standard files
            with contextlib.suppress(OSError):
                os.close(descriptor)
