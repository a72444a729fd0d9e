"""The dumps of PyTorch's flight recorder of a hung job, asked for with the rights of the job's user.

A process of PyTorch keeps its last NCCL calls. If its environment has TORCH_NCCL_DEBUG_INFO_PIPE_FILE, it makes a named
pipe, `<that><rank>.pipe`, keeps it open, and looks every second whether something was written to it; then it writes the
file `<TORCH_FR_DUMP_TEMP_FILE><rank>` and goes on (ProcessGroupNCCL.cpp: DumpPipe, HeartbeatMonitor::runLoop;
FlightRecorder.cpp: DebugInfoWriter). Who does not want that does not set it, and is not asked.

A user may have put anything behind a descriptor or at a path, also a file system that never answers. So all of this
runs in a child process of the user, which is given up after a time, and nothing is opened that is not known: a
descriptor is taken without opening what it leads to (O_PATH), has to be a pipe of the user, and only then is opened for
writing, without waiting. The descriptor and not the path: it is the pipe that the process reads, also in a container,
and also if another process has put another one in its place.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable, NamedTuple

from gpucluster.node_agent import accounts

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
#: The beginning of a dump's name: the first one counts, and earlier releases of PyTorch know the second one
#: alone.
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
#: Without them: in the home of HOME, by the names that releases have had, or in /tmp before.
_IN_HOME = (".cache/torch/comm_lib_trace_rank_", ".cache/torch/nccl_trace_rank_")
_BEFORE = "/tmp/nccl_trace_rank_"  # noqa: S108 - PyTorch's own choice
#: Seconds in which the pipes are found and written to; in which a process has looked at its pipe
#: (TORCH_NCCL_COORD_CHECK_MILSEC: 1 s) and written its dump (PyTorch 2.11 took 4.2 to 5.2 s, nearly all of it for the
#: stacks in it); and that the child needs beside that.
ASK_S, WAIT_S, MORE_S = 5.0, 12.0, 3.0
_PAUSE_S = 0.1
_MOST_ENVIRONMENT, _MOST_FILES, _MOST_ANSWER = 1 << 21, 4096, 1 << 17
_LONGEST_PATH = 300
_LONGEST_WORDS = 500


class DumpRequest(NamedTuple):
    """A process whose environment has the name of a pipe.

    Attributes:
        rank: "" where it has no such pipe open.
        dumps: where its dump may be, as it sees the paths itself, and what was there before.
        fault: why it was not asked.
    """

    pid: int
    rank: str
    dumps: Mapping[str, str]
    fault: str = ""


def ask(pids: Sequence[int], proc: str = "/proc") -> list[DumpRequest]:
    """Ask the processes for their dumps. Those whose environment has no pipe are left out."""
    requests = []
    # A process that a rank has forked, such as one that loads data, has the same pipe open.
    known: set[tuple[int, int]] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            environment = _environment(f"{proc}/{pid}/environ")
            request = _request(pid, environment, known, proc) if environment.get(PIPE) else None
            if request is not None:
                requests.append(request)
    return requests


def _environment(file: str) -> dict[str, str]:
    """With which the program was started: what it has set itself is not in it."""
    with open(file, "rb") as stream:
        lines = stream.read(_MOST_ENVIRONMENT).split(b"\0")
    pairs = [os.fsdecode(line).partition("=") for line in lines]
    # As getenv: the first of two counts.
    return {name: value for name, equals, value in reversed(pairs) if equals}


def _request(pid: int, environment: Mapping[str, str], known: set[tuple[int, int]], proc: str) -> DumpRequest | None:
    """None where the pipe was written to already."""
    if max(len(environment.get(each, "")) for each in (PIPE, *DUMPS, "HOME")) > _LONGEST_PATH:
        return DumpRequest(pid, "", {}, "its environment has a path that is too long")
    name = re.compile(re.escape(os.path.basename(environment[PIPE])) + r"([0-9]{1,7})\.pipe")
    for descriptor, rank in _pipes(f"{proc}/{pid}/fd", name):
        try:
            state = os.fstat(descriptor)
            if (state.st_dev, state.st_ino) in known:
                return None
            known.add((state.st_dev, state.st_ino))
            dumps = {path: _state(f"{proc}/{pid}", path) for path in _dumps(environment, rank)}
            return DumpRequest(pid, rank, dumps, _write(descriptor))
        finally:
            os.close(descriptor)
    return DumpRequest(pid, "", {}, "it has no such pipe open: its recorder is off, or it does not use NCCL")


def _pipes(folder: str, name: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The pipes of ours that a process has open under such a name, each by a descriptor that opens nothing."""
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_FILES):
            with contextlib.suppress(OSError):
                # The kernel writes it behind the name of a file that is gone.
                path = os.readlink(entry.path)
                path = path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path
                match = name.fullmatch(os.path.basename(path))
                if match:
                    yield os.open(entry.path, os.O_PATH | os.O_CLOEXEC), match[1]


def _write(descriptor: int) -> str:
    """Write a byte to the pipe of a descriptor of O_PATH; "" or why that could not be done."""
    state = os.fstat(descriptor)
    if not stat.S_ISFIFO(state.st_mode) or state.st_uid != os.getuid():
        return "what it has open under that name is not a named pipe of this user"
    try:
        pipe = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"its pipe can't be opened: {error.strerror}"
    try:
        os.write(pipe, b"\n")
    except BlockingIOError:
        return "its pipe is full: it does not read"
    except OSError as error:
        return f"its pipe can't be written to: {error.strerror}"
    finally:
        os.close(pipe)
    return ""


def _dumps(environment: Mapping[str, str], rank: str) -> list[str]:
    named = [environment[each] for each in DUMPS if environment.get(each)]
    home = environment.get("HOME") or "/tmp"  # noqa: S108 - PyTorch's own choice
    return [f"{each}{rank}" for each in named or (*(f"{home}/{each}" for each in _IN_HOME), _BEFORE)]


def _state(process: str, path: str) -> str:
    """Tells a file from what it is later; "" for none, or an empty one."""
    try:
        # As the process sees it: it may be in a container.
        state = os.lstat(f"{process}/root{path}" if path.startswith("/") else f"{process}/cwd/{path}")
    except (OSError, ValueError):
        return ""
    plain = stat.S_ISREG(state.st_mode) and state.st_size > 0
    return f"{state.st_ino} {state.st_size} {state.st_mtime_ns}" if plain else ""


def written(requests: Sequence[DumpRequest], until: float, proc: str = "/proc") -> dict[int, str]:
    """The dumps that have been written since they were requested, by the numbers of the processes.

    Args:
        until: of time.monotonic(): how long to wait for those that are missing.
    """
    left = {each.pid: each.dumps for each in requests if not each.fault}
    dump_by_pid: dict[int, str] = {}
    last: dict[tuple[int, str], str] = {}
    while True:
        for pid, dumps in list(left.items()):
            now = {(pid, path): _state(f"{proc}/{pid}", path) for path in dumps}
            # One that is still being written is another one the next time.
            new = [path for path, before in dumps.items() if now[pid, path] not in ("", before)]
            complete_dumps = [path for path in new if now[pid, path] == last.get((pid, path))]
            last.update(now)
            if complete_dumps:
                dump_by_pid[pid] = complete_dumps[0]
                del left[pid]
        if not left or time.monotonic() >= until:
            return dump_by_pid
        time.sleep(_PAUSE_S)


def ask_as(user: accounts.Account, pids_of: Callable[[], Sequence[int]], seconds: float) -> bytes:
    """Ask the processes of a user, as that user. Gives something for `written_as`; b"" where there is no such process.

    Args:
        pids_of: the processes; it runs as the user, too.

    Raises:
        Failed: there was no answer in time.
    """

    def work() -> bytes:
        requests = ask(pids_of())
        return json.dumps(requests).encode() if requests else b""

    return accounts.work_as(user, work, seconds=seconds, most=_MOST_ANSWER)


def written_as(user: accounts.Account, encoded_requests: bytes, stacks: str) -> str:
    """Wait for the dumps, as the user, and add their names to the file with the stacks. Gives words for the owner.

    Args:
        encoded_requests: of `ask_as`.
        stacks: the path of the file; "" where there is none.

    Raises:
        Failed: there was no answer in time, or the file can't be written.
    """

    def work() -> bytes:
        # Whose it was may have changed it: it counts for that user alone.
        requests = [DumpRequest(*each) for each in json.loads(encoded_requests)]
        dumps = written(requests, time.monotonic() + WAIT_S)
        if stacks:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(stacks, flags), "a", errors="replace") as stream:
                stream.write(f"\n{lines(requests, dumps)}")
        return os.fsencode(words(requests, dumps)[:_LONGEST_WORDS])

    return os.fsdecode(accounts.work_as(user, work, seconds=WAIT_S + MORE_S, most=4 * _LONGEST_WORDS))


def lines(requests: Sequence[DumpRequest], dumps: Mapping[int, str]) -> str:
    """What is written of them beside the stacks."""
    parts = ["The dumps of PyTorch's flight recorder, which were requested:\n"]
    for each in requests:
        rank = f" (rank {each.rank})" if each.rank else ""
        if each.pid in dumps:
            text = f"its dump is {dumps[each.pid]}"
        elif each.fault:
            text = each.fault
        else:
            text = f"it was asked, and has written no dump within {WAIT_S:.0f} s: {' or '.join(each.dumps)}"
        parts.append(f"Process {each.pid}{rank}: {text}\n")
    return "".join(parts)


def words(requests: Sequence[DumpRequest], dumps: Mapping[int, str]) -> str:
    """For the line that the job's owner reads; "" where no process was asked.

    Files that differ in the rank alone are one word, as a shell reads it: `/scratch/rank_{0,1}`.
    """
    if not requests:
        return ""
    ranks: dict[str, list[str]] = {}
    for each in requests:
        if each.pid in dumps:
            ranks.setdefault(dumps[each.pid][: -len(each.rank)], []).append(each.rank)
    names = [
        f"{before}{numbers[0]}" if len(numbers) == 1 else f"{before}{{{','.join(sorted(numbers, key=int))}}}"
        for before, numbers in ranks.items()
    ]
    if not names:
        return (
            f"flight recorder: no dump ({next((each.fault for each in requests if each.fault), 'no answer in time')})"
        )
    return f"flight recorder: {' '.join(names)}"
