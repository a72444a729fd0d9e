"""Which GPU of this node a job's number means: Slurm's number in SLURM_JOB_GPUS, and in the file of a running job.

Where no GPU is divided it is the number of a device file: gres.conf names /dev/nvidia0 and so on. Where GPUs are
divided (MIG, `mig`), and where a node has some of the GPUs of a machine (`gpu_links`), it is the number of
a link that gres.conf names, which leads to an instance or to a whole GPU. The links are what Slurm gives to jobs, so
they decide here, too, and not what the node should have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from gpucluster.node_agent import rdma_files
from gpucluster.node_agent.mig import collect
from gpucluster.node_agent.rules import mig

#: `Gpu.instance` where the node's GPUs are divided and the meaning of a number is not known.
UNKNOWN = "unknown"
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)
_LINK = re.compile(r"gpu([0-9]{2,3})")
_WHOLE = re.compile(r"/dev/nvidia([0-9]{1,3})")
_CAPABILITY = re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]{1,6})")
_ACCESS = re.compile(r"gpu([0-9]{1,3})/gi([0-9]{1,3})/access")
_NAME = re.compile(r"^([0-9]{1,3}) ((?:GPU|MIG)-\S{1,80})$", re.MULTILINE)
_MOST = 1 << 20


class Gpu(NamedTuple):
    """A GPU, or an instance of one, as NVIDIA's tools name it.

    Attributes:
        number: of the GPU. NVIDIA's tools number GPUs in the order of their PCI addresses.
        uuid: the name of the GPU or of the instance; empty if the driver does not report it.
        instance: the driver's number of the GPU instance (GPU_I_ID of DCGM); "" for a whole GPU.
    """

    number: str
    uuid: str
    instance: str = ""

    @property
    def whole(self) -> bool:
        """Whether figures of the GPU are those of its job."""
        return not self.instance

    @property
    def words(self) -> str:
        """As text; "" for an instance that is not known."""
        if self.instance == UNKNOWN:
            return ""
        return f"GPU {self.number}{f' instance {self.instance}' if self.instance else ''}"


class Numbers:
    """What numbers and names of GPUs mean on a node, at one moment.

    Args:
        proc: where /proc is.
        links: the folder with the links of divided GPUs.
    """

    def __init__(self, proc: str = "/proc", links: str = mig.FOLDER) -> None:
        targets, self.divided = _targets(links)
        self._whole = by_minor(f"{proc}/driver/nvidia/gpus", _own(targets))
        self._of: dict[str, Gpu] = {}
        if not self.divided:
            return
        minors = collect.minors(_text(proc + collect.MINORS[len("/proc") :]))
        accesses = ((_ACCESS.fullmatch(name), number) for name, number in minors.items())
        instances = {str(number): (access[1], access[2]) for access, number in accesses if access}
        names = dict(_NAME.findall(_text(f"{links}/{mig.NAMES}")))
        for number, target in targets.items():
            self._of[number] = self._behind(target, instances) or _unknown(number)
            if not self._of[number].whole:
                self._of[number] = self._of[number]._replace(uuid=names.get(number, ""))

    def _behind(self, target: str, instances: Mapping[str, tuple[str, str]]) -> Gpu | None:
        """The GPU to whose device file a link leads, or the instance to whose capability."""
        whole, capability = _WHOLE.fullmatch(target), _CAPABILITY.fullmatch(target)
        if whole:
            return self._whole.get(whole[1], Gpu(whole[1], ""))
        if not capability or capability[1] not in instances:
            return None
        minor, instance = instances[capability[1]]
        return Gpu(self._whole.get(minor, Gpu(minor, "")).number, "", instance)

    @property
    def instances(self) -> tuple[Gpu, ...]:
        """The instances that Slurm may give to jobs."""
        return tuple(gpu for gpu in self._of.values() if gpu.instance not in ("", UNKNOWN))

    def meaning(self, name: str) -> Gpu:
        """The GPU, or the instance, of a number of Slurm's or a UUID."""
        if not name.isdigit():
            known = (*self._of.values(), *self._whole.values())
            other = _unknown(name) if name.startswith("MIG-") else Gpu(name, "")
            return next((gpu for gpu in known if gpu.uuid == name), other)
        if self.divided:
            return self._of.get(str(int(name)), _unknown(name))
        return self._whole.get(name, Gpu(name, ""))


def _unknown(name: str) -> Gpu:
    """Not the GPU with this number: its figures would be those of others."""
    return Gpu(f"{UNKNOWN}-{name}", "", UNKNOWN)


def _targets(folder: str) -> tuple[dict[str, str], bool]:
    """Where the links lead, by Slurm's numbers; and whether GPUs are divided."""
    try:
        entries = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}, False
    except OSError:
        # Something is there that can't be seen: numbers must not be taken for those of device files.
        return {}, True
    targets = {}
    for entry in entries:
        link = _LINK.fullmatch(entry)
        if link:
            try:
                targets[str(int(link[1]))] = os.readlink(f"{folder}/{entry}")
            except OSError:
                targets[str(int(link[1]))] = ""
    return targets, bool(targets)


def _text(path: str) -> str:
    """A file of the driver or of root; "" where there is none."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read(_MOST)
    except OSError:
        return ""


def _own(targets: Mapping[str, str]) -> frozenset[str] | None:
    """The numbers of this host's device files, where all links lead to whole GPUs; None where they do not."""
    matches = [_WHOLE.fullmatch(target) for target in targets.values()]
    return frozenset(each[1] for each in matches if each) if matches and all(matches) else None


def by_minor(folder: str, own: frozenset[str] | None = None) -> dict[str, Gpu]:
    """NVIDIA's GPUs by the number of their device files.

    Both numbers are the same on most hosts; on some boards they are not.

    Args:
        own: the device files that this host has. An instance of the local cloud sees all GPUs of its machine in /proc,
            and NVIDIA's tools count those whose files it has. None: it has all.
    """
    gpus: dict[str, Gpu] = {}
    index = 0
    for address in rdma_files.names(folder):
        try:
            text = rdma_files.text(f"{folder}/{address}/information")
        except OSError:
            text = ""
        minor, uuid = _MINOR.search(text), _UUID.search(text)
        if own is not None and (minor is None or minor[1] not in own):
            continue
        if minor:
            gpus[minor[1]] = Gpu(str(index), uuid[1] if uuid else "")
        index += 1
    return gpus
