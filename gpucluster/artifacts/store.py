"""Downloaded files, each under its checksum: a file in the store is complete and has that checksum.

<root>/files/<sha256>/<file>
<root>/said/<key>               the checksum that a source's list had for a file that was taken from it
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import shutil
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpucluster import cancellation
from gpucluster.artifacts import lock_file
from gpucluster.artifacts.cache import key_of
from gpucluster.artifacts.http_client import PAUSES
from gpucluster.artifacts.sources import ReleaseSource
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import Sink, info
from gpucluster.paths import write_private

# Limits for one file. All files that we install are much smaller.
_MAX_BYTES = 2 * 1024**3
_MAX_SECONDS = 1800.0
_CHUNK = 1024 * 1024
_DIFFERS = "The file was not stored. Find out which of the two is right before you change either"
_RENEW = ". If the file was replaced and you trust the new one: `gpucluster software lock --upgrade`"
_UNUSED_SECONDS = 90 * 86400.0


class ArtifactStore:
    """The store in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files, self._claims = root / "files", root / "said"

    def path(self, checksum: str, name: str) -> Path:
        """The path of a file. It may not exist."""
        return self._files / checksum / name

    def has(self, checksum: str, name: str) -> bool:
        """Whether the file is in the store."""
        return self.path(checksum, name).is_file()

    def fetch(
        self, origin: ReleaseSource, place: str, name: str, checksum: str, checksum_from: str, on_event: Sink
    ) -> None:
        """Download a file unless it is in the store.

        Args:
            place: its path in `origin`.
            checksum_from: where the checksum comes from, for messages.

        Raises:
            InputError: it has another checksum.
            EnvironmentFault: it can't be downloaded.
        """
        target = self.path(checksum, name)
        if target.is_file():
            os.utime(target.parent)
            return
        with self._one_at_a_time(on_event):
            if target.is_file():  # the run that had the lock has downloaded it
                return
            with self._downloaded(origin, place, name, on_event) as (file, actual):
                if actual != checksum:
                    raise InputError(
                        f"{name} has another checksum: {actual}; {checksum_from} states {checksum}",
                        where=f"{origin.name}: {place}",
                        hint=_DIFFERS + (_RENEW if checksum_from == lock_file.NAME else ""),
                    )
                self._move(file, target)

    def fetch_unchecked(self, origin: ReleaseSource, place: str, name: str, on_event: Sink) -> str:
        """Download a file, whatever its checksum is. Returns the checksum."""
        with self._one_at_a_time(on_event), self._downloaded(origin, place, name, on_event) as (file, actual):
            self._move(file, self.path(actual, name))
        return actual

    def save_claim(self, origin: str, name: str, checksum: str) -> None:
        """Save the checksum that a source has for a file, for later runs in which it does not answer."""
        saved = self._claim_file(origin, name)
        if self.saved_claim(origin, name) == checksum:
            os.utime(saved)
        else:
            write_private(saved, json.dumps({"source": origin, "file": name, "sha256": checksum}) + "\n")

    def saved_claim(self, origin: str, name: str) -> str | None:
        """The checksum that the source had last; None if it never had one."""
        try:
            return str(json.loads(self._claim_file(origin, name).read_text())["sha256"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def remove_unused(self) -> None:
        """Delete what no run has used for 90 days."""
        for entry in (*self._files.iterdir(), *self._claims.glob("*")):
            with suppress(OSError):
                if entry.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _claim_file(self, origin: str, name: str) -> Path:
        return self._claims / key_of([origin, name])

    @contextmanager
    def _downloaded(self, origin: ReleaseSource, place: str, name: str, on_event: Sink) -> Iterator[tuple[Path, str]]:
        """A downloaded file, and its checksum. It is deleted at the end unless it was moved."""
        info(on_event, "software", f"downloading {name} from {origin.name}")
        for left in self._files.glob(".new-*"):  # of a run that was killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=self._files, prefix=".new-") as scratch:
            file = Path(scratch) / name
            yield file, _copy(origin, place, file)

    def _move(self, file: Path, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        file.replace(target)

    @contextmanager
    def _one_at_a_time(self, on_event: Sink) -> Iterator[None]:
        """Two runs at the same time download a file once. The lock ends with the process that holds it."""
        import filelock

        self._files.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(self.root / ".lock")
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            info(on_event, "software", "another run downloads release files; waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def readable_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into an EnvironmentFault."""
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        hint = f"{'Free some space' if full else 'Make the folder writable for you'} and run the same command again"
        what = f"release files can't be stored: {error.strerror or error}"
        raise EnvironmentFault(what, where=str(folder), hint=hint) from error


def _copy(origin: ReleaseSource, place: str, target: Path) -> str:
    """Copy, with retries after a broken connection. Returns the checksum."""
    where, why = f"{origin.name}: {place}", ""
    for pause in (*PAUSES, None):
        try:
            with origin.reading(place) as (stream, size), target.open("wb") as out:
                actual, copied = _bounded_copy(stream.read, out.write, where)
            if size is None or copied == size:
                target.chmod(0o644)
                return actual
            why = f"it ended after {copied} of {size} bytes"
        except urllib.error.HTTPError as error:
            what = f"{target.name} can't be downloaded: the server answered {error.code}"
            raise EnvironmentFault(
                what, where=where, hint="Check the mirror, then run the same command again"
            ) from error
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            why = str(error)
        if pause is not None:
            cancellation.sleep(pause)
    raise EnvironmentFault(f"{target.name} can't be downloaded: {why}", where=where, hint="Run the same command again")


def _bounded_copy(read: Callable[[int], bytes], write: Callable[[bytes], object], where: str) -> tuple[str, int]:
    """Copy a file that may not be larger or slower than our limits. Returns the checksum and the number of bytes."""
    checksum, copied, until = hashlib.sha256(), 0, time.monotonic() + _MAX_SECONDS
    while data := read(_CHUNK):
        cancellation.check()
        checksum.update(data)
        write(data)
        copied += len(data)
        if copied > _MAX_BYTES:
            what = f"the file is larger than {_MAX_BYTES} bytes: no release file is so large"
            raise EnvironmentFault(what, where=where, hint="Check what the mirror serves there")
        if time.monotonic() > until:
            what = f"the file did not arrive within {_MAX_SECONDS:g} s"
            raise EnvironmentFault(what, where=where, hint="Run the same command again")
    return checksum.hexdigest(), copied
