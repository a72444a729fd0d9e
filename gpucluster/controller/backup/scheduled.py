"""Backups on a schedule: encrypted for the operator, in a directory of this host or on the home share.

The directory may be on the share, where root of any node can exchange what is in it, so it is reached by
`foreign_folder` alone. The controller has no key with which it could read a backup again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gpucluster.controller import share
from gpucluster.controller.backup.archive import write_backup
from gpucluster.controller.backup.schedule import Schedule
from gpucluster.controller.backup.site import Site, work_folder
from gpucluster.controller.backup.work import CHUNK, DATA_SECONDS
from gpucluster.node_agent.errors import Failed, Refused, of_system
from gpucluster.node_agent.foreign_folder import Folder
from gpucluster.node_agent.programs import run

#: Bytes of an archive: openssl reads a CMS message as a whole when it decrypts it, into a buffer of at most 0x5ffffffc
#: bytes (crypto/buffer/buffer.c), and a message is 0.1 % longer than its content.
LARGEST = 1_600_000_000
_ARCHIVE = "backup.tar.gz"
_STAMP = r"[0-9]{8}T[0-9]{6}Z"
_PART = ".part"
# The first version of openssl whose `cms` has authenticated encryption.
_AUTHENTICATED = 3


def make(site: Site) -> dict[str, Any]:
    """Make a backup, encrypt it into the directory, and delete the oldest ones there beyond those that stay.

    Returns:
        `name`, `bytes`, and the names of those that were `removed`.

    Raises:
        AgentError: there is no new backup. All older ones are there.
    """
    schedule = _schedule(site)
    with _destination(schedule, create=True) as target, work_folder() as work:
        for left in _names(site, target, _PART):
            target.delete(left)
        archive = work / _ARCHIVE
        with Folder.open(work) as local, local.create(archive.name, 0o600) as out:
            write_backup(site, work, out)
        name = f"{site.cluster}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz.cms"
        with Folder.open(work) as local, local.file(archive.name) as source:
            size = _write(schedule, source, target, name)
        present = _names(site, target)
        removed = [old for old in present[: -schedule.keep] if old != name]
        for old in removed:
            target.delete(old)
        return {"name": name, "bytes": size, "removed": removed}


def _write(schedule: Schedule, archive: IO[bytes], target: Folder, name: str) -> int:
    """Encrypt an archive into a new file, which gets its name once it is complete. Returns its size."""
    length = os.fstat(archive.fileno()).st_size
    if length > LARGEST:
        hint = "Run `gpucluster backup` instead: such a file is not encrypted, and has no limit"
        raise Failed(f"the backup has {length} bytes, and openssl decrypts at most {LARGEST}", hint)
    part = name + _PART
    try:
        with target.create(part, 0o600) as out:
            _encrypted(schedule.certificate, archive, out)
            out.flush()
            os.fsync(out.fileno())
            size = os.fstat(out.fileno()).st_size
            if size <= length:
                raise Failed("openssl has not written the whole backup", "Is the file system full?")
        target.move(part, target, name)
    except BaseException:
        with contextlib.suppress(OSError):
            target.delete(part)
        raise
    os.fsync(target.fileno())
    return size


def _encrypted(certificate: Path, archive: IO[bytes], out: IO[bytes]) -> None:
    words = ("-binary", "-stream", cipher(run("openssl", "version")), "-outform", "DER", "-recip", str(certificate))
    run("openssl", "cms", "-encrypt", *words, stdin=archive, stdout=out, seconds=DATA_SECONDS)


def cipher(version: str) -> str:
    """The option for the best encryption that this openssl has for CMS: with authentication since 3.0."""
    found = re.match(r"OpenSSL (\d+)\.", version)
    return "-aes-256-gcm" if found and int(found[1]) >= _AUTHENTICATED else "-aes256"


def listed(site: Site) -> list[dict[str, Any]]:
    """The complete backups in the directory, the newest first: `name`, `time` (UTC, ISO 8601) and `bytes`."""
    schedule = _schedule(site)
    found = []
    try:
        with _destination(schedule, create=False) as target:
            for name in reversed(_names(site, target)):
                state = target.look(name)
                if state is not None and stat.S_ISREG(state.st_mode):
                    found.append({"name": name, "time": _time_of(site, name), "bytes": state.st_size})
    except FileNotFoundError:  # the first run makes it
        return []
    return found


def send(site: Site, name: str, out: IO[bytes]) -> None:
    """Write one of the backups to a stream, as it is.

    Raises:
        Refused: there is none with this name.
    """
    schedule = _schedule(site)
    missing = Refused(f"there is no backup {name[:100]!r}", "To list them: gpucluster backup --list")
    if not re.fullmatch(_pattern(site), name):
        raise missing
    try:
        with _destination(schedule, create=False) as target, target.file(name) as source:
            shutil.copyfileobj(source, out, CHUNK)
    except FileNotFoundError:
        raise missing from None


def _schedule(site: Site) -> Schedule:
    if site.schedule is None:
        hint = "Set backup.certificate in cluster.yml, and run `gpucluster apply`"
        raise Refused("this cluster makes no backups on a schedule", hint)
    return site.schedule


def _pattern(site: Site) -> str:
    return rf"{re.escape(site.cluster)}-{_STAMP}\.tar\.gz\.cms"


def _names(site: Site, folder: Folder, end: str = "") -> list[str]:
    """The names in a folder that are of this cluster's backups, the oldest first."""
    return [name for name in folder.names() if re.fullmatch(_pattern(site) + re.escape(end), name)]


def _time_of(site: Site, name: str) -> str:
    stamp = name[len(site.cluster) + 1 :]
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:11]}:{stamp[11:13]}:{stamp[13:16]}"


@contextlib.contextmanager
def _destination(schedule: Schedule, *, create: bool) -> Iterator[Folder]:
    """Open the directory of the backups.

    Args:
        create: the default one is created on the share, as root's own. One of the operator is never created: it would
            be on the disk of the controller where the operator means a file system that is not mounted.

    Raises:
        Failed: its file system is not mounted, or others than root can write to it.
        FileNotFoundError: it is the default one, and not there yet.
    """
    if schedule.share is not None:
        parts = schedule.directory.relative_to(schedule.share).parts
        folders = [schedule.share.joinpath(*parts[: count + 1]) for count in range(len(parts))]
        with share.opened(schedule.share, *folders, create=create) as found:
            if create:
                found.set_mode(0o700)
            yield found
        return
    with contextlib.ExitStack() as until_end:
        yield _own(schedule.directory, until_end)


def _own(directory: Path, until_end: contextlib.ExitStack) -> Folder:
    last = until_end.enter_context(Folder.open(Path(directory.anchor)))
    try:
        for name in directory.parts[1:]:
            last = until_end.enter_context(last.folder(name))
    except FileNotFoundError:
        hint = "Mount its file system, or create it: sudo mkdir --mode=0700 --parents DIRECTORY"
        raise Failed(f"the directory of backups, {directory}, is not there", hint) from None
    except OSError as error:
        raise of_system(error, "the directory of backups") from error
    status = last.status()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        hint = f"Run: sudo chown root {directory} && sudo chmod 0700 {directory}"
        raise Failed(f"others than root can write to the directory of backups, {directory}", hint)
    return last
