"""Two ways to attack an operation of root in a folder that others can change (README.md): at every step, in a race."""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import os
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: How often an operation is repeated in a race.
DEFAULT = 50
TRIES = int(os.environ.get("GPUCLUSTER_TEST_TRIES") or DEFAULT)
SECRET = b"the secret of this host"
_EVENTS = {
    "open", "os.chmod", "os.chown", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.scandir", "os.symlink", "os.truncate", "os.utime", "subprocess.Popen", "os.posix_spawn",
}  # fmt: skip
#: Parts of a name that differ from run to run.
_RANDOM = re.compile(r"[0-9a-f]{16,}|[0-9]{8}T[0-9]{6}")
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


class Victim:
    """A folder of this host, which nothing may change: files, a folder, and one file of each name that matters."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "secret"
        folder.mkdir(mode=0o755)
        self.file.write_bytes(SECRET)
        self.file.chmod(0o600)
        (folder / "below").mkdir(mode=0o700)
        (folder / "below" / "secret").write_bytes(SECRET)
        self._before = self._seen()

    def has_too(self, names: set[str]) -> None:
        """Make files of these names, so that an operation that is led here finds what it looks for."""
        for name in names:
            if not os.path.lexists(self.folder / name):
                (self.folder / name).write_bytes(SECRET)
        self._before = self._seen()

    def difference(self, share: Path) -> list[str]:
        """What has changed here, and what of it is on the share now."""
        now = self._seen()
        changed = [f"{name}: {self._before.get(name)} -> {now.get(name)}" for name in sorted({*now, *self._before})
                   if now.get(name) != self._before.get(name)]  # fmt: skip
        return changed + [f"its content is in {file}" for file in _files(share) if SECRET in _content(file)]

    def repair(self) -> None:
        """Undo what an attack has done, for the next one."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        os.chown(self.folder, 0, 0)
        self.folder.chmod(0o755)
        names = {name for name in self._before if "/" not in name} - {".", "below"}
        (self.folder / "below").mkdir(mode=0o700)
        for name in (*names, "below/secret"):
            (self.folder / name).write_bytes(SECRET)
        self.file.chmod(0o600)
        self._before = self._seen()

    def _seen(self) -> dict[str, Any]:
        found = {".": _facts(os.lstat(self.folder))}
        for place, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                path = os.path.join(place, name)
                found[os.path.relpath(path, self.folder)] = _facts(os.lstat(path))
        return found


def _facts(state: os.stat_result) -> tuple[Any, ...]:
    # A folder in which a file was made and deleted again has another time, too.
    return oct(state.st_mode), state.st_uid, state.st_gid, state.st_size, state.st_mtime_ns, state.st_ino


def _files(folder: Path) -> Iterator[Path]:
    for place, _folders, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield Path(path)


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        with contextlib.suppress(OSError, EOFError):
            return gzip.decompress(content)
    return content


# --- at every step -----


class _Steps:
    """What is called before each operation on a file of this process."""

    def __init__(self) -> None:
        self.act: Callable[[int], None] | None = None
        self.number = 0
        self._installed = False
        self._pid = 0

    @contextlib.contextmanager
    def watched(self, act: Callable[[int], None]) -> Iterator[None]:
        if not self._installed:
            # It can't be removed again; without an attack it does nothing.
            sys.addaudithook(self._before)
            self._installed = True
        self.act, self.number, self._pid = act, 0, os.getpid()
        try:
            yield
        finally:
            self.act = None

    def _before(self, event: str, _given: tuple[Any, ...]) -> None:
        act = self.act
        if act is None or event not in _EVENTS or os.getpid() != self._pid:
            return
        self.number += 1
        self.act = None  # what the attacker does is not a step
        try:
            act(self.number)
        finally:
            self.act = act


_STEPS = _Steps()


def at_every_step(
    share: Path,
    prepare: Callable[[], Any],
    operation: Callable[[Any], object],
    expected: type[Exception] | tuple[type[Exception], ...],
) -> None:
    """Run an operation with each name that it uses exchanged for a link, at each of its steps.

    Args:
        share: what the attacker can change; it is emptied before each run.
        prepare: makes what the operation finds; what it returns is given to the operation.
        operation: it may end with an `expected` exception.
    """
    with tempfile.TemporaryDirectory(prefix="gpucluster-victim-") as name:
        victim = Victim(Path(name) / "victim")
        names, steps = _undisturbed(share, prepare, operation)
        victim.has_too({Path(each).name.replace("*", "x") for each in names})
        bad: dict[str, list[str]] = {}
        attacks = 0
        for number, (pattern, step) in enumerate(
            (pattern, step) for pattern in sorted(names) for step in range(steps + 1)
        ):
            # In turns; with more tries, both at each step.
            for target in (
                (victim.folder, victim.file) if TRIES > DEFAULT else ((victim.folder, victim.file)[number % 2],)
            ):
                given = _scene(share, prepare)
                attacks += _attacked(share, pattern, target, step, lambda: operation(given), expected)  # noqa: B023
                difference = victim.difference(share)
                if difference:
                    bad.setdefault(f"{pattern} -> {target.name}", []).append(f"step {step}: {difference}"[:600])
                    victim.repair()
        assert attacks > steps, "the attacker did nothing"
        assert not bad, "\n".join(f"{attack}: {found[0]}" for attack, found in bad.items())


def _scene(share: Path, prepare: Callable[[], Any]) -> Any:
    empty(share)
    return prepare()


def _undisturbed(share: Path, prepare: Callable[[], Any], operation: Callable[[Any], object]) -> tuple[set[str], int]:
    """All names that are ever there, and the number of steps."""
    names: set[str] = set()

    def look(_step: int) -> None:
        for place, folders, files in os.walk(share):
            below = Path(place).relative_to(share)
            names.update(_RANDOM.sub("*", str(below / each)) for each in (*folders, *files))

    given = _scene(share, prepare)
    with _STEPS.watched(look):
        operation(given)
        steps = _STEPS.number
    look(0)
    return names, steps


def _attacked(
    share: Path, pattern: str, target: Path, step: int, operation: Callable[[], object], expected: Any
) -> bool:
    """Whether the attacker could do something."""
    done: list[Path] = []

    def exchange() -> None:
        parent = share / Path(pattern).parent
        found = sorted(parent.glob(Path(pattern).name)) or ([] if "*" in pattern else [share / pattern])
        for path in found:
            # The attacker works on the share: a link that is there already leads it nowhere.
            if _inside(path.parent, share):
                if os.path.lexists(path):
                    path.rename(share / f".aside-{len(done)}")
                path.symlink_to(target)
                done.append(path)

    def act(number: int) -> None:
        if number == step:
            exchange()

    if step == 0:
        exchange()
    with _STEPS.watched(act), contextlib.suppress(*(expected if isinstance(expected, tuple) else (expected,))):
        operation()
    return bool(done)


def _inside(folder: Path, share: Path) -> bool:
    return folder.is_dir() and folder.resolve().is_relative_to(share.resolve())


def empty(folder: Path) -> None:
    """Delete what is in a folder."""
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(place, name)
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


# --- in a race -----


@contextlib.contextmanager
def racing(one: Path, two: Path) -> Iterator[None]:
    """A process that exchanges two names without a pause."""
    names = [_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _RENAME_EXCHANGE]
    child = os.fork()
    if child == 0:
        try:
            while True:
                _libc.renameat2(*names)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    """A folder outside of the share."""
    return Victim(tmp_path / "victim")
