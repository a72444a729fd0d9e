"""What NCCL's own log shows of a low bandwidth: one sentence each, with the line that shows it and what to do.

As `causes`, these explain a result that is low or not judged, and never make one bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gpucluster.node_agent.nccl import collectives
from gpucluster.node_agent.nccl.causes import FEW_CHANNELS
from gpucluster.node_agent.nccl.limits import DEFAULT, SMALLEST_MESSAGE
from gpucluster.node_agent.nccl.measurement import Line, Log, RankRoute

#: Kinds of paths that are NVLink: direct, and by way of another GPU.
_NVLINK_PATHS = ("LOC", "NVL", "NVB")
#: With two processes it is not known which one is slow. Healthy ones differ by some percent.
_FEWEST_PROCESSES, _SAME_TIME = 3, 1.2
#: So many names are enough for the reader.
_MOST = 3


class RunFacts(NamedTuple):
    """What was measured.

    Attributes:
        nodes: how many took part.
        gpus: on each node.
        nvlink: whether the GPUs of a node are known to be joined by NVLink.
        added_by_switches: whether NVSwitches can add up what these GPUs send, and that would explain the result.
        shape: its name; "" where it is not known.
        devices: RDMA devices of a node; none where that is not known.
        groups: how many groups of ranks measured for themselves.
        hosts: of each rank, as NCCL counts ranks; none where the output does not distinguish the nodes.
        operation: such as all_reduce.
        algorithm: "ring" or "default".
    """

    nodes: int
    gpus: int
    nvlink: bool
    added_by_switches: bool
    shape: str
    devices: tuple[str, ...]
    groups: int
    hosts: Mapping[int, str]
    operation: str
    algorithm: str


def of_log(log: Log, run: RunFacts, *, direct: bool = True) -> list[str]:
    """What explains a low bandwidth, what costs most first.

    Args:
        direct: whether NCCL's settings let the GPUs of a node exchange directly.
    """
    slow = [*_around_gpus(log, run), *_without_nvlink(log, run), *_through_memory(log, run), *_devices(log, run)]
    # Where GPUs can't exchange directly, NCCL itself takes few channels and no multicast.
    rest = [] if slow or not direct else [*_channels(log, run), *_multicast(log, run)]
    return [*slow, *rest, *_protocol(log), *_layout(log, run)]


def over_sockets(log: Log, run: RunFacts) -> Line | None:
    """The line that shows that nodes exchange over sockets."""
    return next((line for route, line in _between_nodes(log, run) if route.network == "Socket"), None)


def _between_nodes(log: Log, run: RunFacts) -> Iterator[tuple[RankRoute, Line]]:
    """The first line about each route of ranks that are on two nodes, or may be."""
    for route, pairs in log.routes.items():
        lines = [line for pair, line in pairs.items() if not _same_node(pair, run)]
        if lines:
            yield route, lines[0]


def of_times(times: Sequence[float], hosts: Sequence[str]) -> list[str]:
    """The process whose iterations differ most from those of the others.

    In a collective all wait for the last one, so that one which comes late shows a shorter time than those that wait.

    Args:
        times: microseconds of an iteration, of each process.
        hosts: of each process.
    """
    if len(times) < _FEWEST_PROCESSES:
        return []
    usual = median(times)
    worst = max(range(len(times)), key=lambda process: _apart(times[process], usual))
    if _apart(times[worst], usual) < _SAME_TIME:
        return []
    where = f"process {worst}" + (f" on {hosts[worst]}" if len(hosts) == len(times) else "")
    role = "the others wait for it" if times[worst] < usual else "it is slower itself"
    do = "look there for other programs, at the clocks of its GPUs (nvidia-smi -q -d CLOCK,PERFORMANCE) and processors"
    return [f"an iteration took {times[worst]:.0f} us in {where} and {usual:.0f} in the others: {role}; {do}"]


def _apart(time: float, usual: float) -> float:
    return max(time, usual) / max(min(time, usual), 1e-9)


def _around_gpus(log: Log, run: RunFacts) -> list[str]:
    """GPUs of one node that exchange through the host's memory or a network device."""
    sentences = []
    for route, pairs in log.routes.items():
        inside = sorted(pair for pair in pairs if route.transport == "SHM" or _same_node(pair, run))
        if route.transport == "P2P" or not inside:
            continue
        line = pairs[inside[0]]
        by = "through the host's memory (SHM)" if route.transport == "SHM" else f"over the network ({route.network})"
        who = f"ranks {_some([f'{one}->{other}' for one, other in inside])} of one node exchange {by}"
        if run.nvlink:
            do = (
                "unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, give the container all GPUs of the job, and look at "
                "nvidia-smi topo -p2p r"
            )
            sentences.append(_sentence(f"{who}, though NVLink joins their GPUs", line, do))
        else:
            sentences.append(
                _sentence(f"{who} and not directly", line, "nvidia-smi topo -p2p r shows what the hardware allows")
            )
    if log.forbidden is not None:
        do = "look at nvidia-smi topo -p2p r, at the IOMMU and at PCIe's ACS"
        sentences.append(_sentence("the driver does not let GPUs exchange directly", log.forbidden, do))
    return sentences


def _without_nvlink(log: Log, run: RunFacts) -> list[str]:
    if log.ring is None or log.ring[0] in _NVLINK_PATHS or not run.nvlink:
        return []
    do = "look at nvidia-smi nvlink --status, nvidia-smi topo -m and nvidia-fabricmanager"
    return [_sentence(f"NCCL's rings within a node use {log.ring[0]} and not NVLink", log.ring[1], do)]


def _through_memory(log: Log, run: RunFacts) -> list[str]:
    """RDMA without GPUDirect. On one node NCCL logs it as well, and it means nothing there."""
    if run.nodes == 1:
        return []
    do = "load nvidia_peermem (or a kernel and driver with DMA-BUF), and unset NCCL_NET_GDR_LEVEL"
    for route, line in _between_nodes(log, run):
        if route.transport == "NET" and route.network != "Socket" and not route.direct:
            return [_sentence("RDMA between nodes goes through the host's memory: without GDRDMA", line, do)]
    if log.indirect is None or over_sockets(log, run) or log.no_device:
        return []
    return [_sentence("RDMA between nodes goes through the host's memory: without GPUDirect", log.indirect, do)]


def _devices(log: Log, run: RunFacts) -> list[str]:
    """A host with fewer RDMA devices than the shape has, or with others."""
    if run.nodes == 1 or not run.devices or not log.devices:
        return []
    names, line = min(log.devices.values(), key=lambda each: len(each[0]))
    do = "give NCCL_IB_HCA as /etc/nccl.conf of the node has it, and /dev/infiniband to the container"
    lost = [name for name in run.devices if name not in names]
    if len(names) < len(run.devices):
        # Images without Oracle's packages call devices otherwise.
        which = f" (without {_some(lost)})" if len(lost) + len(names) == len(run.devices) else ""
        what = f"NCCL uses {len(names)} of the {len(run.devices)} RDMA devices of {run.shape}{which}"
        return [_sentence(what, line, do)]
    others = [name for name in names if name not in run.devices]
    if others and not lost:
        what = f"NCCL also uses {_some(others)}, which the RDMA network of {run.shape} has not"
        return [_sentence(what, line, do)]
    return []


def _channels(log: Log, run: RunFacts) -> list[str]:
    if log.channels is None or log.channels[0] >= FEW_CHANNELS or not (run.nvlink or run.devices):
        return []
    number, line = log.channels
    do = "unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS, also in /etc/nccl.conf and in the program's own settings"
    channels = "1 channel" if number == 1 else f"{number} channels"
    return [_sentence(f"NCCL uses {channels}, and {FEW_CHANNELS} or more are usual on such GPUs", line, do)]


def _multicast(log: Log, run: RunFacts) -> list[str]:
    uses_multicast = run.added_by_switches and run.operation == collectives.ALL_REDUCE and run.algorithm == DEFAULT
    if not uses_multicast or log.multicast is None or log.multicast[0]:
        return []
    do = "look at nvidia-fabricmanager and the driver of that host"
    return [_sentence("the NVSwitches do not add up what GPUs send (NVLS)", log.multicast[1], do)]


def _protocol(log: Log) -> list[str]:
    if log.protocol is None or log.protocol[1] != "LL" or log.protocol[0] < SMALLEST_MESSAGE:
        return []
    do = "unset NCCL_PROTO, and NCCL_TUNER_PLUGIN if one is set"
    return [_sentence("a large message was sent by LL, a protocol for small ones", log.protocol[2], do)]


def _layout(log: Log, run: RunFacts) -> list[str]:
    if log.layout is None or run.groups > 1 or log.layout[:2] == (run.nodes, run.gpus):
        return []
    nodes, ranks, line = log.layout
    what = f"NCCL counts {nodes} nodes and {ranks} ranks on this one, and not {run.nodes} with {run.gpus} each"
    return [_sentence(what, line, "look at how the launcher places tasks, and at NCCL_HOSTID")]


def _same_node(pair: tuple[int, int], run: RunFacts) -> bool:
    one, other = run.hosts.get(pair[0]), run.hosts.get(pair[1])
    return run.nodes == 1 or (one is not None and one == other)


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _MOST
    return ", ".join(known[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _sentence(what: str, line: Line, do: str) -> str:
    return f'{what} (on {line.host}: "{line.text}"); {do}'
