"""Divided GPUs (NVIDIA's Multi-Instance GPU) as a node, Slurm and the operator's side name them. Pure.

`NodeExpectation.mig` has a text for each GPU, in the order of nvidia-smi: its instances as `nvidia-smi mig -cgi` takes
them (`3g.40gb:4,1g.10gb:0`: profile, and the slice of memory at which the instance begins), "" for a whole GPU.

Slurm's gres.conf names device files, and the numbers of the files of an instance are known on the node only, after it
was made. So the node has links with fixed names (`FOLDER`), and one gres.conf is right for all nodes of a pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: The links and the record of a node. In /run: instances do not outlive a boot. A node that has some of the GPUs of a
#: machine (the local cloud) has links to whole GPUs here.
FOLDER = "/run/gpucluster/mig"
#: In it: a line for each device, `7 MIG-c7384736-...`, for the prolog of tasks.
NAMES = "names"


def gpu_link(number: int) -> str:
    """The link to what Slurm counts as this GPU: Slurm takes the number from its end."""
    return f"{FOLDER}/gpu{number:02d}"


def gpu_links(gpus: int) -> tuple[str, ...]:
    """The links of a node with this number of whole GPUs (`node_agent.gpu_links`)."""
    return tuple(map(gpu_link, range(gpus)))


class MigInstance(NamedTuple):
    """An instance: its profile (`1g.10gb`), and the slice of the GPU's memory at which it begins."""

    profile: str
    start: int


class MigDevice(NamedTuple):
    """What Slurm gives to jobs: an instance, or a GPU that is not divided (`instance` is None).

    `number` is Slurm's number of it on the node: its place in gres.conf.
    """

    number: int
    type: str
    gpu: int
    instance: MigInstance | None

    @property
    def link(self) -> str:
        """The link to the capability of the GPU instance, or to the whole GPU."""
        return gpu_link(self.number)

    @property
    def compute_link(self) -> str:
        """The link to the capability of the compute instance."""
        return f"{FOLDER}/compute{self.number:02d}"

    @property
    def card_link(self) -> str:
        """The link to the GPU that contains the instance: every program that uses one opens that, too."""
        return f"{FOLDER}/card{self.number:02d}"

    @property
    def links(self) -> tuple[str, ...]:
        """All links of the device, in the order of gres.conf."""
        return (self.link, self.compute_link, self.card_link) if self.instance else (self.link,)


def text(instances: Sequence[MigInstance]) -> str:
    """The instances of a GPU as `nvidia-smi mig -cgi` takes them."""
    return ",".join(f"{instance.profile}:{instance.start}" for instance in instances)


def parse(words: str) -> tuple[MigInstance, ...]:
    """The instances of a text of `NodeExpectation.mig`.

    Raises:
        ValueError: it is something else.
    """
    instances = []
    for word in filter(None, words.split(",")):
        profile, _, start = word.partition(":")
        instances.append(MigInstance(profile, int(start)))
    return tuple(instances)


def gres_type(profile: str) -> str:
    """Slurm's type of an instance: the name of its profile. `+` stands between types in some of Slurm's messages."""
    return profile.replace("+", ".")


def devices(parts: Sequence[str], whole: str) -> tuple[MigDevice, ...]:
    """What Slurm gives to jobs on a node, in the order of its numbers: by type, then by GPU.

    Slurm numbers the devices of a node by type in the order of slurm.conf; numbers that follow the same order are the
    same wherever Slurm counts.

    Args:
        parts: `NodeExpectation.mig`.
        whole: Slurm's type of a GPU that is not divided.
    """
    each: list[tuple[str, int, MigInstance | None]] = []
    for gpu, words in enumerate(parts):
        instances = parse(words)
        each += [(gres_type(instance.profile), gpu, instance) for instance in instances] or [(whole, gpu, None)]
    each.sort(key=lambda device: (device[0], device[1], device[2].start if device[2] else 0))
    return tuple(MigDevice(number, *device) for number, device in enumerate(each))


def gres(gpus: Sequence[MigDevice]) -> str:
    """`Gres` of slurm.conf: `gpu:1g.10gb:4,gpu:3g.40gb:8`."""
    numbers: dict[str, int] = {}
    for device in gpus:
        numbers[device.type] = numbers.get(device.type, 0) + 1
    return ",".join(f"gpu:{name}:{number}" for name, number in numbers.items())
