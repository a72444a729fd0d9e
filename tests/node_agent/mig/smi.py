"""A double of nvidia-smi for GPUs that can be divided, of systemctl, and of crictl.

It keeps a mode and instances as the driver does, and answers in the forms of driver 580: NVIDIA's MIG User Guide
("Getting Started with MIG") has the lines of `-mig`, `mig -cgi`, `-dci`, `-dgi`, `-lgi` and `-L` and their refusals;
public outputs have those of `-q -x` with MIG devices and their memory, and the refusal of `-dgi` while a compute
instance is there.

It does not prove that crictl's words are these in other releases, that a real driver makes these instances, how long it
takes, or that its words are the same in other releases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpucluster.node_agent.mig.collect import ProgramOutput

#: What nvidia-smi reports of a mode that is not in effect, and why. The first two are in the User Guide.
IN_USE = "In use by another client"
NO_RESET = "Not Supported"


@dataclass(frozen=True)
class Kind:
    """A GPU: of each profile its slices of memory, and where it can begin. Of the User Guide; without `tomllib`, which
    Python 3.9 has not, `gpucluster.mig` can't be read here."""

    name: str
    profiles: Mapping[str, tuple[int, tuple[int, ...]]]


def _seven(name: str, one: int) -> Kind:
    return Kind(
        name,
        {
            f"1g.{one}gb": (1, tuple(range(7))),
            f"2g.{2 * one}gb": (2, (0, 2, 4)),
            f"3g.{4 * one}gb": (4, (0, 4)),
        },
    )


A100, H100 = _seven("A100-80GB", 10), _seven("H100-80GB", 10)


@dataclass
class Made:
    profile: str
    start: int
    number: int
    compute: bool = True
    #: MiB of its memory.
    used: int = 12


@dataclass
class Card:
    """A GPU: its mode, its instances, who holds it, and what it refuses."""

    minor: int
    mode: str = "Disabled"
    pending: str = ""
    made: list[Made] = field(default_factory=list)
    processes: list[tuple[int, str]] = field(default_factory=list)
    #: Services, containers, or "" for a holder that is not a service; while one is active, a new mode is pending.
    held_by: list[str] = field(default_factory=list)
    #: How often a holder is still there before it has gone.
    busy: int = 0
    resets: bool = True


@dataclass
class Smi:
    """The driver of a node.

    Args:
        kind: the GPU, which has the profiles and their places.
        refuses: what any change answers: its output, with status 4.
    """

    kind: Kind
    cards: list[Card]
    active: list[str] = field(default_factory=list)
    refuses: str | None = None
    dead: str = ""
    calls: list[str] = field(default_factory=list)
    #: Running containers: by id the name of the container and the pod, which is its uid, too.
    containers: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __call__(self, argv: Sequence[str], _seconds: float) -> ProgramOutput:
        words = list(argv)
        if words[0] == "systemctl":
            return self._systemctl(words[1:])
        if words[0] == "crictl":
            return self._crictl(words[1:])
        assert words[0] == "nvidia-smi"
        if self.dead:
            return ProgramOutput(9, self.dead)
        reads = {
            "-q -x": lambda: ProgramOutput(0, self.query()),
            "-L": lambda: ProgramOutput(0, self.names()),
            "mig -lgi": self._instances,
        }
        if " ".join(words[1:]) in reads:
            return reads[" ".join(words[1:])]()
        self.calls.append(" ".join(words[1:]))
        return ProgramOutput(4, self.refuses) if self.refuses is not None else self._change(words[1:])

    def boot(self) -> None:
        """As Ampere: the mode stays, the instances do not. From Hopper on the mode is off, too."""
        for card in self.cards:
            card.made = []
            card.pending = ""
            card.mode = card.mode if self.kind.name.startswith("A100") else "Disabled"
        self.calls = []

    def _systemctl(self, words: list[str]) -> ProgramOutput:
        name = words[-1]
        if words[0] == "is-active":
            return ProgramOutput(0 if name in self.active else 3, "")
        self.calls.append(f"systemctl {' '.join(words)}")
        if words[0] == "stop":
            self.active.remove(name)
        else:
            self.active.append(name)
        return ProgramOutput(0, "")

    def _crictl(self, words: list[str]) -> ProgramOutput:
        """As crictl 1.36 answers, with a warning that it has no configuration."""
        if words == ["ps", "--state", "Running", "--output", "json"]:
            each = [
                {"id": number, "state": "CONTAINER_RUNNING", "labels": {
                    "io.kubernetes.container.name": name, "io.kubernetes.pod.name": pod,
                    "io.kubernetes.pod.namespace": "user-ada", "io.kubernetes.pod.uid": pod,
                }}
                for number, (name, pod) in self.containers.items()
            ]  # fmt: skip
            return ProgramOutput(
                0, json.dumps({"containers": each}, indent=2) + "\nWARN[0000] image connect using default endpoints"
            )
        self.calls.append(f"crictl {' '.join(words)}")
        # kubelet, while it runs, starts a container again at once.
        if "kubelet.service" not in self.active:
            del self.containers[words[-1]]
        return ProgramOutput(0, f"{words[-1]}\n")

    def _change(self, words: list[str]) -> ProgramOutput:
        index = int(words[words.index("-i") + 1])
        card = self.cards[index]
        if "-mig" in words:
            return self._mode(index, card, "Enabled" if words[-1] == "1" else "Disabled")
        if card.mode != "Enabled":
            return ProgramOutput(6, "No MIG-enabled devices found.")
        if "-cgi" in words:
            return self._create(index, card, words[words.index("-cgi") + 1], with_compute="-C" in words)
        if "-dci" in words:
            for each in card.made:
                each.compute = False
            return ProgramOutput(0, "".join(self._destroyed("compute", index, each) for each in card.made))
        held = next((each for each in card.made if each.compute), None)
        if held:
            one = f"Unable to destroy GPU instance ID {held.number:2} from GPU {index:2}: {IN_USE}\n"
            return ProgramOutput(19, f"{one}Failed to destroy GPU instances: {IN_USE}\n")
        gone, card.made = card.made, []
        return ProgramOutput(0, "".join(self._destroyed("GPU", index, each) for each in gone))

    def _destroyed(self, what: str, index: int, each: Made) -> str:
        within = f" GPU instance ID {each.number:2}" if what == "compute" else ""
        number = 0 if what == "compute" else each.number
        return f"Successfully destroyed {what} instance ID {number:2} from GPU {index:2}{within}\n"

    def _mode(self, index: int, card: Card, mode: str) -> ProgramOutput:
        bus = f"00000000:{index + 7:02X}:00.0"
        why = NO_RESET if not card.resets else ""
        there = {*self.active, *(name for name, _pod in self.containers.values()), ""}
        if there & set(card.held_by) or card.busy:
            card.busy = max(0, card.busy - 1)
            why = IN_USE
        if not why:
            card.mode, card.pending = mode, ""
            return ProgramOutput(0, f"{mode} MIG Mode for GPU {bus}\nAll done.\n")
        card.pending = mode
        what = "enable" if mode == "Enabled" else "disable"
        more = (
            f"{bus} is currently being used by one or more other processes (e.g. CUDA application or a monitoring "
            "application such as another instance of nvidia-smi). Please first kill all processes using the device and "
            "retry the command or reboot the system to make MIG mode effective."
            if why == IN_USE
            else f"Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU {bus}"
        )
        return ProgramOutput(
            0, f"Warning: MIG mode is in pending {what} state for GPU {bus}:{why}\n{more}\nAll done.\n"
        )

    def _create(self, index: int, card: Card, wanted: str, *, with_compute: bool) -> ProgramOutput:
        lines = []
        for word in wanted.split(","):
            name, _, at = word.partition(":")
            (size, starts), start = self.kind.profiles[name], int(at)
            taken = {
                slice_ for each in card.made
                for slice_ in range(each.start, each.start + self.kind.profiles[each.profile][0])
            }  # fmt: skip
            if start not in starts or taken & set(range(start, start + size)):
                lines += [
                    f"Unable to create a GPU instance on GPU {index:2} using profile {name}: Insufficient Resources",
                    "Failed to create GPU instances: Insufficient Resources",
                ]
                return ProgramOutput(19, "\n".join(lines))
            # The driver's numbers of GPU instances do not follow their order: 7 to 13 for the smallest.
            made = Made(name, start, 13 - start if size == 1 else 1 + start // 4, with_compute)
            card.made.append(made)
            lines.append(
                f"Successfully created GPU instance ID {made.number:2} on GPU {index:2} using profile MIG {name}"
            )
        return ProgramOutput(0, "\n".join(lines))

    def _instances(self) -> ProgramOutput:
        rows = [
            f"|  {index:2}  MIG {each.profile:<13} 19       {each.number:2}          {each.start}:1     |"
            for index, card in enumerate(self.cards) for each in sorted(card.made, key=lambda one: one.number)
        ]  # fmt: skip
        if not rows:
            return ProgramOutput(6, "No GPU instances found: Not Found\n")
        line = "+-------------------------------------------------------+\n"
        head = f"{line}| GPU instances:                                        |\n{line}"
        return ProgramOutput(0, head + "".join(f"{row}\n{line}" for row in rows))

    @staticmethod
    def _devices(card: Card) -> list[Made]:
        """In the order in which the driver counts MIG devices: by GPU instance."""
        return sorted((each for each in card.made if each.compute), key=lambda one: one.number)

    def names(self) -> str:
        lines = []
        for index, card in enumerate(self.cards):
            lines.append(f"GPU {index}: NVIDIA {self.kind.name} (UUID: GPU-{card.minor})")
            lines += [
                f"  MIG {each.profile:<12}  Device  {place}: (UUID: {uuid(card.minor, each.profile, each.start)})"
                for place, each in enumerate(self._devices(card))
            ]
        return "\n".join(lines) + "\n"

    def query(self) -> str:
        gpus = []
        for card in self.cards:
            devices = "".join(
                f"<mig_device><index>{place}</index><gpu_instance_id>{each.number}</gpu_instance_id>"
                "<compute_instance_id>0</compute_instance_id><fb_memory_usage>"
                f"<total>{10240 * self.kind.profiles[each.profile][0]} MiB</total><reserved>0 MiB</reserved>"
                f"<used>{each.used} MiB</used><free>1 MiB</free></fb_memory_usage></mig_device>"
                for place, each in enumerate(self._devices(card))
            )
            processes = "".join(
                f"<process_info><gpu_instance_id>N/A</gpu_instance_id><pid>{pid}</pid><type>C</type>"
                f"<process_name>{name}</process_name></process_info>"
                for pid, name in card.processes
            )
            gpus.append(
                f'<gpu id="00000000:{card.minor:02X}:00.0"><mig_mode><current_mig>{card.mode}</current_mig>'
                f"<pending_mig>{card.pending or card.mode}</pending_mig></mig_mode>"
                f"<mig_devices>{devices or 'None'}</mig_devices><uuid>GPU-{card.minor}</uuid>"
                f"<minor_number>{card.minor}</minor_number><processes>{processes}</processes></gpu>"
            )
        return (
            '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>'
            f"<attached_gpus>{len(self.cards)}</attached_gpus>{''.join(gpus)}</nvidia_smi_log>\n"
        )


def uuid(minor: int, profile: str, start: int) -> str:
    """The double's UUID of an instance: it shows which one it is."""
    return f"MIG-{minor}-{profile}-{start}"


def write_minors(root: Path, cards: int) -> None:
    """`/proc/driver/nvidia-caps/mig-minors` as the driver numbers them: 9 for each of 15 GPU instances of a GPU."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(cards):
        for instance in range(15):
            number = 3 + gpu * 135 + instance * 9
            lines.append(f"gpu{gpu}/gi{instance}/access {number}")
            lines += [f"gpu{gpu}/gi{instance}/ci{each}/access {number + 1 + each}" for each in range(8)]
    file = root / "proc/driver/nvidia-caps/mig-minors"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(lines) + "\n")
