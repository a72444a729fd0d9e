"""HTML pages on the operator's machine. They name users and hosts, so only their owner may read them."""

from __future__ import annotations

from pathlib import Path

from gpucluster.errors import InputError
from gpucluster.pages.frame import is_page
from gpucluster.paths import write_private

# Characters in which a page states what it is.
_HEAD = 4000


def check(file: Path, kind: str) -> Path:
    """The same path, if a page of this kind may be written there: nothing is there, or an earlier page of this kind.

    Raises:
        InputError: another file is there, or a folder, or its folder does not exist.
    """
    if file.is_dir():
        raise InputError("this is a folder", where=str(file), hint=f"Name a file in it: {file / 'overview.html'}")
    if not file.absolute().parent.is_dir():
        hint = f"Run: mkdir -p {file.parent}"
        raise InputError("there is no such folder", where=str(file.parent), hint=hint)
    if file.is_symlink() and not file.exists():
        raise InputError("this link leads to nothing", where=str(file), hint="Remove it, or name another file")
    if file.exists() and not _is_ours(file, kind):
        what = "there is a file already, and it is not this kind of page of gpucluster"
        raise InputError(what, where=str(file), hint="Name another file, or move that one away")
    return file


def write(file: Path, text: str) -> None:
    """Write a page whole or not at all, for its owner only.

    Raises:
        EnvironmentFault: it can't be written; an earlier page is unchanged.
    """
    write_private(file.resolve(), text)


def _is_ours(file: Path, kind: str) -> bool:
    if not file.is_file():
        return False  # reading a pipe would wait
    try:
        with file.open(errors="replace") as stream:
            return is_page(stream.read(_HEAD), kind)
    except OSError as error:
        what = f"the file can't be read: {error.strerror}"
        raise InputError(what, where=str(file), hint="Name a file that you may read and write") from error
