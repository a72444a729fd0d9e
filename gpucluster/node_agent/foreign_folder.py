"""Work of root below a folder that others can change while root works there: users, and root of a node on the share.

A path is looked up again with each use, and between two uses another user may put a link in its place. So nothing here
takes a path, except for the place where the work begins: a folder is opened once, what is in it is reached by one name
from that folder (`openat`), a link is never followed, and owner and mode are set on what is open.

What others can still do is what they could do without us: change files of the same file system, or have the work end
with an OSError. What they can't do is lead root to a file of this host. For that the file system must be mounted with
`nodev` (the share is): opening a device has effects of its own.

Standard library only: Ansible's modules and the autoscaler's join service rely on it, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe must not block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Folders below each other that are open at a time while a tree is deleted; deeper ones are moved up first.
_DEPTH = 32
#: How often what others put back is deleted again.
_ROUNDS = 1000
#: What another kind of file in a place means for the next step; it is looked at again.
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)


class Folder:
    """An open folder. Names are single steps: no `/`, no `..`.

    All methods raise OSError with the path in it. A link in the place of what is named is an OSError (ELOOP, ENOTDIR).

    Args:
        descriptor: of the folder; it is closed with this object.
        path: for messages and answers; nothing is looked up by it.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open the place where the work begins: a mount point, or a folder that only root can exchange."""
        return cls(os.open(path, _FOLDER), path)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder."""
        os.close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, for a program that works in this folder."""
        return self._descriptor

    def status(self) -> os.stat_result:
        """Of the folder itself."""
        return os.fstat(self._descriptor)

    def free_bytes(self) -> int:
        """What is free in its file system."""
        usage = os.statvfs(self._descriptor)
        return usage.f_bavail * usage.f_frsize

    def names(self) -> list[str]:
        """The names in it, sorted."""
        with self._at():
            return sorted(os.listdir(self._descriptor))

    def look(self, name: str) -> os.stat_result | None:
        """What is there: a link itself. None if nothing is."""
        with self._at(name):
            try:
                return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def folder(self, name: str) -> Folder:
        """Open a folder in it."""
        with self._at(name):
            return Folder(os.open(name, _FOLDER, dir_fd=self._descriptor), self.path / name)

    def make(self, name: str, mode: int = 0o755) -> Folder:
        """Create a folder of our own, and open it.

        Raises:
            FileExistsError: something is there.
        """
        with self._at(name):
            os.mkdir(name, 0o700, dir_fd=self._descriptor)
            made = self.folder(name)
            try:
                status = made.status()
                if status.st_uid != os.geteuid() or status.st_dev != self.status().st_dev or made.names():
                    raise OSError(errno.EAGAIN, "was exchanged while it was made", name)
                made.set_mode(mode)
            except BaseException:
                made.close()
                raise
            return made

    def set_mode(self, mode: int) -> None:
        """Set the mode of the folder itself."""
        with self._at():
            os.fchmod(self._descriptor, mode)

    def give(self, uid: int, gid: int) -> None:
        """Give the folder itself to a user."""
        with self._at():
            os.fchown(self._descriptor, uid, gid)

    def file(self, name: str) -> IO[bytes]:
        """Open a regular file for reading. Who can write to it may do so meanwhile."""
        with self._at(name):
            return os.fdopen(self._regular(name, _FILE), "rb")

    def read(self, name: str, most: int) -> bytes:
        """The content of a regular file of at most so many bytes."""
        with self.file(name) as stream:
            content = stream.read(most + 1)
        if len(content) > most:
            raise OSError(errno.EFBIG, f"has more than {most} bytes", str(self.path / name))
        return content

    def create(self, name: str, mode: int) -> IO[bytes]:
        """Open a new file for writing.

        Raises:
            FileExistsError: something is there, be it a link that leads nowhere.
        """
        with self._at(name):
            descriptor = os.open(name, _NEW, 0o600, dir_fd=self._descriptor)
            os.fchmod(descriptor, mode)
            return os.fdopen(descriptor, "wb")

    def appended(self, name: str) -> IO[bytes]:
        """Open a regular file of ours (0600) for more bytes, without a buffer; it is created if there is none."""
        with self._at(name):
            return os.fdopen(self._regular(name, _MORE), "ab", buffering=0)

    def write(self, name: str, content: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
        """Write a file as a whole or not at all, in the place of what was there.

        Args:
            owner: uid and gid; without them it is ours.
        """
        fresh = f".{name}.{secrets.token_hex(8)}"
        with self._at(name):
            try:
                with self.create(fresh, 0o600) as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                    if owner is not None:
                        os.fchown(stream.fileno(), *owner)
                    os.fchmod(stream.fileno(), mode)
                self.move(fresh, self, name)
            except BaseException:
                with contextlib.suppress(OSError):
                    self.delete(fresh)
                raise

    def move(self, name: str, into: Folder, new: str) -> None:
        """Move something, a link itself, into an open folder of the same file system."""
        with self._at(name), into._at(new):
            os.rename(name, new, src_dir_fd=self._descriptor, dst_dir_fd=into._descriptor)

    def delete(self, name: str) -> None:
        """Delete a file, or a link itself. It is not an error if nothing is there."""
        with self._at(name), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Delete whatever is there, a folder with all that is in it, never what a link leads to.

        What is mounted there, or on a folder in it, is an error and stays.
        """
        with self._at(name):
            for _ in range(_ROUNDS):
                if self._removed(name, None, _DEPTH):
                    return
            raise OSError(errno.ENOTEMPTY, "others put back what is deleted", name)

    def _removed(self, name: str, top: Folder | None, depth: int) -> bool:
        """Whether something is gone after a try; what others change meanwhile is left for the next one."""
        status = self.look(name)
        if status is None:
            return True
        try:
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=self._descriptor)
            elif top is not None and depth == 0:
                os.rename(name, secrets.token_hex(16), src_dir_fd=self._descriptor, dst_dir_fd=top._descriptor)
            else:
                with self.folder(name) as inner:
                    if inner.status().st_dev != self.status().st_dev:
                        raise OSError(errno.EXDEV, "something is mounted there", str(inner.path))
                    for each in inner.names():
                        inner._removed(each, top or inner, depth - 1)
                os.rmdir(name, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno not in _CHANGED:
                raise
            return False
        return True

    def _regular(self, name: str, flags: int) -> int:
        descriptor = os.open(name, flags, 0o600, dir_fd=self._descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "is not a regular file", name)
        return descriptor

    @contextlib.contextmanager
    def _at(self, name: str | None = None) -> Iterator[None]:
        """Name the whole path in errors, and refuse names that are more than one step."""
        path = str(self.path if name is None else self.path / name)
        if name is not None and ("/" in name or "\0" in name or name in ("", ".", "..")):
            raise OSError(errno.EINVAL, "is not the name of a file", path)
        try:
            yield
        except OSError as error:
            if not isinstance(error.filename, str) or "/" not in error.filename:
                error.filename, error.filename2 = path, None
            raise


class Tree:
    """Folders below an open one, reached by several names; the last one stays open for the next file beside it.

    Args:
        top: the open folder.
        create: missing folders are created, 0755.
    """

    def __init__(self, top: Folder, *, create: bool) -> None:
        self._top, self._create = top, create
        self._last: tuple[tuple[str, ...], Folder] | None = None

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def folder(self, names: tuple[str, ...]) -> Folder:
        """The folder with these names below each other; it is closed with the next call."""
        if not names:
            return self._top
        if self._last is None or self._last[0] != names:
            folder = self._opened(names)
            self._close()
            self._last = names, folder
        return self._last[1]

    def _opened(self, names: tuple[str, ...]) -> Folder:
        last = self._top
        for name in names:
            try:
                folder = self._step(last, name)
            finally:
                if last is not self._top:
                    last.close()
            last = folder
        return last

    def _step(self, inside: Folder, name: str) -> Folder:
        if self._create:
            with contextlib.suppress(FileExistsError):
                return inside.make(name)
        return inside.folder(name)

    def _close(self) -> None:
        if self._last is not None:
            self._last[1].close()
            self._last = None
