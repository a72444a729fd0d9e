"""Home directories from outside, as root handles them.

Root of any node can exchange what is on the share, so it is reached by `foreign_folder` alone, and what is in a home is
changed by a process of its owner (`home_contents`).
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpucluster.controller.users import home_contents
from gpucluster.controller.users.errors import InHome
from gpucluster.controller.users.state import DirectoryUser
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused, of_system
from gpucluster.node_agent.foreign_folder import Folder

#: Below the base of homes, for root only: archives, and homes that are being deleted.
REMOVED = ".removed"
_ARCHIVE_SECONDS = 6 * 3600


@dataclass(frozen=True)
class Homes:
    """All home directories.

    Args:
        base: the mount point of the share that holds them.
    """

    base: Path

    def check(self, otherwise: str = "homes made now would be hidden by the share") -> None:
        """Check that the share is mounted.

        Raises:
            Failed: it is not; `otherwise` is the consequence.
        """
        if not self.base.is_mount():
            raise Failed(f"{self.base} is not mounted; {otherwise}", f"Run: mount {self.base}")

    def owners(self) -> dict[str, int]:
        """Name -> uid of the owner of each home. Homes that can't be read (something is mounted there) are left out."""
        owners: dict[str, int] = {}
        with suppress(FileNotFoundError), Folder.open(self.base) as base:
            for name in base.names():
                with suppress(OSError):
                    state = base.look(name)
                    if state is not None and stat.S_ISDIR(state.st_mode):
                        owners[name] = state.st_uid
        return owners

    def make(self, user: DirectoryUser) -> bool:
        """Create the home if it is missing, and write the user's keys; returns whether anything changed.

        Raises:
            Refused: something is in the way.
            Failed: it could not be written.
            InHome: the same, because of what its owner has in it.
        """
        home = Path(user.home)
        with _as_failure(user.name), Folder.open(home.parent) as base:
            try:
                with base.make(home.name, 0o700) as made:
                    made.give(user.uid, user.gid)
                changed = True
            except FileExistsError:
                changed = _take_over(base, home, user)
        return bool(home_contents.as_user(user, lambda: home_contents.fill(home, user))) or changed

    def lock(self, user: DirectoryUser) -> bool:
        """Set the keys in a home aside if the user is disabled, else put them back; returns whether it changed."""
        ssh = Path(user.home) / ".ssh"
        return self._is_own(user) and bool(
            home_contents.as_user(user, lambda: home_contents.move_keys(ssh, enabled=user.enabled))
        )

    def take_keys(self, user: DirectoryUser) -> int:
        """Delete all keys with which the user can log in; returns how many there were."""
        ssh = Path(user.home) / ".ssh"
        return home_contents.as_user(user, lambda: home_contents.delete_keys(ssh)) if self._is_own(user) else 0

    def _is_own(self, user: DirectoryUser) -> bool:
        """Whether there is a home that belongs to the user.

        Raises:
            Failed: the share is not mounted, or the home can't be read.
        """
        self.check("the keys in the home are unchanged")
        with _as_failure(user.name), Folder.open(self.base) as base:
            state = _status(base, user.name)
        return state is not None and stat.S_ISDIR(state.st_mode) and state.st_uid == user.uid

    def has(self, name: str) -> bool:
        """Whether there is a home, even one that can't be read."""
        try:
            with Folder.open(self.base) as base:
                state = base.look(name)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return state is not None and stat.S_ISDIR(state.st_mode)

    def archive(self, name: str) -> Path | None:
        """Write the home into an archive that only root can read; None if there is no home.

        Raises:
            Failed: it is not complete; the home is unchanged.
        """
        if not self.has(name):
            return None
        target = f"{name}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"
        partial = f".{target}.partial"
        with _as_failure(name), Folder.open(self.base) as base, _store(base) as store:
            try:
                with store.create(partial, 0o600) as file:
                    # The lock shows that the file is still being written. tar inherits it and releases it at its end.
                    with suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _write_archive(base, name, file)
                    os.fsync(file.fileno())
                store.move(partial, store, target)
            except OSError as error:
                raise Failed(f"the home of {name} could not be archived: {error}", "It is unchanged") from error
            finally:
                store.delete(partial)
        return self.base / REMOVED / target

    def set_aside(self, name: str) -> Path | None:
        """Rename a home for deletion; `sweep` deletes it, which takes long. None if there is no home."""
        if not self.has(name):
            return None
        aside = f".{name}-{time.time_ns()}.deleting"
        with _as_failure(name), Folder.open(self.base) as base, _store(base) as store:
            base.move(name, store, aside)
        return self.base / REMOVED / aside

    def sweep(self, name: str, aside: Path | None) -> None:
        """Delete a home that was set aside, and the leftovers of killed runs.

        Raises:
            Failed: a part of the home could not be deleted.
        """
        with _as_failure(name), Folder.open(self.base) as base, _store(base) as store:
            for rest in store.names():
                if rest.startswith(".") and rest.endswith(".deleting"):
                    with suppress(OSError):
                        store.remove(rest)
                elif rest.startswith(".") and rest.endswith(".partial"):
                    _unlink_unless_written(store, rest)
            if aside:
                # Again, to get the reason.
                store.remove(aside.name)


def _take_over(base: Folder, home: Path, user: DirectoryUser) -> bool:
    """Give a user the empty folder of root that is in the place of the home; returns whether it was one.

    Raises:
        Refused: something else is in the way.
    """
    state = _status(base, home.name)
    if state is None or not stat.S_ISDIR(state.st_mode):
        raise Refused(f"{home} is in the way: it is not a directory", "Move it away")
    if state.st_uid == user.uid != 0:
        return False
    with base.folder(home.name) as directory:
        owner = directory.status().st_uid
        if owner == 0 and not directory.names():
            directory.give(user.uid, user.gid)
            directory.set_mode(0o700)
            return True
    if owner != user.uid:
        raise Refused(
            f"{home} belongs to uid {owner}, {user.name} has {user.uid}", "Give it to the user or move it away"
        )
    return False


def _status(base: Folder, name: str) -> os.stat_result | None:
    try:
        return base.look(name)
    except OSError as error:
        # Only its owner can read what is mounted there.
        message = f"the home of {name}: {base.path / name}: {error.strerror}"
        raise InHome(message, f"Run: grep {base.path / name} /proc/mounts") from error


def _store(base: Folder) -> Folder:
    """The folder for what is removed, which only root can enter.

    Raises:
        Refused: something else is in its place.
    """
    try:
        return base.make(REMOVED, 0o700)
    except FileExistsError:
        pass
    try:
        store = base.folder(REMOVED)
    except NotADirectoryError:  # nor a link
        raise _no_store(base) from None
    if store.status().st_uid != os.geteuid():
        store.close()
        raise _no_store(base)
    store.set_mode(0o700)
    return store


def _no_store(base: Folder) -> Refused:
    return Refused(f"{base.path / REMOVED} is in the way: it must be a directory of root", "Move it away")


def _write_archive(base: Folder, name: str, file: IO[bytes]) -> None:
    # tar follows no link in what it archives, and is led to the share by what is open here.
    argv = ["tar", "--create", "--gzip", "--one-file-system", f"--directory=/proc/self/fd/{base.fileno()}", "--", name]
    result = programs.call_with_data(*argv, stdout=file, seconds=_ARCHIVE_SECONDS, open_too=(base.fileno(),))
    if result.returncode != 0:
        reason = result.stderr.decode(errors="replace").strip().splitlines()
        raise Failed(f"the home of {name} could not be archived: {reason[-1] if reason else 'tar failed'}")


def _unlink_unless_written(store: Folder, partial: str) -> None:
    with suppress(OSError), store.file(partial) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        store.delete(partial)


@contextmanager
def _as_failure(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise of_system(error, f"the home of {name}") from error
