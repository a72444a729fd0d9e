"""`cluster.backup`: users, accounting and the control plane in a file."""

from __future__ import annotations

from pathlib import Path

from gpucluster.cluster.composition import Parts
from gpucluster.operations.backup import Backup, Backups, Restored
from gpucluster.operations.scheduled_backups import FetchedBackup, ScheduledBackup, ScheduledBackups


class BackupOperations:
    """Backs up one cluster, and restores it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backups = Backups(parts.spec, parts.connections.controller)
        self._scheduled = ScheduledBackups(parts.spec, parts.connections.controller)

    def create(self, path: Path) -> Backup:
        """Write the directory and the accounting into a new file. The cluster keeps working meanwhile.

        Raises:
            InputError: the file exists already, or can't be written there.
            ToolError: the controller could not make a backup; no file is left then.
        """
        return self._backups.create(path)

    def scheduled(self) -> tuple[ScheduledBackup, ...]:
        """The encrypted backups that the controller has made on its schedule, the newest first.

        Raises:
            InputError: the cluster makes none.
            ToolError: their directory can't be read.
        """
        return self._scheduled.present()

    def fetch(self, name: str = "latest", path: Path | None = None) -> FetchedBackup:
        """Bring one of them to this machine, encrypted as it is.

        Args:
            name: as `scheduled` has it, or `latest`.
            path: a new file; None means the backup's own name in the current folder.

        Raises:
            InputError: there is no such backup, the file exists already, or it can't be written there.
            ToolError: it has not arrived completely; no file is left then.
        """
        return self._scheduled.fetch(name, path)

    def restore(self, path: Path, *, key: Path | None = None, force: bool = False) -> Restored:
        """Replace the directory and the accounting by those of a backup. Slurm and logins stop for some seconds.

        Args:
            key: the private key for an encrypted one. openssl asks for its passphrase on the terminal.
            force: allow the backup of another cluster, and a restore while jobs run.

        Raises:
            InputError: the file is not a backup, the key does not decrypt it, or it does not fit; nothing was changed.
            ToolError: it failed, and everything is as before.
        """
        with self._parts.identity.runs.run("restore"):
            return self._backups.restore(path, key=key, force=force)
