"""The encrypted backups that the controller makes on a schedule: which there are, and one of them on this machine."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from gpucluster import process
from gpucluster.errors import InputError, ToolError
from gpucluster.operations.backup import PROGRAM, failure_of, new_file
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.users import require_directory
from gpucluster.spec import ClusterSpec

#: The name of whichever is the newest.
LATEST = "latest"


@checked(frozen=True)
class ScheduledBackup:
    """An encrypted backup on the controller.

    Args:
        time: when it was made, by the controller's clock (UTC, ISO 8601).
        bytes: its size.
    """

    name: str
    time: str
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@checked(frozen=True)
class _Listed:
    backups: tuple[ScheduledBackup, ...]


@dataclass(frozen=True)
class FetchedBackup:
    """An encrypted backup on this machine, and what it was on the controller."""

    file: Path
    backup: ScheduledBackup

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"file": str(self.file), **self.backup.to_dict()}


class ScheduledBackups:
    """The backups on a schedule of one cluster."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection) -> None:
        self._spec = spec
        self._controller = controller

    def present(self) -> tuple[ScheduledBackup, ...]:
        """Those on the controller, the newest first.

        Raises:
            InputError: the cluster makes none.
            ToolError: their directory can't be read, or the controller can't be reached.
        """
        require_directory(self._spec, "There are no backups")
        done = process.transfer(self._controller.ssh_argv(None, [f"{PROGRAM.command} list"]))
        if done.returncode != 0:
            raise failure_of(done)
        try:
            found = TypeAdapter(_Listed).validate_json(done.stdout).backups
        except ValidationError:
            hint = "Its program may be of another version than this one. Run: gpucluster apply"
            raise ToolError("the controller's answer can't be read", hint=hint) from None
        # A name becomes the name of a file here, and a word of a command there.
        if not all(each.name.replace("-", "").replace(".", "").isalnum() and each.name.isascii() for each in found):
            raise ToolError("the controller's answer can't be read: it has names that are none")
        return found

    def fetch(self, name: str, file: Path | None = None) -> FetchedBackup:
        """Bring one of them to this machine, encrypted as it is.

        Args:
            name: as `present` has it, or `latest`.
            file: where to; None means its own name in the current folder. An existing file is never touched.

        Raises:
            InputError: there is no such backup, the file exists already, or it can't be written there.
            ToolError: it could not be read completely; no file is left then.
        """
        found = self.present()
        chosen = next((each for each in found if name in (each.name, LATEST)), None)
        if chosen is None:
            what = f"there is no backup {name} on the controller" if found else "the controller has made no backup yet"
            hint = "To list them: gpucluster backup --list"
            if not found:
                hint = "To make one now: gpucluster ssh -- sudo systemctl start gpucluster-backup.service"
            raise InputError(what, hint=hint)
        target = file or Path(chosen.name)
        with new_file(target) as part:
            argv = self._controller.ssh_argv(None, [f"{PROGRAM.command} fetch {chosen.name}"])
            with part.open("wb") as stream:
                done = process.transfer(argv, target=stream)
                os.fsync(stream.fileno())
            if done.returncode != 0:
                raise failure_of(done)
            if part.stat().st_size != chosen.bytes:
                hint = "Run the same command again"
                raise ToolError(f"of {chosen.bytes} bytes, {part.stat().st_size} have arrived", hint=hint)
        return FetchedBackup(target, chosen)
