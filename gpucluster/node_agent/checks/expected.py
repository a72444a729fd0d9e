"""What a host should have: the file /etc/gpucluster/checks.json. Pure.

The operator's side makes it (`gpucluster.handover.expectations`) and gives it to Ansible as the variable
`node_expectation`; a role writes it to the host as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

#: Where it lies on every host.
PATH = "/etc/gpucluster/checks.json"
#: Increased when the meaning of a key changes.
VERSION = 1


class Damaged(Exception):
    """The file does not state what a host should have; the message has the reason."""


#: The service of hosts that share an NVLink fabric with others: among `services` there, and on no other host.
IMEX = "nvidia-imex"


@dataclass(frozen=True)
class NodeExpectation:
    """What a host should have.

    Args:
        shape: its name, "" for a host of unknown hardware.
        hardware_emulated: the host has less hardware than its shape (the local cloud). Checks of hardware are skipped,
            except for those of GPUs where `gpus_emulated` is false.
        gpus_emulated: its GPUs are among what it lacks. False on a host of the local cloud whose GPUs are those of the
            machine that runs it: `gpus` of them, perhaps of another model than the shape's.
        gpu_vendor: "nvidia", "amd", or "" without GPUs.
        gpu_model: as in Slurm's GRES: words of the product's name in lower case, joined by underscores.
        gpu_device_files: of the GPUs, in /dev.
        gpu_pcie_width: lanes of each GPU; 0 where that is not known.
        nvlinks: links of each GPU; 0 where it has none.
        nvlink_gb_per_s: least speed of one link in one direction, in GB/s.
        fabric_manager: whether nvidia-fabricmanager must run on the host.
        dcgm: whether DCGM is installed.
        rdma_devices: names below /sys/class/infiniband that the host uses.
        rdma_link_gbps: of each of their ports, in Gb/s; 0 where that is not known.
        drives: number of local NVMe drives.
        memory_mib: least memory that the kernel must see, in MiB: what Slurm gives to jobs. 0 where that is not known.
        mounts: paths at which a file system must be mounted.
        local_disk: where the local drives are mounted, or "".
        services: systemd units that must run.
        mig: of each GPU, in the order of nvidia-smi, what it is divided into (`rules.mig`), "" for a whole one;
            () on a host whose pool divides none.
        off: names of checks that cluster.yml switches off.
    """

    shape: str
    hardware_emulated: bool
    gpus_emulated: bool
    gpus: int
    gpu_vendor: str
    gpu_model: str
    gpu_device_files: tuple[str, ...]
    gpu_pcie_width: int
    nvlinks: int
    nvlink_gb_per_s: int
    fabric_manager: bool
    dcgm: bool
    rdma_devices: tuple[str, ...]
    rdma_link_gbps: int
    drives: int
    memory_mib: int
    mounts: tuple[str, ...]
    local_disk: str
    services: tuple[str, ...]
    mig: tuple[str, ...]
    off: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object, with the version of its form."""
        lists = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {"version": VERSION, **lists}

    @classmethod
    def from_dict(cls, data: Any) -> NodeExpectation:
        """From a JSON object. A key that is not known is ignored: a newer release may have written it.

        Raises:
            Damaged: a key is missing or has another type. Without it, a check would be skipped in silence.
        """
        if not isinstance(data, Mapping):
            raise Damaged("it is not a JSON object")
        if data.get("version") != VERSION:
            raise Damaged(f"its version is {data.get('version')!r}, and this program reads {VERSION}")
        types = get_type_hints(cls)
        return cls(**{each.name: _value(each.name, types[each.name], data) for each in fields(cls)})


def _value(name: str, value_type: Any, data: Mapping[str, Any]) -> Any:
    if name not in data:
        raise Damaged(f"it has no {name}")
    value = data[name]
    if value_type in (str, bool, int):
        good = type(value) is value_type and not (value_type is int and value < 0)
    else:
        good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        value = tuple(value) if good else value
    if not good:
        raise Damaged(f"{name} is {str(data[name])[:40]!r}")
    return value


def parse(text: str) -> NodeExpectation:
    """The content of the file.

    Raises:
        Damaged: it is something else.
    """
    try:
        return NodeExpectation.from_dict(json.loads(text))
    except ValueError as error:
        raise Damaged(f"it is not JSON: {error}") from None
