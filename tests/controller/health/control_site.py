"""A controller with ten nodes whose health service decides, with a double of Slurm."""

from __future__ import annotations

from pathlib import Path

from gpucluster.controller.health.control import Control, Outlook
from gpucluster.controller.health.policy import PolicySettings, RecordKind
from gpucluster.controller.health.store import ReportStore
from gpucluster.node_agent.checks.model import Status
from tests.controller.health.doubles import DRAINS, ControllerClock, SlurmDouble, nodes, report

BAD, GOOD = {"gpu": Status.FAIL}, {"gpu": Status.PASS}


class Site:
    """A controller with ten nodes. `restart` is a new process on the same folder."""

    def __init__(self, folder: Path, settings: PolicySettings) -> None:
        self.folder, self.settings = folder, settings
        self.clock, self.slurm = ControllerClock(), SlurmDouble(nodes(10))
        self.said: list[str] = []
        self.restart()
        for name in list(self.slurm.state)[1:]:
            self.store.keep(name, report(name, GOOD), self.clock())

    def restart(self) -> None:
        self.slurm.killed = ""
        self.store = ReportStore(self.folder, interval=300)
        self.control = Control(
            self.store,
            self.slurm,
            self.settings,
            drains=DRAINS,
            fixable={"gpu"},
            moment=self.clock,
            say=self.said.append,
        )

    def send(self, results: dict[str, Status], name: str = "compute-1", **more: object) -> Outlook:
        self.clock.pass_(1)
        self.store.keep(name, report(name, results, **more), self.clock())  # type: ignore[arg-type]
        return self.control.run()

    def kinds(self) -> list[RecordKind]:
        return [record.kind for record in self.store.journal.read()]

    @property
    def node(self) -> tuple[bool, str]:
        found = self.slurm.state["compute-1"]
        return found.drained, found.reason
