"""Data sets on the home share, which all users read: `<share>/.gpucluster/datasets/NAME`, each with a manifest.

A data set comes in pieces from the operator's machine into a part file, which a later run continues. When it is whole
and its checksum is right, its files are laid out in a new folder, which then gets its name: a job sees all of it, or
none. What is in an archive is foreign: only its plain files and folders are taken.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from gpucluster.agent import bounded, share
from gpucluster.agent.errors import Failed, Refused
from gpucluster.agent.jobs.queue import now

FOLDER = (".gpucluster", "datasets")
MANIFEST = ".dataset.json"
_PART = ".part-"
#: Parts that nobody continues any more are deleted after this time, in seconds.
_ABANDONED_S = 14 * 86400.0
_CHUNK = 1 << 20
_MOST_FILES = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Wanted(NamedTuple):
    """A data set that somebody brings: one file.

    Args:
        unpack: the file is an archive, whose files are the data set.
        source: where it comes from, for its manifest.
    """

    name: str
    file: str
    sha256: str
    size: int
    unpack: bool
    source: str
    force: bool


def wanted(given: Any) -> Wanted:
    """The data set of a request.

    Raises:
        Refused: it can't be one.
    """
    if not isinstance(given, dict):
        raise Refused("the data set is no object")
    name, file, sha256, size = (given.get(key) for key in ("name", "file", "sha256", "size"))
    for each in (name, file):
        if not isinstance(each, str) or not _NAME.fullmatch(each):
            raise Refused(
                f"this can't be the name of a data set or of its file: {str(each)[:80]!r}",
                "At most 100 letters, digits, and . _ + - within",
            )
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise Refused("the data set has no checksum")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Refused("the data set has no size")
    assert isinstance(name, str)
    assert isinstance(file, str)
    unpack, force = given.get("unpack") is True, given.get("force") is True
    return Wanted(name, file, sha256, size, unpack, str(given.get("source", ""))[:1000], force)


def problem(path: Path) -> str:
    """Why a path in a data set of ours can't be used, by its manifest; "" if it can, or is in none."""
    for folder in (path, *path.parents):
        if folder.parent.parts[-2:] == FOLDER:
            manifest = _manifest(folder)
            bad = _differing(folder, manifest) if manifest else ""
            return f"is damaged: {bad}" if bad else ""
    return ""


class Store:
    """The data sets of a share.

    Args:
        mount: where the share is mounted.
        locks: a folder of this machine.
    """

    def __init__(self, mount: Path, locks: Path) -> None:
        self._mount, self._locks = mount, locks
        self._folder = mount.joinpath(*FOLDER)

    def begin(self, of: Wanted) -> dict[str, Any]:
        """What of a data set is there already: {"path", "present"}, and `have`: bytes of its part.

        Raises:
            Refused: there is another one of this name.
            Failed: the share is not mounted, or too full.
        """
        share.prepare(self._mount, self._folder.parent, self._folder)
        self._forget_parts()
        place = self._folder / of.name
        manifest = _manifest(place)
        same = manifest.get("sha256") == of.sha256
        if os.path.lexists(place) and not same and not of.force:
            origin = f" from {manifest['source']}" if manifest.get("source") else ""
            raise Refused(f"there is another data set {of.name} already{origin}", "Replace it with --force")
        if same and not _differing(place, manifest):
            return {"path": str(place), "present": True, "have": of.size}
        have = self._have(of)
        free = shutil.disk_usage(self._folder).free
        needed = of.size - have + (of.size if of.unpack else 0)
        if free < needed:
            raise _full(self._folder, f"{free / 1e9:.1f} GB are free, about {needed / 1e9:.1f} GB are needed")
        return {"path": str(place), "present": False, "have": have}

    def add(self, of: Wanted, offset: Any, data: Any) -> dict[str, Any]:
        """Append bytes to the part of a data set. Returns how many it has.

        Raises:
            Refused: they do not follow what is there.
            Failed: the share is full.
        """
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Refused("the bytes of the data set can't be read") from None
        with self._opened(of) as part:
            have = os.fstat(part.fileno()).st_size
            if offset != have or have + len(content) > of.size:
                raise Refused(f"these bytes do not follow the {have} that are there", "Run the same command again")
            try:
                part.write(content)
                part.flush()
                os.fsync(part.fileno())
            except OSError as error:
                with contextlib.suppress(OSError):
                    part.truncate(have)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise _full(self._folder, f"{have} of {of.size} bytes are there, and stay") from None
                raise
        return {"have": have + len(content)}

    def publish(self, of: Wanted) -> dict[str, Any]:
        """Check the whole of it, lay out its files, and give the folder its name.

        Raises:
            Failed: it is not whole, has another checksum, or the share is full; nothing is published.
        """
        part = self._part(of)
        if self._have(of) != of.size:
            raise Failed(f"{of.name} has {self._have(of)} of {of.size} bytes", "Run the same command again")
        actual = _sha256(part)
        if actual != of.sha256:
            part.unlink()
            raise Failed(
                f"{of.name} has another checksum: {actual} instead of {of.sha256}", "Run the same command again"
            )
        fresh, old, place = (self._folder / name for name in (f".new-{of.name}", f".old-{of.name}", of.name))
        for left in (fresh, old):  # of a run that was killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        try:
            fresh.mkdir(mode=0o755)
            fresh.chmod(0o755)
            if of.unpack:
                _unpack(part, fresh)
                files = {name: (fresh / name).stat().st_size for name in _names(fresh)}
                if not files:
                    raise Failed("the archive has no files", "Name another file with --from")
            else:
                files = {of.file: of.size}
            manifest = {"sha256": of.sha256, "source": of.source, "published_at": now(), "files": files}
            _write(fresh / MANIFEST, json.dumps(manifest) + "\n")
            if not of.unpack:
                part.chmod(0o644)
                part.rename(fresh / of.file)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _full(self._folder, "its file is there, and stays") from None
            raise
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        with contextlib.suppress(FileNotFoundError):
            place.rename(old)
        fresh.rename(place)
        shutil.rmtree(old, ignore_errors=True)
        part.unlink(missing_ok=True)
        return {"path": str(place), "files": len(files), "bytes": sum(files.values())}

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Only one run brings a data set.

        Raises:
            Failed: another one does.
        """
        self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._locks / f"dataset-{name}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failed(f"another run brings the data set {name}", "Wait until it ends") from None
            yield

    def _part(self, of: Wanted) -> Path:
        return self._folder / f"{_PART}{of.sha256}"

    def _have(self, of: Wanted) -> int:
        try:
            return self._part(of).stat().st_size
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def _opened(self, of: Wanted) -> Iterator[IO[bytes]]:
        # The folder is root's alone. Without a buffer: what fails is not written later.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._part(of), flags, 0o600), "ab", buffering=0) as part:
            yield part

    def _forget_parts(self) -> None:
        for part in self._folder.glob(f"{_PART}*"):
            with contextlib.suppress(OSError):
                if part.stat().st_mtime < time.time() - _ABANDONED_S:
                    part.unlink()


def _names(folder: Path) -> list[str]:
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(found)


def _unpack(archive: Path, into: Path) -> None:
    """Lay out the plain files of an archive, as root's own. Nothing else of it is taken: no link, owner or right.

    Raises:
        Failed: it is no archive, is damaged, or a name in it leads elsewhere.
    """
    try:
        with tarfile.open(archive, "r:*") as opened:
            for number, member in enumerate(opened):
                place = _place(into, member.name)
                if number >= _MOST_FILES:
                    raise Failed(f"the archive has more than {_MOST_FILES} files")
                if member.isdir():
                    _folder(into, place)
                    continue
                stream = opened.extractfile(member) if member.isfile() else None
                if stream is None:
                    continue
                _folder(into, place.parent)
                with place.open("wb") as target:
                    shutil.copyfileobj(stream, target, _CHUNK)
                place.chmod(0o644)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise Failed(f"the archive can't be read: {error}", "Name another file with --from") from None
    except OSError as error:
        if error.errno is None:  # of the decompression
            raise Failed(f"the archive can't be read: {error}", "Name another file with --from") from None
        raise


def _place(into: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise Failed(f"the archive has a file that leads elsewhere: {name[:80]!r}", "Name another file with --from")
    return into / path


def _folder(into: Path, folder: Path) -> None:
    for each in reversed([folder, *folder.parents]):
        if into in each.parents and not each.exists():
            each.mkdir(mode=0o755)
            each.chmod(0o755)


def _write(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    file.chmod(0o644)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found = bounded.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("files"), dict) else {}


def _differing(folder: Path, manifest: dict[str, Any]) -> str:
    """The first file that is not as the manifest says, by its size."""
    for name, size in manifest["files"].items():
        try:
            actual = (folder / name).stat().st_size
        except OSError as error:
            return f"{name}: {error.strerror}"
        if actual != size:
            return f"{name} has {actual} bytes instead of {size}"
    return ""


def _sha256(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(_CHUNK):
            found.update(part)
    return found.hexdigest()


def _full(folder: Path, more: str) -> Failed:
    return Failed(
        f"the share is full: {more}",
        f"Free space there, then run it again: gpucluster ssh -- df -h {folder.parents[1]}",
    )
