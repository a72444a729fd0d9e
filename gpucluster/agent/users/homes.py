"""Home directories from outside, as root handles them."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpucluster.agent import programs
from gpucluster.agent.errors import Failed, Refused, of_system
from gpucluster.agent.users import home_contents
from gpucluster.agent.users.errors import InHome
from gpucluster.agent.users.state import User

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
        found: dict[str, int] = {}
        if self.base.is_dir():
            with os.scandir(self.base) as entries:
                for entry in entries:
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            found[entry.name] = entry.stat(follow_symlinks=False).st_uid
        return found

    def make(self, user: User) -> bool:
        """Create the home if it is missing, and write the user's keys; returns whether anything changed.

        Raises:
            Refused: something is in the way.
            Failed: it could not be written.
            InHome: the same, because of what its owner has in it.
        """
        home = Path(user.home)
        with _as_failure(user.name):
            self.base.mkdir(mode=0o755, parents=True, exist_ok=True)
            changed = _new_folder(home)
            state = _status(user)
            if not stat.S_ISDIR(state.st_mode):
                raise Refused(f"{home} is in the way: it is not a directory", "Move it away")
            if state.st_uid == 0 and not any(home.iterdir()):
                os.chown(home, user.uid, user.gid)
                home.chmod(0o700)
                changed = True
            elif state.st_uid != user.uid:
                message = f"{home} belongs to uid {state.st_uid}, {user.name} has {user.uid}"
                raise Refused(message, "Give it to the user or move it away")
        return bool(home_contents.as_user(user, lambda: home_contents.fill(home, user))) or changed

    def lock(self, user: User) -> bool:
        """Set the keys in a home aside if the user is disabled, else put them back; returns whether it changed."""
        ssh = Path(user.home) / ".ssh"
        return self._is_own(user) and bool(
            home_contents.as_user(user, lambda: home_contents.move_keys(ssh, enabled=user.enabled))
        )

    def take_keys(self, user: User) -> int:
        """Delete all keys with which the user can log in; returns how many there were."""
        ssh = Path(user.home) / ".ssh"
        return home_contents.as_user(user, lambda: home_contents.delete_keys(ssh)) if self._is_own(user) else 0

    def _is_own(self, user: User) -> bool:
        """Whether there is a home that belongs to the user.

        Raises:
            Failed: the share is not mounted, or the home can't be read.
        """
        self.check("the keys in the home are unchanged")
        if not self.has(user.name):
            return False
        state = _status(user)
        return stat.S_ISDIR(state.st_mode) and state.st_uid == user.uid

    def has(self, name: str) -> bool:
        """Whether there is a home, even one that can't be read."""
        try:
            return stat.S_ISDIR((self.base / name).lstat().st_mode)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def archive(self, name: str) -> Path | None:
        """Write the home into an archive that only root can read; None if there is no home.

        Raises:
            Failed: it is not complete; the home is unchanged.
        """
        if not self.has(name):
            return None
        with _as_failure(name):
            target = self._store() / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"
        partial = target.with_name(f".{target.name}.partial")
        argv = ["tar", "--create", "--gzip", "--one-file-system", f"--directory={self.base}", "--", name]
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                # The lock shows that the file is still being written. tar inherits it and releases it at its end.
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                done = programs.call_with_data(*argv, stdout=file, seconds=_ARCHIVE_SECONDS)
                os.fsync(file.fileno())
            if done.returncode != 0:
                reason = done.stderr.decode(errors="replace").strip().splitlines()
                raise Failed(f"the home of {name} could not be archived: {reason[-1] if reason else 'tar failed'}")
            partial.rename(target)
        except OSError as error:
            raise Failed(f"the home of {name} could not be archived: {error}", "It is unchanged") from error
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()
        return target

    def set_aside(self, name: str) -> Path | None:
        """Rename a home for deletion; `sweep` deletes it, which takes long. None if there is no home."""
        if not self.has(name):
            return None
        with _as_failure(name):
            aside = self._store() / f".{name}-{time.time_ns()}.deleting"
            (self.base / name).rename(aside)
        return aside

    def sweep(self, name: str, aside: Path | None) -> None:
        """Delete a home that was set aside, and the leftovers of killed runs.

        Raises:
            Failed: a part of the home could not be deleted.
        """
        with _as_failure(name):
            store = self._store()
            for rest in store.glob(".*.deleting"):
                shutil.rmtree(rest, ignore_errors=True)
            for partial in store.glob(".*.partial"):
                _unlink_unless_written(partial)
            if aside and os.path.lexists(aside):
                # Again, to get the reason; another process may be deleting it as well.
                with suppress(FileNotFoundError):
                    shutil.rmtree(aside)

    def _store(self) -> Path:
        store = self.base / REMOVED
        store.mkdir(mode=0o700, exist_ok=True)
        state = store.lstat()
        if store.is_symlink() or state.st_uid != os.geteuid():
            raise Refused(f"{store} is in the way: it must be a directory of root", "Move it away")
        store.chmod(0o700)
        return store


def _new_folder(home: Path) -> bool:
    try:
        home.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _status(user: User) -> os.stat_result:
    try:
        return Path(user.home).lstat()
    except OSError as error:
        # Only its owner can read what is mounted there.
        message = f"the home of {user.name}: {user.home}: {error.strerror}"
        raise InHome(message, f"Run: grep {user.home} /proc/mounts") from error


def _unlink_unless_written(partial: Path) -> None:
    with suppress(OSError), partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.unlink()


@contextmanager
def _as_failure(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise of_system(error, f"the home of {name}") from error
