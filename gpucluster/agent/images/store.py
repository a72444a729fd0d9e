"""The images on the share, and the working files of imports. Files that a job has written are not trusted."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gpucluster.agent import share
from gpucluster.agent.accounts import Account
from gpucluster.agent.errors import Failed
from gpucluster.agent.images.references import SUFFIX
from gpucluster.agent.images.requester import Gone, is_waiting, report

#: How often it is checked whether another import has ended, in seconds.
TICK = 1.0
#: The first bytes of squashfs files.
MAGIC = b"hsqs"


class Store:
    """The directory with the images, `NAME.sqsh`, each with a `NAME.json` that has its source.

    Names that begin with a dot are working files.
    """

    def __init__(self, mount: Path, directory: Path, locks: Path) -> None:
        self._share = mount
        self.directory = directory
        self._locks = locks

    def prepare(self) -> None:
        """Create the directory and its parent on the share, as root's own.

        Raises:
            Failed: the share is not mounted, or others can write there.
        """
        share.prepare(self._share, self.directory.parent, self.directory)

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool) -> Iterator[None]:
        """Hold the lock of an image's name. A progress line reports a wait for another import.

        Raises:
            Failed: another import holds it, and `wait` is false.
            Gone: the requester has disconnected.
        """
        self._locks.mkdir(mode=0o700, exist_ok=True)
        with (self._locks / name).open("w") as file:
            if not _take(file):
                if not wait:
                    raise Failed(f"{name} is being imported", "Wait for the import, or cancel it")
                report(f"another import of {name} runs; waiting for it")
                while not _take(file):
                    if not is_waiting():
                        raise Gone
                    time.sleep(TICK)
            yield

    def file(self, name: str) -> Path:
        """The path of an image."""
        return self.directory / f"{name}{SUFFIX}"

    def workplace(self, name: str) -> Path:
        """The working directory of an import."""
        return self.directory / f".import-{name}"

    def image(self, name: str) -> dict[str, Any] | None:
        """An image as answers show it; None if there is none."""
        file = self.file(name)
        try:
            found = file.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        try:
            note = json.loads(self._note(name).read_text())
        except (OSError, ValueError):
            note = {}
        made = datetime.datetime.fromtimestamp(found.st_mtime, datetime.timezone.utc)
        return {
            "name": name,
            "path": str(file),
            "size": found.st_size,
            "created_at": made.isoformat(timespec="seconds"),
            "uri": str(note.get("uri", "")),
            "user": str(note.get("user", "")),
        }

    def images(self) -> list[dict[str, Any]]:
        """Every image, by name."""
        try:
            names = sorted(file.name[: -len(SUFFIX)] for file in self.directory.glob(f"[!.]*{SUFFIX}"))
        except OSError:
            names = []
        return [image for image in map(self.image, names) if image]

    def remove(self, name: str) -> None:
        """Delete an image and its note."""
        self.file(name).unlink()
        self._note(name).unlink(missing_ok=True)

    def begin(self, name: str, owner: Account) -> Path:
        """Make an empty working directory that belongs to the user."""
        place = self.workplace(name)
        place.mkdir(mode=0o700)
        os.chown(place, owner.uid, owner.gid)
        return place

    def clear(self, name: str) -> None:
        """Delete the working directory of an import; links in it are not followed."""
        place = self.workplace(name)
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
        else:
            shutil.rmtree(place)

    def publish(self, name: str, made: Path, note: dict[str, str]) -> None:
        """Put a finished file in its place. The user's job could change it until now, so nothing in it is trusted.

        Raises:
            Failed: it is not a squashfs file.
        """
        # Out of the user's directory first: from now on the user can't replace it.
        taken = self.directory / f".taken-{name}"
        if taken.is_dir() and not taken.is_symlink():
            shutil.rmtree(taken)
        try:
            made.rename(taken)
        except FileNotFoundError:
            raise Failed("Enroot reported success and left no image", "Run it again") from None
        try:
            _claim(taken)
            self._note(name).unlink(missing_ok=True)
            taken.rename(self.file(name))
        except BaseException:
            if taken.is_dir() and not taken.is_symlink():
                shutil.rmtree(taken)
            taken.unlink(missing_ok=True)
            raise
        new = self.directory / f".note-{name}"
        new.write_text(json.dumps(note) + "\n")
        new.chmod(0o644)
        new.rename(self._note(name))

    def _note(self, name: str) -> Path:
        return self.directory / f"{name}.json"


def _take(lock: IO[str]) -> bool:
    """Lock a file; returns whether it was free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim(file: Path) -> None:
    """Make a file root's own and readable by all, and write it to disk.

    Raises:
        Failed: it is not a squashfs file.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise Failed("the result of the import is not a file", "Run it again") from None
    try:
        found = os.fstat(descriptor)
        # Through a second name the user could still reach the file.
        good = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and os.read(descriptor, len(MAGIC)) == MAGIC
        if not good:
            raise Failed("the result of the import is not a squashfs image", "Run it again")
        os.fchmod(descriptor, 0o644)
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
