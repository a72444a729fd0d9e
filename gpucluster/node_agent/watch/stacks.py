"""Stacks of the processes of a hung job, by py-spy, in a file in the home of the job's owner.

Beside them the dumps of PyTorch's flight recorder, where the job has one that can be asked (`flight_recorder`).

A process can fill its memory, and the files that it is made of, with what its user likes, and py-spy reads both. So
py-spy has the rights of that user and no others, and so have the search for the processes and the file. The kernel lets
users read the memory of their own processes where Yama is absent or `kernel.yama.ptrace_scope` is 0
(Documentation/admin-guide/LSM/Yama.rst); py-spy with the right to trace would read the memory of every process.

No process is paused (`--nonblocking`): one that hangs does not move, and one that is stopped by a signal is read, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from gpucluster.node_agent import accounts, bounded, programs
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.watch import collect, flight_recorder
from gpucluster.node_agent.watch.judge import JobActivity
from gpucluster.node_agent.watch.kept import ObservedJob

#: Where py-spy is looked for. A path that a user can change is not taken.
PROGRAMS = ("/usr/local/bin/py-spy", "/usr/bin/py-spy", "/opt/py-spy/bin/py-spy")
#: The folder in a home.
FOLDER = "gpucluster-stacks"
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
#: Seconds for one process (py-spy 0.4.3 takes some milliseconds), and for all jobs of one look.
_ONE_S, _ALL_S = 5.0, 40.0
#: Bytes of one process, processes of a job, and hangs of one job that have a file.
_MOST_BYTES, _MOST_PROCESSES, _MOST_HANGS = 1 << 16, 32, 3
#: Characters of the answer for the job's owner.
_LONGEST = 300
_JOB = re.compile(r"[1-9][0-9]{0,9}")
_DEVICE = re.compile(r"/dev/nvidia[0-9]+")


class Stacks:
    """The stacks of hangs that begin, each taken once.

    Args:
        take: takes those of one job within a number of seconds, and returns where they are.
        clock: seconds, only forwards.
    """

    def __init__(
        self, take: Callable[[ObservedJob, float], str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._take, self._clock = take or taken, clock
        self._known: dict[str, dict[float, str]] = {}

    def of(self, jobs: Sequence[ObservedJob]) -> dict[str, str]:
        """By the number of each hung job where its stacks are, or why there are none."""
        until = self._clock() + _ALL_S
        self._known = {each.job_id: self._known.get(each.job_id, {}) for each in jobs}
        stacks = {}
        for each in jobs:
            known = self._known[each.job_id]
            if each.state != JobActivity.HUNG:
                continue
            if each.since not in known and len(known) < _MOST_HANGS:
                known[each.since] = self._answer(each, until - self._clock())
            if each.since in known:
                stacks[each.job_id] = known[each.since]
        return stacks

    def _answer(self, job: ObservedJob, seconds: float) -> str:
        if seconds <= 0:
            return "none: those of other jobs took too long"
        try:
            return self._take(job, seconds)[:_LONGEST]
        except AgentError as error:
            return f"none: {error.message}"[:_LONGEST]
        except (OSError, ValueError) as error:
            return f"none: {error}"[:_LONGEST]


def taken(job: ObservedJob, seconds: float, jobs: str = Place().jobs, program: str = "") -> str:
    """Take the stacks of a job's processes on this node, as the job's user, and the dumps of their flight recorders.

    Gives the path of the file, and those of the dumps.

    Args:
        jobs: the folder with a file of each job, which the prolog has written.
        program: py-spy; without it, it is looked for.

    Raises:
        Failed: there are none; the message has the reason.
        Refused: the job's user is root, or unknown here.
        OSError, ValueError: the job's file can't be read.
    """
    if not _JOB.fullmatch(job.job_id):
        raise Failed("the number of the job is none")
    until = time.monotonic() + seconds
    content = bounded.load(Path(jobs, f"{job.job_id}.json"), _MOST_BYTES)
    user = accounts.account(content.get("user") if isinstance(content, dict) else None)
    # First, because a process needs a second or more for it.
    requests, recorded = _ask_flight_recorders(user, job, min(flight_recorder.ASK_S, seconds))
    waits = flight_recorder.WAIT_S + flight_recorder.MORE_S if requests else 0.0
    path, fault = "", Failed("no time was left")
    try:
        path = _written_as(user, job, until - waits, program)
    except Failed as error:
        fault = error
    if requests:
        try:
            recorded = flight_recorder.written_as(user, requests, path)
        except Failed as error:
            recorded = f"flight recorder: asked, and {error.message}"
    if not path and not recorded:
        raise fault
    return f"{path or f'none: {fault.message}'}{f'; {recorded}' if recorded else ''}"


def _ask_flight_recorders(user: accounts.Account, job: ObservedJob, seconds: float) -> tuple[bytes, str]:
    """The requests to the flight recorders, and a message where that failed. The stacks are taken nevertheless."""
    try:
        return flight_recorder.ask_as(user, lambda: processes(job.job_id, job.pid), seconds), ""
    except Failed as error:
        return b"", f"flight recorder: {error.message}"


def _written_as(user: accounts.Account, job: ObservedJob, until: float, program: str) -> str:
    program = program or installed()
    _need_right()

    def work() -> bytes:
        _limit()
        pids = processes(job.job_id, job.pid)
        if not pids:
            raise Failed("no process of the job has a GPU open")
        text = dumped(pids, program, until - _ONE_S)
        name = f"{job.job_id}-{collect.own_name()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.txt"
        return os.fsencode(_written(user.home, name, f"{_heading(job)}\n\n{text}"))

    return os.fsdecode(accounts.work_as(user, work, seconds=max(0.0, until - time.monotonic()), most=4096))


def installed(candidates: Sequence[str] = PROGRAMS) -> str:
    """The path of py-spy.

    Raises:
        Failed: it is not there, or others than root can change it.
    """
    paths = [path for path in candidates if os.path.lexists(path)]
    if not paths:
        raise Failed("py-spy is not installed")
    for path in paths:
        if all(_of_root(each) for each in (path, os.path.realpath(path))):
            return path
    raise Failed(f"others than root can change {paths[0]}")


def _of_root(path: str) -> bool:
    """Whether only root can exchange what is there, or a folder above it."""
    try:
        own, *above = [os.lstat(each) for each in (Path(path), *Path(path).parents)]
    except OSError:
        return False
    # A link has no mode of its own.
    states = above if stat.S_ISLNK(own.st_mode) else [own, *above]
    return all(state.st_uid == 0 for state in (own, *above)) and not any(state.st_mode & 0o022 for state in states)


def _need_right() -> None:
    try:
        scope = Path(YAMA).read_text().strip()
    except OSError:
        return
    if scope != "0":
        raise Failed(f"kernel.yama.ptrace_scope is {scope} here, and users may look at processes of their own with 0")


def _limit() -> None:
    """Bound what a program takes that outlives us, because its user has stopped us."""
    for what, most in ((resource.RLIMIT_CPU, int(_ALL_S)), (resource.RLIMIT_FSIZE, 2 * _MOST_BYTES * _MOST_PROCESSES)):
        _soft, hard = resource.getrlimit(what)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit, limit))


def processes(job_id: str, first: int, proc: str = "/proc", user: int | None = None) -> list[int]:
    """The processes of a job on this node that have a GPU open and are ours: the one that is named comes first.

    Args:
        first: the process that the watcher names; 0 where it names none.
        user: whose they are; without one, ours.
    """
    user = os.getuid() if user is None else user
    pids = []
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        try:
            own = os.stat(f"{proc}/{pid}").st_uid == user
        except OSError:
            continue
        if own and collect.job_of(pid, proc) == job_id and (pid == first or _has_gpu(f"{proc}/{pid}/fd")):
            pids.append(pid)
    return sorted(pids, key=lambda pid: (pid != first, pid))[:_MOST_PROCESSES]


def _has_gpu(folder: str) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if _DEVICE.fullmatch(os.readlink(f"{folder}/{name}")):
                    return True
    return False


def dumped(pids: Sequence[int], program: str, until: float) -> str:
    """What py-spy prints of processes, one after the other.

    Raises:
        Failed: it prints nothing of any.
    """
    parts, whys = [], []
    for pid in pids:
        if time.monotonic() > until:
            whys.append(f"no time was left for process {pid} and those after it")
            parts.append(f"({whys[-1]})")
            break
        answer = programs.ask((program, "dump", "--nonblocking", "--pid", str(pid)), _ONE_S, _MOST_BYTES)
        text = answer.output.decode(errors="replace").strip()
        why = answer.fault or ("" if answer.status == 0 else _why(answer.errors) or f"status {answer.status}")
        if why:
            whys.append(why)
            text = f"{text}\n(process {pid}: {why})".strip()
        parts.append(text)
    if len(whys) == len(parts):
        raise Failed(f"py-spy: {whys[0]}")
    return "\n\n".join(parts) + "\n"


def _why(errors: bytes) -> str:
    """The first line of what py-spy has printed on standard error; what follows is a stack of its own."""
    lines = errors.decode(errors="replace").strip().splitlines()
    return "".join(sign if sign.isprintable() else " " for sign in lines[0])[:200] if lines else ""


def _heading(job: ObservedJob) -> str:
    suffix = f"\nThe watcher reports: {job.words}" if job.words else ""
    return (
        f"Job {job.job_id} on {collect.own_name()}: stacks of processes with a GPU, by py-spy, without a pause{suffix}"
    )


def _written(home: str, name: str, text: str) -> str:
    folder = Path(home, FOLDER)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", errors="replace") as stream:
        stream.write(text)
    return str(path)
