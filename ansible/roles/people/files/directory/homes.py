"""Home directories, as root sees them from outside."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from directory import inside
from directory.errors import Failed, InHome, Refused, of_system
from directory.state import Person

#: Under the base of homes, for root alone: archives, and homes on their way out.
REMOVED = ".removed"
_ARCHIVE_SECONDS = 6 * 3600


@dataclass(frozen=True)
class Homes:
    """All of them.

    Args:
        base: the mount point of the share that holds them.
        cluster: what a key pair's comment says beside the person's name.
    """

    base: Path
    cluster: str

    def check(self, otherwise: str = "homes made now would be hidden by the share") -> None:
        """See that the share is there.

        Raises:
            Failed: it is not; `otherwise` is what follows from that.
        """
        if not self.base.is_mount():
            raise Failed(f"{self.base} is not mounted; {otherwise}", f"Run: mount {self.base}")

    def owners(self) -> dict[str, int]:
        """The owner of each home. Of one on which somebody has mounted something, nothing is known."""
        found: dict[str, int] = {}
        if self.base.is_dir():
            with os.scandir(self.base) as entries:
                for entry in entries:
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            found[entry.name] = entry.stat(follow_symlinks=False).st_uid
        return found

    def make(self, person: Person) -> bool:
        """Make the home if need be, and keep the person's keys in it; says whether anything changed.

        Raises:
            Refused: something is in the way.
            Failed: it could not be written.
            InHome: likewise, for what its owner has in it.
        """
        home = Path(person.home)
        with _told(person.name):
            self.base.mkdir(mode=0o755, parents=True, exist_ok=True)
            changed = _new_folder(home)
            state = _look(person)
            if not stat.S_ISDIR(state.st_mode):
                raise Refused(f"{home} is in the way: it is not a directory", "Move it away")
            if state.st_uid == 0 and not any(home.iterdir()):
                os.chown(home, person.uid, person.gid)
                home.chmod(0o700)
                changed = True
            elif state.st_uid != person.uid:
                message = f"{home} belongs to uid {state.st_uid}, {person.name} has {person.uid}"
                raise Refused(message, "Give it to them or move it away")
        missing = inside.as_person(person, lambda: not os.path.lexists(home / ".ssh" / inside.PAIR))
        pair = inside.new_pair(f"{person.name}@{self.cluster}") if missing else None
        return bool(inside.as_person(person, lambda: inside.furnish(home, person, pair))) or changed

    def lock(self, person: Person) -> bool:
        """Put the keys in a home aside, or back, as the person is; says whether anything changed."""
        ssh = Path(person.home) / ".ssh"
        return self._theirs(person) and bool(
            inside.as_person(person, lambda: inside.move_keys(ssh, enabled=person.enabled))
        )

    def take_keys(self, person: Person) -> int:
        """Take every key away that opens a login into this home; says how many there were."""
        ssh = Path(person.home) / ".ssh"
        return inside.as_person(person, lambda: inside.delete_keys(ssh)) if self._theirs(person) else 0

    def _theirs(self, person: Person) -> bool:
        """Whether there is a home, and theirs.

        Raises:
            Failed: there is no share, or nobody can look.
        """
        self.check("the keys in the home are as they were")
        if not self.has(person.name):
            return False
        state = _look(person)
        return stat.S_ISDIR(state.st_mode) and state.st_uid == person.uid

    def has(self, name: str) -> bool:
        """Whether there is a home, even one that nobody can look into."""
        try:
            return stat.S_ISDIR((self.base / name).lstat().st_mode)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def archive(self, name: str) -> Path | None:
        """Write the home into an archive that root alone can read; None if there is no home.

        Raises:
            Failed: it is not complete; the home is as it was.
        """
        if not self.has(name):
            return None
        with _told(name):
            target = self._store() / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"
        partial = target.with_name(f".{target.name}.partial")
        argv = ["tar", "--create", "--gzip", "--one-file-system", f"--directory={self.base}", "--", name]
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                # Says to others that it is still being written; tar has it, too, and ends it.
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                done = subprocess.run(argv, stdout=file, stderr=subprocess.PIPE, check=False, timeout=_ARCHIVE_SECONDS)
                os.fsync(file.fileno())
            if done.returncode != 0:
                reason = done.stderr.decode(errors="replace").strip().splitlines()
                raise Failed(f"the home of {name} could not be archived: {reason[-1] if reason else 'tar failed'}")
            partial.rename(target)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failed(f"the home of {name} could not be archived: {error}", "It is as it was") from error
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()
        return target

    def set_aside(self, name: str) -> Path | None:
        """Give a home another name, which is quick; `sweep` takes long to delete it. None if there is none."""
        if not self.has(name):
            return None
        with _told(name):
            aside = self._store() / f".{name}-{time.time_ns()}.deleting"
            (self.base / name).rename(aside)
        return aside

    def sweep(self, name: str, aside: Path | None) -> None:
        """Delete a home that was set aside, and what runs that were killed have left of others.

        Raises:
            Failed: the home could not be deleted as a whole.
        """
        with _told(name):
            store = self._store()
            for rest in store.glob(".*.deleting"):
                shutil.rmtree(rest, ignore_errors=True)
            for partial in store.glob(".*.partial"):
                _unlink_unless_written(partial)
            if aside and os.path.lexists(aside):
                # Once more, to hear why not; somebody else may be at it, too.
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


def _look(person: Person) -> os.stat_result:
    try:
        return Path(person.home).lstat()
    except OSError as error:
        # Nobody but its owner can look into what they have mounted there.
        message = f"the home of {person.name}: {person.home}: {error.strerror}"
        raise InHome(message, f"See what is mounted there: grep {person.home} /proc/mounts") from error


def _unlink_unless_written(partial: Path) -> None:
    with suppress(OSError), partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.unlink()


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise of_system(error, f"the home of {name}") from error
