"""What new nodes have reported about themselves before their slurmd may start: files of the health service.

A file is named by the address from which a report came, which is all that it proves. Whether that is the address of the
node's instance is asked of the cloud, and only when a report states that the node is unfit. The cloud gives the address
of an instance that is gone to the next one: a report from before the launch of a node was another instance's.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpucluster.autoscaler.decide.types import BOOTING as BOOTING_STATES
from gpucluster.autoscaler.decide.types import NodeClaim
from gpucluster.controller.health.store import BOOTING, FOLDER

BOOT_REPORTS = FOLDER / BOOTING


class _Unfit(NamedTuple):
    """Why a node may take no jobs. `at`: when the report came, in seconds of the epoch."""

    reason: str
    at: float


class BootReports:
    """The folder of the files.

    Args:
        address_of: the private address of an instance, by its id; empty if it has none yet.
    """

    def __init__(self, folder: Path, address_of: Callable[[str], str]) -> None:
        self._folder, self._address_of = folder, address_of
        self._addresses: dict[str, str] = {}

    def unfit(self, claims: Iterable[NodeClaim]) -> Mapping[str, str]:
        """Instances whose checks at boot failed, with what was seen.

        Raises:
            GpuClusterError: the cloud does not return an address.
        """
        reports = self._reports()
        reasons = {}
        for claim in claims:
            if claim.state not in BOOTING_STATES or not claim.instance_id or claim.node not in reports:
                continue
            report = reports[claim.node].get(self._address(claim.instance_id))
            if report is not None and report.at >= claim.asked_at:
                reasons[claim.instance_id] = report.reason
        return reasons

    def _address(self, instance_id: str) -> str:
        if not self._addresses.get(instance_id):
            self._addresses[instance_id] = self._address_of(instance_id)
        return self._addresses[instance_id]

    def _reports(self) -> dict[str, dict[str, _Unfit]]:
        """By node and address, those that are unfit."""
        reports: dict[str, dict[str, _Unfit]] = {}
        for file in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                raw = json.loads(file.read_text())
                if raw["reason"]:
                    report = _Unfit(str(raw["reason"]), float(raw["at"]["wall"]))
                    reports.setdefault(str(raw["node"]), {})[str(raw["address"])] = report
        return reports
