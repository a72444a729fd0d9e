"""The images on the share, and what an import works on. What comes from its job is not trusted."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import pwd
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from images.asker import say, somebody_waits
from images.errors import Gone, ImageError
from images.names import SUFFIX

#: How often it looks whether another import is over, in seconds.
TICK = 1.0
#: What squashfs files begin with.
MAGIC = b"hsqs"


class Store:
    """The directory with the images, `NAME.sqsh`, and beside each a note of where it came from.

    Names that begin with a dot are at work, and no image's.
    """

    def __init__(self, share: Path, directory: Path, locks: Path) -> None:
        self._share = share
        self.directory = directory
        self._locks = locks

    def prepare(self) -> None:
        """Make the directory and its parent, root's own, on the share."""
        if not self._share.is_mount():
            raise ImageError(f"{self._share} is not mounted here", "Run: gpucluster apply")
        for folder in (self.directory.parent, self.directory):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o755)
                folder.chmod(0o755)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise ImageError(
                    f"{folder} is not a directory that only root can write to", "Move it away, and run it again"
                )

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool) -> Iterator[None]:
        """Hold the name of an image. Who waits for another import is told so."""
        self._locks.mkdir(mode=0o700, exist_ok=True)
        with (self._locks / name).open("w") as file:
            if not _take(file):
                if not wait:
                    raise ImageError(f"{name} is being imported", "Wait for that, or cancel it")
                say(f"another import of {name} is at work; waiting for it")
                while not _take(file):
                    if not somebody_waits():
                        raise Gone
                    time.sleep(TICK)
            yield

    def file(self, name: str) -> Path:
        """Where an image lies, or would."""
        return self.directory / f"{name}{SUFFIX}"

    def workplace(self, name: str) -> Path:
        """Where an import of it is at work."""
        return self.directory / f".import-{name}"

    def image(self, name: str) -> dict[str, Any] | None:
        """An image as told to whoever asks; None where there is none."""
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
        """Take an image away, and what is known of it."""
        self.file(name).unlink()
        self._note(name).unlink(missing_ok=True)

    def begin(self, name: str, owner: pwd.struct_passwd) -> Path:
        """An empty directory for whoever imports it."""
        place = self.workplace(name)
        place.mkdir(mode=0o700)
        os.chown(place, owner.pw_uid, owner.pw_gid)
        return place

    def clear(self, name: str) -> None:
        """Remove what an import works on; links in it are not followed."""
        place = self.workplace(name)
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
        else:
            shutil.rmtree(place)

    def publish(self, name: str, made: Path, note: dict[str, str]) -> None:
        """Put a finished file in its place. Whose job wrote it had it in hand until now: nothing is taken on trust.

        Raises:
            ImageError: it is no squashfs file.
        """
        # Out of their directory first: from now on they can't put anything else there.
        taken = self.directory / f".taken-{name}"
        if taken.is_dir() and not taken.is_symlink():
            shutil.rmtree(taken)
        try:
            made.rename(taken)
        except FileNotFoundError:
            raise ImageError("Enroot ended well and left no image", "Run it again") from None
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
    """Lock a file, if nobody else holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim(file: Path) -> None:
    """Make a file root's, readable by all, on the disk."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise ImageError("what the import made is no file", "Run it again") from None
    try:
        found = os.fstat(descriptor)
        # A second name of it would be a way to a file that is root's now.
        good = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and os.read(descriptor, len(MAGIC)) == MAGIC
        if not good:
            raise ImageError("what the import made is no squashfs image", "Run it again")
        os.fchmod(descriptor, 0o644)
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
