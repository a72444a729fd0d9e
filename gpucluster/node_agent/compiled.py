"""The agent's modules as bytecode of this host's Python, for all starts after the first.

Python stores no bytecode of modules in a zip file. So each start of the agent compiled every module that it imports:
half of its processor time, before and after each job and at each boot. The first start as root, in no sandbox, compiles
all modules into a second zip file (a quarter of a second), in which later starts look first. Without that file, or with
one of another agent or another Python, the agent runs as before.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import stat
import struct
import zlib
from importlib import util
from pathlib import Path
from typing import BinaryIO

import gpucluster.node_agent

#: Where the roles install the agent. Others, such as those of tests, leave nothing behind.
INSTALLED = Path("/usr/local/bin/gpucluster-agent")
FOLDER = Path("/var/cache/gpucluster")

_PACKAGE = "gpucluster/"
# A daemon of the agent before this one may still import from its file.
_KEPT_FILES = 2
# The end of a zip file without a comment: signature, six fields, size and offset of its directory, length of a comment.
_END = struct.Struct("<4s3H1HLLH")
_END_SIGNATURE = b"PK\x05\x06"
_UNCHECKED = (1).to_bytes(4, "little")


def use(archive: Path, installed: Path = INSTALLED, folder: Path = FOLDER) -> None:
    """Let modules that are imported from now on come from the bytecode of this agent, which is made if it is missing.

    Args:
        archive: the zipapp that runs, or a link to it.
        installed: the only path of an agent that has bytecode.
        folder: where the bytecode is.
    """
    # No rights, no room, a damaged file: whatever it is, the agent runs without bytecode.
    with contextlib.suppress(Exception):
        archive = archive.resolve()
        if archive != installed:
            return
        file = folder / name(archive)
        if not file.exists():
            build(archive, file)
        if trusted(folder) and trusted(file):
            # The package itself is imported already; the others of the agent are not.
            gpucluster.__path__.insert(0, str(file / _PACKAGE))
            gpucluster.node_agent.__path__.insert(0, str(file / _PACKAGE / "node_agent"))


def name(archive: Path) -> str:
    """The name of the file for this agent and this Python.

    The directory of a zip file has the checksum of each of its members: times of files do not survive in every image.

    Raises:
        OSError, ValueError, struct.error: the archive can't be read, or is not a zip file.
    """
    with archive.open("rb") as stream:
        size = stream.seek(-_END.size, os.SEEK_END) + _END.size
        signature, *_, length, offset, _comment = _END.unpack(stream.read(_END.size))
        if signature != _END_SIGNATURE:
            raise ValueError(f"{archive} is not a zip file")
        stream.seek(offset)
        checksum = zlib.crc32(stream.read(length))
    return f"agent-{size:x}-{checksum:08x}-{util.MAGIC_NUMBER.hex()}.zip"


def trusted(path: Path) -> bool:
    """Whether only root can change it.

    Raises:
        OSError: it can't be looked at.
    """
    state = path.lstat()
    return state.st_uid == 0 and not stat.S_ISLNK(state.st_mode) and not state.st_mode & 0o022


def build(archive: Path, file: Path) -> None:
    """Compile all modules of an agent into a file, and remove those of agents before the last one.

    Raises:
        OSError: this process may not write there, or the disk is full; then the file is not there.
    """
    folder = file.parent
    folder.mkdir(mode=0o755, exist_ok=True)
    if os.geteuid() != 0 or not trusted(folder):
        raise PermissionError(f"{folder} is not root's, or this process is not")
    new = folder / f".{file.name}.{os.getpid()}"
    try:
        # It is opened before the modules are compiled: in a sandbox this fails, and costs nothing.
        with new.open("xb") as stream:
            os.fchmod(stream.fileno(), 0o644)
            _write(archive, stream)
            stream.flush()
            # After a loss of power half a file would fail each start of the agent.
            os.fsync(stream.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    for old in sorted(folder.glob("agent-*.zip"), key=lambda each: each.lstat().st_mtime)[:-_KEPT_FILES]:
        old.unlink(missing_ok=True)


def _write(archive: Path, stream: BinaryIO) -> None:
    import zipfile  # only the first start needs it

    with zipfile.ZipFile(archive) as sources, zipfile.ZipFile(stream, "w") as compiled:
        for module in sources.namelist():
            if module.startswith(_PACKAGE):
                source = sources.read(module)
                # Some programs read the source of a module, to send it to another host; tracebacks show lines of it.
                compiled.writestr(zipfile.ZipInfo(module), source)
                compiled.writestr(zipfile.ZipInfo(f"{module}c"), _bytecode(source, f"{archive}/{module}"))


def _bytecode(source: bytes, place: str) -> bytes:
    """The file of one module in the form of PEP 552 that Python does not compare with a source.

    Args:
        place: the path of the source in tracebacks; the same as without bytecode.
    """
    code = compile(source, place, "exec", dont_inherit=True)
    return util.MAGIC_NUMBER + _UNCHECKED + util.source_hash(source) + marshal.dumps(code)
