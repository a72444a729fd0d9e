"""What explains a bad result: what NCCL warned of, on which host and GPUs, and settings that forbid what is fast.

Neither is always a fault, so they explain a result that is bad or missing, and never make one bad.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Callable, NamedTuple

#: `[time] host:pid:tid [device] file:line NCCL WARN text`; the time is not always there.
_WARN = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]*):\d+:\d+ \[(-?\d+)\] .*?\bNCCL WARN (.*)")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_LONGEST, _MOST = 220, 3
#: Begins a line of our own launch about a process that uses a GPU and is not a rank: then the node's name and `: `.
IN_USE = "gpucluster: GPU in use on"
#: What a warning means. Sources: NVIDIA/nccl issues 1788, 1672 and 1562 (NVLS), 1698, 426 and 1405 (completions);
#: status 12 is IBV_WC_RETRY_EXC_ERR of ibverbs.
_KNOWN = (
    (
        re.compile(r"bind NVLink SHARP|NVLS.*(?:error|fail)|multicast", re.IGNORECASE),
        "look at nvidia-fabricmanager and the NVSwitches of that host; NCCL_NVLS_ENABLE=0 does without them",
    ),
    (
        re.compile(r"Got completion from peer .*status=12\b|got completion with error 12\b", re.IGNORECASE),
        "the other side did not answer: look at cable, switch and GID index between this device and that peer",
    ),
    (
        re.compile(r"shared memory|/dev/shm", re.IGNORECASE),
        "the shared memory of that host (df /dev/shm) is full or too small",
    ),
    (re.compile(r"Driver/library version mismatch|CUDA driver version", re.IGNORECASE), "reboot the host"),
    (
        re.compile(r"P2P is disabled between NVLINK connected GPUs"),
        "look at the NVLink of these GPUs: nvidia-smi topo -p2p r, nvidia-smi nvlink --status",
    ),
    (re.compile(r"out of memory", re.IGNORECASE), "another program has the GPU's memory, or the message is too large"),
)

#: One carries about 25 GB/s between H100, of 450 that NVLink has. NCCL itself takes 24 between two H200 and four H100.
FEW_CHANNELS = 8
_SMALL_BUFFER, _FEW_THREADS = 1 << 20, 256
#: Variables that forbid or throttle what is fast, and what they do. Source: NCCL's documentation of its variables, with
#: the defaults of NCCL_BUFFSIZE (4 MiB) and NCCL_NTHREADS (512).
_SLOW: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "NCCL_P2P_DISABLE": (
        lambda value: value != "0",
        "GPUs exchange through the host's memory, not by NVLink",
    ),
    "NCCL_P2P_LEVEL": (lambda value: value.upper() in ("LOC", "0"), "GPUs do not exchange over NVLink"),
    "NCCL_SHM_DISABLE": (lambda value: value != "0", "GPUs that can't exchange directly use the network"),
    "NCCL_IB_DISABLE": (lambda value: value != "0", "nodes exchange over sockets, and not by RDMA"),
    "NCCL_NET_GDR_LEVEL": (lambda value: value.upper() in ("LOC", "0"), "RDMA goes through the host's memory"),
    "NCCL_MAX_NCHANNELS": (lambda value: value.isdigit() and int(value) < FEW_CHANNELS, "few channels are used"),
    "NCCL_MAX_CTAS": (lambda value: value.isdigit() and int(value) < FEW_CHANNELS, "few channels are used"),
    "NCCL_NET": (lambda value: value.lower() == "socket", "nodes exchange over sockets, and not by RDMA"),
    "NCCL_BUFFSIZE": (lambda value: value.isdigit() and int(value) < _SMALL_BUFFER, "the buffers are small"),
    "NCCL_NTHREADS": (lambda value: value.isdigit() and int(value) < _FEW_THREADS, "few threads copy the data"),
    "NCCL_PROTO": (lambda value: value.upper() in ("LL", "LL128"), "a protocol for small messages is forced"),
    # 259 GB/s and not 362 between four H200 that NVLink joins (NCCL 2.28).
    "NCCL_ALGO": (lambda value: value.lower() == "tree", "rings, which are faster for large messages, are not used"),
    "NCCL_NVLS_ENABLE": (lambda value: value == "0", "the sums of the NVSwitches are not used"),
}


#: What means nothing on one node, and without NVSwitches that add up.
_BETWEEN_NODES = frozenset(("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_GDR_LEVEL"))
_BY_SWITCHES = frozenset(("NCCL_NVLS_ENABLE",))
_DIRECT = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")


def of_settings(settings: Mapping[str, str], *, nodes: int, added_by_switches: bool) -> list[str]:
    """Which settings of NCCL, as the output shows them, explain a low bandwidth.

    Args:
        nodes: how many took part.
        added_by_switches: whether NVSwitches can add up what these GPUs send, and that would explain the result.
    """
    nothing = (_BETWEEN_NODES if nodes == 1 else frozenset()) | (frozenset() if added_by_switches else _BY_SWITCHES)
    shown = {name: value.rstrip(".") for name, value in settings.items() if name not in nothing}
    return [
        f"{name}={shown[name]} is set in the environment: {what}; unset it, also in /etc/nccl.conf"
        for name, (slows, what) in _SLOW.items()
        if name in shown and slows(shown[name])
    ]


def of_others(lines: Sequence[str]) -> list[str]:
    """Which other programs use the GPUs.

    Args:
        lines: what follows IN_USE, such as `gpu-1: python3 (process 4711)`.
    """
    most = ", and more" if len(lines) > _MOST else ""
    return (
        [f"another program uses a GPU: {'; '.join(lines[:_MOST])}{most}; end it, and look whose it is"] if lines else []
    )


def forbids_direct_copies(settings: Mapping[str, str]) -> bool:
    """Whether settings keep the GPUs of a node from exchanging over NVLink."""
    return any(_SLOW[name][0](settings[name].rstrip(".")) for name in _DIRECT if name in settings)


class _Warning(NamedTuple):
    host: str
    text: str


class Causes:
    """Collects warnings from the lines of an output. Memory does not grow with repeated lines."""

    def __init__(self) -> None:
        self._gpus: dict[_Warning, list[int]] = {}

    def line(self, line: str) -> None:
        """Read a line that has "NCCL WARN" in it."""
        match = _WARN.search(line)
        if not match:
            return
        warning = _Warning(match[1], _ADDRESS.sub("0x...", match[3].strip())[:_LONGEST])
        if warning in self._gpus or len(self._gpus) < 10 * _MOST:
            gpus = self._gpus.setdefault(warning, [])
            if int(match[2]) not in gpus:
                gpus.append(int(match[2]))

    def reasons(self) -> tuple[str, ...]:
        """The most telling ones, as text: those with a known meaning come first."""
        warnings = sorted(self._gpus.items(), key=lambda each: not _advice(each[0].text))
        return tuple(_sentence(warning, gpus) for warning, gpus in warnings[:_MOST])


def _sentence(warning: _Warning, gpus: list[int]) -> str:
    numbers = ", ".join(str(gpu) for gpu in sorted(gpus) if gpu >= 0)
    where = f"{warning.host}, GPU {numbers}" if numbers else warning.host
    advice = _advice(warning.text)
    return f"NCCL on {where}: {warning.text}" + (f" ({advice})" if advice else "")


def _advice(text: str) -> str:
    return next((advice for pattern, advice in _KNOWN if pattern.search(text)), "")
