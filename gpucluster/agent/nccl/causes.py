"""What explains a bad result: what NCCL warned of, on which host and GPUs, and settings that forbid what is fast.

Neither is always a fault, so they explain a result that is bad or missing, and never make one bad.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Callable, NamedTuple

#: `[time] host:pid:tid [device] file:line NCCL WARN text`; the time is not always there.
_WARN = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]*):\d+:\d+ \[(-?\d+)\] .*?\bNCCL WARN (.*)")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_LONGEST, _MOST = 220, 3
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
    (re.compile(r"out of memory", re.IGNORECASE), "another program has the GPU's memory, or the message is too large"),
)


#: Variables that forbid or throttle what is fast, and what they do. Source: NCCL's documentation of its variables.
_SLOW: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "NCCL_P2P_DISABLE": (
        lambda value: value != "0",
        "GPUs exchange through the host's memory, not by NVLink",
    ),
    "NCCL_P2P_LEVEL": (lambda value: value.upper() in ("LOC", "0"), "GPUs do not exchange over NVLink"),
    "NCCL_SHM_DISABLE": (lambda value: value != "0", "GPUs that can't exchange directly use the network"),
    "NCCL_IB_DISABLE": (lambda value: value != "0", "nodes exchange over sockets, and not by RDMA"),
    "NCCL_NET_GDR_LEVEL": (lambda value: value.upper() in ("LOC", "0"), "RDMA goes through the host's memory"),
    "NCCL_MAX_NCHANNELS": (lambda value: value.isdigit() and int(value) < _FEW_CHANNELS, "few channels are used"),
    "NCCL_MAX_CTAS": (lambda value: value.isdigit() and int(value) < _FEW_CHANNELS, "few channels are used"),
    "NCCL_PROTO": (lambda value: value.upper() in ("LL", "LL128"), "a protocol for small messages is forced"),
    "NCCL_NVLS_ENABLE": (lambda value: value == "0", "the sums of the NVSwitches are not used"),
}
_FEW_CHANNELS = 8


def of_settings(settings: Mapping[str, str]) -> list[str]:
    """Which settings of NCCL, as the output shows them, explain a low bandwidth."""
    shown = {name: value.rstrip(".") for name, value in settings.items()}
    return [
        f"{name}={shown[name]} is set in the environment: {what}; unset it"
        for name, (slows, what) in _SLOW.items()
        if name in shown and slows(shown[name])
    ]


class _Warning(NamedTuple):
    host: str
    text: str


class Causes:
    """Collects warnings from the lines of an output. Memory does not grow with repeated lines."""

    def __init__(self) -> None:
        self._gpus: dict[_Warning, list[int]] = {}

    def line(self, line: str) -> None:
        """Read a line that has "NCCL WARN" in it."""
        found = _WARN.search(line)
        if not found:
            return
        warning = _Warning(found[1], _ADDRESS.sub("0x...", found[3].strip())[:_LONGEST])
        if warning in self._gpus or len(self._gpus) < 10 * _MOST:
            gpus = self._gpus.setdefault(warning, [])
            if int(found[2]) not in gpus:
                gpus.append(int(found[2]))

    def reasons(self) -> tuple[str, ...]:
        """The most telling ones, for people: those with a known meaning come first."""
        told = sorted(self._gpus.items(), key=lambda each: not _advice(each[0].text))
        return tuple(_sentence(warning, gpus) for warning, gpus in told[:_MOST])


def _sentence(warning: _Warning, gpus: list[int]) -> str:
    numbers = ", ".join(str(gpu) for gpu in sorted(gpus) if gpu >= 0)
    where = f"{warning.host}, GPU {numbers}" if numbers else warning.host
    advice = _advice(warning.text)
    return f"NCCL on {where}: {warning.text}" + (f" ({advice})" if advice else "")


def _advice(text: str) -> str:
    return next((advice for pattern, advice in _KNOWN if pattern.search(text)), "")
