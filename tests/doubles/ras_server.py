"""A double of NCCL's RAS port: a real TCP server on the loopback device that speaks the protocol of NCCL's
src/ras/client_support.cc, with answers in the forms of its releases.

It does not prove that a release of NCCL prints these forms, nor what NCCL counts in a job: the texts follow the source
of NCCL 2.24, 2.26 and 2.30, and the JSON what 2.28.9 reported of a process that was killed. Standard library of Python
3.9 only: the agent's tests run there.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import PATIENCE_S

HOST = "10.0.0.11"


@dataclass
class RasServer:
    """What one process of a job answers.

    Args:
        text: to VERBOSE STATUS.
        json_text: the same after SET FORMAT json; None for a release that does not know it (before 2.28.7).
        silent: how many connections are taken and not answered before one is: their process is stopped.
        raw: sends these bytes instead, as something that is not NCCL.
        lines: what clients have sent.
    """

    text: str = ""
    json_text: str | None = None
    silent: int = 0
    raw: bytes | None = None
    lines: list[str] = field(default_factory=list)
    #: Called before an answer, with the number of the connection.
    before: Callable[[int], None] = lambda _number: None

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[str, int]]:
        """Serve; gives the address."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            held: list[socket.socket] = []
            thread = threading.Thread(target=self._serve, args=(listener, held), daemon=True)
            thread.start()
            address = listener.getsockname()
            try:
                yield address[0], address[1]
            finally:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                thread.join(timeout=PATIENCE_S)
                for each in held:
                    each.close()

    def _serve(self, listener: socket.socket, held: list[socket.socket]) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                connection, _address = listener.accept()
                number += 1
                if number <= self.silent:
                    held.append(connection)
                    continue
                self.before(number)
                with contextlib.suppress(OSError), connection:
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        if self.raw is not None:
            while True:
                connection.sendall(self.raw)
        form = "text"
        with connection.makefile("rwb") as stream:
            for line in stream:
                said = line.decode().rstrip("\r\n")
                self.lines.append(said)
                words = said.lower()
                if words.startswith("client protocol "):
                    reply = "SERVER PROTOCOL 2\n"
                elif words.startswith("timeout "):
                    reply = "OK\n"
                elif words == "set format json" and self.json_text is not None:
                    form, reply = "json", "OK\n"
                elif words == "verbose status":
                    reply = str(self.json_text) if form == "json" else self.text
                    stream.write(reply.encode())
                    return
                else:
                    reply = f"ERROR: Unknown command {said}\n"
                stream.write(reply.encode())
                stream.flush()


def named(rank: int, first_pid: int = 1397, host: str = HOST) -> str:
    """How NCCL names the process of a rank."""
    return f"GPU {rank} managed by process {first_pid + rank} on node {host}"


def text(errors: str = "", warnings: str = "", status: str = "OK") -> str:
    """A whole answer in text: four ranks of one communicator on one node."""
    return (
        "Job summary\n===========\n\n"
        "  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n"
        "      1          4            1          4        4\n"
        "\nCommunicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        f"    0         1         1         4         4         4   RUNNING  {status:>6}\n"
        f"\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"
    )


def mismatch(collective: str, counts: Sequence[int]) -> str:
    """The warning of a communicator whose ranks have launched these numbers of a collective, as NCCL 2.26 prints it."""
    lines = ["#0-0 (27a079b828ff1a75) MISMATCH", f"  Communicator ranks have different {collective} operation counts"]
    frequent = sorted(set(counts), key=lambda value: (-counts.count(value), value))
    for value in frequent:
        ranks = [rank for rank, count in enumerate(counts) if count == value]
        what = f"launched up to operation {value}" if value else "not launched any operations"
        if len(ranks) > 1:
            lines.append(f"  {len(ranks)} ranks have {what}")
            if len(ranks) * 2 < len(counts):
                lines += [f"  Rank {rank} -- {named(rank)}" for rank in ranks]
        else:
            lines.append(f"  Rank {ranks[0]} has {what} -- {named(ranks[0])}")
    return "\n".join(lines) + "\n\n"


def json_text(
    counts: Sequence[Mapping[str, int]], missing: Sequence[int] = (), first_pid: int = 1397, host: str = HOST
) -> str:
    """A whole answer in JSON: one communicator; `missing` are ranks whose process does not answer.

    In them, NCCL 2.28 forgets a comma.
    """

    def process(rank: int) -> dict[str, Any]:
        return {"rank": rank, "host": host, "pid": first_pid + rank, "cuda_dev": rank, "nvml_dev": rank}

    def launched(rank: int) -> dict[str, int]:
        names = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
        return {name: counts[rank].get(name, 0) for name in names}

    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    there = [rank for rank in range(len(counts)) if rank not in missing]
    communicator = {
        "hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e", "size": len(counts),
        "ranks_count": len(there), "missing_ranks_count": len(missing),
        "ranks": [{**process(rank), "status": status, "collective_counts": launched(rank)} for rank in there],
        "missing_ranks": [
            {**process(rank), "status": {"unresponsive": True, "considered_dead": False}} for rank in missing
        ],
    }  # fmt: skip
    whole = json.dumps(
        {
            "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
            "timestamp": "2026-11-26 13:06:53", "communicators_count": 1, "communicators": [communicator],
            "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
        },
        indent=2,
    )  # fmt: skip
    return re.sub(r'("nvml_dev": \d+),(\s+"status": \{\s+"unresponsive")', r"\1\2", whole)
