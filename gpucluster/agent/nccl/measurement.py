"""What a run of nccl-tests has measured, whatever the form of its output."""

from __future__ import annotations

from collections.abc import Mapping
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


class Device(NamedTuple):
    """A GPU that a rank named, and the group of ranks that it measured with (NCCL_TESTS_SPLIT makes several)."""

    rank: int
    group: int
    host: str


class Measurement(NamedTuple):
    """One output.

    Attributes:
        operation: such as all_reduce; None where nothing names it.
        tables: how many headers of a table there were.
        began: whether the program's first lines are there. Without them this is an excerpt that somebody chose.
        ends: how many tables came to their end.
        in_bounds: whether the program found all results right; None where it did not say so.
        devices: what the ranks named; `gpus_per_line` GPUs stand behind each.
        networks: what NCCL said that it uses between nodes, such as IB and Socket.
        settings: environment variables of NCCL that the output shows.
        errors: what the program or NCCL reported as an error, each text once.
        causes: what NCCL warned of, with host and GPUs.
    """

    operation: str | None
    rows: list[Row]
    tables: int
    began: bool
    ends: int
    in_bounds: bool | None
    devices: list[Device]
    gpus_per_line: int
    networks: frozenset[str]
    settings: Mapping[str, str]
    errors: list[str]
    causes: tuple[str, ...] = ()
