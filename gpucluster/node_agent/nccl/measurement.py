"""What a run of nccl-tests has measured, whatever the form of its output."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: In an error: what Slurm writes when it ends a job that runs too long.
TIME_LIMIT = "DUE TO TIME LIMIT"
#: The table of a row that was printed before any header.
NO_TABLE = 0


class Number(NamedTuple):
    """A printed number. `step` is the value of its last digit: how exactly it is known."""

    value: float
    step: float


class Half(NamedTuple):
    """One half of a row, out of place or in place.

    Attributes:
        algorithm: size / time, in GB/s.
        bus: the bandwidth that the hardware must have had, in GB/s.
        wrong: how many wrong results; None where they were not counted.
    """

    algorithm: Number
    bus: Number
    wrong: int | None


class Row(NamedTuple):
    """One row of a table.

    Attributes:
        table: the number of its table, from 1.
        size: of the message, in bytes.
        operator: the reduction, such as sum; "none" or "" where there is none.
        root: the rank that sends or receives alone; -1 where there is none.
        in_place: None where the operation has no such form.
    """

    table: int
    size: int
    operator: str
    root: int
    out_of_place: Half
    in_place: Half | None


class RankDevice(NamedTuple):
    """A GPU that a rank named, and the group of ranks that it measured with (NCCL_TESTS_SPLIT makes several).

    Attributes:
        name: of the GPU as CUDA reports it, such as "NVIDIA H200"; "" where the output does not have it.
    """

    rank: int
    group: int
    host: str
    name: str = ""


class Line(NamedTuple):
    """A line of NCCL, as evidence: who wrote it, and its text without what stands in front."""

    host: str
    text: str


class RankRoute(NamedTuple):
    """How NCCL connects two ranks.

    Attributes:
        transport: P2P (GPUs reach each other's memory), SHM (through the host's memory) or NET.
        network: of NET, such as IB or Socket; else "".
        direct: of NET, whether the network device reads and writes the GPU's memory itself (GPUDirect RDMA).
    """

    transport: str
    network: str = ""
    direct: bool = False


class Log(NamedTuple):
    """What NCCL's own lines show (NCCL_DEBUG=INFO); None and empty where there is no such line.

    Attributes:
        present: whether there is any line of NCCL at level INFO.
        channels: the fewest of a rank that operations other than send and receive have.
        routes: the pairs of ranks (from, to) of each route, with the first line about each.
        devices: by host, the RDMA devices that NCCL found and may use.
        no_device: NCCL found none.
        indirect: a network device, or all rings, without GPUDirect RDMA.
        layout: how many nodes NCCL counts, and how many ranks on the node of the line.
        multicast: whether a GPU can use NVLink multicast (NVLS), which takes NVSwitches. The first that can't counts.
        switches: whether the printed topology has NVSwitches.
        ring: the slowest kind of path in the rings of a node, such as NVL, PIX or SYS.
        forbidden: the driver does not allow P2P between two GPUs.
        protocol: of the largest message: how many bytes, and LL, LL128 or SIMPLE.
    """

    present: bool = False
    channels: tuple[int, Line] | None = None
    routes: Mapping[RankRoute, Mapping[tuple[int, int], Line]] = MappingProxyType({})
    devices: Mapping[str, tuple[tuple[str, ...], Line]] = MappingProxyType({})
    no_device: Line | None = None
    indirect: Line | None = None
    layout: tuple[int, int, Line] | None = None
    multicast: tuple[bool, Line] | None = None
    switches: bool = False
    ring: tuple[str, Line] | None = None
    forbidden: Line | None = None
    protocol: tuple[int, str, Line] | None = None


class Measurement(NamedTuple):
    """One output.

    Attributes:
        operation: such as all_reduce; None where nothing names it.
        tables: how many headers of a table there were.
        began: whether the program's first lines are there. Without them this is an excerpt.
        ends: how many tables came to their end.
        in_bounds: whether the program found all results right; None where it did not print it.
        devices: what the ranks named; `gpus_per_line` GPUs stand behind each.
        networks: what NCCL said that it uses between nodes, such as IB and Socket.
        settings: environment variables of NCCL that the output shows.
        errors: what the program or NCCL reported as an error, each text once.
        causes: what NCCL warned of, with host and GPUs.
        log: what NCCL said of itself at level INFO.
        times: of the largest message, the median iteration of each process in microseconds; none without it.
        others: what else used the GPUs when it began, such as `gpu-1: python3 (process 4711)`.
    """

    operation: str | None
    rows: list[Row]
    tables: int
    began: bool
    ends: int
    in_bounds: bool | None
    devices: list[RankDevice]
    gpus_per_line: int
    networks: frozenset[str]
    settings: Mapping[str, str]
    errors: list[str]
    causes: tuple[str, ...] = ()
    log: Log = Log()
    times: tuple[float, ...] = ()
    others: tuple[str, ...] = ()
