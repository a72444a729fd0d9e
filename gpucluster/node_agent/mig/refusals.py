"""What nvidia-smi prints when it does not divide a GPU, and what to do then. Pure.

Sources: NVIDIA's MIG User Guide ("Enable MIG Mode", "Driver Clients", "Creating GPU Instances"), and public reports:
mig-parted issue 181 (nvidia_drm holds the GPU), gpu-operator issues 118 (nvidia-persistenced) and 1845 (pending for
ever on A100).
"""

from __future__ import annotations

import re

IN_USE = "in use by another client"
# "Warning: MIG mode is in pending enable state for GPU 00000000:07:00.0:In use by another client". The status is 0.
_PENDING = re.compile(r"MIG mode is in pending (?:enable|disable) state for GPU \S+?:(?=\D)(?P<why>[A-Z][^\n]*)")
_TELLING = re.compile(r"unable|failed|error|warning|insufficient", re.IGNORECASE)

_REMEDIES = (
    (IN_USE, "a program, DCGM, nvsm or the module nvidia_drm holds the GPU (fuser -v /dev/nvidia*)"),
    ("insufficient resources", "the GPU has no room for it beside the instances that are there: restart the host"),
    ("insufficient permissions", "nvidia-smi must run as root of the host"),
    ("not supported", "this GPU, its firmware or its driver has no MIG"),
    ("invalid", "the driver does not know this profile: compare `nvidia-smi mig -lgip`"),
    ("unable to determine the device handle", "the GPU does not answer: restart the host"),
)


def pending(output: str) -> str:
    """Why a new mode is not in effect yet, as nvidia-smi prints it; "" where it is."""
    match = _PENDING.search(output)
    return match["why"].strip() if match else ""


def explain(output: str) -> str:
    """What nvidia-smi said, and what to do. A mode that is pending for any reason but a program needs a restart."""
    why = pending(output)
    if why and IN_USE not in why.lower():
        return f"the new MIG mode waits for a restart of the host ({why})"
    line = why or _line(output)
    for words, remedy in _REMEDIES:
        if words in line.lower():
            return f"{line}: {remedy}"
    return line or "nvidia-smi printed nothing"


def _line(output: str) -> str:
    """The line with the reason: the first that names something that is not possible, else the last one."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.match(line)]
    return ((telling or lines[-1:]) or [""])[0][:200]
