"""Series of looks at a job with four GPUs, with the numbers that were measured on four H100 (700 W each)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpucluster.node_agent.watch import judge, ras
from gpucluster.node_agent.watch.judge import GpuReading, JobFinding, JobMemory, Limits, Look, Process
from tests.doubles import ras_server

INTERVAL = 15.0
MOST_POWER = 700.0
FIRST_PID = 1397
LIMITS = Limits(hang=180.0, idle=1800.0)


def gpus(power: float = 120.0, use: Sequence[float] = (1, 1, 1, 1), memory: float = 0.0) -> tuple[GpuReading, ...]:
    """Four GPUs, each with one process: by default they wait in kernels of NCCL."""
    return tuple(
        GpuReading(number, power, MOST_POWER, part, memory, frozenset({FIRST_PID + number}))
        for number, part in enumerate(use)
    )


def free(power: float = 70.0, number: int = 4) -> tuple[GpuReading, ...]:
    """GPUs without a process."""
    return tuple(GpuReading(each, power, MOST_POWER, 0.0, 0.0, frozenset()) for each in range(number))


WORKS = gpus(696.0, memory=0.32)


def processes(*busy: int, stopped: Sequence[int] = ()) -> dict[int, Process]:
    """Those of the four ranks."""
    return {FIRST_PID + rank: Process(rank in busy, rank in stopped) for rank in range(4)}


def launched(*counts: int | Mapping[str, int], missing: Sequence[int] = ()) -> ras.RasAnswer:
    """An answer in JSON: what each rank has launched of AllReduce, or of several collectives."""
    rows = [count if isinstance(count, Mapping) else {"AllReduce": count} for count in counts]
    return ras.parse(ras_server.json_text(rows, missing, FIRST_PID))


@dataclass
class Job:
    """A job that is looked at every 15 s."""

    limits: Limits = LIMITS
    now: float = 1000.0
    memory: JobMemory = field(default_factory=JobMemory)
    found: list[JobFinding] = field(default_factory=list)

    def look(
        self,
        seconds: float,
        of: tuple[GpuReading, ...],
        answer: ras.RasAnswer | Callable[[int], ras.RasAnswer | None] | None = None,
        of_processes: Mapping[int, Process] | None = None,
    ) -> JobFinding:
        """Look for so long; `answer` may depend on the number of the look. Gives what was found last."""
        for number in range(int(seconds // INTERVAL) or 1):
            self.now += INTERVAL
            said = answer(number) if callable(answer) else answer
            look = Look(self.now, of, said, processes() if of_processes is None else of_processes)
            self.memory, finding = judge.advance(self.memory, look, self.limits)
            self.found.append(finding)
        return self.found[-1]
