"""A double of the controller's program: it answers measurements as jobs of healthy and faulty nodes would.

The network is the simulator of the search; the outputs have nccl-tests' own form, and so they are parsed and judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster.fabric.model import FabricMeasurement
from gpucluster.measuring.results import JobAnswer
from gpucluster.node_agent.checks.model import Missing
from tests.fabric.simulator import Network
from tests.node_agent.nccl.outputs import BOUNDS, HEADER, UNITS, row

SHAPE_GPUS = 8
#: What the simulator calls healthy, and what an H100 reaches, in GB/s.
_SIMULATED, RING, DEFAULT, ALONE = 200.0, 380.0, 465.0, 470.0


def output(
    busbw: float, nodes: Sequence[str], *, gpus: int = SHAPE_GPUS, network: str = "IB", end: str = BOUNDS
) -> str:
    """The output of all_reduce_perf with one row."""
    ranks = len(nodes) * gpus
    factor = 2 * (ranks - 1) / ranks
    devices = [
        f"#  Rank {rank:2} Group  0 Pid {rank} on {nodes[rank // gpus]} device  {rank % gpus} [0000:0f:00] GPU\n"
        for rank in range(ranks)
    ]
    first = f"{nodes[0]}:1:1 [0] NCCL INFO Using network {network}\n# nThread 1 nGpus 1 minBytes 8589934592\n"
    return "".join([first, *devices, HEADER, UNITS, row(busbw / factor, factor), end])


@dataclass
class Session:
    """Answers like a session with the controller.

    Args:
        network: its nodes and faults.
        alone: GB/s of a node alone, where it is not that of a healthy one.
        write: Gb/s of ib_write_bw between two nodes, where it is not that of a healthy device.
        outcomes: by node, how each job with it ends, instead of a result.
        states: of nodes that are not idle.
    """

    network: Network
    alone: Mapping[str, float] = field(default_factory=dict)
    write: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    outcomes: Mapping[str, JobAnswer] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    healthy: tuple[float, float, float] = (RING, DEFAULT, ALONE)
    jobs: list[Mapping[str, Any]] = field(default_factory=list)

    def nodes(self) -> Mapping[str, str]:
        return {node: self.states.get(node, "idle") for block in self.network.blocks for node in block}

    def baseline(self) -> Mapping[str, Any]:
        return self.before

    def record(self, entries: Mapping[str, Any]) -> None:
        self.before |= entries

    def run(self, jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, JobAnswer | Missing]:
        self.jobs += jobs
        return {str(job["id"]): self._answer(job) for job in jobs}

    def _answer(self, job: Mapping[str, Any]) -> JobAnswer:
        nodes = tuple(job["nodes"])
        for node in nodes:
            if node in self.outcomes:
                return self.outcomes[node]
        if job["kind"] == "rdma":
            slow = self.write.get((nodes[0], nodes[1]), {})
            return JobAnswer("ended", "", 0, "".join(write_bw(each, slow.get(each, 196.9)) for each in job["devices"]))
        ring, default, alone = self.healthy
        if len(nodes) == 1:
            return JobAnswer("ended", "", 0, output(self.alone.get(nodes[0], alone), nodes, network="Socket"))
        device = job["settings"].get("NCCL_IB_HCA", "").lstrip("=")
        rail = int(device.removeprefix("mlx5_")) if device else None
        rail = None if rail is None else RAILS.index(rail)
        measured = self.network.measure(FabricMeasurement(tuple(sorted(nodes)), rail))
        assert measured is not None
        healthy = _SIMULATED if rail is None else 12.5
        figure = 23.0 if rail is not None else ring if job["settings"].get("NCCL_ALGO") == "Ring" else default
        return JobAnswer("ended", "", 0, output(measured / healthy * figure, nodes))


#: The numbers of an H100's RDMA devices, in its order.
RAILS = (0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17)


def write_bw(device: str, average: float) -> str:
    """The output of ib_write_bw for one device, in perftest's form (README, and outputs in public issues)."""
    return f"""gpucluster: device {device}
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : {device}
 Number of qps   : 2		Transport type : IB
 Connection type : RC		Using SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      10000            {average + 0.1:.2f}             {average:.2f}		   0.375
---------------------------------------------------------------------------------------
gpucluster: rping {device} 0
ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr
ping data: rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs
ping data: rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrst
client DISCONNECT EVENT...
"""
