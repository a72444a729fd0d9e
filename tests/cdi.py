"""GPUs of this machine that are not there: a CDI specification of a test's own kind, with device files of its own.

The specification is real to Podman, which reads it and makes the devices in containers. Behind the device files there
is no driver: major 195 is NVIDIA's (Linux, Documentation/admin-guide/devices.txt), so opening one fails with ENXIO
where the control groups of a container allow the device, and EPERM where they do not.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpucluster.localcloud.podman.cdi import FOLDERS

MAJOR = 195
SMI = Path(__file__).parent / "doubles/nvidia_smi/nvidia-smi"
_SAID = Path(__file__).parent / "node_agent/checks/data/nvidia-smi-q-x.xml"


def uuid(number: int) -> str:
    """The name of a card, as the double of nvidia-smi reports it."""
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def specification(kind: str, numbers: Sequence[int], devices: Path | None = None) -> dict[str, Any]:
    """As `nvidia-ctk cdi generate` writes it: each card by index and by UUID, and all together.

    Args:
        numbers: of the device files.
        devices: where the files are; None: in /dev.
    """
    nodes = {
        number: {"path": f"/dev/nvidia{number}", "hostPath": str((devices or Path("/dev")) / f"nvidia{number}")}
        for number in numbers
    }
    named = [
        {"name": name, "containerEdits": {"deviceNodes": [nodes[number]]}}
        for index, number in enumerate(numbers)
        for name in (str(index), uuid(number))
    ]
    everything = {"name": "all", "containerEdits": {"deviceNodes": list(nodes.values())}}
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": [*named, everything]}


@contextmanager
def planted(folder: Path, numbers: Sequence[int]) -> Iterator[str]:
    """A specification in /etc/cdi with GPUs of these numbers, until the block ends. Gives its kind, which is new.

    Args:
        folder: for the device files.
    """
    kind = f"gctest-{secrets.token_hex(4)}.test/gpu"
    for number in numbers:
        os.mknod(folder / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(MAJOR, number))
    text = specification(kind, numbers, folder)
    text["containerEdits"] = {
        "mounts": [
            {"hostPath": str(place), "containerPath": at, "options": ["ro", "nosuid", "nodev", "bind"]}
            for place, at in ((SMI, "/usr/bin/nvidia-smi"), (_SAID, "/usr/share/nvidia-smi-double.xml"))
        ]
    }
    file = FOLDERS[0] / f"{kind.partition('.')[0]}.json"
    while not file.exists():
        with suppress(FileNotFoundError):  # another test has just removed the folder
            FOLDERS[0].mkdir(exist_ok=True)
            file.write_text(json.dumps(text))
    try:
        yield kind
    finally:
        file.unlink()
        with suppress(OSError):  # it was there, or another test uses it
            FOLDERS[0].rmdir()
