"""The collectors. Each names its subjects (a device, an interface), and gives the samples of one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable, NamedTuple, Protocol

from gpucluster.node_agent.rules import mig
from gpucluster.node_agent.watch import kept


class Place(NamedTuple):
    """Where collectors look: this host, or folders with the same trees.

    Attributes:
        sysfs: where /sys is.
        proc: where /proc is.
        jobs: the folder with a file for each running job.
        watch: the file of `gpucluster-agent watch`.
        namespaces: the socket of `gpucluster-agent exporter namespaces`; "" for none.
        mig: the folder with the links of divided GPUs.
    """

    sysfs: str = "/sys"
    proc: str = "/proc"
    jobs: str = "/run/gpucluster/jobs"
    watch: str = str(kept.FILE)
    namespaces: str = ""
    mig: str = mig.FOLDER


class Collector(Protocol):
    """Reads one kind of values. It lives in a process of its own, and may keep what it knows between two scrapes."""

    def subjects(self) -> list[str]:
        """What there is to read now."""
        ...

    def samples(self, subject: str) -> Iterable[str]:
        """The lines of one subject.

        Raises:
            Exception: whatever it is, the subject has no samples this time.
        """
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Spec(NamedTuple):
    """What is known of a collector before it runs.

    Attributes:
        make: creates it, in its own process.
        seconds: its limit.
        most: samples that it may give.
    """

    make: Callable[[Place], Collector]
    seconds: float
    most: int
