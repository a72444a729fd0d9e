"""`cluster.backup`: users, accounting and the control plane in a file."""

from __future__ import annotations

from pathlib import Path

from gpucluster.cluster.composition import Parts
from gpucluster.operations.backup import Backup, Backups, Restored


class BackupOperations:
    """Backs up one cluster, and restores it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backups = Backups(parts.spec, parts.connections.controller)

    def create(self, path: Path) -> Backup:
        """Write the directory and the accounting into a new file. The cluster keeps working meanwhile.

        Raises:
            InputError: the file exists already, or can't be written there.
            ToolError: the controller could not make a backup; no file is left then.
        """
        return self._backups.create(path)

    def restore(self, path: Path, *, force: bool = False) -> Restored:
        """Replace the directory and the accounting by those of a backup. Slurm and logins stop for some seconds.

        Args:
            force: allow the backup of another cluster, and a restore while jobs run.

        Raises:
            InputError: the file is not a backup, or does not fit; nothing was changed.
            ToolError: it failed, and everything is as before.
        """
        with self._parts.identity.runs.run("restore"):
            return self._backups.restore(path, force=force)
