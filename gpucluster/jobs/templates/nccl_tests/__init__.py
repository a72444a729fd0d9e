"""NVIDIA's nccl-tests. The verdict is that of `gpucluster-agent nccl judge`, with the limits of the shape."""

from __future__ import annotations

from gpucluster.jobs.model import (
    Expectation,
    Figure,
    Job,
    JobResult,
    Kind,
    Need,
    Option,
    Payload,
    Ranks,
    Requirement,
    Template,
)
from gpucluster.jobs.outputs import last_run
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.nccl import collectives, limits, text_output
from gpucluster.node_agent.nccl.judge import ExpectedRun
from gpucluster.node_agent.nccl.judge import judge as judge_measurement
from gpucluster.node_agent.nccl.shape_limits import SHAPES

_BUSBW = "busbw"
_UNIT = "GB/s"
#: nccl-tests read the letter before the B.
_SIZE = r"\d+([KMGkmg]B?)?"

#: What others have measured, with NCCL's own choice of algorithm unless the condition names one.
_PUBLISHED = (
    ("BM.GPU4.8", 1, 235.1, "8 GiB", "seed 000"),
    ("BM.GPU4.8", 1, 232.0, "-b 10G -e 10G", "seed 001"),
    ("BM.GPU4.8", 2, 224.7, "-b 10G -e 10G", "seed 002"),
    ("BM.GPU4.8", 2, 71.56, "a network that is not tuned: NCCL's settings for RoCE were missing", "seed 000"),
    ("BM.GPU3.8", 1, SHAPES["BM.GPU3.8"].measured[1, limits.DEFAULT], "-b 1G -e 1G", "seed 001"),
)
#: Seed 003, which is not of OCI: two nodes with one A100 each.
_ETHERNET = Figure(
    _BUSBW, "about", 2.81, _UNIT, "2 nodes, 1 A100 each, 97 % of what ib_write_bw reached on 25 Gb/s", "seed 003"
)


def _operation(job: Job) -> str:
    return job.text("operation")


def _requirements(job: Job) -> tuple[Requirement, ...]:
    needs = [Requirement(Need.GPUS, str(job.gpus), job.launcher.scheduler.more_gpus)]
    if job.text("program"):
        how = "Build nccl-tests with MPI=1, and name its folder: --set program=FOLDER/build/all_reduce_perf"
        needs.append(Requirement(Need.PROGRAM, job.text("program"), how))
    if job.nodes > 1 and job.rdma:
        how = "See the checks of the node (gpucluster verify), and in a container /dev/infiniband"
        needs.append(Requirement(Need.RDMA, "", how))
    return tuple(needs)


def _expectation(job: Job) -> Expectation:
    limit = limits.choose(
        SHAPES.get(job.shape.name) if job.shape else None, _operation(job), job.text("algorithm"), job.nodes, job.gpus
    )
    figures = []
    if job.number("expect"):
        figures.append(Figure(_BUSBW, "at least", job.number("expect"), _UNIT, "option expect", "you"))
    elif limit is not None:
        figures.append(Figure(_BUSBW, "at least", round(limit.good, 2), _UNIT, limit.why, "shapes.toml"))
    if _operation(job) != collectives.ALL_REDUCE:
        return tuple(figures)
    figures += [
        Figure(_BUSBW, "about", value, _UNIT, f"{nodes} x {shape}, {condition}", source)
        for shape, nodes, value, condition, source in _PUBLISHED
        if job.shape is None or (shape, nodes) == (job.shape.name, job.nodes)
    ]
    return (*figures, *([_ETHERNET] if job.shape is None else []))


def _judge(text: str, job: Job) -> JobResult:
    measured = text_output.parse(last_run(text).splitlines())
    verdict = judge_measurement(
        measured,
        ExpectedRun(
            SHAPES.get(job.shape.name) if job.shape else None,
            job.nodes,
            job.gpus,
            _operation(job),
            job.text("algorithm"),
            job.number("expect") or None,
        ),
    )
    evidence = {"ranks": verdict.ranks, "size": verdict.size, "limit": verdict.limit, "algorithm": verdict.algorithm}
    finding = Finding("nccl", job.template.name, Status(verdict.verdict), "; ".join(verdict.reasons), evidence)
    values = {} if verdict.busbw is None else {_BUSBW: verdict.busbw}
    steps = tuple({"bytes": float(row.size), _BUSBW: row.out_of_place.bus.value} for row in measured.rows)
    return JobResult((finding,), values, {_BUSBW: _UNIT}, steps)


def _refuses(job: Job) -> str:
    if job.nodes > 1 and not job.rdma and not job.text("device") and not job.values["without_rdma"]:
        where = job.shape.name if job.shape else "the shape that is not named"
        return (
            f"{where} has no RDMA network, so NCCL would use TCP. Measure one node (--nodes 1), or TCP: "
            "--set without_rdma=true"
        )
    return ""


TEMPLATE = Template(
    name="nccl_tests",
    whole_gpus=True,
    title="nccl-tests: how fast the GPUs of all nodes exchange data",
    about=(
        "One rank for each GPU. NCCL's settings are those of the node (/etc/nccl.conf). The program is taken from the "
        "image or the nodes, or else built once beside the script, from the sources of nccl-tests in the folder "
        "nccl-tests. The result fails if the ranks did not measure together, if a sum was wrong, or if the network is "
        "slower than the limit of the shape."
    ),
    ranks=Ranks.MPI,
    launchers=("pyxis", "srun", "mpirun", "sge", "pbs", "lsf", "kubernetes-job", "jobset", "mpijob"),
    options=(
        Option("operation", "what is measured", Kind.CHOICE, collectives.ALL_REDUCE, tuple(collectives.COLLECTIVES)),
        Option(
            "algorithm", "ring: NCCL_ALGO=Ring, which measures the network; default: NCCL's own choice",
            Kind.CHOICE, limits.DEFAULT, (limits.DEFAULT, limits.RING),
        ),
        Option("smallest", "the size of the smallest message (-b)", Kind.TEXT, "10G", pattern=_SIZE),
        Option(
            "largest", "the size of the largest message (-e); below 1G nothing can be judged", Kind.TEXT, "10G",
            pattern=_SIZE,
        ),
        Option("iterations", "how often each size is measured (-n)", Kind.INTEGER, 20, minimum=1),
        Option("program", "a program of nccl-tests; default: that of the image or node, else one is built", Kind.PATH),
        Option("debug", "NCCL_DEBUG: INFO shows the network that is used; default: as the node has it", Kind.NAME),
        Option("interface", "connect by this network interface (NCCL_SOCKET_IFNAME); default: of the node", Kind.NAME),
        Option("device", "use this RDMA device alone (NCCL_IB_HCA); default: all of the shape", Kind.NAME),
        Option("expect", "GB/s of bus bandwidth to reach; 0: the limit of the shape", Kind.NUMBER, 0.0, minimum=0),
        Option("without_rdma", "measure several nodes that have no RDMA network", Kind.FLAG, default=False),
    ),
    payload=(Payload("build.sh"),),
    requirements=_requirements,
    expectation=_expectation,
    judge=_judge,
    refuses=_refuses,
)  # fmt: skip
