"""Files that were fetched, each under its checksum: what lies here is right, and whole.

<root>/files/<sha256>/<file>
<root>/said/<key>               what a source's own list said of a file that was taken by it
"""

from __future__ import annotations

import errno
import fcntl
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

from gpucluster.artifacts.cache import key_of
from gpucluster.artifacts.sources import PAUSES, Source
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import Event, Sink
from gpucluster.paths import write_private

#: Of one file: nothing that we install is near these.
_MAX_BYTES = 2 * 1024**3
_MAX_SECONDS = 1800.0
_CHUNK = 1024 * 1024
_UNUSED_SECONDS = 90 * 86400.0


class Store:
    """The files, in `files` below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files, self._said = root / "files", root / "said"

    def path(self, checksum: str, name: str) -> Path:
        """Where a file lies, if it does."""
        return self._files / checksum / name

    def has(self, checksum: str, name: str) -> bool:
        """Whether it is there."""
        return self.path(checksum, name).is_file()

    def keep(self, origin: Source, place: str, name: str, checksum: str, said_by: str, on_event: Sink) -> None:
        """Fetch a file unless it is there.

        Args:
            place: where `origin` has it.
            said_by: who says the checksum.

        Raises:
            InputError: it has another checksum.
            EnvironmentFault: it can't be fetched.
        """
        target = self.path(checksum, name)
        if target.is_file():
            os.utime(target.parent)
            return
        with self._one_at_a_time(on_event):
            if target.is_file():  # who had the lock has fetched it
                return
            with self._downloaded(origin, place, name, on_event) as (file, found):
                if found != checksum:
                    raise InputError(
                        f"{name} has another checksum: {found}; {said_by} says {checksum}",
                        where=f"{origin.name}: {place}",
                        hint="It was not kept. Find out which of the two is right before you change either",
                    )
                self._move(file, target)

    def keep_unchecked(self, origin: Source, place: str, name: str, on_event: Sink) -> str:
        """Fetch a file whatever it holds. Returns its checksum."""
        with self._one_at_a_time(on_event), self._downloaded(origin, place, name, on_event) as (file, found):
            self._move(file, self.path(found, name))
        return found

    def remember(self, origin: str, name: str, checksum: str) -> None:
        """What a source says of a file, for times when it does not answer."""
        note = self._note(origin, name)
        if self.remembered(origin, name) == checksum:
            os.utime(note)
        else:
            write_private(note, json.dumps({"source": origin, "file": name, "sha256": checksum}) + "\n")

    def remembered(self, origin: str, name: str) -> str | None:
        """What it said last; None if it never did."""
        try:
            return str(json.loads(self._note(origin, name).read_text())["sha256"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def forget_unused(self) -> None:
        """Delete what no run has asked for in a long time."""
        for one in (*self._files.iterdir(), *self._said.glob("*")):
            with suppress(OSError):
                if one.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                    shutil.rmtree(one) if one.is_dir() else one.unlink()

    def _note(self, origin: str, name: str) -> Path:
        return self._said / key_of([origin, name])

    @contextmanager
    def _downloaded(self, origin: Source, place: str, name: str, on_event: Sink) -> Iterator[tuple[Path, str]]:
        """A file as it came, and its checksum; it is gone afterwards unless it was moved."""
        on_event(Event("log", "software", "info", f"fetching {name} from {origin.name}"))
        for left in self._files.glob(".new-*"):  # of a run that was killed: the lock is ours
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=self._files, prefix=".new-") as scratch:
            file = Path(scratch) / name
            yield file, _copy(origin, place, file)

    def _move(self, file: Path, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        file.replace(target)

    @contextmanager
    def _one_at_a_time(self, on_event: Sink) -> Iterator[None]:
        """Two runs at once fetch a file once. The lock ends with its holder, however that ends."""
        self._files.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_event(Event("log", "software", "info", "another run fetches releases; waiting for it"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def readable_errors(folder: Path) -> Iterator[None]:
    """What the operating system refuses becomes an EnvironmentFault."""
    try:
        yield
    except OSError as error:
        hint = "Free some space and run the same command again" if error.errno == errno.ENOSPC else ""
        what = f"can't keep release files: {error.strerror or error}"
        raise EnvironmentFault(what, where=str(folder), hint=hint) from error


def _copy(origin: Source, place: str, target: Path) -> str:
    """Copy with patience: who breaks off is asked again. Returns the checksum."""
    where, why = f"{origin.name}: {place}", ""
    for pause in (*PAUSES, None):
        try:
            with origin.reading(place) as (stream, size), target.open("wb") as out:
                found, copied = _bounded_copy(stream.read, out.write, where)
            if size is None or copied == size:
                target.chmod(0o644)
                return found
            why = f"it ended after {copied} of {size} bytes"
        except urllib.error.HTTPError as error:
            raise EnvironmentFault(f"{target.name} can't be fetched: it answered {error.code}", where=where) from error
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            why = str(error)
        if pause is not None:
            time.sleep(pause)
    raise EnvironmentFault(f"{target.name} can't be fetched: {why}", where=where, hint="Run the same command again")


def _bounded_copy(read: Callable[[int], bytes], write: Callable[[bytes], object], where: str) -> tuple[str, int]:
    """Copy to the end. Returns the checksum and the number of bytes."""
    checksum, copied, until = hashlib.sha256(), 0, time.monotonic() + _MAX_SECONDS
    while data := read(_CHUNK):
        checksum.update(data)
        write(data)
        copied += len(data)
        if copied > _MAX_BYTES:
            raise EnvironmentFault(f"it is larger than {_MAX_BYTES} bytes, which no release is", where=where)
        if time.monotonic() > until:
            raise EnvironmentFault(f"it did not come within {_MAX_SECONDS:g} s", where=where, hint="Run it again")
    return checksum.hexdigest(), copied
