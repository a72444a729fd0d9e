"""What the health service keeps on the controller: the last reports of each node, in one folder.

    reports/<node>.json       the last report of each profile of a node whose address Slurm or the inventory knows
    booting/<address>.json    the boot report from an address that no node has yet: an elastic node before it registers
    findings.json             the last findings of `verify`, by node and check
    journal.jsonl             the decisions
    metrics.prom              for Prometheus' node exporter

The service and `health react` share it, under one lock. A file that can't be read is as good as none: nothing follows
from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.controller.health.journal import Journal, moment
from gpucluster.controller.health.policy import Evidence, Moment
from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import BEYOND_REBOOT, Finding, HostReport, Profile
from gpucluster.node_agent.durable_file import replace

FOLDER = Path("/var/lib/gpucluster/health")
BOOTING = "booting"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
#: Seconds for which a report from an address without a node is kept.
_BOOTS_WITHIN = 2 * 3600.0
_MOST_BOOTING = 10_000


def now() -> Moment:
    """The present moment on this host."""
    return Moment(time.time(), _BOOT_ID.read_text().strip(), time.clock_gettime(time.CLOCK_BOOTTIME))


@dataclass(frozen=True)
class StoredReport:
    """A report, and when the controller got it."""

    at: Moment
    report: HostReport


class ReportStore:
    """The folder.

    Args:
        interval: seconds between two periodic reports of a node.
    """

    def __init__(self, folder: Path = FOLDER, *, interval: float) -> None:
        self.folder = folder
        self.interval = interval
        self.journal = Journal(folder / "journal.jsonl")
        self._reports = folder / "reports"
        self._booting = folder / BOOTING
        self._findings = folder / "findings.json"
        for each in (self._reports, self._booting):
            each.mkdir(parents=True, exist_ok=True)
        self._kept: dict[str, dict[str, StoredReport]] | None = None
        self._verified: tuple[tuple[int, int] | None, dict[str, dict[str, tuple[Moment, Finding]]]] = (None, {})

    @property
    def stale_after(self) -> float:
        """Seconds without a report after which nothing follows from the earlier ones."""
        return 3 * self.interval

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the decisions. It ends with the process."""
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- reports -----

    def keep(self, node: str, report: HostReport, at: Moment) -> None:
        """Keep the report of a node. Those of an earlier boot of the node are forgotten.

        Raises:
            ValueError: this can't be the name of a node.
        """
        file = self._file(self._reports, node)
        reports = self.reports()
        before = reports.get(node, {})
        kept = {name: each for name, each in before.items() if each.report.boot_id == report.boot_id}
        reports[node] = {**kept, report.profile.value: StoredReport(at, report)}
        replace(
            file,
            json.dumps(
                {name: {"at": vars(each.at), "report": each.report.to_dict()} for name, each in reports[node].items()}
            ),
            # The next one comes within an interval.
            durable=False,
        )

    def reports(self) -> dict[str, dict[str, StoredReport]]:
        """By node and profile. Only one process writes them: they are read once."""
        if self._kept is None:
            by_node = {file.name[: -len(".json")]: _reports(file) for file in sorted(self._reports.glob("*.json"))}
            self._kept = {node: kept for node, kept in by_node.items() if kept}
        return self._kept

    def last(self, node: str, at: Moment) -> StoredReport | None:
        """The report of a node that came last."""
        kept = list(self.reports().get(node, {}).values())
        return min(kept, key=lambda each: at.since(each.at), default=None)

    # --- an elastic node before it registers -----

    def keep_booting(self, address: str, report: HostReport, at: Moment, reason: str) -> None:
        """Keep the boot report from an address that no node has: the address proves nothing but itself.

        Args:
            reason: why the node may take no jobs; empty if it may.

        Raises:
            ValueError: this is not an address.
        """
        file = self._file(self._booting, address)
        for other in self._booting.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                if abs(time.time() - other.stat().st_mtime) > _BOOTS_WITHIN:
                    other.unlink()
        if sum(1 for _ in self._booting.iterdir()) < _MOST_BOOTING:
            content = {"address": address, "node": report.host, "reason": reason, "at": vars(at)}
            replace(file, json.dumps({**content, "report": report.to_dict()}), durable=False)

    def booted(self, address: str) -> None:
        """Forget the report from an address that a node has now."""
        with contextlib.suppress(FileNotFoundError):
            self._file(self._booting, address).unlink()

    # --- findings of `verify` -----

    def add_findings(self, findings: Collection[Finding], at: Moment) -> None:
        """Keep findings of `verify`; the last one for each node and check."""
        if not findings:
            return
        known = {node: dict(by_check) for node, by_check in self._verify_findings().items()}
        for finding in findings:
            known.setdefault(finding.subject, {})[finding.check] = (at, finding)
        raw = {
            node: {check: {"at": vars(when), "finding": each.to_dict()} for check, (when, each) in by_check.items()}
            for node, by_check in known.items()
        }
        replace(self._findings, json.dumps(raw))

    def _verify_findings(self) -> dict[str, dict[str, tuple[Moment, Finding]]]:
        try:
            status = self._findings.stat()
        except FileNotFoundError:
            return {}
        seen = (status.st_ino, status.st_mtime_ns)
        if seen != self._verified[0]:
            self._verified = (seen, _findings(self._findings))
        return self._verified[1]

    # --- both -----

    def evidence(
        self, at: Moment, drains: Collection[str], only: str | None = None, reboots: Collection[str] = ()
    ) -> list[Evidence]:
        """The last result of each check on each node.

        Args:
            drains: the checks whose failure drains.
            only: the node of interest; all by default.
            reboots: the checks where a reboot may fix what failed, unless the finding states that it does not.
        """
        reports, findings = self.reports(), self._verify_findings()
        if only is not None:
            reports, findings = {only: reports.get(only, {})}, {only: findings.get(only, {})}
        latest: dict[tuple[str, str], Evidence] = {}

        def add(each: Evidence) -> None:
            known = latest.get((each.node, each.check))
            if known is None or each.at.is_after(known.at, at):
                latest[each.node, each.check] = each

        for node, kept in reports.items():
            last = self.last(node, at)
            heard = last is not None and at.since(last.at) <= self.stale_after
            for each in kept.values():
                for finding in each.report.findings:
                    if finding.subject != node:
                        continue
                    check, boot = finding.check, each.report.boot_id
                    fixes = check in reboots and finding.evidence.get(BEYOND_REBOOT) is not True
                    of = (finding.status, finding.message, each.at)
                    add(Evidence(node, check, *of, check in drains, heard, reboot=fixes, boot=boot))
        for node, by_check in findings.items():
            for check, (when, finding) in by_check.items():
                # It can undrain. A drain for it was decided when it was found.
                add(Evidence(node, check, finding.status, finding.message, when, drains=False, current=False))
        return list(latest.values())

    def _file(self, folder: Path, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a name: {name[:80]!r}")
        return folder / f"{name}.json"


def _reports(file: Path) -> dict[str, StoredReport]:
    reports = {}
    for name, raw in _object(file).items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            reports[Profile(name).value] = StoredReport(moment(raw["at"]), HostReport.from_dict(raw["report"]))
    return reports


def _findings(file: Path) -> dict[str, dict[str, tuple[Moment, Finding]]]:
    findings: dict[str, dict[str, tuple[Moment, Finding]]] = {}
    for node, by_check in _object(file).items():
        for check, raw in by_check.items() if isinstance(by_check, dict) else ():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                findings.setdefault(node, {})[check] = (moment(raw["at"]), Finding.from_dict(raw["finding"]))
    return findings


def _object(file: Path) -> Mapping[str, Any]:
    try:
        raw = bounded.loads(file.read_text(errors="replace"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}
