"""What a job of `gpucluster-agent measure` has measured, from its answer. What is not whole is not a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.controller.measure.launch import NO_PERFTEST, NO_PROGRAM, NO_RPING
from gpucluster.controller.measure.result import TOO_LONG
from gpucluster.measuring import perftest
from gpucluster.node_agent.checks.model import Missing, RefusedMeasurement
from gpucluster.node_agent.nccl import collectives, judge, text_output
from gpucluster.node_agent.nccl.measurement import Measurement
from gpucluster.node_agent.nccl.shape_limits import SHAPES

_ENDED = "ended"
BUILD = (
    "there is no all_reduce_perf on the nodes: build it with the sample job "
    "(cp -r /opt/gpucluster/samples/nccl_tests ~ && cd ~/nccl_tests && sbatch -N 2 all_reduce.sh IMAGE), "
    "or name it in verify.nccl_tests"
)
NOT_IN_IMAGE = (
    "there is no all_reduce_perf in the image: name its path in verify.nccl_tests, or another verify.nccl_image"
)
INSTALL_RPING = "there is no rping on the nodes: install the package librdmacm-utils, or rdmacm-utils"
INSTALL_PERFTEST = "there is no ib_write_bw on the nodes: install the package perftest"


@dataclass(frozen=True)
class JobAnswer:
    """How a job ended, and what it printed."""

    outcome: str
    why: str
    status: int
    output: str

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> JobAnswer:
        """From the JSON of the agent."""
        return cls(str(raw["outcome"]), str(raw["why"]), int(raw["status"]), str(raw["output"]))


#: What a run of nccl-tests gave: a verdict, what NCCL reported of a node on which it does not work, or nothing.
Nccl = judge.NcclVerdict | RefusedMeasurement | Missing


def nccl(answer: JobAnswer | Missing, expectation: judge.ExpectedRun, how_to_get: str = BUILD) -> Nccl:
    """The verdict on an output of nccl-tests that is whole, and of which all ranks measured together.

    A launch that went wrong is a fault of the launch, and not of a node. A program that began on one node and that
    NCCL ended there, or that hung before its table was whole, is evidence about that node.

    Args:
        how_to_get: the message where there is no program.
    """
    if isinstance(answer, Missing):
        return answer
    measured = text_output.parse(answer.output.splitlines())
    alone = expectation.nodes == 1 and measured.began
    if answer.outcome != _ENDED:
        hung = alone and answer.outcome == TOO_LONG and not measured.ends
        return (
            RefusedMeasurement("; ".join([f"NCCL hung: {answer.why}", *measured.causes]))
            if hung
            else Missing(answer.why)
        )
    if NO_PROGRAM in answer.output:
        return Missing(how_to_get)
    verdict = judge.judge(measured, expectation)
    ranks = expectation.nodes * expectation.gpus
    if _whole(measured, ranks) and verdict.ranks == ranks:
        if expectation.nodes > 1 and expectation.shape is not None and expectation.shape.wire and not measured.networks:
            return Missing("the output does not show which network NCCL used")
        # With wrong results nccl-tests end with a status, and that is what was measured.
        if answer.status == 0 or measured.in_bounds is False:
            return verdict
    reasons = "; ".join(verdict.reasons) if verdict.verdict != judge.PASS else ""
    status = f"the job ended with status {answer.status}: {_last(answer.output)}" if answer.status else ""
    message = "; ".join(part for part in (reasons, status) if part) or "the output is not whole"
    return RefusedMeasurement(message) if alone and measured.errors else Missing(message)


def _whole(measured: Measurement, ranks: int) -> bool:
    return (
        measured.tables == 1
        and measured.ends == 1
        and measured.in_bounds is not None
        and not measured.errors
        and len({device.rank for device in measured.devices}) == ranks
    )


def bandwidth(verdict: Nccl) -> float | None:
    """GB/s for the search: 0 where the results were wrong, None without a measurement."""
    if not isinstance(verdict, judge.NcclVerdict):
        return None
    return 0.0 if any(reason.startswith("results were wrong") for reason in verdict.reasons) else verdict.busbw


def rdma(answer: JobAnswer | Missing) -> Mapping[str, float] | Missing:
    """Gb/s of each device that was measured."""
    if isinstance(answer, Missing):
        return answer
    if answer.outcome != _ENDED:
        return Missing(answer.why)
    if NO_PERFTEST in answer.output:
        return Missing(INSTALL_PERFTEST)
    bandwidths = perftest.bandwidths(answer.output.splitlines())
    return bandwidths or Missing(f"ib_write_bw gave no result: {perftest.cause(answer.output)}")


def ping(answer: JobAnswer | Missing) -> Mapping[str, bool] | Missing:
    """Whether a connection by rdma_cm worked, by device."""
    if isinstance(answer, Missing):
        return answer
    if answer.outcome != _ENDED:
        return Missing(answer.why)
    if NO_RPING in answer.output or NO_PERFTEST in answer.output:
        return Missing(INSTALL_RPING if NO_RPING in answer.output else INSTALL_PERFTEST)
    return perftest.connections(answer.output.splitlines()) or Missing("rping gave no result")


def expectation(shape: str, nodes: int, gpus: int, algorithm: str) -> judge.ExpectedRun:
    """What a measurement of all_reduce is judged by."""
    return judge.ExpectedRun(SHAPES.get(shape), nodes, gpus, collectives.ALL_REDUCE, algorithm)


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"
