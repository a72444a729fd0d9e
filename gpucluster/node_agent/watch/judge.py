"""Decides what a job does on a node, from a series of looks at its GPUs and at NCCL's counts. Pure.

A kernel of NCCL that waits keeps its GPU at 100 % utilization, at a sixth of the power of work (measured on H100: 118
to 126 W instead of 694 to 699 W; with a slow rank 145 to 162 W). So low power on all GPUs of a job makes it a suspect,
and no more than that: data loading, evaluation on one rank, a checkpoint and compilation look the same. A hang also
needs one of these for its time:

- RAS misses a rank, and a GPU waits in a kernel: its process is stopped or gone, or has lost its network. (At the end
  of a training others may be gone while one rank writes what it has learnt.)
- some processes of this node are stopped, and a GPU waits in a kernel. (RAS itself may be silent then: the process that
  was asked is the stopped one. A job of which all processes are stopped is suspended.)
- a GPU has lost its process, the others wait in kernels, and RAS gives no answer.
- no rank has launched anything, and those of this node that are behind use no processor and wait for no disk, or wait
  in a kernel themselves;
- no rank has launched anything, none is behind, and all GPUs of this node are in a kernel without a pause;
- RAS gives no answer, kernels run without using memory, and the user has set a time after which that is a hang.

A job that works may have a GPU that another program uses, too (on H200 it draws 692 W, and the others, which wait for
it in each step, 427 W). Uneven power is looked into, and the process of another job or of none is what makes it a
straggler: evaluation on one rank is as uneven.

A node sees its own GPUs and processes. A job of several nodes is hung where one of them reports it and none reports
that it works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from gpucluster.node_agent.watch.ras import Rank, RasAnswer

#: Below this part of the highest power that its limit can have, a GPU does no work. Waiting takes 0.17 to 0.23.
LOW_POWER = 0.45
#: Utilization at which a GPU is in a kernel all the time, and at which it is in none most of the time.
IN_KERNEL, OUT_OF_KERNEL = 0.9, 0.5
#: At most that it takes to wait for a process that is gone, where only the GPUs show it.
WAITING_POWER = 0.3
#: Times the power of GPUs whose ranks are not behind and that wait in kernels, above which the GPU of a rank that is
#: behind does not wait: waiting differed by 1.13 between GPUs of one host, and small kernels without a pause took 1.37.
MORE_THAN_WAITING = 1.2
#: Part of the time in which memory is read or written by a kernel that waits: 0. Healthy training had 0.31 to 0.33.
MEMORY_AT_REST = 0.05
#: Seconds for which a process is stopped before that is a hang, if the time of a hang is not shorter. With the time
#: until the first look that is less than a minute.
STOPPED_S = 40.0
#: Looks over which a straggler is found.
STRAGGLER_LOOKS = 8
#: Difference of the powers of two GPUs of a job, as parts of their limits, that is looked into. Healthy training had
#: 0.04, and 0.38 where another program used one of the GPUs, too.
UNEVEN = 0.2
#: Seconds for which another program uses a GPU while the others wait for it.
SHARED_S = 30.0
# Ranks in one sentence.
_MOST_NAMED = 8


class JobActivity(str, Enum):
    """What a job does on a node."""

    WORKING = "working"
    WAITING = "waiting"
    HUNG = "hung"
    STRAGGLING = "straggling"
    IDLE = "idle"
    #: Nothing measures the job's part of a GPU that is divided (MIG).
    UNMEASURED = "unmeasured"


class GpuReading(NamedTuple):
    """A GPU of a job at one moment.

    Attributes:
        number: as NVIDIA's tools number it.
        power: watts; None where the driver does not report it.
        most_power: the highest limit of its power, in watts.
        utilization, memory: parts of the time in which a kernel ran, and in which memory was read or written; 0 to 1.
        pids: the processes that hold it; None where that was not asked.
        strangers: those of them that are of another job, or of none.
    """

    number: int
    power: float | None
    most_power: float | None
    utilization: float
    memory: float
    pids: frozenset[int] | None = None
    strangers: frozenset[int] = frozenset()

    @property
    def load(self) -> float | None:
        """Its power, as a part of its highest limit; None where that is not known."""
        return self.power / self.most_power if self.power is not None and self.most_power else None

    @property
    def low(self) -> bool:
        """Whether it does no work. Not where nothing is known."""
        return self.load is not None and self.load < LOW_POWER


class Process(NamedTuple):
    """A process of this node that has a rank.

    Attributes:
        busy: whether it or a descendant used a processor or waited for a disk since the last look.
        stopped: by a signal or a debugger.
    """

    busy: bool
    stopped: bool


class Look(NamedTuple):
    """A job at one moment.

    Attributes:
        at: seconds, only forwards.
        answer: of RAS; None where it was not asked, or said nothing.
        processes: those of this node that RAS names, by number.
    """

    at: float
    gpus: tuple[GpuReading, ...]
    answer: RasAnswer | None = None
    processes: Mapping[int, Process] = {}


class Limits(NamedTuple):
    """Times that the administrator sets, in seconds.

    Attributes:
        hang: nothing is launched for so long.
        idle: a GPU has had no process for so long.
        silent: kernels wait for so long and RAS gives no answer; None: that is never a hang.
    """

    hang: float
    idle: float
    silent: float | None = None


class JobFinding(NamedTuple):
    """What a job does, and what stands out.

    Attributes:
        since: when that began, by the clock of the looks.
        words: a reason, as text.
        rank: the rank to look at; None where there is none, or it is not known.
        collective: that it has not launched, or has launched alone; "" where it is not known.
        idle: seconds for which each GPU has had no process, by its number; only those above the limit.
    """

    state: JobActivity
    since: float
    words: str = ""
    rank: Rank | None = None
    collective: str = ""
    idle: Mapping[int, float] = {}


class JobMemory(NamedTuple):
    """What is kept of earlier looks.

    Attributes:
        quiet: since when no GPU works.
        counts, unchanged: what RAS has counted, and since when that is the same.
        worked: when a process of this node was last at work without its GPU.
        in_kernel: since when all GPUs of the node that are used are in a kernel.
        at_rest: since when kernels run, memory is not used and RAS gives no answer.
        missed, missing: the ranks that RAS misses, and since when it misses one of them.
        stopped: since when some processes are stopped and others wait for them.
        used: the GPUs that have worked or had a process.
        lost: since when one of them has no process, and others wait for it in kernels.
        shared: since when another program uses a GPU of the job that works, and the others wait for it.
        free: since when each GPU has had no process.
        recent: utilization in the last looks of a quiet job.
        last: what was found.
    """

    quiet: float | None = None
    counts: tuple[object, ...] | None = None
    unchanged: float | None = None
    worked: float | None = None
    in_kernel: float | None = None
    at_rest: float | None = None
    missed: tuple[Rank, ...] = ()
    missing: float | None = None
    stopped: float | None = None
    used: frozenset[int] = frozenset()
    lost: float | None = None
    shared: float | None = None
    free: Mapping[int, float] = {}
    recent: tuple[Mapping[int, float], ...] = ()
    last: JobFinding | None = None


def suspect(gpus: tuple[GpuReading, ...]) -> bool:
    """Whether RAS and processes are worth a question: no GPU of the job works."""
    return bool(gpus) and all(gpu.low for gpu in gpus)


def uneven(gpus: tuple[GpuReading, ...]) -> bool:
    """Whether a GPU of the job draws far more power than another one."""
    loads = [gpu.load for gpu in gpus if gpu.load is not None]
    return bool(loads) and max(loads) - min(loads) >= UNEVEN


def shared(gpus: tuple[GpuReading, ...]) -> GpuReading | None:
    """The GPU that another program uses, too, while another one of the job waits for it."""
    # One that works now and then waits for the other; in evaluation on one rank the others do nothing.
    waiting = [gpu for gpu in gpus if gpu.utilization >= IN_KERNEL and gpu.memory > MEMORY_AT_REST]
    least = min((gpu.load for gpu in waiting if gpu.load is not None), default=1.0)
    for gpu in gpus:
        # A server of MPS is on all of them.
        others = frozenset().union(*(each.strangers for each in gpus if each is not gpu))
        if gpu.strangers - others and (gpu.load or 0.0) - least >= UNEVEN:
            return gpu
    return None


def hurried(memory: JobMemory, at: float, limits: Limits) -> bool:
    """Whether the next look at a job should come soon: something may have begun, and has no name yet."""
    signs = [sign for sign in (memory.quiet, memory.shared) if sign is not None]
    known = memory.last is not None and memory.last.state in (
        JobActivity.HUNG,
        JobActivity.STRAGGLING,
        JobActivity.IDLE,
    )
    return bool(signs) and not known and at - min(signs) <= limits.hang + STOPPED_S


def advance(memory: JobMemory, look: Look, limits: Limits) -> tuple[JobMemory, JobFinding]:
    """The next look at a job."""
    last = memory.last
    memory = _remembered(memory, look)
    idle = {number: look.at - since for number, since in memory.free.items() if look.at - since >= limits.idle}
    finding = _judged(memory, look, limits, idle)
    known = last is not None and finding.state is last.state
    since = last.since if last is not None and known else _began(memory, look, finding.state)
    finding = finding._replace(since=since, idle=idle)
    return memory._replace(last=finding), finding


def unmeasured(memory: JobMemory, at: float, parts: Sequence[str]) -> tuple[JobMemory, JobFinding]:
    """The next look at a job that has parts of GPUs.

    The driver has no utilization of an instance (NVML, nvmlDeviceGetUtilizationRates: "On MIG-enabled GPUs, querying
    device utilization rates is not currently supported") and no power of its own, and shows the processes of all
    instances "only if the caller has appropriate privileges" (nvmlDeviceGetComputeRunningProcesses), which the watcher
    has not. The figures of the whole GPU are those of other jobs, too.

    Args:
        parts: the instances, in words; none where the node does not report which ones they are.
    """
    words = f"the driver gives no utilization and no power of instances (MIG): {', '.join(parts[:_MOST_NAMED])}"
    if len(parts) > _MOST_NAMED:
        words += f" and {len(parts) - _MOST_NAMED} more"
    if not parts:
        words = "GPUs of this node are divided (MIG), and the node does not report which ones the job has"
    finding = JobFinding(JobActivity.UNMEASURED, at if memory.last is None else memory.last.since, words)
    return JobMemory(last=finding), finding


def _began(memory: JobMemory, look: Look, state: JobActivity) -> float:
    """When something new began: when its sign came, not when it became certain."""
    if state is JobActivity.IDLE:
        return max(memory.free.values())
    signs = (
        (memory.missing, memory.stopped, memory.unchanged, memory.lost, memory.at_rest)
        if state is JobActivity.HUNG
        else ()
    )
    return next((sign for sign in signs if sign is not None), look.at)


def _remembered(memory: JobMemory, look: Look) -> JobMemory:
    free = {
        gpu.number: memory.free.get(gpu.number, look.at)
        for gpu in look.gpus
        if gpu.pids == frozenset() and gpu.utilization == 0
    }
    used = memory.used | {gpu.number for gpu in look.gpus if gpu.pids or gpu.utilization}
    kept = JobMemory(
        free=free, used=used, last=memory.last,
        shared=_since(memory.shared, look.at, so=shared(look.gpus) is not None),
    )  # fmt: skip
    if not suspect(look.gpus):
        return kept
    held = [gpu for gpu in look.gpus if gpu.number not in free]
    spinning = bool(held) and all(gpu.utilization >= IN_KERNEL for gpu in held)
    at_rest = any(gpu.utilization >= IN_KERNEL for gpu in held) and all(gpu.memory <= MEMORY_AT_REST for gpu in held)
    lost = at_rest and bool(used & free.keys()) and all((gpu.load or 0.0) <= WAITING_POWER for gpu in held)
    kept = memory._replace(
        free=free,
        quiet=look.at if memory.quiet is None else memory.quiet,
        worked=look.at if _at_work(look) else memory.worked,
        in_kernel=_since(memory.in_kernel, look.at, so=spinning),
        at_rest=_since(memory.at_rest, look.at, so=at_rest and look.answer is None),
        stopped=_since(memory.stopped, look.at, so=bool(_stopped(look))),
        used=used,
        shared=None,
        lost=_since(memory.lost, look.at, so=lost),
        recent=(*memory.recent, {gpu.number: gpu.utilization for gpu in held})[-STRAGGLER_LOOKS:],
    )
    if look.answer is None:
        # The next answer shows whether something was launched meanwhile.
        return kept
    missed, counts = look.answer.missing, look.answer.counts
    same = counts == memory.counts
    return kept._replace(
        counts=counts,
        unchanged=None if counts is None else memory.unchanged if same else look.at,
        missed=missed,
        missing=_since(memory.missing if set(missed) & set(memory.missed) else None, look.at, so=bool(missed)),
    )


def _since(before: float | None, at: float, *, so: bool) -> float | None:
    """Since when something is so."""
    return None if not so else at if before is None else before


def _judged(memory: JobMemory, look: Look, limits: Limits, idle: Mapping[int, float]) -> JobFinding:
    if look.gpus and len(idle) == len(look.gpus):
        return JobFinding(JobActivity.IDLE, 0.0, f"no process uses {_gpus(len(idle))} of this node")
    if memory.quiet is None:
        return _working(memory, look)
    if len(memory.free) == len(look.gpus):
        return JobFinding(JobActivity.WAITING, 0.0, "no process uses the GPUs")
    return _without_answer(memory, look, limits) if look.answer is None else _answered(memory, look, limits)


def _working(memory: JobMemory, look: Look) -> JobFinding:
    """A job with a GPU that works."""
    gpu = shared(look.gpus)
    if gpu is None or memory.shared is None or look.at - memory.shared < SHARED_S:
        return JobFinding(JobActivity.WORKING, 0.0)
    words = f"process {min(gpu.strangers)}, which is not of this job, uses GPU {gpu.number}, and the others wait for it"
    return JobFinding(JobActivity.STRAGGLING, 0.0, words, _rank_of(gpu, look))


def _answered(memory: JobMemory, look: Look, limits: Limits) -> JobFinding:
    if memory.missing is not None:
        return _missing(memory, look, limits)
    if memory.unchanged == look.at:
        # The counts are new, or others than before.
        return _moving(memory, look)
    if memory.unchanged is None:
        return JobFinding(JobActivity.WAITING, 0.0, "the GPUs draw little power, and RAS reports no fault")
    return _unchanged(memory, look, limits)


def _stopped(look: Look) -> list[int]:
    """The processes that are stopped, where others run and a GPU waits for them."""
    stopped = sorted(pid for pid, process in look.processes.items() if process.stopped)
    waits = any(gpu.utilization >= IN_KERNEL for gpu in look.gpus)
    return stopped if waits and len(stopped) < len(look.processes) else []


def _halted(memory: JobMemory, look: Look, limits: Limits) -> JobFinding | None:
    """What a stopped process alone shows: RAS may give no answer."""
    stopped = _stopped(look)
    if not stopped or memory.stopped is None:
        return None
    of = [gpu.number for gpu in look.gpus if gpu.pids and stopped[0] in gpu.pids]
    where = f" on GPU {of[0]}" if of else ""
    more = f" (and {len(stopped) - 1} more)" if stopped[1:] else ""
    words = f"process {stopped[0]}{where}{more} is stopped, and the others wait for it"
    certain = look.at - memory.stopped >= min(STOPPED_S, limits.hang)
    return JobFinding(JobActivity.HUNG if certain else JobActivity.WAITING, 0.0, words)


def _without_answer(memory: JobMemory, look: Look, limits: Limits) -> JobFinding:
    halted = _halted(memory, look, limits)
    if halted is not None:
        return halted
    if memory.lost is not None:
        words = f"{_lost(memory)}, and the others wait in kernels; RAS gives no answer"
        return JobFinding(JobActivity.HUNG if look.at - memory.lost >= limits.hang else JobActivity.WAITING, 0.0, words)
    if limits.silent is not None and memory.at_rest is not None and look.at - memory.at_rest >= limits.silent:
        return JobFinding(
            JobActivity.HUNG, 0.0, "kernels run, use no memory and draw little power; RAS gives no answer"
        )
    if memory.last is not None and memory.last.state is JobActivity.HUNG and memory.counts is not None:
        # It had enough before. The process that was asked this time may be the one that is stopped.
        return memory.last
    return JobFinding(JobActivity.WAITING, 0.0, "the GPUs draw little power, and RAS gives no answer")


def _lost(memory: JobMemory) -> str:
    return f"GPU {', '.join(map(str, sorted(memory.used & memory.free.keys())))} has lost its process"


def _missing(memory: JobMemory, look: Look, limits: Limits) -> JobFinding:
    first = memory.missed[0]
    process = look.processes.get(first.pid)
    words = f"{_named(memory.missed)} no answer to RAS"
    seconds = limits.hang
    if process is not None and process.stopped:
        words += ": its process is stopped"
        seconds = min(STOPPED_S, limits.hang)
    elif process is None and memory.lost is not None:
        words += f": {_lost(memory)}"
    waits = any(_at_rest(gpu) for gpu in look.gpus) and not _at_work(look)
    certain = waits and memory.missing is not None and look.at - memory.missing >= seconds
    return JobFinding(JobActivity.HUNG if certain else JobActivity.WAITING, 0.0, words, first)


def _named(ranks: tuple[Rank, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} gives"
    numbers = ", ".join(str(rank.rank) for rank in ranks[:_MOST_NAMED])
    return f"ranks {numbers}{' and more' if ranks[_MOST_NAMED:] else ''} give"


def _moving(memory: JobMemory, look: Look) -> JobFinding:
    """The counts grow: the job goes on, at low power. A GPU that is mostly out of kernels keeps the others waiting."""
    if len(memory.recent) < STRAGGLER_LOOKS:
        return JobFinding(JobActivity.WORKING, 0.0)
    numbers = [number for number in memory.recent[-1] if all(number in each for each in memory.recent)]
    means = {number: sum(each[number] for each in memory.recent) / len(memory.recent) for number in numbers}
    slow = [number for number, mean in means.items() if mean < OUT_OF_KERNEL]
    if not slow or max(means.values()) < IN_KERNEL or len(slow) * 2 > len(means):
        return JobFinding(JobActivity.WORKING, 0.0)
    number = min(slow, key=lambda each: means[each])
    gpu = next(gpu for gpu in look.gpus if gpu.number == number)
    words = f"GPU {number} is in a kernel for {means[number]:.0%} of the time, and the others wait for it"
    return JobFinding(JobActivity.STRAGGLING, 0.0, words, _rank_of(gpu, look))


def _rank_of(gpu: GpuReading, look: Look) -> Rank | None:
    pids = gpu.pids or frozenset()
    return next((rank for rank in (look.answer.ranks if look.answer else ()) if rank.pid in pids), None)


def _unchanged(memory: JobMemory, look: Look, limits: Limits) -> JobFinding:
    """Nothing was launched since an earlier look."""
    answer, since = look.answer, memory.unchanged
    if answer is None or since is None:
        return JobFinding(JobActivity.WAITING, 0.0)
    # A rank that works now and then is none that hangs.
    rests = since if memory.worked is None else max(since, memory.worked)
    long = look.at - rests >= limits.hang
    spinning = memory.in_kernel is not None and look.at - memory.in_kernel >= limits.hang
    working = _at_work(look)
    if not answer.behind:
        if working:
            return JobFinding(JobActivity.WORKING, 0.0, "its processes use processors, and no GPU")
        words = "no rank has launched a further operation"
        return JobFinding(JobActivity.HUNG if long and spinning else JobActivity.WAITING, 0.0, words)
    here = [each for each in answer.behind if each.rank.pid in look.processes]
    at_work = [each for each in here if each.rank.pid in working]
    # Where ranks have launched different collectives, each of them is behind in one: the fewest are the reason.
    straggler = min(at_work or here or answer.behind, key=lambda each: each.peers)
    rank, own, of_others = straggler.rank, straggler.launched, straggler.highest
    if straggler.alone is not None and memory.in_kernel is not None and not at_work:
        # All are in kernels, and one of them in a collective that is seldom and that no other rank has launched.
        rank, own, of_others = straggler.alone, straggler.highest, straggler.launched
    words = (
        f"rank {rank.rank} has launched {own} {straggler.collective or 'collective'} operations, and others {of_others}"
    )
    state = JobActivity.WAITING
    if at_work:
        state, words = JobActivity.WORKING, f"{words}; its process is at work"
    elif not here:
        words += "; its own node decides whether that is a hang"
    elif long and (spinning or not answer.unnamed):
        state = JobActivity.HUNG
    return JobFinding(state, 0.0, words, rank, straggler.collective)


def _at_work(look: Look) -> set[int]:
    """The processes that use processors or disks. One that waits for a kernel may ask for its end all the time.

    A kernel that uses memory is none that waits, and so is one of a rank that is behind, where it takes more power than
    those that wait: it evaluates.
    """
    still = [gpu for gpu in look.gpus if _at_rest(gpu)]
    behind = {each.rank.pid for each in look.answer.behind} if look.answer else set()
    most = max((gpu.power or 0.0 for gpu in still if not behind & (gpu.pids or frozenset())), default=None)
    limit = float("inf") if most is None else MORE_THAN_WAITING * most
    waits = {pid for gpu in still if (gpu.power or 0.0) <= limit for pid in gpu.pids or ()}
    # Where no rank is behind, GPUs may differ as they like.
    waits |= {pid for gpu in still for pid in gpu.pids or () if pid not in behind}
    return {pid for pid, process in look.processes.items() if process.busy and pid not in waits}


def _at_rest(gpu: GpuReading) -> bool:
    """Whether it may wait in a kernel of NCCL."""
    return gpu.utilization >= IN_KERNEL and gpu.memory <= MEMORY_AT_REST


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' if number > 1 else ''}"
