"""`gpucluster-agent nccl judge FILE`: the verdict on an output of nccl-tests, as text or JSON, with its exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn, TextIO

from gpucluster.node_agent.nccl import collectives, json_output, limits, text_output
from gpucluster.node_agent.nccl.judge import FAIL, PASS, UNKNOWN, ExpectedRun, NcclVerdict, judge
from gpucluster.node_agent.nccl.measurement import Measurement
from gpucluster.node_agent.nccl.shape_limits import SHAPES

#: As node checks have them.
STATUS: Mapping[str, int] = {PASS: 0, FAIL: 2, UNKNOWN: 3}
#: An output with every line that NCCL writes has some MB. What is larger is something else, or a program that ran wild.
_LARGEST_FILE = 1 << 30
_LONGEST_LINE = 1 << 16


class Unusable(Exception):
    """There is nothing that could be judged; the message has the reason and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Judge a file. Returns 0 for "pass", 2 for "fail", 3 for "unknown" and for bad arguments."""
    options = _parser().parse_args(argv)
    try:
        verdict = judge(_read(options.file), _expected_run(options))
    except (Unusable, json_output.NotJson) as error:
        verdict = NcclVerdict(UNKNOWN, [str(error)])
    except OSError as error:
        verdict = NcclVerdict(UNKNOWN, [f"{options.file} can't be read: {error.strerror or error}"])
    sys.stdout.write(json.dumps(verdict._asdict()) + "\n" if options.output == "json" else _text(verdict))
    return STATUS[verdict.verdict]


class _Parser(argparse.ArgumentParser):
    """Bad arguments end with the status of "unknown": 2 would mean that a cluster is bad."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(STATUS[UNKNOWN], f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gpucluster-agent nccl", description="Results of nccl-tests")
    judge_parser = parser.add_subparsers(dest="command", required=True, metavar="judge").add_parser(
        "judge", help="the verdict on an output", description=(__doc__ or "").splitlines()[0]
    )
    add = judge_parser.add_argument
    add("file", help="what a program of nccl-tests printed, or its JSON file (-J); - for standard input")
    add(
        "--shape",
        default="",
        help="the shape of the nodes, such as BM.GPU.H100.8; without it, the GPUs that the output names count",
    )
    add("--nodes", type=_positive, required=True, help="how many nodes took part")
    add("--gpus", type=_positive, help="GPUs on each node; those of the shape, or of the output, by default")
    add("--operation", choices=sorted(collectives.COLLECTIVES), help="of the output, if it does not name it")
    algorithms = (limits.DEFAULT, limits.RING)
    add("--algorithm", choices=algorithms, help="ring if NCCL_ALGO=Ring was set, if the output does not show it")
    add("--expect", type=_bandwidth, help="GB/s of bus bandwidth to reach, instead of the limit of the shape")
    add("--output", choices=("text", "json"), default="text")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _bandwidth(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def _expected_run(options: argparse.Namespace) -> ExpectedRun:
    shape = SHAPES.get(options.shape)
    gpus = options.gpus or (shape.gpus if shape else 0)
    if options.shape and not gpus:
        raise Unusable(f"nothing is known about the shape {options.shape!r}: check it, or give --gpus")
    return ExpectedRun(shape, options.nodes, gpus, options.operation, options.algorithm, options.expect)


def _read(name: str) -> Measurement:
    if name == "-":
        return _parse(sys.stdin)
    if os.path.getsize(name) > _LARGEST_FILE:
        raise Unusable(
            f"{name} has more than {_LARGEST_FILE} bytes: this is more than nccl-tests print. Give its table only"
        )
    with open(name, encoding="utf-8", errors="replace") as file:
        return _parse(file)


def _parse(file: TextIO) -> Measurement:
    lines = _lines(file)
    for first in lines:
        if first.strip():
            break
    else:
        raise Unusable("the output is empty")
    if first.lstrip().startswith("{"):
        return json_output.parse(first + "".join(lines))
    return text_output.parse(_with(first, lines))


def _lines(file: TextIO) -> Iterator[str]:
    """The lines, the longest in pieces: a file of one endless line must not fill the memory at once."""
    while True:
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        yield line


def _with(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _text(verdict: NcclVerdict) -> str:
    about = ""
    if verdict.busbw is not None:
        about = f"{verdict.operation}, largest message {verdict.size} bytes: busbw {verdict.busbw:.2f} GB/s\n"
    return f"{verdict.verdict.upper()}\n{about}" + "".join(f"  - {reason}\n" for reason in verdict.reasons)


if __name__ == "__main__":
    sys.exit(main())
