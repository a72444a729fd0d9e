"""The verdict on a measurement of nccl-tests. Pure: a measurement and what was expected in, a verdict with reasons out.

A wrong launch can look right: without working PMI each task is alone, prints a good table and never uses the network.
The ratio of the two bandwidths shows how many ranks there really were. What is missing is never taken for good:
without a complete table, checked results or something to compare with, the verdict is "unknown".
"""

from __future__ import annotations

from typing import NamedTuple

from gpucluster.node_agent.nccl import causes, collectives, gpu_models, limits, log_causes
from gpucluster.node_agent.nccl.measurement import TIME_LIMIT, Measurement, Row
from gpucluster.node_agent.nccl.shape_limits import ShapeLimits

PASS = "pass"  # noqa: S105 - no password
FAIL = "fail"
UNKNOWN = "unknown"


class ExpectedRun(NamedTuple):
    """What should have been measured.

    Attributes:
        shape: of the nodes; None for one that gpucluster does not know.
        gpus: on each node; 0 to take how many the output names.
        operation: such as all_reduce; None to take what the output names.
        algorithm: "ring" or "default"; None to take what the output shows.
        expect: GB/s that the bus bandwidth must reach, instead of the limit of the shape; None for that limit.
    """

    shape: ShapeLimits | None
    nodes: int
    gpus: int
    operation: str | None = None
    algorithm: str | None = None
    expect: float | None = None


class NcclVerdict(NamedTuple):
    """The verdict: "pass", "fail" or "unknown".

    Attributes:
        reasons: why; for "pass", what it was compared with.
        ranks: how many took part, as the bandwidths show it; None where they don't.
        size: of the message that was judged, in bytes.
        busbw: the mean of both halves of its row, in GB/s.
        limit: what it was compared with, in GB/s.
        of_a_node: the limit follows from what a node has: equal nodes are closer together than that.
    """

    verdict: str
    reasons: list[str]
    operation: str | None = None
    algorithm: str | None = None
    ranks: int | None = None
    size: int | None = None
    busbw: float | None = None
    limit: float | None = None
    of_a_node: bool = False


def judge(measured: Measurement, expected: ExpectedRun) -> NcclVerdict:
    """The verdict on a measurement. Where it is not good, its reasons begin with what NCCL warned of."""
    verdict = _judge(measured, expected)
    if verdict.verdict == PASS:
        return verdict
    return verdict._replace(reasons=[*measured.causes, *verdict.reasons])


def _judge(measured: Measurement, expected: ExpectedRun) -> NcclVerdict:
    if not measured.rows:
        errors = [f"the program reported: {error}" for error in measured.errors]
        hung = any(TIME_LIMIT in error for error in measured.errors)
        why = "the program hung until its time limit" if hung else "the program ended before it measured"
        return NcclVerdict(UNKNOWN, [f"there is no row with results: {why}", *errors])
    expected = expected if expected.gpus else expected._replace(gpus=_gpus(measured, expected.nodes))
    if not expected.gpus:
        return NcclVerdict(UNKNOWN, ["the output does not show how many GPUs each node has: give --shape or --gpus"])
    ranks = expected.nodes * expected.gpus
    last = max(measured.rows, key=lambda row: row.size)
    groups = {device.group for device in measured.devices}
    # Each group measures for itself; what an output shows is about one of them.
    ranks //= max(len(groups), 1)
    operations = _operations(measured, last, expected, ranks)
    named = operations[0]
    algorithm = expected.algorithm or _algorithm(measured)
    bus = _bus(last)
    basis = NcclVerdict(UNKNOWN, [], " or ".join(operations), algorithm, None, last.size, round(bus, 3))
    if named not in collectives.COLLECTIVES:
        return basis._replace(reasons=[f"nothing is known about the operation {named}: give --operation"])
    # The factors of many ranks lie close together: where the expected number fits, it is that.
    together = collectives.fits(named, last.out_of_place, ranks)
    basis = basis._replace(ranks=ranks if together else collectives.ranks_of(named, last.out_of_place))
    faults = [] if together else _apart(measured, last, named, ranks)
    if together or measured.tables <= 1:
        faults += _unnamed_devices(measured, ranks * max(len(groups), 1))
    faults += _right(measured)
    limit = _limit(operations, algorithm, expected, len(groups), measured)
    basis = basis if limit is None else basis._replace(limit=limit.good, of_a_node=limit.of_a_node)
    incomplete, run = _incomplete(measured, last), _run(measured, expected, named, algorithm, bus)
    # A sweep that was cut off has not reached the message that the limit is for.
    measurable = not incomplete and last.size >= limits.SMALLEST_MESSAGE
    if not faults and limit is not None and measurable and bus < limit.fault:
        why = limit.why_fault or limit.why
        faults.append(f"busbw {bus:.2f} GB/s with {last.size} bytes is below {limit.fault:.4g}, {why}")
        faults += _why_slow(measured, expected, run)
    over_sockets = _over_sockets(measured, expected, run)
    if over_sockets:
        faults += [over_sockets, *(each for each in _settings(measured, run) if each not in faults)]
    if faults:
        return basis._replace(verdict=FAIL, reasons=faults)
    doubts = _doubts(last, ranks, bus, limit, len(groups), expected, named)
    if doubts and measurable and ranks > 1 and (limit is None or bus < limit.good):
        doubts += _explanations(measured, run)
    if incomplete or doubts:
        return basis._replace(reasons=[*incomplete, *doubts])
    assert limit is not None
    return basis._replace(
        verdict=PASS, reasons=[f"busbw {bus:.2f} GB/s with {last.size} bytes reaches {limit.good:.4g}, {limit.why}"]
    )


def _bus(row: Row) -> float:
    """The mean of both halves, as the published limits are means of all columns."""
    halves = [row.out_of_place] if row.in_place is None else [row.out_of_place, row.in_place]
    return sum(half.bus.value for half in halves) / len(halves)


def _algorithm(measured: Measurement) -> str:
    return limits.RING if measured.settings.get("NCCL_ALGO", "").lower() == "ring" else limits.DEFAULT


def _apart(measured: Measurement, last: Row, operation: str, ranks: int) -> list[str]:
    """How the numbers show that the ranks did not measure together."""
    if measured.tables > 1:
        return [
            f"{measured.tables} tables were printed: the ranks did not find each other, and each measured itself. "
            "Try another MPI type (pmix, pmi2), or build nccl-tests with MPI=1"
        ]
    if last.out_of_place.algorithm.value <= 0:
        return []
    shown_ranks = collectives.ranks_of(operation, last.out_of_place)
    factor = last.out_of_place.bus.value / last.out_of_place.algorithm.value
    shown = f"the factor {factor:.3f}" if shown_ranks is None else f"that {shown_ranks} ranks took part"
    return [f"busbw / algbw of {operation} shows {shown}, and not those of {ranks}: they did not all find each other"]


def _unnamed_devices(measured: Measurement, every_rank: int) -> list[str]:
    """Whether as many ranks name their GPU as there should be."""
    lines = {(device.group, device.rank) for device in measured.devices}
    if not lines or every_rank in (len(lines), len(lines) * measured.gpus_per_line):
        return []
    return [f"{len(lines) * measured.gpus_per_line} ranks name their GPU, and not {every_rank}"]


def _right(measured: Measurement) -> list[str]:
    halves = [half for row in measured.rows for half in (row.out_of_place, row.in_place) if half is not None]
    if measured.in_bounds is False or any(half.wrong for half in halves):
        return ["results were wrong: this is a fault of a GPU or of the network, however fast it was"]
    return []


def _over_sockets(measured: Measurement, expected: ExpectedRun, run: log_causes.RunFacts) -> str | None:
    """Sockets are right on one node, where no network is used, and on shapes without RDMA."""
    if expected.nodes == 1 or expected.shape is None or not expected.shape.wire:
        return None
    line = log_causes.over_sockets(measured.log, run)
    if line is None and "Socket" not in measured.networks:
        return None
    shown = measured.log.no_device or line
    evidence = f' (on {shown.host}: "{shown.text}")' if shown else ""
    do = "is /etc/nccl.conf in the container, and /dev/infiniband?"
    return f"NCCL used sockets and not RDMA between the nodes{evidence}; {do}"


def _run(
    measured: Measurement, expected: ExpectedRun, operation: str, algorithm: str, bus: float
) -> log_causes.RunFacts:
    shape = expected.shape
    model = gpu_models.model(device.name for device in measured.devices) if shape is None else shape.model
    hosts = {device.rank: device.host for device in measured.devices}
    groups = max(len({device.group for device in measured.devices}), 1)
    # Each group has its own ranks from 0 on, and containers may have one name everywhere.
    apart = groups == 1 and len(set(hosts.values())) == expected.nodes
    nvlink = shape.nvlink if shape else gpu_models.nvlink(model)
    # Sums of the switches are faster than a ring. What is slower than a ring within a node has another cause.
    added = gpu_models.added_by_switches(model) and (expected.nodes > 1 or bus >= limits.NVLINK_SHARE * nvlink)
    return log_causes.RunFacts(
        expected.nodes, expected.gpus, bool(nvlink), added, shape.name if shape else "", shape.devices if shape else (),
        groups, hosts if apart else {}, operation, algorithm,
    )  # fmt: skip


def _settings(measured: Measurement, run: log_causes.RunFacts) -> list[str]:
    return causes.of_settings(measured.settings, nodes=run.nodes, added_by_switches=run.added_by_switches)


def _explanations(measured: Measurement, run: log_causes.RunFacts) -> list[str]:
    """Other programs first, then settings: they are what led to the rest."""
    hosts = [device.host for device in sorted(measured.devices, key=lambda each: each.rank)]
    return [
        *causes.of_others(measured.others),
        *_settings(measured, run),
        *log_causes.of_log(measured.log, run, direct=not causes.forbids_direct_copies(measured.settings)),
        *log_causes.of_times(measured.times, hosts),
    ]


def _why_slow(measured: Measurement, expected: ExpectedRun, run: log_causes.RunFacts) -> list[str]:
    """What explains a bandwidth that is a fault, or how to find out."""
    named, missing = _explanations(measured, run), _settings_missing(measured, expected)
    if named or (missing and measured.log.present):
        return [*named, *missing]
    if measured.log.present:
        do = "look for other programs on these GPUs, and at their clocks (nvidia-smi -q -d CLOCK)"
        return [f"NCCL's log names no cause: {do}"]
    again = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH"
    return [*missing, f"the output has no lines of NCCL that could name a cause: run again with {again}"]


def _gpus(measured: Measurement, nodes: int) -> int:
    """How many GPUs each node has, as the output names them; 0 where it does not."""
    named = len({(device.group, device.rank) for device in measured.devices}) * measured.gpus_per_line
    if named and named % nodes == 0 and len({device.host for device in measured.devices}) == nodes:
        return named // nodes
    layout = measured.log.layout
    return layout[1] if layout is not None and layout[0] == nodes else 0


def _settings_missing(measured: Measurement, expected: ExpectedRun) -> list[str]:
    """Settings of NCCL that the shape needs between nodes and that the output does not show."""
    if expected.shape is None or expected.nodes == 1:
        return []
    missing = [f"{name}={value}" for name, value in expected.shape.settings.items() if name not in measured.settings]
    if not missing:
        return []
    return [
        f"settings of {expected.shape.name} that the output does not show: {' '.join(missing)} (see /etc/nccl.conf)"
    ]


def _incomplete(measured: Measurement, last: Row) -> list[str]:
    doubts = [f"the program reported: {error}" for error in measured.errors]
    if last.out_of_place.algorithm.value <= 0:
        doubts.append("the row of the largest message has no bandwidth")
    if measured.tables > 1:
        doubts.append(f"there are {measured.tables} tables: judge the output of each run for itself")
    if measured.began and not measured.ends:
        doubts.append('the output is cut off: the line "Out of bounds values" is missing')
    elif measured.ends and measured.in_bounds is None:
        doubts.append("the results were not checked: run nccl-tests with -c 1")
    return doubts


def _operations(measured: Measurement, last: Row, expected: ExpectedRun, ranks: int) -> list[str]:
    """What may have been measured; more than one where the output does not name it.

    A name in a command line counts where it agrees with the row: the text may hold the names of others.
    """
    if expected.operation is not None:
        return [expected.operation]
    rooted = last.root >= 0
    if measured.operation is not None:
        known = collectives.COLLECTIVES.get(measured.operation)
        reduces = last.operator not in ("none", "")
        if known is None or known.exchanges or (known.reduces, known.rooted) == (reduces, rooted):
            return [measured.operation]
    return collectives.of_unnamed(last.operator, rooted, last.out_of_place, ranks)


def _limit(
    operations: list[str], algorithm: str, expected: ExpectedRun, groups: int, measured: Measurement
) -> limits.BandwidthLimit | None:
    """What the result is compared with. Where the operation is not known: the strictest, and nothing is a fault."""
    if expected.expect is not None:
        return limits.BandwidthLimit(expected.expect, expected.expect, "what was expected")
    if groups > 1:
        return None
    candidates = [_limit_of(each, algorithm, expected, measured) for each in operations]
    known = [limit for limit in candidates if limit is not None]
    if len(known) < len(candidates) or not known:
        return None
    strictest = max(known, key=lambda limit: limit.good)
    return strictest if len(known) == 1 else strictest._replace(fault=min(limit.fault for limit in known))


def _limit_of(
    operation: str, algorithm: str, expected: ExpectedRun, measured: Measurement
) -> limits.BandwidthLimit | None:
    """The limit of the shape, or of the GPUs that the output names."""
    if expected.shape is not None or expected.nodes > 1:
        return limits.choose(expected.shape, operation, algorithm, expected.nodes, expected.gpus)
    multicast = measured.log.multicast
    switches = measured.log.switches or (multicast is not None and multicast[0])
    names = [device.name for device in measured.devices]
    return limits.of_names(names, operation, expected.gpus, switches=switches)


def _doubts(
    last: Row,
    ranks: int,
    bus: float,
    limit: limits.BandwidthLimit | None,
    groups: int,
    expected: ExpectedRun,
    operation: str,
) -> list[str]:
    """Why a result without a fault can't be called good."""
    doubts = []
    if last.out_of_place.wrong is None and (last.in_place is None or last.in_place.wrong is None):
        doubts.append("the results were not checked: run nccl-tests with -c 1")
    if ranks == 1:
        doubts.append("one rank uses neither NVLink nor the network")
    elif last.size < limits.SMALLEST_MESSAGE:
        doubts.append(f"the largest message has {last.size} bytes: too few to judge; run with -e 8G")
    elif limit is None and groups > 1:
        doubts.append("the ranks measured in groups (NCCL_TESTS_SPLIT): no limit is known for that; give --expect")
    elif limit is None:
        why = limits.missing(expected.shape, operation, expected.nodes, expected.gpus)
        doubts.append(f"busbw {bus:.2f} GB/s: {why}")
    elif bus < limit.good:
        doubts.append(f"busbw {bus:.2f} GB/s is below {limit.good:.4g}, {limit.why}, which proves no fault")
    return doubts
