"""The images on the share, and the working files of imports. Files that a job has written are not trusted.

Root of any node can exchange what is on the share, so it is reached by `foreign_folder` alone.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpucluster.controller import file_lock, share
from gpucluster.controller.images.references import SUFFIX
from gpucluster.controller.images.requester import RequesterGone, is_waiting, report
from gpucluster.node_agent.accounts import Account
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.foreign_folder import Folder

#: How often it is checked whether another import has ended, in seconds.
TICK = 1.0
#: The first bytes of squashfs files.
MAGIC = b"hsqs"
_MOST_NOTE = 65536


class ImageStore:
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
        with self._opened():
            pass

    @contextlib.contextmanager
    def _opened(self, *, create: bool = True) -> Iterator[Folder]:
        with share.opened(self._share, self.directory.parent, self.directory, create=create) as folder:
            yield folder

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool) -> Iterator[None]:
        """Hold the lock of an image's name. A progress line reports a wait for another import.

        Raises:
            Failed: another import holds it, and `wait` is false.
            RequesterGone: the requester has disconnected.
        """
        self._locks.mkdir(mode=0o700, exist_ok=True)
        with (self._locks / name).open("w") as file:
            if not file_lock.acquire(file.fileno()):
                if not wait:
                    raise Failed(f"{name} is being imported", "Wait for the import, or cancel it")
                report(f"another import of {name} runs; waiting for it")
                while not file_lock.acquire(file.fileno()):
                    if not is_waiting():
                        raise RequesterGone
                    time.sleep(TICK)
            yield

    def file(self, name: str) -> Path:
        """The path of an image."""
        return self.directory / f"{name}{SUFFIX}"

    def image(self, name: str) -> dict[str, Any] | None:
        """An image as answers show it; None if there is none."""
        with contextlib.suppress(FileNotFoundError), self._opened(create=False) as folder:
            return self._image(folder, name)
        return None

    def _image(self, folder: Folder, name: str) -> dict[str, Any] | None:
        status = folder.look(f"{name}{SUFFIX}")
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        try:
            note = json.loads(folder.read(_note(name), _MOST_NOTE))
        except (OSError, ValueError, RecursionError):
            note = {}
        note = note if isinstance(note, dict) else {}
        made = datetime.datetime.fromtimestamp(status.st_mtime, datetime.timezone.utc)
        return {
            "name": name,
            "path": str(self.file(name)),
            "size": status.st_size,
            "created_at": made.isoformat(timespec="seconds"),
            "uri": str(note.get("uri", "")),
            "user": str(note.get("user", "")),
        }

    def images(self) -> list[dict[str, Any]]:
        """Every image, by name."""
        images = []
        with contextlib.suppress(OSError), self._opened(create=False) as folder:
            for file in folder.names():
                if file.endswith(SUFFIX) and not file.startswith("."):
                    image = self._image(folder, file[: -len(SUFFIX)])
                    images += [image] if image else []
        return images

    def remove(self, name: str) -> None:
        """Delete an image and its note."""
        with self._opened() as folder:
            folder.delete(f"{name}{SUFFIX}")
            folder.delete(_note(name))

    def begun_by(self, name: str) -> int | None:
        """The uid of the user whose import has left a working directory; None if there is none."""
        with self._opened() as folder:
            status = folder.look(_workplace(name))
        return None if status is None else status.st_uid

    def begin(self, name: str, owner: Account) -> Path:
        """Make an empty working directory that belongs to the user."""
        with self._opened() as folder, folder.make(_workplace(name), 0o700) as place:
            place.give(owner.uid, owner.gid)
        return self.directory / _workplace(name)

    def clear(self, name: str) -> None:
        """Delete the working directory of an import; links in it are not followed."""
        with self._opened() as folder:
            folder.remove(_workplace(name))

    def publish(self, name: str, made: str, note: dict[str, str]) -> None:
        """Put a finished file in its place. The user's job could change it until now, so nothing in it is trusted.

        Args:
            made: its name in the working directory.

        Raises:
            Failed: it is not a squashfs file.
        """
        taken, final = f".taken-{name}", f"{name}{SUFFIX}"
        with self._opened() as folder:
            folder.remove(taken)
            try:
                with folder.folder(_workplace(name)) as place:
                    # Out of the user's directory first: from now on the user can't replace it.
                    place.move(made, folder, taken)
            except FileNotFoundError:
                raise Failed("Enroot reported success and left no image", "Run it again") from None
            try:
                claimed = _claim(folder, taken)
                folder.delete(_note(name))
                folder.move(taken, folder, final)
            except BaseException:
                folder.remove(taken)
                raise
            status = folder.look(final)
            if status is None or not os.path.samestat(status, claimed):
                raise Failed(f"{final} was exchanged on the share meanwhile", "Find out who is root on a node")
            folder.write(_note(name), (json.dumps(note) + "\n").encode(), 0o644)


def _workplace(name: str) -> str:
    return f".import-{name}"


def _note(name: str) -> str:
    return f"{name}.json"


def _claim(folder: Folder, name: str) -> os.stat_result:
    """Make a file root's own and readable by all, and write it to disk; returns which one that was.

    Raises:
        Failed: it is not a squashfs file.
    """
    try:
        file = folder.file(name)
    except OSError:
        raise Failed("the result of the import is not a file", "Run it again") from None
    with file:
        status = os.fstat(file.fileno())
        # Through a second name the user could still reach the file.
        if status.st_nlink != 1 or file.read(len(MAGIC)) != MAGIC:
            raise Failed("the result of the import is not a squashfs image", "Run it again")
        os.fchmod(file.fileno(), 0o644)
        os.fchown(file.fileno(), os.geteuid(), os.getegid())
        os.fsync(file.fileno())
    return status
