"""GPUs that Podman can give to a container, by the Container Device Interface (CDI).

A CDI specification is a file of JSON or YAML that names devices of a kind, and what a container gets with each: device
files, libraries of the driver, programs, hooks (github.com/cncf-tags/container-device-interface, SPEC.md). NVIDIA's
`nvidia-ctk cdi generate` writes one for `nvidia.com/gpu`. Podman reads them since 4.1, in two folders, each time a
container starts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpucluster.errors import EnvironmentFault

KIND = "nvidia.com/gpu"
#: Where Podman looks. Of a device that both have, the second one counts.
FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
GENERATE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_ENDINGS = (".json", ".yaml", ".yml")
# The device file of one GPU; others, such as /dev/nvidiactl, come with each of them.
_WHOLE = re.compile(r"/dev/nvidia([0-9]{1,3})")
# Device files of instances of a divided GPU (MIG).
_OF_INSTANCES = "/dev/nvidia-caps/"


@dataclass(frozen=True)
class MachineGpu:
    """A GPU of this machine that is not divided.

    Args:
        device: how Podman's `--device` names it, such as "nvidia.com/gpu=0".
        number: of its device file, /dev/nvidia<number>, which a container sees with the same number.
        names: all that the specification has for it: an older one may have had another first.
    """

    device: str
    number: int
    names: frozenset[str]


def machine_gpus(kind: str = KIND, folders: Sequence[Path] = FOLDERS) -> tuple[MachineGpu, ...]:
    """The whole GPUs that specifications of a kind name, by the numbers of their device files.

    A GPU has several names there: its index, its UUID. The UUID is taken where there is one: it names the same card
    also after another one was removed.

    Raises:
        EnvironmentFault: there is no specification of the kind, one can't be read, or it names no whole GPU.
    """
    names: dict[int, list[str]] = {}
    read, divided = [], False
    for file in _files(folders):
        specification = _read(file)
        if specification.get("kind") != kind:
            continue
        read.append(file)
        for name, paths in _devices(file, specification):
            numbers = {int(device_names[1]) for device_names in map(_WHOLE.fullmatch, paths) if device_names}
            divided = divided or any(path.startswith(_OF_INSTANCES) for path in paths)
            if len(numbers) == 1 and not any(path.startswith(_OF_INSTANCES) for path in paths):
                names.setdefault(numbers.pop(), []).append(name)
    where = ", ".join(map(str, folders))
    if not read:
        raise EnvironmentFault(
            f"Podman knows no GPU of this machine: there is no CDI specification of {kind} in {where}",
            hint=f"Install NVIDIA's driver and its container toolkit on this machine (the package "
            f"nvidia-container-toolkit-base), then run: {GENERATE}",
        )
    if not names:
        why = (
            "its GPUs are divided (MIG)"
            if divided
            else "it names no device with a file /dev/nvidia0, /dev/nvidia1, ..."
        )
        hint = "Make them whole (nvidia-smi -mig 0)" if divided else "Look whether nvidia-smi sees the GPUs"
        raise EnvironmentFault(
            f"the CDI specification of {kind} has no whole GPU: {why}",
            where=", ".join(map(str, read)),
            hint=f"{hint}, then run: {GENERATE}",
        )
    return tuple(
        MachineGpu(f"{kind}={_preferred(device_names)}", number, frozenset(f"{kind}={name}" for name in device_names))
        for number, device_names in sorted(names.items())
    )


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise EnvironmentFault(f"can't read the folder: {error.strerror}", where=str(folder)) from error
        yield from (folder / name for name in names if name.endswith(_ENDINGS))


def _read(file: Path) -> Mapping[str, Any]:
    """A specification; empty if the file contains something else. Podman leaves out what it can't read, too."""
    try:
        text = file.read_text()
        document = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return document if isinstance(document, Mapping) else {}


def _devices(file: Path, specification: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Name, and paths of the device files in the container, of each device."""
    try:
        for device in specification["devices"]:
            nodes = (device.get("containerEdits") or {}).get("deviceNodes") or []
            yield str(device["name"]), [str(node["path"]) for node in nodes]
    except (AttributeError, KeyError, TypeError) as error:
        raise EnvironmentFault(
            f"the CDI specification can't be used: {type(error).__name__}: {error}",
            where=str(file),
            hint=f"Write it again: {GENERATE}",
        ) from error


def _preferred(names: Sequence[str]) -> str:
    """A UUID, else the shortest name; `all` only where nothing else names the one GPU."""
    return min(names, key=lambda name: (not name.startswith("GPU-"), name == "all", len(name), name))
