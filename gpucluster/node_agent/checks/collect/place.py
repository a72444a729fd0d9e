"""Where collectors look: this host, or a folder with the same tree in tests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from gpucluster.node_agent import programs
from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.model import Missing, RefusedMeasurement

#: What a program may print before it is cut off, in bytes. `nvidia-smi -q -x` of eight GPUs has 0.2 MB.
MOST_OUTPUT = 8 << 20
#: Where samples for the next check are kept.
STATE = Path("/var/lib/gpucluster/checks")


class Unmeasured(Exception):
    """There is no measurement; the message has the reason."""


class Refusal(Exception):
    """The tool reports that what it was asked about does not work; the message has its words."""


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended by itself: its status, and what it printed."""

    status: int
    output: str
    errors: str

    def words(self) -> str:
        """What it printed, errors before output, in one line that is not too long."""
        return " ".join((self.errors or self.output).split())[:200]


@dataclass(frozen=True)
class MeasuredHost:
    """The host that is measured.

    Args:
        root: where its /proc, /sys and /dev are.
        state: where samples for the next check are kept.
        monotonic: seconds since the boot, by a clock that never jumps.
        wall: Unix time in seconds.
        ask: runs a program with limits (`programs.ask`).
    """

    expected: NodeExpectation
    root: Path
    state: Path
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    ask: Callable[[list[str], float, int], programs.ProgramAnswer] = programs.ask

    def output(self, argv: list[str], seconds: float, good: tuple[int, ...] = (0,)) -> str:
        """What a program prints.

        Args:
            good: exit statuses with which its output counts; () for all, but not where a signal ended it.

        Raises:
            Unmeasured: it is missing, met a limit, was killed, or ended with another status.
        """
        result = self.run(argv, seconds)
        if good and result.status not in good:
            raise Unmeasured(f"{argv[0]} ended with status {result.status}: {result.words()}")
        return result.output

    def run(self, argv: list[str], seconds: float) -> ProgramResult:
        """Run a program to its end, whatever its status is.

        Raises:
            Unmeasured: it is missing, met a limit, or was killed.
        """
        answer = self.ask(argv, seconds, MOST_OUTPUT)
        if answer.fault:
            raise Unmeasured(answer.fault)
        status = answer.status or 0
        if status < 0:
            raise Unmeasured(f"{argv[0]} was ended by signal {-status}")
        return ProgramResult(status, answer.output.decode(errors="replace"), answer.errors.decode(errors="replace"))

    def path(self, path: str) -> Path:
        """A path of the host."""
        return self.root / path.lstrip("/")

    def boot_id(self) -> str:
        """The kernel's name of this boot.

        Raises:
            Unmeasured: it can't be read.
        """
        return read(self.path("/proc/sys/kernel/random/boot_id"))


def boot_of(root: Path) -> str:
    """Which boot of a host this is: another one has another text.

    It is the kernel's name of its boot, with the time when the first process began, in ticks since then (proc(5)): a
    host of the local cloud is a container that boots, and has the kernel of its machine.

    Raises:
        Unmeasured: the kernel's name can't be read.
    """
    kernel = read(root / "proc/sys/kernel/random/boot_id")
    try:
        # The second field is a name, which may have brackets and blanks; the time is the 22nd field.
        return f"{kernel}-{(root / 'proc/1/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return kernel


#: Makes a measurement within some seconds.
Collector = Callable[[MeasuredHost, float], object]


def read(path: Path) -> str:
    """The text of a small file of the kernel.

    Raises:
        Unmeasured: it can't be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode(errors="replace").strip()
    except OSError as error:
        raise Unmeasured(f"{path} can't be read: {error.strerror or error}") from None


def read_or_none(path: Path) -> str | None:
    """The text of a small file of the kernel, None if it can't be read."""
    try:
        return read(path)
    except Unmeasured:
        return None


def entries(folder: Path) -> list[str]:
    """The names in a folder of the kernel, none if there is no such folder: without a driver there is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def measure(collector: Collector, host: MeasuredHost, seconds: float) -> object:
    """A measurement, or why there is none. What a collector did not foresee is a reason, too."""
    try:
        return collector(host, seconds)
    except Refusal as error:
        return RefusedMeasurement(str(error))
    except Unmeasured as error:
        return Missing(str(error))
    except Exception as error:  # a strange output of a strange program
        return Missing(f"measuring failed: {type(error).__name__}: {error}")
