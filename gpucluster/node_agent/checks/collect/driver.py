"""NVIDIA's driver in its three places: loaded in the kernel, as a library of programs, and as a module on disk.

nvidia-smi reports none of this where the versions differ: it ends with `Driver/library version mismatch`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpucluster.node_agent.checks.collect.place import MeasuredHost, Unmeasured, entries, read_or_none

#: Where the loader of Debian, Ubuntu and Oracle Linux finds NVML, the library of nvidia-smi. On Oracle Linux /usr/lib
#: has those of 32 bits.
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_LIBRARY = "libnvidia-ml.so.1"
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
#: In modinfo's words for a module that the kernel does not have (kmod, tools/modinfo.c).
_NOT_FOUND = "not found"


def driver(host: MeasuredHost, seconds: float) -> dict[str, str]:
    """The versions: `loaded` and `on_disk`, empty where the kernel has no such module, and `library`.

    Raises:
        Unmeasured: one of them can't be found out.
    """
    return {"loaded": _loaded(host), "library": _library(host), "on_disk": _on_disk(host, seconds)}


def _loaded(host: MeasuredHost) -> str:
    if not entries(host.path("/sys/module")):
        raise Unmeasured(f"there is no {host.path('/sys/module')}")
    text = read_or_none(host.path("/sys/module/nvidia/version")) or ""
    text = text or read_or_none(host.path("/proc/driver/nvidia/version")) or ""
    match = _VERSION.search(text)
    if match is None and (text or "nvidia" in entries(host.path("/sys/module"))):
        raise Unmeasured(f"the kernel has the module nvidia, and no version of it: {text[:80]!r}")
    return match.group() if match else ""


def _library(host: MeasuredHost) -> str:
    """From the name of the file: `libnvidia-ml.so.1` is a link to `libnvidia-ml.so.580.95.05`."""
    for folder in _FOLDERS:
        link = host.path(f"{folder}/{_LIBRARY}")
        if link.is_symlink():
            name = Path(os.path.realpath(link)).name
            match = _VERSION.fullmatch(name.partition(".so.")[2])
            if match is None:
                raise Unmeasured(f"{link} is {name}, which has no version")
            return match.group()
    raise Unmeasured(f"there is no {_LIBRARY} in {', '.join(_FOLDERS)}")


def _on_disk(host: MeasuredHost, seconds: float) -> str:
    """That of the running kernel, which modprobe would load. A host of the local cloud has no modules."""
    if host.expected.hardware_emulated:
        return ""
    result = host.run(["modinfo", "--field", "version", "nvidia"], seconds)
    if result.status != 0 and _NOT_FOUND in result.errors:
        return ""
    match = _VERSION.fullmatch(result.output.strip())
    if result.status != 0 or match is None:
        raise Unmeasured(f"modinfo ended with status {result.status}: {result.words()}")
    return match.group()
