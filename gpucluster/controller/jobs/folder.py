"""The folder of a job: `~/gpucluster-jobs/NAME-TIME`, with its files, its record and what it has printed.

Each function is called in a child process with the rights of the user (`accounts.work_as`). The user may have changed
anything in here, so nothing that is read is trusted.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

from gpucluster.node_agent import bounded
from gpucluster.node_agent.accounts import Account, work_as
from gpucluster.node_agent.errors import Failed, Refused

#: In the home of a user, for the folders of all jobs.
BASE = "gpucluster-jobs"
#: What was submitted: a JSON object. It marks a folder as one of ours.
RECORD = "job.json"
#: What became of it, as the one who waited for it has judged: a JSON object.
RESULT = "result.json"
#: Bytes that are read of an output: from its beginning, and from its end.
HEAD, TAIL = 1 << 20, 3 << 20
#: Bytes of an output that is followed, in one answer.
PART = 1 << 20
_MOST_RECORD = 1 << 20
_MOST_FILES, _MOST_BYTES = 100, 16 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_TEMPLATE = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")
_SAME_SECOND = 100
#: Seconds for files in a home.
_SECONDS = 30.0
_MOST_ANSWER = 2 << 20


class Files(NamedTuple):
    """The files of a job, which have been checked.

    Args:
        texts: by name.
        executable: names of those that are programs.
    """

    texts: Mapping[str, str]
    executable: frozenset[str]


def checked_files(files: Any) -> Files:
    """The files of a request: `{name: {"text": ..., "executable": ...}}`.

    Raises:
        Refused: a name leads elsewhere, or there is too much of it.
    """
    if not isinstance(files, dict) or not files or len(files) > _MOST_FILES:
        raise Refused(f"a job has 1 to {_MOST_FILES} files")
    for name, file in files.items():
        if not _NAME.fullmatch(name) or name in (RECORD, RESULT):
            raise Refused(f"this can't be the name of a file of a job: {name[:80]!r}")
        if not isinstance(file, dict) or not isinstance(file.get("text"), str):
            raise Refused(f"the file {name} has no text")
    if sum(len(file["text"]) for file in files.values()) > _MOST_BYTES:
        raise Refused(f"the files of a job have at most {_MOST_BYTES} characters together")
    texts = {name: file["text"] for name, file in files.items()}
    return Files(texts, frozenset(name for name, file in files.items() if file.get("executable") is True))


def checked_template(name: Any) -> str:
    """The name of a template, which becomes a part of the folder's name.

    Raises:
        Refused: it is something else.
    """
    if not isinstance(name, str) or not _TEMPLATE.fullmatch(name):
        raise Refused(f"this can't be the name of a template: {str(name)[:80]!r}", "Run: gpucluster job templates")
    return name


def as_owner(owner: Account, work: Callable[[], Path | None]) -> Path:
    """Do one of these functions with the rights of the user, in a child process; returns the path that it returns.

    Raises:
        Failed: it failed there, or did not end in time.
    """
    return Path(work_as(owner, lambda: str(work() or "").encode(), seconds=_SECONDS, most=_MOST_ANSWER).decode())


def make(home: Path, template: str, files: Files, record: Mapping[str, Any], name: str = "") -> Path:
    """Create the folder of a job with its files. Nothing is left of one that can't be completed.

    Args:
        name: of the folder; "" for a new one, with the time.

    Raises:
        Failed: the home is full, or something is in the way, such as a folder of this name.
    """
    base = home / BASE
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        folder = _named(base, name) if name else _new(base, f"{template}-{time.strftime('%Y%m%dT%H%M%S')}")
    except FileExistsError:
        raise Failed(f"{base} is in the way: it is not a directory") from None
    except OSError as error:
        raise _failed(error, base) from None
    try:
        for each, text in files.texts.items():
            _write(folder / each, text, 0o700 if each in files.executable else 0o600)
        _write(folder / RECORD, json.dumps({"version": 1, "template": template, **record}, indent=1) + "\n", 0o600)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _failed(error, folder) from None
    return folder


def remove(folder: Path) -> None:
    """Delete the folder of a job that was never submitted."""
    shutil.rmtree(folder, ignore_errors=True)


def record(folder: Path) -> dict[str, Any]:
    """What was submitted; empty if the folder is none of ours.

    Raises:
        OSError: it can't be read.
    """
    return _json(folder / RECORD)


def result(folder: Path) -> dict[str, Any]:
    """The result of the job, if it was judged.

    Raises:
        OSError: it can't be read.
    """
    return _json(folder / RESULT)


def write_result(folder: Path, value: Mapping[str, Any]) -> None:
    """Keep the result of the job beside it.

    Raises:
        Failed: the home is full.
    """
    fresh = folder / f".{RESULT}"
    try:
        with suppress(FileNotFoundError):
            fresh.unlink()
        _write(fresh, json.dumps(value, indent=1) + "\n", 0o600)
        fresh.replace(folder / RESULT)
    except OSError as error:
        raise _failed(error, folder) from None


def output(folder: Path, name: str) -> bytes:
    """What the job has printed. Of more than `HEAD` and `TAIL` together the middle is left out, and a line in its place
    states it.

    Raises:
        OSError: it can't be read.
    """
    with _opened(folder / name) as descriptor:
        if descriptor is None:
            return b""
        size = os.fstat(descriptor).st_size
        if size <= HEAD + TAIL:
            return _read(descriptor, HEAD + TAIL)
        head = _read(descriptor, HEAD)
        os.lseek(descriptor, -TAIL, os.SEEK_END)
        left_out = size - HEAD - TAIL
        return head + f"\n[gpucluster: {left_out} bytes are left out]\n".encode() + _read(descriptor, TAIL)


def output_from(folder: Path, name: str, offset: int, *, whole: bool) -> bytes:
    """What the job has printed from a byte on, at most `PART` bytes.

    Args:
        whole: nothing more will come. Otherwise the last line is left for the next call until it has ended: a secret
            in it must not be cut in two.

    Raises:
        OSError: it can't be read.
    """
    with _opened(folder / name) as descriptor:
        if descriptor is None:
            return b""
        os.lseek(descriptor, offset, os.SEEK_SET)
        part = _read(descriptor, PART)
    end = part.rfind(b"\n") + 1
    # A line that is longer than a part is cut: waiting for its end would never end.
    return part if (whole and len(part) < PART) or (not end and len(part) == PART) else part[:end]


def _named(base: Path, name: str) -> Path:
    folder = base / name
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        # What an earlier job has left there would be taken for that of this one.
        if not base.is_dir():
            raise
        raise Failed(
            f"{folder} is there already, from an earlier job", "Take another name: --set job_name=NAME"
        ) from None
    return folder


def _new(base: Path, name: str) -> Path:
    """A new folder; several jobs may be submitted in one second."""
    for number in range(1, _SAME_SECOND):
        folder = base / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise Failed(f"there are {_SAME_SECOND} folders {name} in {base}")


def _write(file: Path, text: str, mode: int) -> None:
    # No link of another user is followed, and no other file is replaced.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)
        stream.flush()
        # On a file server only this reports that the disk is full.
        os.fsync(stream.fileno())


def _open(file: Path) -> int:
    # A pipe must not block.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Failed(f"{file} is in the way: it is not a regular file")
    return descriptor


@contextmanager
def _opened(file: Path) -> Iterator[int | None]:
    """A file to read, as a descriptor; None where there is none."""
    try:
        descriptor = _open(file)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, most: int) -> bytes:
    content = bytearray()
    while len(content) < most:
        part = os.read(descriptor, most - len(content))
        if not part:
            break
        content += part
    return bytes(content)


def _json(file: Path) -> dict[str, Any]:
    with _opened(file) as descriptor:
        if descriptor is None:
            return {}
        try:
            value = bounded.loads(_read(descriptor, _MOST_RECORD))
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _failed(error: OSError, place: Path) -> Failed:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "Free space there, or name another user with --user" if full else "Fix that and try again"
    return Failed(f"{place}: {error.strerror}", hint)
