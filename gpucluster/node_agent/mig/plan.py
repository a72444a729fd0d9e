"""What must be done so that the GPUs are divided as they should be. Pure.

The driver loses all instances with a boot. The mode, in which a GPU can have any, is kept by Ampere's GPUs in their
InfoROM; from Hopper on it is lost, too, and turning it on needs no reset any more (MIG User Guide, "Enable MIG Mode").
So nothing is assumed: what is there decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucluster.node_agent.mig.collect import Card, There
from gpucluster.node_agent.rules import mig
from gpucluster.node_agent.rules.mig import MigDevice, MigInstance

ON, OFF = "Enabled", "Disabled"


class NotPossible(Exception):
    """The GPUs stay as they are; the message names one, and the reason."""


@dataclass(frozen=True)
class Step:
    """A call of nvidia-smi: its arguments, and what it does to which GPU, for messages."""

    words: tuple[str, ...]
    gpu: int
    what: str
    #: Whether it changes the mode: then no other program may hold the GPU.
    mode: bool = False


def steps(cards: Sequence[Card], parts: Sequence[str]) -> tuple[Step, ...]:
    """The calls that divide the GPUs; none where they are divided like this already.

    Args:
        parts: `NodeExpectation.mig`, as long as `cards`.

    Raises:
        NotPossible: a GPU can't be divided, waits for a restart, or a program runs on one that must change. Of the
            others none is changed either: jobs may run there.
    """
    if len(cards) != len(parts):
        raise NotPossible(f"the driver sees {len(cards)} of {len(parts)} GPUs")
    calls: list[Step] = []
    for index, (card, words) in enumerate(zip(cards, parts)):
        calls += _of_card(index, card, mig.parse(words))
    return tuple(calls)


def _of_card(index: int, card: Card, desired: Sequence[MigInstance]) -> list[Step]:
    if is_right(card, desired):
        return []
    if card.mode not in (ON, OFF):
        if not desired:
            return []
        raise NotPossible(f"GPU {index} can't be divided: nvidia-smi has {card.mode!r} as its MIG mode")
    if card.processes:
        raise NotPossible(
            f"GPU {index} is in use and stays as it is ({', '.join(card.processes)}): drain the node, and apply again"
        )
    which = ("-i", str(index))
    calls = []
    if any(there.compute_instance is not None for there in card.instances):
        calls.append(Step(("mig", *which, "-dci"), index, "remove its compute instances"))
    if card.instances:
        calls.append(Step(("mig", *which, "-dgi"), index, "remove its GPU instances"))
    mode = ON if desired else OFF
    if (card.mode, card.pending) != (mode, mode):
        calls.append(
            Step((*which, "-mig", "1" if desired else "0"), index, f"turn MIG mode {'on' if desired else 'off'}", True)
        )
    if desired:
        calls.append(Step(("mig", *which, "-cgi", mig.text(desired), "-C"), index, f"make {mig.text(desired)}"))
    return calls


def is_right(card: Card, desired: Sequence[MigInstance]) -> bool:
    """Whether a GPU is divided like this, and stays so."""
    mode = ON if desired else OFF
    if card.mode not in (ON, OFF):
        return not desired
    return (card.mode, card.pending) == (mode, mode) and not differences(card, desired)


def differences(card: Card, desired: Sequence[MigInstance]) -> list[str]:
    """What is not as it should be of the instances of a GPU, in words."""
    there = {each.instance: each for each in card.instances}
    words = [f"{_name(each)} is missing" for each in desired if each not in there]
    words += [f"{_name(each)} has no compute instance" for each in desired if each in there and not there[each].uuid]
    return words + [f"{_name(each)} should not exist" for each in there if each not in desired]


def _name(instance: MigInstance) -> str:
    return f"{instance.profile} at {instance.start}"


def links(cards: Sequence[Card], devices: Sequence[MigDevice], minors: Mapping[str, int]) -> dict[str, str]:
    """The links of the node: by their path, the device file to which each leads.

    Raises:
        NotPossible: an instance is not there, or the driver has no device file for it.
    """
    file_by_link: dict[str, str] = {}
    for device in devices:
        card = cards[device.gpu]
        file = f"/dev/nvidia{card.minor}"
        if device.instance is None:
            file_by_link[device.link] = file
            continue
        there = _there(card, device)
        name = f"gpu{card.minor}/gi{there.gpu_instance}"
        numbers = [minors.get(each) for each in (f"{name}/access", f"{name}/ci{there.compute_instance}/access")]
        if None in numbers:
            raise NotPossible(f"GPU {device.gpu}: mig-minors of the driver has no {name}: is it older than 450.80?")
        targets = (*(f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers), file)
        file_by_link.update(zip(device.links, targets))
    return file_by_link


def names(cards: Sequence[Card], devices: Sequence[MigDevice]) -> dict[int, str]:
    """By Slurm's number of a device, the name by which CUDA finds it."""
    return {
        device.number: _there(cards[device.gpu], device).uuid if device.instance else cards[device.gpu].uuid
        for device in devices
    }


def _there(card: Card, device: MigDevice) -> There:
    for each in card.instances:
        if each.instance == device.instance and each.uuid:
            return each
    raise NotPossible(f"GPU {device.gpu}: {device.type} is not there")
