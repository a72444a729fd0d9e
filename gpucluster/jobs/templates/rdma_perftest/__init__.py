"""perftest and rping on each RDMA device, between pairs of nodes, by script and parsers of `gpucluster verify`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpucluster.controller.measure.launch import NO_DEVICE, NO_PERFTEST, NO_RPING, RDMA_SCRIPT
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
from gpucluster.jobs.outputs import finding, last_run
from gpucluster.measuring import perftest
from gpucluster.measuring.results import INSTALL_PERFTEST, INSTALL_RPING
from gpucluster.node_agent.checks.model import Finding, Status, worst
from gpucluster.node_agent.nccl import limits
from gpucluster.text import count, some

_BANDWIDTH, _LATENCY, _SHARE = "bandwidth", "latency", "link_share"
_UNITS = {_BANDWIDTH: "Gb/s", _LATENCY: "us", _SHARE: ""}
#: In front of each line: the pair of nodes that it is of. `files/pairs.sh` writes it.
_LINE = re.compile(r"^gpucluster: pair (\S+) (\S+): (.*)$")
#: Seed 003, which is not of OCI: one port of 25 Gb/s with packets of 1,024 bytes, whose headers leave 92.6 % of it.
_ETHERNET = 23.14
#: A list in a message ends here.
_NAMED = 6


class _Measured(NamedTuple):
    """One device of one pair. None: nothing is known."""

    pair: str
    device: str
    gbps: float | None
    us: float | None
    rate: float | None
    connects: bool | None

    @property
    def name(self) -> str:
        return f"{self.pair} {self.device}".strip()


def _pairs(text: str) -> dict[str, list[str]]:
    """The lines of each pair. An output of perftest alone is of one pair, without a name."""
    by_pair: dict[str, list[str]] = {}
    lines = last_run(text).splitlines()
    for line in lines:
        match = _LINE.match(line)
        if match:
            by_pair.setdefault(f"{match[1]}-{match[2]}", []).append(match[3])
    return by_pair or {"": lines}


def _measured(text: str) -> Iterator[_Measured]:
    for pair, lines in _pairs(text).items():
        bandwidths, latencies = perftest.bandwidths(lines), perftest.latencies(lines)
        rates, connections = perftest.rates(lines), perftest.connections(lines)
        for device in dict.fromkeys((*rates, *bandwidths, *latencies, *connections)):
            yield _Measured(
                pair, device, bandwidths.get(device), latencies.get(device), rates.get(device), connections.get(device)
            )


def _devices(job: Job) -> tuple[str, ...]:
    """Those that must be measured, as far as it is known in advance."""
    named = job.text("devices")
    if job.text("interface") or named == "all":
        return ()
    return tuple(named.split(",")) if named else (job.shape.rdma_devices if job.shape else ())


def _limit(job: Job, rate: float | None) -> limits.BandwidthLimit | None:
    """What the bandwidth of a device is compared with, in Gb/s."""
    expect = job.number("expect")
    if expect:
        return limits.BandwidthLimit(expect, expect, "what was expected")
    if job.shape and job.shape.ib_write_gbps:
        published = float(job.shape.ib_write_gbps)
        return limits.BandwidthLimit(published, published, f"the published limit of {job.shape.name}")
    if rate:
        return limits.BandwidthLimit(
            limits.RING_SHARE * rate, limits.FAULT_SHARE * rate, f"a share of the link's {rate:g} Gb/s"
        )
    return None


def _judge(text: str, job: Job) -> JobResult:
    measured = tuple(_measured(text))
    # The first node of an odd number has two partners.
    expected = (job.nodes + 1) // 2
    pairs = _pairs(text)
    lost = [] if "" in pairs and expected == 1 else ["pairs of nodes"] if len(pairs) < expected or "" in pairs else []
    lost += [
        f"{pair} {device}".strip()
        for pair in pairs
        for device in _devices(job)
        if not any(each.gbps is not None for each in measured if (each.pair, each.device) == (pair, device))
    ]
    findings = [_bandwidth(measured, lost, text, job), _connection(measured, text, job)]
    if job.values["latency"]:
        findings.insert(1, _latency(measured, job))
    return JobResult(tuple(findings), _values(measured), _UNITS, _steps(measured))


def _values(measured: tuple[_Measured, ...]) -> dict[str, float]:
    """The worst of all devices counts: a job is as fast as its slowest."""
    values = {}
    speeds = [each.gbps for each in measured if each.gbps is not None]
    delays = [each.us for each in measured if each.us is not None]
    shares = [each.gbps / each.rate for each in measured if each.gbps is not None and each.rate]
    if speeds:
        values[_BANDWIDTH] = min(speeds)
    if delays:
        values[_LATENCY] = max(delays)
    if shares:
        values[_SHARE] = round(min(shares), 4)
    return values


def _steps(measured: tuple[_Measured, ...]) -> tuple[dict[str, float], ...]:
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(each.pair for each in measured))}
    return tuple(
        {"pair": float(numbers[each.pair]), "device": float(index), _BANDWIDTH: each.gbps}
        for index, each in enumerate(measured)
        if each.gbps is not None
    )


def _listed(names: list[str]) -> str:
    return some(names, _NAMED)


def _bandwidth(measured: tuple[_Measured, ...], lost: list[str], text: str, job: Job) -> Finding:
    slow: list[str] = []
    doubtful: list[str] = []
    unjudged: list[str] = []
    good: list[str] = []
    why = ""
    for each in measured:
        if each.gbps is None:
            continue
        limit = _limit(job, each.rate)
        value = f"{each.name} {each.gbps:.2f}"
        if limit is None:
            unjudged.append(value)
            continue
        why = f"{limit.good:.4g}, {limit.why}"
        kind = slow if each.gbps < limit.fault else doubtful if each.gbps < limit.good else good
        kind.append(value)
    results = [
        (Status.FAIL, slow, f"slow, in Gb/s: {_listed(slow)}; the limit is {why}"),
        (Status.UNKNOWN, doubtful, f"below {why}, which is not enough to name a bad device: {_listed(doubtful)}"),
        (Status.UNKNOWN, unjudged, f"no figure is published: {_listed(unjudged)}; give --set expect=GBPS"),
        (Status.UNKNOWN, lost, f"no result of {_listed(lost)}"),
    ]
    outcomes = [(status, message) for status, names, message in results if names]
    if not outcomes and good:
        outcomes = [(Status.PASS, f"{count(len(good), 'device')}, in Gb/s: {_listed(good)}; the limit is {why}")]
    if not any((slow, doubtful, unjudged, good)):
        outcomes = [(Status.UNKNOWN, f"ib_write_bw gave no result: {_reason(text)}")]
    return finding(
        job,
        "rdma_bandwidth",
        worst(status for status, _message in outcomes),
        "; ".join(message for _status, message in outcomes),
    )


def _reason(text: str) -> str:
    if NO_PERFTEST in text:
        return INSTALL_PERFTEST
    if NO_DEVICE in text:
        return "a node has no RDMA device: gpucluster verify"
    return perftest.cause(text)


def _latency(measured: tuple[_Measured, ...], job: Job) -> Finding:
    check = "rdma_latency"
    known = {each.name: each.us for each in measured if each.us is not None}
    absent = [each.name for each in measured if each.us is None]
    limit = job.shape.ib_write_lat_us if job.shape else None
    slow = [f"{name} {us:.2f}" for name, us in known.items() if limit and us > limit]
    if slow:
        return finding(job, check, Status.WARN, f"slow, in us: {_listed(slow)}; the limit is {limit}")
    if absent or not known:
        return finding(job, check, Status.UNKNOWN, f"no latency of {_listed(absent) or 'any device'}")
    most = f"{count(len(known), 'device')}, {max(known.values()):.2f} us and less"
    if not limit:
        return finding(job, check, Status.SKIP, f"{most}; no figure is published")
    return finding(job, check, Status.PASS, f"{most}; the limit is {limit}")


def _connection(measured: tuple[_Measured, ...], text: str, job: Job) -> Finding:
    check = "rdma_connection"
    bad = [each.name for each in measured if each.connects is False]
    absent = [each.name for each in measured if each.connects is None]
    if bad:
        return finding(job, check, Status.FAIL, f"rping: no connection by {_listed(bad)}")
    if absent or not measured:
        why = INSTALL_RPING if NO_RPING in text else f"rping gave no result of {_listed(absent) or 'any device'}"
        return finding(job, check, Status.UNKNOWN, why)
    return finding(job, check, Status.PASS, f"rping: {count(len(measured), 'device')}: all messages came back")


def _requirements(job: Job) -> tuple[Requirement, ...]:
    names = ("ib_write_bw", "ib_write_lat") if job.values["latency"] else ("ib_write_bw",)
    how = f"Install the package perftest on the nodes, or {job.launcher.scheduler.program_of()}"
    place = "Look at the checks of the node: gpucluster verify; and in a container, at /dev/infiniband"
    return (*(Requirement(Need.PROGRAM, name, how) for name in names), Requirement(Need.RDMA, "", place))


def _expectation(job: Job) -> Expectation:
    figures = []
    limit = _limit(job, None)
    if limit is not None:
        source = "you" if job.number("expect") else "shapes.toml"
        figures.append(
            Figure(_BANDWIDTH, "at least", limit.good, _UNITS[_BANDWIDTH], f"each device; {limit.why}", source)
        )
    else:
        share = Figure(
            _SHARE, "at least", limits.RING_SHARE, "", "each device, of its link's rate", "gpucluster verify"
        )
        figures.append(share)
    if job.shape and job.shape.ib_write_lat_us:
        condition = f"each device; the published limit of {job.shape.name}"
        figures.append(Figure(_LATENCY, "at most", job.shape.ib_write_lat_us, "us", condition, "shapes.toml"))
    if job.shape is None:
        figures.append(
            Figure(_BANDWIDTH, "about", _ETHERNET, "Gb/s", "Ethernet with 25 Gb/s, MTU 1024, -D60 -R", "seed 003")
        )
    return tuple(figures)


def _refuses(job: Job) -> str:
    return "one node has no partner: --nodes 2 or more" if job.nodes == 1 else ""


def _one(_job: Job) -> int:
    return 1


TEMPLATE = Template(
    name="rdma_perftest",
    title="perftest and rping: each RDMA device, between pairs of nodes",
    about=(
        "ib_write_bw, ib_write_lat and rping on each device of the shape, on named devices, or on that of a network "
        "interface. The nodes measure in pairs, all pairs at a time; the last of an odd number with the first. "
        "The result fails if a device is slower than the limit of the shape. Where no limit is published, 92 % of the "
        "link's rate is good, and less than half is a fault."
    ),
    ranks=Ranks.MPI,
    launchers=("srun", "pyxis", "mpirun", "sge", "pbs", "lsf", "kubernetes-job", "jobset"),
    options=(
        Option(
            "devices", "names separated by commas, or `all` of a node; default: those of the shape, else all",
            Kind.TEXT, pattern=r"[A-Za-z0-9_]+(,[A-Za-z0-9_]+)*",
        ),
        Option("interface", "measure the device of this network interface only, such as ens192", Kind.NAME),
        Option("queue_pairs", "queue pairs (-q)", Kind.INTEGER, 2, minimum=1),
        Option("seconds", "how long each device is measured (-D); 0: as perftest does", Kind.INTEGER, 0, minimum=0),
        Option(
            "gid_index", "the index of the device's address (-x): 3 on OCI. Empty: perftest's own choice",
            Kind.TEXT, "3", pattern=r"\d{1,3}",
        ),
        Option("rdma_cm", "connect by rdma_cm (-R), as rping does", Kind.FLAG, default=False),
        Option("latency", "measure the latency too (ib_write_lat)", Kind.FLAG, default=True),
        Option("expect", "Gb/s that each device must reach; 0: the limit of the shape", Kind.NUMBER, 0.0, minimum=0),
    ),
    payload=(Payload("pairs.sh"), Payload("rdma.sh", text=f"#!/bin/bash{RDMA_SCRIPT}")),
    requirements=_requirements,
    expectation=_expectation,
    judge=_judge,
    refuses=_refuses,
    per_node=_one,
    needs_gpus=False,
    needs_rdma=True,
)  # fmt: skip
