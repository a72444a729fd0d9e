"""Data sets on the home share, which all users read: `<share>/.gpucluster/datasets/NAME`, each with a manifest.

A data set comes in pieces from the operator's machine into a part file, which a later run continues. When it is whole
and its checksum is right, its files are laid out in a new folder, which then gets its name: a job sees all of it, or
none. What is in an archive is foreign: only its plain files and folders are taken.

Root of any node can exchange what is on the share meanwhile, so it is reached by `foreign_folder` alone, and the bytes
that are unpacked are the bytes whose checksum was right: they are summed again while they are read.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from gpucluster.controller import file_lock, share
from gpucluster.controller.jobs.queue import now
from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.foreign_folder import Folder, Tree

FOLDER = (".gpucluster", "datasets")
MANIFEST = ".dataset.json"
_PART = ".part-"
#: Parts of uploads that are not continued are deleted after this time, in seconds.
_ABANDONED_S = 14 * 86400.0
_CHUNK = 1 << 20
_MOST_FILES = 1_000_000
#: Bytes of a manifest of so many files.
_MOST_MANIFEST = 512 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Upload(NamedTuple):
    """A data set that an operator uploads: one file.

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


def upload(request: Any) -> Upload:
    """The data set of a request.

    Raises:
        Refused: it can't be one.
    """
    if not isinstance(request, dict):
        raise Refused("the data set is not an object")
    name, file, sha256, size = (request.get(key) for key in ("name", "file", "sha256", "size"))
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
    unpack, force = request.get("unpack") is True, request.get("force") is True
    return Upload(name, file, sha256, size, unpack, str(request.get("source", ""))[:1000], force)


def problem(path: Path) -> str:
    """Why a path in a data set of ours can't be used, by its manifest; "" if it can, or is in none."""
    for folder in (path, *path.parents):
        if folder.parent.parts[-2:] == FOLDER:
            try:
                opened = Folder.open(folder)
            except OSError:
                return ""
            with opened:
                manifest = _manifest(opened)
                bad = _differing(opened, manifest) if manifest else ""
            return f"is damaged: {bad}" if bad else ""
    return ""


class DataSetStore:
    """The data sets of a share.

    Args:
        mount: where the share is mounted.
        locks: a folder of this machine.
    """

    def __init__(self, mount: Path, locks: Path) -> None:
        self._mount, self._locks = mount, locks
        self._folder = mount.joinpath(*FOLDER)

    def begin(self, of: Upload) -> dict[str, Any]:
        """What of a data set is there already: {"path", "present"}, and `have`: bytes of its part.

        Raises:
            Refused: there is another one of this name.
            Failed: the share is not mounted, or too full.
        """
        with self._opened() as folder:
            _forget_parts(folder)
            if not _is_file(folder, _part(of)):
                folder.remove(_part(of))
            there = folder.look(of.name) is not None
            manifest, bad = _manifest_and_fault(folder, of.name)
            path = str(self._folder / of.name)
            same = manifest.get("sha256") == of.sha256
            if there and not same and not of.force:
                origin = f" from {manifest['source']}" if manifest.get("source") else ""
                raise Refused(f"there is another data set {of.name} already{origin}", "Replace it with --force")
            if same and not bad:
                return {"path": path, "present": True, "have": of.size}
            have = _have(folder, of)
            free = folder.free_bytes()
            needed = of.size - have + (of.size if of.unpack else 0)
            if free < needed:
                raise _full(self._folder, f"{free / 1e9:.1f} GB are free, about {needed / 1e9:.1f} GB are needed")
            return {"path": path, "present": False, "have": have}

    def add(self, of: Upload, offset: Any, data: Any) -> dict[str, Any]:
        """Append bytes to the part of a data set. Returns how many it has.

        Raises:
            Refused: they do not follow what is there.
            Failed: the share is full.
        """
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Refused("the bytes of the data set can't be read") from None
        with self._opened() as folder, folder.appended(_part(of)) as part:
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

    def publish(self, of: Upload) -> dict[str, Any]:
        """Check the whole of it, lay out its files, and give the folder its name.

        Raises:
            Failed: it is not whole, has another checksum, or the share is full; nothing is published.
        """
        with self._opened() as folder:
            have = _have(folder, of)
            if have != of.size:
                raise Failed(f"{of.name} has {have} of {of.size} bytes", "Run the same command again")
            with folder.file(_part(of)) as part:
                actual = _sha256(part)
                if actual != of.sha256:
                    folder.delete(_part(of))
                    raise Failed(
                        f"{of.name} has another checksum: {actual} instead of {of.sha256}", "Run the same command again"
                    )
                files = self._lay_out(folder, of, part)
            folder.delete(_part(of))
        return {"path": str(self._folder / of.name), "files": len(files), "bytes": sum(files.values())}

    def _lay_out(self, folder: Folder, of: Upload, part: IO[bytes]) -> dict[str, int]:
        """Publish what is in the open part; returns the size of each file.

        Raises:
            Failed: the share is full, or what is there was exchanged meanwhile; nothing is published.
        """
        fresh, old = f".new-{of.name}", f".old-{of.name}"
        for left in (fresh, old):  # of a run that was killed: we hold the lock
            folder.remove(left)
        try:
            with folder.make(fresh) as place:
                files = self._filled(folder, of, part, place)
                if folder.look(of.name) is not None:
                    folder.move(of.name, folder, old)
                folder.move(fresh, folder, of.name)
                _check_same(folder.look(of.name), place.status(), of)
        except OSError as error:
            _give_up(folder, fresh)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _full(self._folder, "its file is there, and stays") from None
            raise
        except BaseException:
            _give_up(folder, fresh)
            raise
        _give_up(folder, old)
        return files

    @staticmethod
    def _filled(folder: Folder, of: Upload, part: IO[bytes], place: Folder) -> dict[str, int]:
        files = {of.file: of.size}
        if of.unpack:
            part.seek(0)
            summed = _Summed(part)
            files = _unpack(summed, place)
            if summed.sha256() != of.sha256:
                raise Failed(f"{of.name} was changed while it was unpacked", "Run the same command again")
            if not files:
                raise Failed("the archive has no files", "Name another file with --from")
        manifest = {"sha256": of.sha256, "source": of.source, "published_at": now(), "files": files}
        place.write(MANIFEST, (json.dumps(manifest) + "\n").encode(), 0o644)
        if not of.unpack:
            os.fchmod(part.fileno(), 0o644)
            folder.move(_part(of), place, of.file)
            _check_same(place.look(of.file), os.fstat(part.fileno()), of)
        return files

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Only one run brings a data set.

        Raises:
            Failed: another one does.
        """
        self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._locks / f"dataset-{name}").open("w") as file:
            if not file_lock.acquire(file.fileno()):
                raise Failed(f"another run brings the data set {name}", "Wait until it ends")
            yield

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Folder]:
        with share.opened(self._mount, self._folder.parent, self._folder) as folder:
            yield folder


class _Summed:
    """A file that is read once from its begin, with the checksum of all that was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._sum = stream, hashlib.sha256()
        #: Its first bytes, which show the kind of file; they do not count as read.
        self.begin = stream.read(6)
        stream.seek(0)

    def read(self, size: int = -1) -> bytes:
        part = self._stream.read(size)
        self._sum.update(part)
        return part

    def sha256(self) -> str:
        """Of the whole file: the rest is read as well."""
        while self.read(_CHUNK):
            pass
        return self._sum.hexdigest()


def _part(of: Upload) -> str:
    return f"{_PART}{of.sha256}"


def _is_file(folder: Folder, name: str) -> bool:
    status = folder.look(name)
    return status is not None and stat.S_ISREG(status.st_mode)


def _have(folder: Folder, of: Upload) -> int:
    status = folder.look(_part(of))
    return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else 0


def _check_same(present: os.stat_result | None, expected: os.stat_result, of: Upload) -> None:
    """What has a name now must be what we have made.

    Raises:
        Failed: another process has exchanged it.
    """
    if present is None or not os.path.samestat(present, expected):
        raise Failed(f"{of.name} was exchanged on the share meanwhile", "Find out who is root on a node")


def _give_up(folder: Folder, name: str) -> None:
    with contextlib.suppress(OSError):
        folder.remove(name)


def _forget_parts(folder: Folder) -> None:
    for name in folder.names():
        if name.startswith(_PART):
            with contextlib.suppress(OSError):
                status = folder.look(name)
                if status is not None and status.st_mtime < time.time() - _ABANDONED_S:
                    folder.remove(name)


def _unpack(archive: _Summed, into: Folder) -> dict[str, int]:
    """Lay out the plain files of an archive, as root's own. Nothing else of it is taken: no link, owner or right.

    Returns:
        The size of each file.

    Raises:
        Failed: it is not an archive, is damaged, or a name in it leads elsewhere.
    """
    files: dict[str, int] = {}
    try:
        # From its begin to its end, so that each byte is summed once.
        with tarfile.open(fileobj=_decompressed(archive), mode="r|") as opened, Tree(into, create=True) as tree:
            for number, member in enumerate(opened):
                names = _names(member.name)
                if number >= _MOST_FILES:
                    raise Failed(f"the archive has more than {_MOST_FILES} files")
                if member.isdir():
                    tree.folder(names)
                    continue
                stream = opened.extractfile(member) if member.isfile() else None
                if stream is None or not names:
                    continue
                with _new_file(tree.folder(names[:-1]), names[-1]) as target:
                    shutil.copyfileobj(stream, target, _CHUNK)
                    files["/".join(names)] = target.tell()
    except (tarfile.TarError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise Failed(f"the archive can't be read: {error}", "Name another file with --from") from None
    except OSError as error:
        if error.errno is None:  # of the decompression
            raise Failed(f"the archive can't be read: {error}", "Name another file with --from") from None
        raise
    return dict(sorted(files.items()))


def _decompressed(archive: _Summed) -> IO[bytes]:
    # tarfile's own way to read from begin to end leaves out all but the first of several compressed streams.
    stream: Any = archive
    if archive.begin.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    if archive.begin.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.BZ2File(stream))
    if archive.begin == b"\xfd7zXZ\0":
        return cast("IO[bytes]", lzma.LZMAFile(stream))
    return cast("IO[bytes]", stream)


def _names(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise Failed(f"the archive has a file that leads elsewhere: {name[:80]!r}", "Name another file with --from")
    return path.parts


def _new_file(folder: Folder, name: str) -> IO[bytes]:
    """The last of several files with the same name counts."""
    try:
        return folder.create(name, 0o644)
    except FileExistsError:
        folder.delete(name)
        return folder.create(name, 0o644)


def _manifest_and_fault(folder: Folder, name: str) -> tuple[dict[str, Any], str]:
    """The manifest of a data set, and what differs from it."""
    try:
        opened = folder.folder(name)
    except OSError:
        return {}, ""
    with opened:
        manifest = _manifest(opened)
        return manifest, _differing(opened, manifest) if manifest else ""


def _manifest(folder: Folder) -> dict[str, Any]:
    try:
        manifest = bounded.loads(folder.read(MANIFEST, _MOST_MANIFEST))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) else {}


def _differing(folder: Folder, manifest: dict[str, Any]) -> str:
    """The first file whose size differs from the manifest."""
    with Tree(folder, create=False) as tree:
        for name, size in manifest["files"].items():
            *above, last = name.split("/")
            try:
                status = tree.folder(tuple(above)).look(last)
            except OSError as error:
                return f"{name}: {error.strerror}"
            if status is None:
                return f"{name}: {os.strerror(errno.ENOENT)}"
            if status.st_size != size:
                return f"{name} has {status.st_size} bytes instead of {size}"
    return ""


def _sha256(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while part := stream.read(_CHUNK):
        digest.update(part)
    return digest.hexdigest()


def _full(folder: Path, more: str) -> Failed:
    return Failed(
        f"the share is full: {more}",
        f"Free space there, then run it again: gpucluster ssh -- df -h {folder.parents[1]}",
    )
