"""Packages that must not change below a loaded kernel module: which they are, and how dnf excludes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Regular expressions for the start of a name (`re.match`), which unattended-upgrades reads in the same way.
#: NVIDIA's driver, its libraries, firmware, fabric manager and subnet manager of NVLink. Not what works with any
#: driver: the container toolkit, DCGM, CUDA and its tools.
DRIVER = (
    r"nvidia-(?!(container|cuda-(dev|doc|gdb|toolkit)|cudnn|dcgm|docker|nsight|profiler|visual-profiler)([-0-9]|$))",
    r"libnvidia-(?!container)",
    r"(kmod|firmware|xserver-xorg-video|glx-alternative)-nvidia",
    r"linux-(modules|objects|signatures)-nvidia-",
    r"cuda-drivers",
    r"(libcuda1|libcudadebugger1|libnvcuvid1|libnvoptix1|libnvsdm|nvlsm)([-:_]|$)",
)
#: The kernel, its modules and the headers for which a module is built. Not linux-libc-dev, kernel-headers and
#: linux-firmware: no module is built for them.
KERNEL = (
    r"linux-(image|modules|headers)-",
    r"linux-(generic|lowlatency|oracle|virtual)(-|$)",
    r"kernel(-uek)?(-(core|devel|modules)|$)",
)
#: The modules and libraries of MLNX_OFED and DOCA-OFED, which are built for one kernel.
OFED = (r"(mlnx|ofed|doca)-", r"kmod-(mlnx|iser|isert|knem|srp|xpmem)", r"(knem|xpmem)([-0-9]|$)")
PATTERNS = (*DRIVER, *KERNEL, *OFED)

_OPTION = re.compile(r"(excludepkgs|exclude)\s*[=:](.*)")
_SECTION = re.compile(r"\[(.+)\]\s*$")


def to_hold(installed: Iterable[str]) -> list[str]:
    """The packages of a host with a GPU that are held, of those that are installed. Names may have an architecture."""
    return sorted(name for name in installed if any(re.match(pattern, name) for pattern in PATTERNS))


def blacklist() -> str:
    """The configuration of unattended-upgrades: it leaves out what has such a name, also a kernel that is new."""
    lines = "".join(f'  "{pattern}";\n' for pattern in PATTERNS)
    return "// Of gpucluster.\nUnattended-Upgrade::Package-Blacklist {\n" + lines + "};\n"


def with_excluded(text: str, before: Iterable[str], held: Iterable[str]) -> str:
    """The text of dnf.conf that excludes these packages, and no more those that we excluded `before`.

    What else it excludes stays. A text that is right already stays as it is.
    """
    lines = text.splitlines(keepends=True)
    start, end = _main(lines)
    found, kept = [], []
    at = start
    while at < end:
        option = _OPTION.match(lines[at])
        if option is None:
            kept.append(lines[at])
            at += 1
            continue
        words = option[2]
        at += 1
        while at < end and lines[at][:1] in (" ", "\t") and lines[at].strip():
            words += lines[at]
            at += 1
        found += [word for word in re.split(r"[\s,]+", words) if word]
    ours = list(held)
    wanted = list(dict.fromkeys([*(word for word in found if word not in set(before) - set(ours)), *ours]))
    if set(wanted) == set(found):
        return text
    head = lines[:start]
    if head and not head[-1].endswith("\n"):
        head[-1] += "\n"
    if start == end == len(lines) and not any(_section(line) == "main" for line in lines):
        head.append("[main]\n")
    line = [f"excludepkgs={','.join(wanted)}\n"] if wanted else []
    return "".join([*head, *line, *kept, *lines[end:]])


def _section(line: str) -> str:
    found = _SECTION.match(line)
    return found[1] if found else ""


def _main(lines: list[str]) -> tuple[int, int]:
    """Where the options of [main] begin and end; at the end of the file if it has none."""
    start = next((at + 1 for at, line in enumerate(lines) if _section(line) == "main"), len(lines))
    end = next((at for at in range(start, len(lines)) if _section(lines[at])), len(lines))
    return start, end
