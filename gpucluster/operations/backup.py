"""Back up a cluster's directory and accounting, and its control plane of Kubernetes, to one file on this machine, and
restore them from it.

The program on the controller writes and reads the content; this module only transfers it, never as a whole in memory.
The file holds the hashes of users' passwords, and keys: only its owner may read it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from gpucluster import process
from gpucluster.errors import EnvironmentFault, InputError, ToolError
from gpucluster.node_agent import bounded
from gpucluster.operations.backup_decryption import opened_backup, plain_backup
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.rpc import RemoteProgram
from gpucluster.operations.users import require_directory
from gpucluster.spec import ClusterSpec
from gpucluster.text import printable

#: The program for backups on the controller.
PROGRAM = RemoteProgram(
    "sudo -n /usr/local/sbin/gpucluster-backup",
    absent="the controller has no program for backups yet",
    silent=("the controller's program ended without a reason", "Run the same command again"),
)
_MANIFEST = "manifest.json"
# A manifest is some hundred bytes.
_LARGEST_MANIFEST = 1 << 16


@checked(frozen=True)
class Counts:
    """What a backup holds. `accounting_jobs` is None where there is no accounting, and `kubernetes_objects` where the
    controller has no control plane of Kubernetes.
    """

    people: int
    groups: int
    accounting_jobs: int | None
    kubernetes_objects: int | None = None


@checked(frozen=True)
class _Manifest:
    version: int
    cluster: str
    time: str
    counts: Counts


@dataclass(frozen=True)
class Backup:
    """A backup on this machine.

    Args:
        size: bytes.
        cluster: the name of its cluster.
        time: when it was made, by the controller's clock (UTC, ISO 8601).
    """

    file: Path
    size: int
    cluster: str
    time: str
    counts: Counts

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        fields = {"file": str(self.file), "bytes": self.size, "cluster": self.cluster, "time": self.time}
        return {**fields, **asdict(self.counts)}


@checked(frozen=True)
class Restored:
    """What the cluster has after a restore.

    Args:
        kept_aside: a file on the controller with the data from before the restore.
        returned: users who were removed or disabled since the backup, and can log in again.
        dropped: users who were added after the backup, and are not in the directory any more. Their uids are not
            given to anyone else.
        unfinished: homes and Slurm accounts that do not match the directory yet, and other open work, with the reason.
        ended_jobs: jobs that ran at the time of the backup and that Slurm does not know any more; they count as ended.
    """

    people: int
    groups: int
    accounting_jobs: int | None
    kept_aside: str
    returned: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    ended_jobs: int = 0
    kubernetes_objects: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class Backups:
    """Backups of one cluster."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection) -> None:
        self._spec = spec
        self._controller = controller

    def create(self, file: Path) -> Backup:
        """Write a backup of the present data. The cluster keeps working meanwhile.

        Raises:
            InputError: the file exists already, or can't be written there.
            ToolError: the controller could not make one, or can't be reached; no file is left then.
        """
        self._require_directory()
        with new_file(file) as part:
            argv = self._controller.ssh_argv(None, [f"{PROGRAM.command} create"])
            with part.open("wb") as target:
                result = process.transfer(argv, target=target)
                os.fsync(target.fileno())
            if result.returncode != 0:
                raise failure_of(result)
            try:
                made = inspect(part)
            except InputError:
                raise ToolError("the controller did not send a backup", hint="Run: gpucluster apply") from None
        return Backup(file, made.size, made.cluster, made.time, made.counts)

    def restore(self, file: Path, *, key: Path | None = None, force: bool = False) -> Restored:
        """Replace directory and accounting by those of a backup.

        Args:
            key: the private key for an encrypted one.
            force: allow the backup of another cluster, and a restore while jobs run.

        Raises:
            InputError: the file is not a backup, the key does not decrypt it, or it does not fit; nothing was changed.
            ToolError: it failed and everything is as before, or the controller can't be reached.
        """
        self._require_directory()
        subcommand = "restore --force" if force else "restore"
        with plain_backup(file, key) as source:
            _inspected(source, file)
            argv = self._controller.ssh_argv(None, [f"{PROGRAM.command} {subcommand}"])
            # A program gets the file from where its descriptor is, which a buffer has moved.
            os.lseek(source.fileno(), 0, os.SEEK_SET)
            result = process.transfer(argv, source=source)
        if result.returncode != 0:
            raise failure_of(result)
        try:
            return TypeAdapter(Restored).validate_json(result.stdout)
        except ValidationError:
            raise ToolError(
                "the controller's answer can't be read",
                hint="Its program may be of another version than this one. Run: gpucluster apply",
            ) from None

    def _require_directory(self) -> None:
        require_directory(self._spec, "There is nothing to back up but this file")


def inspect(file: Path) -> Backup:
    """Read a backup's manifest. Whether the rest of the file is complete is checked on the controller.

    Raises:
        InputError: there is no such file, or it is not a backup.
    """
    with opened_backup(file) as stream:
        return _inspected(stream, file)


def _inspected(stream: IO[bytes], file: Path) -> Backup:
    try:
        with tarfile.open(fileobj=stream, mode="r|gz") as archive:
            first = archive.next()
            content = archive.extractfile(first) if first and first.name == _MANIFEST else None
            text = content.read(_LARGEST_MANIFEST) if content else b""
        manifest = TypeAdapter(_Manifest).validate_json(text)
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError):
        raise InputError(
            "not a backup of a cluster",
            where=str(file),
            hint="Name a file that `gpucluster backup` has written",
        ) from None
    size = os.fstat(stream.fileno()).st_size
    return Backup(file, size, printable(manifest.cluster), printable(manifest.time), manifest.counts)


@contextlib.contextmanager
def new_file(file: Path, kind: str = "backup") -> Iterator[Path]:
    """A private file beside `file` that is renamed to it at the end, or removed; an existing file is never touched.

    Args:
        kind: what it is, for the texts of errors.
    """
    exists = InputError("the file exists already", where=str(file), hint="Name another file, or move this one away")
    if os.path.lexists(file):
        raise exists
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        what = f"the {kind} can't be written there: {error.strerror}"
        raise InputError(what, where=str(file), hint="Name a file in a folder that you may write") from error
    try:
        yield part
        try:
            _publish(part, file)
        except FileExistsError:
            raise exists from None
    except OSError as error:
        what = f"the {kind} can't be written: {error.strerror}"
        raise EnvironmentFault(what, where=str(file), hint="Free some space, or name another place") from error
    finally:
        part.unlink(missing_ok=True)


def _publish(part: Path, file: Path) -> None:
    """Unlike a rename, this does not replace a file that was created meanwhile."""
    try:
        os.link(part, file)
    except FileExistsError:
        raise
    except OSError:  # not every file system has links
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        part.replace(file)


def failure_of(result: process.Completed) -> InputError | ToolError:
    """The error that the controller's program has reported in its last line."""
    try:
        return PROGRAM.failure(bounded.loads(result.stderr.strip().rpartition("\n")[2])["error"], result)
    except (ValueError, KeyError, TypeError, AttributeError):
        return PROGRAM.no_answer(result)
