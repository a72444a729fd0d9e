"""What a node's GPUs are divided into, as nvidia-smi reports it.

Forms of the outputs: NVIDIA's MIG User Guide ("Getting Started with MIG", "Device Nodes and Capabilities"), driver 580.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Callable

from gpucluster.node_agent.rules.mig import MigInstance

if TYPE_CHECKING:
    from xml.etree import ElementTree

#: See `minors`.
MINORS = "/proc/driver/nvidia-caps/mig-minors"
#: Runs a program with a limit in seconds; its status and what it printed on both outputs.
Run = Callable[[Sequence[str], float], "ProgramOutput"]

# |   0  MIG 1g.5gb       19        7          0:1     |
_GPU_INSTANCE = re.compile(r"\|\s*(\d+)\s+MIG\s+(\S+)\s+\d+\s+(\d+)\s+(\d+):\d+\s*\|")
# GPU 0: A100-SXM4-40GB (UUID: GPU-e86cb44c-...)
_CARD = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
#   MIG 3g.20gb Device 0: (UUID: MIG-c7384736-...)
_DEVICE = re.compile(r"\s+MIG \S+\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")
# Where there is nothing to list. nvidia-smi ends with a status that is not 0.
_NOTHING = ("no gpu instances found", "no mig-enabled devices found")
_MOST_PROCESSES = 3


class Unreadable(Exception):
    """The answer of nvidia-smi can't be read; the message quotes it."""


@dataclass(frozen=True)
class ProgramOutput:
    """How a program ended: its status, None where it did not end by itself, and what it printed."""

    status: int | None
    output: str

    @property
    def words(self) -> str:
        """What it printed, in one line that is not too long."""
        return " ".join(self.output.split())[:300]


@dataclass(frozen=True)
class There:
    """An instance that is there.

    Args:
        gpu_instance, compute_instance: the driver's numbers of them; the second is None where it has no compute
            instance, so that nothing can run in it.
        uuid: the name by which CUDA finds it (`MIG-...`), "" without a compute instance.
    """

    instance: MigInstance
    gpu_instance: int
    compute_instance: int | None
    uuid: str


@dataclass(frozen=True)
class Card:
    """A GPU of the node.

    Args:
        minor: the number of its device file.
        mode, pending: "Enabled", "Disabled", or "N/A" where the GPU can't be divided.
        processes: what runs on it, `1234 (python)`.
    """

    minor: int
    uuid: str
    mode: str
    pending: str
    instances: tuple[There, ...]
    processes: tuple[str, ...]


def read(run: Run, seconds: float) -> tuple[Card, ...]:
    """The GPUs of the node, in the order of nvidia-smi.

    Args:
        seconds: the limit of all calls together.

    Raises:
        Unreadable: nvidia-smi does not answer, or its answers do not belong together.
    """
    each = seconds / 3
    query = _ask(run, ["-q", "-x"], each)
    if "<current_mig>Enabled" not in query:
        return parse(query, "", "")
    return parse(query, _ask(run, ["mig", "-lgi"], each), _ask(run, ["-L"], each))


def _ask(run: Run, words: Sequence[str], seconds: float) -> str:
    answer = run(["nvidia-smi", *words], seconds)
    if answer.status == 0 or any(nothing in answer.output.lower() for nothing in _NOTHING):
        return answer.output
    raise Unreadable(f"nvidia-smi {' '.join(words)} ended with status {answer.status}: {answer.words or 'no output'}")


def parse(query: str, instances: str, names: str) -> tuple[Card, ...]:
    """From the outputs of `nvidia-smi -q -x`, `nvidia-smi mig -lgi` and `nvidia-smi -L`.

    Raises:
        Unreadable: one of them is cut off, or they do not belong together.
    """
    root = document(query)
    made: dict[int, list[tuple[MigInstance, int]]] = {}
    for gpu, profile, number, start in _GPU_INSTANCE.findall(instances):
        made.setdefault(int(gpu), []).append((MigInstance(profile, int(start)), int(number)))
    uuids = _uuids(names)
    return tuple(_card(index, gpu, made.get(index, []), uuids) for index, gpu in enumerate(root.findall("gpu")))


def document(query: str) -> ElementTree.Element:
    """The output of `nvidia-smi -q -x`.

    Raises:
        Unreadable: it is cut off, or something else.
    """
    from xml.etree import ElementTree  # on a host without GPUs it would only cost time

    # nvidia-smi writes warnings before or behind the XML.
    text = "".join(line for line in query.splitlines(keepends=True) if not line.startswith("WARNING:"))
    try:
        return ElementTree.fromstring(text)  # noqa: S314 - a program of root wrote it
    except ElementTree.ParseError as error:
        raise Unreadable(f"the output of nvidia-smi is cut off or no XML: {error}") from None


def _uuids(names: str) -> Mapping[tuple[int, int], str]:
    """The UUID of each instance by GPU and by the number that `nvidia-smi -L` calls its device."""
    uuids: dict[tuple[int, int], str] = {}
    gpu = -1
    for line in names.splitlines():
        card, device = _CARD.match(line), _DEVICE.match(line)
        if card:
            gpu = int(card[1])
        elif device:
            uuids[gpu, int(device[1])] = device[2]
    return uuids


def _card(
    index: int,
    gpu: ElementTree.Element,
    made: Sequence[tuple[MigInstance, int]],
    uuids: Mapping[tuple[int, int], str],
) -> Card:
    compute: dict[int, tuple[int, str]] = {}
    for device in gpu.findall("mig_devices/mig_device"):
        place, number, within = (_number(device, name) for name in ("index", "gpu_instance_id", "compute_instance_id"))
        if number in compute:
            raise Unreadable(f"GPU {index}: the GPU instance {number} has more than one compute instance")
        if (index, place) not in uuids:
            raise Unreadable(f"GPU {index}: nvidia-smi -L does not list its MIG device {place}")
        compute[number] = within, uuids[index, place]
    lost = compute.keys() - {number for _instance, number in made}
    if lost:
        raise Unreadable(f"GPU {index}: nvidia-smi mig -lgi does not list the GPU instance {min(lost)}")
    instances = [
        There(instance, number, *compute.get(number, (None, "")))
        for instance, number in sorted(made, key=lambda one: one[0].start)
    ]
    processes = [
        f"{each.findtext('pid', '?').strip()} ({each.findtext('process_name', '?').strip()[:60]})"
        for each in gpu.findall("processes/process_info")
    ]
    return Card(
        minor=_number(gpu, "minor_number"),
        uuid=gpu.findtext("uuid", "").strip(),
        mode=gpu.findtext("mig_mode/current_mig", "N/A").strip(),
        pending=gpu.findtext("mig_mode/pending_mig", "N/A").strip(),
        instances=tuple(instances),
        processes=tuple(processes[:_MOST_PROCESSES]),
    )


def _number(element: ElementTree.Element, name: str) -> int:
    text = element.findtext(name, "").strip()
    if not text.isdigit():
        raise Unreadable(f"nvidia-smi has {text!r} as {name}")
    return int(text)


def minors(text: str) -> dict[str, int]:
    """The driver's file `MINORS`: the number of a device file in /dev/nvidia-caps by the name of what it
    lets a program use: `gpu0/gi1/access`, `gpu0/gi1/ci0/access`. `gpu0` has the number of /dev/nvidia0.
    """
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004


def to_data(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """For a measurement of the checks: JSON has no tuples."""
    return [asdict(card) for card in cards]
