"""What this node shows of its jobs: GPUs by nvidia-smi, processes by /proc, and who listens on the RAS port."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpucluster.node_agent import gpu_numbers, programs
from gpucluster.node_agent.exporter.collect import jobs
from gpucluster.node_agent.rules import mig
from gpucluster.node_agent.watch.judge import GpuReading, Process

_FIELDS = ("index", "uuid", "utilization.gpu", "utilization.memory", "power.draw", "power.max_limit")
_FORMAT = "--format=csv,noheader,nounits"
GPUS = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", _FORMAT)
HOLDERS = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", _FORMAT)
_SECONDS, _MOST = 10.0, 1 << 20
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
#: Part of a processor that a process and its descendants use at least while they work. Threads of CUDA, NCCL and
#: PyTorch that only wait ask from time to time.
BUSY = 0.05
_LISTENS = "0A"
_JOB = re.compile(r"/job_([0-9]+)(?:/|$)", re.MULTILINE)
_MOST_JOBS = 256


class Running(NamedTuple):
    """A job of this node with GPUs.

    Attributes:
        stamp: tells two runs with the same number apart.
        gpus: names (UUID) or, where the driver does not report them, numbers of its whole GPUs.
        parts: its instances of GPUs (MIG), and what is not a GPU that is known here.
    """

    job_id: str
    stamp: tuple[int, int]
    gpus: frozenset[str]
    parts: frozenset[gpu_numbers.Gpu] = frozenset()


def running(folder: str, proc: str, links: str = mig.FOLDER) -> list[Running]:
    """The jobs that the prolog has written down.

    Args:
        links: the folder with the links of divided GPUs.
    """
    running_jobs = []
    numbers: gpu_numbers.Numbers | None = None
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        files = sorted(each.path for each in entries if each.name.endswith(".json") and not each.name.startswith("."))
        for path in files[:_MOST_JOBS]:
            with contextlib.suppress(OSError):
                state, job = os.lstat(path), jobs.read(path)
                if job is None or not job.gpus:
                    continue
                numbers = numbers or gpu_numbers.Numbers(proc, links)
                gpus = [numbers.meaning(gpu) for gpu in job.gpus]
                names = frozenset(gpu.uuid or gpu.number for gpu in gpus if gpu.whole)
                parts = frozenset(gpu for gpu in gpus if not gpu.whole)
                running_jobs.append(Running(job.job_id, (state.st_ino, state.st_mtime_ns), names, parts))
    return running_jobs


class NoGpuAnswer(Exception):
    """nvidia-smi gives no answer; the message has the reason."""


def gpus() -> dict[str, GpuReading]:
    """The GPUs by their names and by their numbers, without their processes.

    Raises:
        NoGpuAnswer: there is none.
    """
    by_name = {}
    for index, uuid, *values in _rows(GPUS, len(_FIELDS)):
        use, memory, power, most = (float(value) if _NUMBER.fullmatch(value) else None for value in values)
        if index.isdigit() and use is not None:
            by_name[uuid] = by_name[index] = GpuReading(int(index), power, most, use / 100, (memory or 0.0) / 100)
    return by_name


def holders() -> dict[str, frozenset[int]]:
    """The processes of each GPU, by its name. A GPU without a process is missing.

    Raises:
        NoGpuAnswer: nvidia-smi gives none.
    """
    by_gpu: dict[str, set[int]] = {}
    for uuid, pid in _rows(HOLDERS, 2):
        # What has a process that nvidia-smi can't number is held nevertheless.
        by_gpu.setdefault(uuid, set()).add(int(pid) if pid.isdigit() else 0)
    return {uuid: frozenset(pids) for uuid, pids in by_gpu.items()}


def _rows(argv: tuple[str, ...], width: int) -> Iterator[list[str]]:
    answer = programs.ask(argv, _SECONDS, _MOST)
    if answer.fault or answer.status != 0:
        raise NoGpuAnswer(answer.fault or f"nvidia-smi ended with status {answer.status}")
    for line in answer.output.decode(errors="replace").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == width:
            yield fields


class _Entry(NamedTuple):
    parent: int
    state: str
    ticks: int


class Processes:
    """How much processes and their descendants work, from one look to the next."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._rate = float(os.sysconf("SC_CLK_TCK"))
        self._at = 0.0
        self._before: dict[int, _Entry] | None = None

    def look(self, pids: Collection[int], at: float) -> dict[int, Process]:
        """Those of the processes that are there. In the first look all of them are busy: nothing is known yet."""
        table = self._table()
        children: dict[int, list[int]] = {}
        for pid, entry in table.items():
            children.setdefault(entry.parent, []).append(pid)
        processes = {pid: self._judged(pid, table, children, at) for pid in pids if pid in table}
        self._before, self._at = table, at
        return processes

    def _judged(self, pid: int, table: Mapping[int, _Entry], children: Mapping[int, list[int]], at: float) -> Process:
        family, left = [pid], [pid]
        while left:
            own = [child for child in children.get(left.pop(), ()) if child not in family]
            family += own
            left += own
        stopped = table[pid].state in "Tt"
        if self._before is None or pid not in self._before:
            return Process(busy=True, stopped=stopped)
        ticks = sum(self._used(each, table[each]) for each in family)
        at_disk = any(state == "D" for each in family for state in self._threads(each))
        return Process(busy=at_disk or ticks / self._rate > BUSY * (at - self._at), stopped=stopped)

    def _used(self, pid: int, entry: _Entry) -> int:
        """Since the last look; of a new process all of it."""
        before = (self._before or {}).get(pid)
        return entry.ticks - before.ticks if before is not None and before.ticks <= entry.ticks else entry.ticks

    def _table(self) -> dict[int, _Entry]:
        entries = {}
        for name in os.listdir(self._proc):
            entry = _stat(f"{self._proc}/{name}/stat") if name.isdigit() else None
            if entry is not None:
                entries[int(name)] = entry
        return entries

    def _threads(self, pid: int) -> Iterator[str]:
        folder = f"{self._proc}/{pid}/task"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                entry = _stat(f"{folder}/{name}/stat")
                if entry is not None:
                    yield entry.state


def _stat(path: str) -> _Entry | None:
    """proc_pid_stat(5). The name of the program is in parentheses, and may have any character in it."""
    try:
        with open(path, "rb") as stream:
            fields = stream.read(4096).rpartition(b")")[2].split()
        return _Entry(int(fields[1]), fields[0].decode(), int(fields[11]) + int(fields[12]))
    except (OSError, ValueError, IndexError):
        return None


def owner(pid: int, proc: str = "/proc") -> int | None:
    """The real user of a process; None where it is gone, or not visible."""
    try:
        text = Path(f"{proc}/{pid}/status").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"^Uid:\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def job_of(pid: int, proc: str = "/proc") -> str | None:
    """The number of the job in whose control group of Slurm a process is; None where it is in none, or is gone."""
    try:
        text = Path(f"{proc}/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return None
    match = _JOB.search(text)
    return match[1] if match else None


def listeners(port: int, proc: str = "/proc") -> set[int]:
    """The users that listen on a TCP port of this host.

    An answer of another user's process could have anything about this job.
    """
    uids = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"{proc}/net/{name}") as stream:
            for line in stream:
                fields = line.split()
                if len(fields) > 7 and fields[3] == _LISTENS and fields[1].endswith(f":{port:04X}"):  # noqa: PLR2004
                    uids.add(int(fields[7]))
    return uids


def own_name() -> str:
    """Of this node, without its domain."""
    return socket.gethostname().partition(".")[0]
