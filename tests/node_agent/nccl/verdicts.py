"""Verdicts on outputs of nccl-tests, for the tests of this folder."""

from __future__ import annotations

from gpucluster.node_agent.nccl import text_output
from gpucluster.node_agent.nccl.judge import ExpectedRun, NcclVerdict, judge
from gpucluster.node_agent.nccl.shape_limits import SHAPES

A100, H100, H200, V100 = (SHAPES[f"BM.GPU{name}"] for name in ("4.8", ".H100.8", ".H200.8", "3.8"))


PAIR = ExpectedRun(A100, 2, 8)


def verdict(lines: list[str], wanted: ExpectedRun = PAIR) -> NcclVerdict:
    return judge(text_output.parse(lines), wanted)


def told(lines: list[str], wanted: ExpectedRun = PAIR) -> str:
    return " ".join(verdict(lines, wanted).reasons)


def of(lines: list[str], wanted: ExpectedRun = PAIR) -> str:
    return verdict(lines, wanted).verdict
