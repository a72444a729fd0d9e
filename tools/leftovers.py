"""What a run of the suite has left on the machine: it must be nothing. What is left is named, and then removed.

A run has a folder of its own for temporary files (TMPDIR), and everything that it starts inherits the variable or lies
in the folder. So what is left of this run can be told from what others do beside it, such as a second suite or a demo
cluster. The folder itself goes with the run, with what libraries cache and killed programs leave in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpucluster.waiting import wait_until

_ENDING_S, _EVERY_S = 60, 0.5
_TRIES = 3
#: Podman starts one for all networks of this machine, and ends it with the last.
_SHARED = {"aardvark-dns"}
#: The test that runs, in the variables of what it starts: "FILE::NAME (call)".
_TEST = re.compile(rb"(?:^|\0)PYTEST_CURRENT_TEST=([^\0]*?)(?: \([a-z]+\))?\0")


def left(folder: Path) -> list[str]:
    """What is left of a run with this folder for temporary files, each in words; what is about to end may do so."""
    found: list[Left] = []

    def nothing() -> bool:
        found[:] = _all(folder)
        return not found

    wait_until(nothing, _ENDING_S, _EVERY_S)
    return [each.words for each in found]


def remove(folder: Path) -> None:
    """Remove what is left of a run with this folder for temporary files, and nothing else: after Ctrl-C, for example,
    the processes that run tests are ended before their clusters are.
    """
    for _ in range(_TRIES):  # a server that was ended last may have started something
        found = _all(folder)
        if not found:
            return
        for each in found:
            subprocess.run(each.removal, capture_output=True, check=False)


class Left(NamedTuple):
    """Something that is left, in words, and the command that removes it."""

    words: str
    removal: tuple[str, ...]


def _all(folder: Path) -> list[Left]:
    """In the order in which they can be removed."""
    return [*_processes(folder), *_containers(folder), *_mounts(folder), *_loop_devices(folder)]


def _processes(folder: Path) -> Iterator[Left]:
    mark = f"TMPDIR={folder}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if process.joinpath("exe").resolve().name in _SHARED:
                continue
            variables = (process / "environ").read_bytes() + b"\0"
            if mark in variables:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                test = _TEST.search(variables)
                by = f", started by {test[1].decode(errors='replace')}" if test else ""
                yield Left(f"process {process.name}: {words[:200]}{by}", ("kill", "-KILL", process.name))


def _mounts(folder: Path) -> Iterator[Left]:
    # The last one first: it may lie in another.
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        place = line.split()[4]
        if Path(place).is_relative_to(folder):
            yield Left(f"mount {place}", ("umount", "--lazy", place))


def _loop_devices(folder: Path) -> Iterator[Left]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if backing.read_text().startswith(f"{folder}/"):
                words = f"loop device {backing.parts[3]} of {backing.read_text().strip()}"
                yield Left(words, ("losetup", "--detach", f"/dev/{backing.parts[3]}"))


def _containers(folder: Path) -> Iterator[Left]:
    """Containers and networks whose labels name a place in the folder."""
    kinds = (
        ("container", ["ps", "--all"], ("rm", "--force", "--volumes", "--time=0")),
        ("network", ["network", "ls"], ("network", "rm")),
    )
    for kind, argv, removal in kinds:
        said = subprocess.run(["podman", *argv, "--format", "json"], capture_output=True, text=True, check=False).stdout
        for one in json.loads(said or "[]"):
            labels = one.get("Labels") or one.get("labels") or {}
            if any(f"{value}/".startswith(f"{folder}/") for value in labels.values()):
                number = str(one.get("Id") or one.get("id"))
                yield Left(f"{kind} {one.get('Names') or one.get('name')}", ("podman", *removal, number))


def runtime_folder(folder: Path) -> Path:
    """XDG_RUNTIME_DIR of a run with this folder for temporary files. Without it each cluster of a test has a folder for
    its ssh connections in the home of the user, also after the test if the cluster is never destroyed.
    """
    return folder / "run"


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for the temporary files of a run. Its name is short: paths of sockets are in it."""
    base = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the folder in it is made by no other program
    folder = base / f"gct-{os.getpid()}"
    folder.mkdir(mode=0o700)
    folder.chmod(0o711)  # users of tests pass through it to what is theirs
    runtime_folder(folder).mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
