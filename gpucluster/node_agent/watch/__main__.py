"""`gpucluster-agent watch`: looks at the jobs of this node every 15 s, and reports which are hung or leave GPUs idle.

While something may have begun, it looks every 5 s.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

from gpucluster.node_agent.errors import AgentError, Failed, of_system
from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.health import client as health
from gpucluster.node_agent.health.client import PORT
from gpucluster.node_agent.watch import client, collect, judge, kept, message, ras, stacks
from gpucluster.node_agent.watch.collect import Running
from gpucluster.node_agent.watch.judge import GpuReading, JobActivity, JobFinding, JobMemory, Limits, Look

INTERVAL_S, HURRIED_S = 15.0, 5.0
#: Seconds after which the reporter repeats itself, and after which the watcher's file no longer counts.
_AGAIN_S, _OLD_S = 60.0, 90.0
#: States that are worth a line in the journal when they begin.
_LOGGED = (JobActivity.HUNG, JobActivity.STRAGGLING, JobActivity.IDLE)


class Watcher:
    """All jobs of this node.

    Args:
        jobs: the folder with a file for each running job.
        proc: where /proc is.
        links: the folder with the links of divided GPUs.
        address: of NCCL's RAS port.
        clock: seconds, only forwards.
    """

    def __init__(
        self,
        limits: Limits,
        jobs: str = Place().jobs,
        proc: str = "/proc",
        address: tuple[str, int] = client.ADDRESS,
        clock: Callable[[], float] = time.monotonic,
        links: str = Place().mig,
    ) -> None:
        self._limits, self._jobs, self._proc, self._address, self.clock = limits, jobs, proc, address, clock
        self._links = links
        self._memory: dict[Running, JobMemory] = {}
        self._processes = collect.Processes(proc)

    def look(self) -> dict[str, tuple[JobFinding, bool]]:
        """By the number of each job what was found, and whether the process that is named is one of this node.

        Raises:
            collect.NoGpuAnswer: nvidia-smi gives no answer.
        """
        running = collect.running(self._jobs, self._proc, self._links)
        self._memory = {job: self._memory.get(job, JobMemory()) for job in running}
        # What a job does on an instance of a GPU is not seen, so nothing is reported of its whole GPUs, either.
        seen = [job for job in running if not job.parts]
        known = collect.gpus() if seen else {}
        of = {job: tuple(known[name] for name in sorted(job.gpus) if name in known) for job in seen}
        of = {job: gpus for job, gpus in of.items() if gpus}
        if any(judge.uneven(gpus) or any(gpu.low for gpu in gpus) for gpus in of.values()):
            # One program for all GPUs that do no work; a node that works needs none.
            names = {gpu.number: name for name, gpu in known.items() if not name.isdigit()}
            holders = collect.holders()
            of = {job: tuple(_with_processes(gpu, names, holders) for gpu in gpus) for job, gpus in of.items()}
            of = {job: self._with_strangers(gpus) if judge.uneven(gpus) else gpus for job, gpus in of.items()}
        suspects = [job for job, gpus in of.items() if judge.suspect(gpus)]
        pids = {job: {pid for gpu in of[job] for pid in gpu.pids or ()} for job in suspects}
        processes = self._processes.look(set().union(*pids.values()), self.clock()) if suspects else {}
        findings = {}
        for job in running:
            if job.parts:
                parts = [gpu.words for gpu in sorted(job.parts) if gpu.words]
                self._memory[job], finding = judge.unmeasured(self._memory[job], self.clock(), parts)
                findings[job.job_id] = finding, False
        for job, gpus in of.items():
            own = {pid: process for pid, process in processes.items() if pid in pids.get(job, ())}
            shared = judge.shared(gpus)
            # Which rank is on a GPU that another program uses is a question to RAS, too.
            ras_pids = pids.get(job) or {pid for gpu in gpus if shared for pid in (gpu.pids or set()) - gpu.strangers}
            answer = self._answer(ras_pids, alone=len(running) == 1) if ras_pids else None
            look = Look(self.clock(), gpus, answer, own)
            self._memory[job], finding = judge.advance(self._memory[job], look, self._limits)
            findings[job.job_id] = finding, finding.rank is not None and finding.rank.pid in (ras_pids or ())
        return findings

    def hurried(self) -> bool:
        """Whether the next look should come soon."""
        return any(judge.hurried(memory, self.clock(), self._limits) for memory in self._memory.values())

    def _with_strangers(self, gpus: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
        """GPUs with those of their processes that are not of the job of most of them."""
        of = {pid: collect.job_of(pid, self._proc) for gpu in gpus for pid in gpu.pids or ()}
        own = collections.Counter(job for gpu in gpus for job in {of[pid] for pid in gpu.pids or ()})
        most, number = max(own.items(), key=lambda each: each[1], default=(None, 0))
        if most is None or number < len(gpus):
            # In a container of Docker a process is of no job.
            return gpus
        return tuple(
            gpu._replace(strangers=frozenset(pid for pid in gpu.pids or () if of[pid] != most)) for gpu in gpus
        )

    def _answer(self, pids: set[int], *, alone: bool) -> ras.RasAnswer | None:
        """What RAS reports of a job."""
        listeners = collect.listeners(self._address[1], self._proc)
        if not listeners or not listeners <= {collect.owner(pid, self._proc) for pid in pids}:
            return None
        try:
            # In a container with numbers of its own no number is known here: then a job that is alone is the one.
            return client.ask(self._address, lambda answer: alone or any(rank.pid in pids for rank in answer.ranks))
        except client.NoRasAnswer:
            return None


def _with_processes(gpu: GpuReading, names: dict[int, str], holders: dict[str, frozenset[int]]) -> GpuReading:
    return gpu._replace(pids=holders.get(names.get(gpu.number, ""), frozenset()))


def serve(watcher: Watcher, file: Path, rounds: int = 0, pause: Callable[[float], None] = time.sleep) -> None:
    """Look until the process is ended, or so many times."""
    states: dict[str, str] = {}
    here, fault, number = collect.own_name(), "", 0
    while True:
        begun = time.monotonic()
        try:
            findings, fault = watcher.look(), ""
        except collect.NoGpuAnswer as error:
            if str(error) != fault:
                _log(str(error))
            fault = str(error)
        else:
            jobs = [kept.seen(job, finding, here if own else "") for job, (finding, own) in findings.items()]
            # Without an answer the file grows old, and the exporter shows its age.
            kept.write(jobs, watcher.clock(), file)
            states = _tell(jobs, states)
        number += 1
        if number == rounds:
            return
        interval = HURRIED_S if watcher.hurried() else INTERVAL_S
        pause(max(1.0, interval - (time.monotonic() - begun)))


def _tell(jobs: Sequence[kept.ObservedJob], states: dict[str, str]) -> dict[str, str]:
    """Write what has begun or ended into the journal."""
    for each in jobs:
        before = states.get(each.job_id, "")
        if each.state != before and (each.state in _LOGGED or before in _LOGGED):
            _log(line(each))
    return {each.job_id: each.state for each in jobs}


def line(each: kept.ObservedJob) -> str:
    """What a job does, as one line of text."""
    place = f" (rank {each.rank}, process {each.pid} on {each.host or 'an unknown host'})" if each.rank else ""
    waste = sum(each.idle.values()) / 3600
    idle = f"; {len(each.idle)} of its GPUs have had no process for {waste:.1f} GPU hours" if each.idle else ""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - (time.monotonic() - each.since)))
    return f"job {each.job_id} is {each.state} since {since}{place}{': ' if each.words else ''}{each.words}{idle}"


def _log(words: str) -> None:
    sys.stderr.write("".join(sign if sign.isprintable() else " " for sign in words)[:500] + "\n")
    sys.stderr.flush()


def _no_stacks(_jobs: Sequence[kept.ObservedJob]) -> Mapping[str, str]:
    return {}


class JobReporter:
    """Reports to the controller what the watcher of this node sees, so that the controller can act.

    It runs as root without any right, because the controller believes root alone; what reads the answers of jobs does
    not. A change is reported at once. Reports of jobs that do not work are repeated: the controller forgets them.

    With `--stacks`, those of a hang are taken before the controller gets the report: it may end the job at once.
    It has the rights for that then (`stacks`).

    Args:
        send: sends one message; whether the controller has taken it. It raises AgentError where it can't.
        clock: that of the watcher.
        stacks_of: where the stacks of hung jobs are, by the numbers of these jobs.
    """

    def __init__(
        self,
        send: Callable[[str], bool],
        file: Path,
        clock: Callable[[], float] = time.monotonic,
        here: str = "",
        stacks_of: Callable[[Sequence[kept.ObservedJob]], Mapping[str, str]] = _no_stacks,
    ) -> None:
        self._send, self._file, self._clock, self._stacks_of = send, file, clock, stacks_of
        self._here = here or collect.own_name()
        self._told: dict[str, tuple[str, bool]] = {}
        self._at = float("-inf")
        self._fault = ""

    def look(self) -> None:
        """Read what the watcher has seen, and report it if it is new, or if it is time."""
        now = self._clock()
        try:
            at, jobs = kept.read(self._file)
            # What a stopped watcher has seen does not count.
            jobs = jobs if now - at <= _OLD_S else []
            # Nothing follows from them, and a controller of an earlier release does not know the word.
            jobs = [each for each in jobs if each.state != JobActivity.UNMEASURED]
        except (OSError, ValueError):
            jobs = []
        states = {each.job_id: (each.state, bool(each.idle)) for each in jobs}
        again = now - self._at >= _AGAIN_S and any(state != JobActivity.WORKING for state, _idle in states.values())
        if states == self._told and not again:
            return
        words = message.written(self._here, jobs, now, self._stacks_of(jobs))
        try:
            fault = "" if self._send(json.dumps(words)) else "it does not want it"
        except AgentError as error:
            fault = error.message
        if fault and fault != self._fault:
            _log(f"the controller is not told: {fault}")
        self._fault = fault
        if not fault:
            self._told, self._at = states, now


def sent(controller: str, port: int) -> Callable[[str], bool]:
    """What sends a message to the health service; whether it was taken. It raises Failed where it was not."""

    def send(text: str) -> bool:
        answer = health.exchange(text, controller, port)
        if "kept" not in answer:
            raise Failed(str(answer.get("error"))[:300])
        return answer["kept"] is True

    return send


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(prog="gpucluster-agent watch", description=__doc__)
    add = made.add_argument
    command_help = "look until stopped; report to the controller until stopped; or print what was seen last"
    add("command", choices=["serve", "report", "show"], help=command_help)
    add("--controller", default="", metavar="ADDRESS", help="that gets the reports (report)")
    add("--port", type=int, default=PORT, help="of its health service (%(default)s)")
    add("--hang", type=float, default=180.0, metavar="SECONDS", help="without a new operation (%(default)s)")
    add("--idle", type=float, default=1800.0, metavar="SECONDS", help="of a GPU without a process (%(default)s)")
    add("--silent", type=float, metavar="SECONDS", help="of kernels that wait, where NCCL gives no answer (never)")
    add("--stacks", action="store_true", help="of a hung job are taken before it is reported (report)")
    add("--jobs", default=Place().jobs, metavar="FOLDER", help="of running jobs (%(default)s)")
    add("--file", type=Path, default=kept.FILE, help="with what was seen (%(default)s)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Watch, or show what was seen last. Returns the exit status."""
    options = parser().parse_args(argv)
    try:
        if options.command == "serve":
            serve(Watcher(Limits(options.hang, options.idle, options.silent), options.jobs), options.file)
            return 0
        if options.command == "report":
            stacks_of = stacks.Stacks().of if options.stacks else _no_stacks
            reporter = JobReporter(sent(options.controller, options.port), options.file, stacks_of=stacks_of)
            while True:
                reporter.look()
                time.sleep(INTERVAL_S)
        at, jobs = kept.read(options.file)
        sys.stdout.write("".join(f"{line(each)}\n" for each in jobs) or "no job with GPUs is here\n")
        sys.stdout.write(f"seen {max(0.0, time.monotonic() - at):.0f} s ago\n")
        return 0
    except (OSError, ValueError) as error:
        fault = of_system(error) if isinstance(error, OSError) else AgentError(str(error))
        sys.stderr.write(f"gpucluster-agent watch: {fault.message}\nSee: systemctl status gpucluster-watch\n")
        return fault.status
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
