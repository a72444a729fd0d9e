"""slurmdbd's database: written out, built anew beside the present one, and exchanged for it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from backup.programs import DATA_SECONDS, Failed, Refused, run

START_SECONDS = 60.0
# Counting the jobs of years, or a statement that waits for another one to end.
_STATEMENT_SECONDS = 600.0


@dataclass(frozen=True)
class Accounting:
    """The database of slurmdbd."""

    settings: Path
    state: Path
    cluster: str
    unit: str
    client: str
    dumper: str

    def setting(self, name: str) -> str:
        """A word of slurmdbd's own configuration."""
        found = re.search(rf"^{name}\s*=\s*(\w+)\s*$", self.settings.read_text(), re.MULTILINE | re.IGNORECASE)
        if not found:
            raise Failed(f"{self.settings} does not say {name}", "Run `gpucluster apply`, which writes it")
        return found.group(1)

    @property
    def config(self) -> Path:
        """The configuration of slurmctld."""
        return self.settings.with_name("slurm.conf")

    @property
    def database(self) -> str:
        """Its name."""
        return self.setting("StorageLoc")

    def ask(self, statement: str) -> list[str]:
        """The rows that MariaDB answers."""
        words = ("--batch", "--skip-column-names", f"--execute={statement}")
        return run(self.client, *words, seconds=_STATEMENT_SECONDS).split("\n")[:-1]

    def tables(self, database: str) -> list[str]:
        """The tables of a database; none where there is no such.

        Raises:
            Refused: one of them has a name that Slurm gives to none. They become part of statements of root.
        """
        wanted = f"table_schema = '{database}'"
        found = self.ask(f"SELECT table_name FROM information_schema.tables WHERE {wanted}")  # noqa: S608
        self._refuse([name for name in found if not re.fullmatch(r"[A-Za-z0-9_-]+", name)])
        return found

    def _check(self, database: str) -> None:
        """See that a database is made of tables alone: what else a dump may hold, works with others' rights.

        Raises:
            Refused: it is not.
        """
        self.tables(database)
        views = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}'"  # noqa: S608
        triggers = f"SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = '{database}'"  # noqa: S608
        self._refuse(self.ask(f"{views} AND table_type <> 'BASE TABLE' UNION ALL {triggers}"))

    @staticmethod
    def _refuse(strange: list[str]) -> None:
        if strange:
            raise Refused(f"Slurm's accounting has no {strange[0][:60]!r}", "This is not one of its databases")

    def jobs(self, database: str, cluster: str) -> int:
        """How many jobs of a cluster are in a database."""
        table = f"{cluster}_job_table"
        if table not in self.tables(database):
            return 0
        # These names are those of tables that are there, and of settings of ours.
        return int(self.ask(f"SELECT COUNT(*) FROM `{database}`.`{table}`")[0])  # noqa: S608

    def last_job(self, database: str, cluster: str, limit: int) -> int:
        """The highest number of a job of a cluster in a database; 0 without jobs.

        Args:
            limit: numbers go from 1 to below this one, and then from 1 again.
        """
        table = f"{cluster}_job_table"
        if table not in self.tables(database):
            return 0
        # What is above was given by a federation, or under another limit. Tasks of an array and parts of a job have
        # numbers of their own.
        # These names are those of tables that are there, and of settings of ours.
        rows = f"FROM `{database}`.`{table}` WHERE id_job < {limit}"
        last = int(self.ask(f"SELECT COALESCE(MAX(id_job), 0) {rows}")[0])
        if last + 1 < limit:
            return last
        # They have begun again: where they are now, the youngest job says.
        return int(self.ask(f"SELECT id_job {rows} ORDER BY time_submit DESC, id_job DESC LIMIT 1")[0])

    def dump(self, file: Path) -> None:
        """Write all of it, as it is at one moment; slurmdbd may run."""
        options = ("--single-transaction", "--quick", "--routines", "--hex-blob", "--default-character-set=utf8mb4")
        with file.open("wb") as stream:
            run(self.dumper, *options, self.database, stdout=stream, seconds=DATA_SECONDS)

    def build(self, sql: Path) -> None:
        """Make a new database of a dump beside the present one. It is read with slurmdbd's own rights, never root's.

        Raises:
            Refused: it is not made of tables alone.
        """
        fresh, user = f"{self.database}_restore", self.setting("StorageUser")
        # A dump is read as commands of the client, too, and some of those run programs. Older clients don't know the
        # option, and only warn of it.
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
        """The tables of the new database take the old ones' places, in one statement that is done or not."""
        name = self.database
        self.ask(f"DROP DATABASE IF EXISTS `{name}_before`; CREATE DATABASE `{name}_before`")
        self.ask(f"CREATE DATABASE IF NOT EXISTS `{name}`")
        self._rename((name, f"{name}_before"), (f"{name}_restore", name))

    def pending(self) -> bool:
        """Whether a new database waits for the exchange, or waits again since it was put back."""
        return bool(self.tables(f"{self.database}_restore")) and not self.tables(f"{self.database}_before")

    def put_back(self) -> None:
        """The other way round."""
        name = self.database
        if self.tables(f"{name}_before"):
            self._rename((name, f"{name}_restore"), (f"{name}_before", name))

    def forget(self) -> None:
        """Forget the databases beside the one that counts."""
        self.ask(f"DROP DATABASE IF EXISTS `{self.database}_before`; DROP DATABASE IF EXISTS `{self.database}_restore`")

    def _rename(self, *ways: tuple[str, str]) -> None:
        """Move all tables of one database to another, and so on, in one statement."""
        moves = [f"`{old}`.`{table}` TO `{new}`.`{table}`" for old, new in ways for table in self.tables(old)]
        if moves:
            self.ask("RENAME TABLE " + ", ".join(moves))
        # slurmctld does not start with a database that gives its cluster another number than it remembers.
        (self.state / "clustername").unlink(missing_ok=True)

    def register(self) -> None:
        """Wait for slurmdbd, and see that it knows this cluster, without which slurmctld does not start."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                known = run("sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=cluster").split()
                break
            except Failed as error:
                if time.monotonic() > until:
                    raise Failed(
                        f"slurmdbd does not answer: {error.message}", "Look at: journalctl -u slurmdbd"
                    ) from None
                time.sleep(0.2)
        if self.cluster not in known:
            run("sacctmgr", "--immediate", "add", "cluster", self.cluster)
