"""The checks of level `full`: NCCL on one node, on pairs and on the pool, the search in the network, ib_write_bw."""

from __future__ import annotations

from collections.abc import Mapping

from gpucluster.fabric.model import FabricVerdict
from gpucluster.measuring import baseline
from gpucluster.measuring.plan import MeasuredPool
from gpucluster.node_agent.checks.model import (
    Check,
    CheckOutcome,
    Measurements,
    Profile,
    Reaction,
    Scope,
    Status,
    worst,
)
from gpucluster.node_agent.nccl import judge, limits

#: Measurements: a Verdict of nccl-tests with NCCL's own choice of algorithm, and with a ring.
DEFAULT, RING = f"nccl_{limits.DEFAULT}", f"nccl_{limits.RING}"
#: A `fabric` verdict of the pool; Gb/s by device; whether each device connects.
SEARCH, WRITE, PING = "search", "ib_write_bw", "rping"
#: Optional: what the other nodes or pairs of the pool reach in GB/s, and what the cluster reached before.
OTHERS, BEFORE = "others/", "before/"
_SECONDS = 30 * 60.0
_EMULATED = "the hardware is emulated, or that of this machine, of which nothing is published"
#: The pods of `verify` ask for all GPUs of a node as a number of a resource.
CLAIMED = (
    "verify measures no GPUs that pods claim (kubernetes.gpus: dra-driver); run the job: gpucluster job submit "
    "nccl_tests --nodes 1"
)


def _no_gpus(pool: MeasuredPool, _subject: str) -> str:
    if pool.shape.gpus < 2:  # noqa: PLR2004 - one GPU exchanges nothing
        return f"{pool.shape.name} has {pool.shape.gpus or 'no'} GPU" + ("" if pool.shape.gpus == 1 else "s")
    if pool.divided:
        return f"GPUs of the pool {pool.name} are divided (MIG), and instances have no NVLink"
    if pool.claimed:
        return CLAIMED
    return _EMULATED if pool.emulated else ""


def _no_network(pool: MeasuredPool, subject: str) -> str:
    return _no_gpus(pool, subject) or _no_devices(pool, subject)


#: Between nodes ranks need MPI and RDMA devices, which pods of `verify` have not.
BY_HAND = "verify measures nothing between nodes with Kubernetes; run the job: gpucluster job submit nccl_tests"


def _no_devices(pool: MeasuredPool, _subject: str) -> str:
    if not pool.rdma:
        return f"the pool {pool.name} has no RDMA network"
    if pool.nodes < 2:  # noqa: PLR2004
        return "one node has no network to others"
    if pool.emulated:
        return _EMULATED
    return BY_HAND if pool.resource else ""


def _nccl(measurements: Measurements, _pool: MeasuredPool, _subject: str) -> CheckOutcome:
    parts = [_one(measurements, name) for name in (DEFAULT, RING) if name in measurements]
    # In front what counts most.
    parts.sort(key=lambda part: part.status is not worst(each.status for each in parts))
    evidence = {key: value for part in parts for key, value in part.evidence.items()}
    return CheckOutcome(worst(part.status for part in parts), "; ".join(part.message for part in parts), evidence)


def _one(measurements: Measurements, name: str) -> CheckOutcome:
    """One algorithm."""
    verdict: judge.NcclVerdict = measurements[name]
    how = "Ring: " if name == RING else ""
    evidence = {name: {"busbw": verdict.busbw, "limit": verdict.limit, "size": verdict.size}}
    reasons = how + "; ".join(verdict.reasons)
    others, before = measurements.get(OTHERS + name), measurements.get(BEFORE + name)
    busbw = verdict.busbw or 0.0
    if verdict.verdict == judge.FAIL:
        return CheckOutcome(Status.FAIL, reasons, evidence)
    if verdict.verdict == judge.PASS:
        if others is not None and busbw < baseline.SHARE * others:
            share = f"{busbw / others:.0%} of what the others of the pool reach ({others:.2f})"
            words = f"{how}busbw {busbw:.2f} GB/s is {share}"
            if verdict.of_a_node:
                return CheckOutcome(Status.FAIL, f"{words}; {reasons}", evidence)
            return CheckOutcome(Status.WARN, f"{words}, and above the limit", evidence)
        return CheckOutcome(Status.PASS, reasons, evidence)
    reference = others if before is None else before
    if reference is None or (verdict.size or 0) < limits.SMALLEST_MESSAGE:
        hint = "record what this cluster reaches: gpucluster verify --level full --record-baseline"
        return CheckOutcome(Status.UNKNOWN, f"{reasons}; {hint}", evidence)
    whose = "the others of the pool reach" if before is None else "this cluster reached before"
    words = f"{how}busbw {busbw:.2f} GB/s is {busbw / reference:.0%} of what {whose} ({reference:.2f})"
    return CheckOutcome(Status.PASS if busbw >= baseline.SHARE * reference else Status.FAIL, words, evidence)


def _write(measurements: Measurements, pool: MeasuredPool, _subject: str) -> CheckOutcome:
    bandwidths: Mapping[str, float] = measurements[WRITE]
    shape = pool.shape
    evidence = {"Gb/s": dict(bandwidths), "limit": shape.ib_write_gbps}
    slow = {
        device: value
        for device, value in bandwidths.items()
        if shape.ib_write_gbps is not None and value < shape.ib_write_gbps
    }
    absent = [device for device in shape.rdma_devices if device not in bandwidths]
    if slow:
        listed = ", ".join(f"{device} {value:.1f}" for device, value in sorted(slow.items()))
        return CheckOutcome(Status.FAIL, f"slow, in Gb/s: {listed}; the limit is {shape.ib_write_gbps}", evidence)
    if absent:
        return CheckOutcome(Status.UNKNOWN, f"no result of {', '.join(absent)}", evidence)
    if shape.ib_write_gbps is None:
        return CheckOutcome(Status.UNKNOWN, f"no figure is published for {shape.name}", evidence)
    message = (
        f"{len(bandwidths)} devices, {min(bandwidths.values()):.1f} Gb/s and more; the limit is {shape.ib_write_gbps}"
    )
    return CheckOutcome(Status.PASS, message, evidence)


def _ping(measurements: Measurements, pool: MeasuredPool, _subject: str) -> CheckOutcome:
    connections: Mapping[str, bool] = measurements[PING]
    bad = [device for device in pool.shape.rdma_devices if connections.get(device) is False]
    absent = [device for device in pool.shape.rdma_devices if device not in connections]
    if bad:
        return CheckOutcome(Status.FAIL, f"no connection by {', '.join(bad)}", {"devices": bad})
    if absent:
        return CheckOutcome(Status.UNKNOWN, f"no result of {', '.join(absent)}")
    return CheckOutcome(Status.PASS, f"{len(connections)} devices connect")


def _node(measurements: Measurements, _pool: MeasuredPool, subject: str) -> CheckOutcome:
    verdict: FabricVerdict = measurements[SEARCH]
    if subject in verdict.nodes:
        return CheckOutcome(Status.FAIL, "slow with two healthy partners, with all of its devices")
    if subject in verdict.rails:
        return CheckOutcome(Status.WARN, "good but for single devices: see fabric_rail")
    if subject in verdict.unknown or verdict.reason:
        return CheckOutcome(Status.UNKNOWN, verdict.unknown.get(subject) or verdict.reason)
    if subject in verdict.apart:
        return CheckOutcome(Status.WARN, "good with some nodes, and slow with all others: see fabric_links")
    return CheckOutcome(Status.PASS, f"good with others; {verdict.measurements} measurements of the pool")


def _rail(measurements: Measurements, pool: MeasuredPool, subject: str) -> CheckOutcome:
    verdict: FabricVerdict = measurements[SEARCH]
    if subject in verdict.unknown or verdict.reason:
        return CheckOutcome(Status.UNKNOWN, verdict.unknown.get(subject) or verdict.reason)
    slow = [pool.shape.rdma_devices[rail] for rail in verdict.rails.get(subject, ())]
    if slow:
        evidence = {"devices": slow}
        return CheckOutcome(
            Status.FAIL, f"slow with healthy partners: {', '.join(slow)}; the other devices are good", evidence
        )
    return CheckOutcome(Status.PASS, "no single device is slow")


def _links(measurements: Measurements, _pool: MeasuredPool, _subject: str) -> CheckOutcome:
    verdict: FabricVerdict = measurements[SEARCH]
    faults = [
        *(f"{one} and {other} are slow together, and good with others" for one, other in verdict.pairs),
        *(f"all nodes of block {number} are slow: its switch" for number in verdict.switches),
        *(f"block {number} is slow with all others: its uplink" for number in verdict.uplinks),
        *(f"blocks {one} and {other} are slow together: the link between them" for one, other in verdict.links),
    ]
    if verdict.apart:
        faults.append(f"{', '.join(verdict.apart)} are good among themselves and slow with all others: a switch")
    if faults:
        return CheckOutcome(Status.FAIL, "; ".join(faults))
    if verdict.reason or verdict.unfinished:
        return CheckOutcome(Status.UNKNOWN, verdict.reason or verdict.unfinished)
    return CheckOutcome(Status.PASS, f"{verdict.measurements} measurements in {verdict.rounds} rounds")


_FULL = (Profile.FULL,)
_SLOW = "Run it again; if it stays slow, replace the node"
NODE: Check[MeasuredPool] = Check(
    "nccl_node", "NCCL between the GPUs of a node", Scope.NODE, _FULL, (DEFAULT,), _SECONDS,
    _SLOW, Reaction.DRAIN, _nccl, _no_gpus,
)  # fmt: skip
PAIR: Check[MeasuredPool] = Check(
    "nccl_pair", "NCCL between two nodes", Scope.PAIR, _FULL, (DEFAULT, RING), _SECONDS,
    "See fabric_node: it names which of the two is slow", Reaction.REPORT, _nccl, _no_network,
)  # fmt: skip
POOL: Check[MeasuredPool] = Check(
    "nccl_pool", "NCCL between all nodes of a pool", Scope.POOL, _FULL, (DEFAULT, RING), _SECONDS,
    "See fabric_node and fabric_links: they name the slow parts", Reaction.REPORT, _nccl, _no_network,
)  # fmt: skip
FABRIC_NODE: Check[MeasuredPool] = Check(
    "fabric_node", "A node is as fast in the network as others", Scope.NODE, _FULL, (SEARCH,), _SECONDS,
    _SLOW, Reaction.DRAIN, _node, _no_network,
)  # fmt: skip
FABRIC_RAIL: Check[MeasuredPool] = Check(
    "fabric_rail", "Each RDMA device of a node is as fast as the others", Scope.NODE, _FULL, (SEARCH,), _SECONDS,
    "See the device's cable and counters: ethtool --statistics, mlxlink", Reaction.REPORT, _rail, _no_network,
)  # fmt: skip
FABRIC_LINKS: Check[MeasuredPool] = Check(
    "fabric_links", "Pairs, switches and links of a pool", Scope.POOL, _FULL, (SEARCH,), _SECONDS,
    "Ask Oracle's support, with the output as evidence", Reaction.REPORT, _links, _no_network,
)  # fmt: skip
WRITE_BANDWIDTH: Check[MeasuredPool] = Check(
    "rdma_bandwidth", "ib_write_bw between two nodes, each device", Scope.PAIR, _FULL, (WRITE,), _SECONDS,
    "See the device's cable and counters: ethtool --statistics, mlxlink", Reaction.REPORT, _write, _no_devices,
)  # fmt: skip
CONNECTION: Check[MeasuredPool] = Check(
    "rdma_connection", "rping between two nodes, each device", Scope.PAIR, _FULL, (PING,), _SECONDS,
    "See the addresses of the RDMA interfaces: ip address; the route: ip route get ADDRESS", Reaction.REPORT,
    _ping, _no_devices,
)  # fmt: skip
CHECKS = (NODE, PAIR, POOL, FABRIC_NODE, FABRIC_RAIL, FABRIC_LINKS, WRITE_BANDWIDTH, CONNECTION)
