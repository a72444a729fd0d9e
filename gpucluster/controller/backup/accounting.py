"""slurmdbd's database: dump it, build a new one beside the present one, and exchange the two."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from gpucluster.controller.backup.work import DATA_SECONDS
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.programs import run

START_SECONDS = 180.0
# A statement may count the jobs of years, or wait for another statement.
_STATEMENT_SECONDS = 600.0


@dataclass(frozen=True)
class AccountingDatabase:
    """The database of slurmdbd."""

    settings: Path
    state: Path
    cluster: str
    unit: str
    client: str
    dumper: str

    def setting(self, name: str) -> str:
        """A value of slurmdbd's configuration."""
        match = re.search(rf"^{name}\s*=\s*(\w+)\s*$", self.settings.read_text(), re.MULTILINE | re.IGNORECASE)
        if not match:
            raise Failed(f"{self.settings} has no value for {name}", "Run `gpucluster apply`, which writes it")
        return match.group(1)

    @property
    def config(self) -> Path:
        """The configuration file of slurmctld."""
        return self.settings.with_name("slurm.conf")

    @property
    def database(self) -> str:
        """The database's name."""
        return self.setting("StorageLoc")

    def ask(self, statement: str) -> list[str]:
        """The rows of MariaDB's answer."""
        words = ("--batch", "--skip-column-names", f"--execute={statement}")
        return run(self.client, *words, seconds=_STATEMENT_SECONDS).split("\n")[:-1]

    def tables(self, database: str) -> list[str]:
        """The tables of a database; none where it does not exist.

        Raises:
            Refused: one of them has a name that Slurm does not use. The names become part of statements that root runs.
        """
        condition = f"table_schema = '{database}'"
        names = self.ask(f"SELECT table_name FROM information_schema.tables WHERE {condition}")  # noqa: S608
        self._refuse([name for name in names if not re.fullmatch(r"[A-Za-z0-9_-]+", name)])
        return names

    def _check(self, database: str) -> None:
        """Check that a database holds tables only: views and triggers of a dump would run with others' rights.

        Raises:
            Refused: it holds something else.
        """
        self.tables(database)
        views = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}'"  # noqa: S608
        triggers = f"SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = '{database}'"  # noqa: S608
        self._refuse(self.ask(f"{views} AND table_type <> 'BASE TABLE' UNION ALL {triggers}"))

    @staticmethod
    def _refuse(strange: list[str]) -> None:
        if strange:
            raise Refused(f"{strange[0][:60]!r} does not belong in Slurm's accounting", "Choose another file")

    def jobs(self, database: str, cluster: str) -> int:
        """How many jobs of a cluster are in a database."""
        table = f"{cluster}_job_table"
        if table not in self.tables(database):
            return 0
        # The names are those of existing tables and of our own settings.
        return int(self.ask(f"SELECT COUNT(*) FROM `{database}`.`{table}`")[0])  # noqa: S608

    def last_job(self, database: str, cluster: str, limit: int) -> int:
        """The last job id of a cluster in a database; 0 without jobs.

        Args:
            limit: ids go from 1 to below this one, then from 1 again.
        """
        table = f"{cluster}_job_table"
        if table not in self.tables(database):
            return 0
        # Higher ids come from a federation or from another limit. Array tasks and parts of a heterogeneous job have
        # ids of their own.
        # The names are those of existing tables and of our own settings.
        rows = f"FROM `{database}`.`{table}` WHERE id_job < {limit}"
        last = int(self.ask(f"SELECT COALESCE(MAX(id_job), 0) {rows}")[0])
        if last + 1 < limit:
            return last
        # The ids have started again at 1: the youngest job has the last one.
        return int(self.ask(f"SELECT id_job {rows} ORDER BY time_submit DESC, id_job DESC LIMIT 1")[0])

    def dump(self, file: Path) -> None:
        """Write the whole database as it is at one moment; slurmdbd may run."""
        options = ("--single-transaction", "--quick", "--routines", "--hex-blob", "--default-character-set=utf8mb4")
        with file.open("wb") as stream:
            run(self.dumper, *options, self.database, stdout=stream, seconds=DATA_SECONDS)

    def build(self, sql: Path) -> None:
        """Load a dump into a new database beside the present one, with slurmdbd's rights and never with root's.

        Raises:
            Refused: it holds something else than tables.
        """
        fresh, user = f"{self.database}_restore", self.setting("StorageUser")
        # The client also obeys commands in a dump, and some of those start programs: the sandbox forbids them. Older
        # clients don't know the option and only print a warning.
        words = ("--loose-sandbox", f"--database={fresh}", f"--user={user}")
        self.ask(f"DROP DATABASE IF EXISTS `{fresh}`; CREATE DATABASE `{fresh}`")
        self.ask(f"GRANT ALL ON `{fresh}`.* TO '{user}'@'localhost'")
        try:
            with sql.open("rb") as stream:
                run(self.client, *words, stdin=stream, user=self.setting("SlurmUser"), seconds=DATA_SECONDS)
        finally:
            self.ask(f"REVOKE ALL ON `{fresh}`.* FROM '{user}'@'localhost'")
        self._check(fresh)

    def exchange(self) -> None:
        """Exchange the tables of the new database for the old ones, in one statement: all of them or none."""
        name = self.database
        self.ask(f"DROP DATABASE IF EXISTS `{name}_before`; CREATE DATABASE `{name}_before`")
        self.ask(f"CREATE DATABASE IF NOT EXISTS `{name}`")
        self._rename((name, f"{name}_before"), (f"{name}_restore", name))

    def pending(self) -> bool:
        """Whether a new database waits for the exchange; also after the exchange was undone."""
        return bool(self.tables(f"{self.database}_restore")) and not self.tables(f"{self.database}_before")

    def put_back(self) -> None:
        """Undo the exchange."""
        name = self.database
        if self.tables(f"{name}_before"):
            self._rename((name, f"{name}_restore"), (f"{name}_before", name))

    def discard(self) -> None:
        """Drop the databases beside the one in use."""
        self.ask(f"DROP DATABASE IF EXISTS `{self.database}_before`; DROP DATABASE IF EXISTS `{self.database}_restore`")

    def _rename(self, *ways: tuple[str, str]) -> None:
        """Move all tables of one database to another, and so on, in one statement."""
        moves = [f"`{old}`.`{table}` TO `{new}`.`{table}`" for old, new in ways for table in self.tables(old)]
        if moves:
            self.ask("RENAME TABLE " + ", ".join(moves))
        # slurmctld does not start with a database that gives its cluster another id than this file.
        (self.state / "clustername").unlink(missing_ok=True)

    def register(self) -> None:
        """Wait for slurmdbd, and register this cluster if it is unknown: else slurmctld does not start."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                known = run("sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=cluster").split()
                break
            except AgentError as error:
                if time.monotonic() > until:
                    raise Failed(f"slurmdbd does not answer: {error.message}", "Run: journalctl -u slurmdbd") from None
                time.sleep(0.2)
        if self.cluster not in known:
            run("sacctmgr", "--immediate", "add", "cluster", self.cluster)
