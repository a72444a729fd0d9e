"""Tells the ssh CA of the controller which nodes boot from baked images, and at which addresses.

Such a node asks for its entry in the directory before its slurmd registers, and so before Slurm knows its address. The
cloud knows it, and is asked once for each instance that has come to run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from gpucluster.autoscaler.daemon.executor import WorkQueue
from gpucluster.autoscaler.daemon.logs import DaemonLog
from gpucluster.autoscaler.decide.rate import Rate
from gpucluster.autoscaler.decide.types import ClaimState, NodeClaim
from gpucluster.controller.booting_nodes import BootingNode, content
from gpucluster.paths import write_whole

_READABLE = 0o644

log = DaemonLog("booting")


class BootingNodes:
    """The file with the nodes that boot.

    Args:
        file: in a folder that all may read: names and addresses of nodes are not secret.
        address_of: the private address of an instance, by its id; empty if it has none yet.
    """

    def __init__(self, file: Path, address_of: Callable[[str], str], *, clock: Callable[[], float]) -> None:
        self._file, self._address_of = file, address_of
        self._lock = threading.Lock()
        self._present: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._written: str | None = None
        self._queue: WorkQueue[str] = WorkQueue(
            "address", self._ask, on_end=self._address_read, rate=Rate(), clock=clock
        )

    def publish(self, claims: Iterable[NodeClaim], live: Collection[str]) -> None:
        """Bring the file up to date.

        Args:
            claims: those of pools with a baked image.
            live: the instances that exist, by the cloud's last listing.

        Raises:
            GpuClusterError: the file can't be written.
        """
        present = {
            claim.instance_id: claim.node
            for claim in claims
            if claim.state == ClaimState.RUNNING and claim.instance_id in live
        }
        with self._lock:
            self._present = present
            self._addresses = {one: address for one, address in self._addresses.items() if one in present}
            self._write()
            unknown = set(present) - set(self._addresses)
        for instance in sorted(unknown):
            self._queue.submit(instance, instance)

    def close(self) -> None:
        """Ask for no more addresses."""
        self._queue.close()

    def _ask(self, instance: str) -> None:
        address = self._address_of(instance)
        with self._lock:
            # It may have registered, or ended, meanwhile.
            if address and instance in self._present:
                self._addresses[instance] = address
                self._write()

    def _address_read(self, instance: str, error: Exception | None) -> None:
        if error is not None:
            log.warning(f"its address is not known: {error}", node=self._present.get(instance), instance=instance)

    def _write(self) -> None:
        present = {one: node for one, node in self._present.items() if one in self._addresses}
        entries = content((self._addresses[one], BootingNode(node, one)) for one, node in present.items())
        text = json.dumps(entries, indent=1) + "\n"
        if text != self._written:
            write_whole(self._file, text, mode=_READABLE)
            self._written = text
