"""What a failed test leaves for its reader: its logs, and the journals of its containers, in a folder of its own.

`make test` names the folder and prints the ends of these files, so that a failure on a machine that is gone can be
understood without running it again. A test needs to do nothing: the folders are found among its fixtures, directly or
as attributes of one, and the containers by the local cloud's label of these folders or by their names there.

Without GPUCLUSTER_TEST_EVIDENCE nothing is kept. Standard library of Python 3.9 only, as tests/waiting.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

VARIABLE = "GPUCLUSTER_TEST_EVIDENCE"
_LABEL = "gpucluster.home"
_SUFFIXES = (".log", ".out", ".err", ".jsonl", ".journal", ".trace")
#: Folders of records and logs of a cluster and of a local cloud, whatever the names of their files.
_WHOLE = ("runs", "logs", "log", "artifacts")
_PRIVATE = re.compile(r"key|secret|token|passw|credential|\.pem", re.IGNORECASE)
_LARGEST, _MOST = 256 * 1024, 80
_ASK_S = 30


def keep(nodeid: str, said: str, fixtures: Mapping[str, object]) -> Path | None:
    """Copy what explains a failure.

    Args:
        nodeid: the test.
        said: how pytest reports the failure.
        fixtures: the test's fixtures by name, which still stand.

    Returns:
        The folder, or None where nothing is to be kept.
    """
    root = os.environ.get(VARIABLE)
    if not root:
        return None
    folder = Path(root) / re.sub(r"[^A-Za-z0-9_.-]+", "-", nodeid.replace("tests/", "").replace(".py::", "-"))[-120:]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failure.txt").write_text(f"{nodeid}\n\n{said}")
    places, words = _places_and_words(fixtures.values())
    for number, place in enumerate(places):
        _copy_logs(place, folder / (f"files-{number}" if number else "files"))
    for name, identifier in _containers(places, words):
        _ask_container(identifier, folder, name)
    return folder


def _places_and_words(values: Iterable[object]) -> tuple[list[Path], set[str]]:
    """Folders below the folder of temporary files, outermost first, and texts that may be names of containers."""
    found, words = set(), set()
    for value in _with_attributes(values):
        if isinstance(value, str):
            words.add(value)
        elif isinstance(value, Path) and value.is_dir():
            found.add(value.resolve())
    base = Path(tempfile.gettempdir()).resolve()
    below = sorted(place for place in found if base in place.parents)
    return [place for place in below if not any(other in place.parents for other in below)], words


def _with_attributes(values: Iterable[object], depth: int = 2) -> Iterator[object]:
    """Values, their attributes, and those of the tests' own objects among these, such as a harness in a harness."""
    for value in values:
        yield value
        if type(value).__module__.startswith("tests.") and depth:
            yield from _with_attributes(getattr(value, "__dict__", {}).values(), depth - 1)


def _copy_logs(place: Path, to: Path) -> None:
    files = [file for file in _files(place) if not _PRIVATE.search(file.name)]
    for file in sorted(files, key=_changed, reverse=True)[:_MOST]:
        target = to / file.relative_to(place)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as source, target.open("wb") as copy:
                source.seek(max(0, os.fstat(source.fileno()).st_size - _LARGEST))
                shutil.copyfileobj(source, copy)
            os.utime(target, (_changed(file), _changed(file)))  # readers begin with the newest
        except OSError:
            continue  # it is gone: others still write here


def _files(place: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(place):
        # Not what is a tree of programs, of packages, or of a whole system.
        folders[:] = [one for one in folders if one not in (".terraform", "mirror", "images", "root", ".git", "venv")]
        here = Path(folder)
        for name in names:
            file = here / name
            if (name.endswith(_SUFFIXES) or here.name in _WHOLE) and file.is_file() and not file.is_symlink():
                yield file


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _containers(places: list[Path], words: set[str]) -> Iterator[tuple[str, str]]:
    """Name and id of each container of a test."""
    if shutil.which("podman") is None:
        return
    try:
        listed: list[dict[str, Any]] = json.loads(_answer(["podman", "ps", "--all", "--format", "json"]) or "[]")
    except ValueError:
        return
    for container in listed:
        home = (container.get("Labels") or {}).get(_LABEL, "")
        names = set(container.get("Names") or ())
        of_place = home and any(place == Path(home) or place in Path(home).parents for place in places)
        if of_place or names & words or str(container.get("Id")) in words:
            yield min(names, default="container"), str(container["Id"])


def _ask_container(identifier: str, folder: Path, name: str) -> None:
    asked = {
        "console": ["podman", "logs", "--tail", "200", identifier],
        "journal": ["podman", "exec", identifier, "journalctl", "--boot", "--no-pager", "--lines", "600"],
        "failed-units": ["podman", "exec", identifier, "systemctl", "--failed", "--no-pager"],
    }
    for what, argv in asked.items():
        said = _answer(argv)
        if said.strip():
            (folder / f"{name}.{what}.log").write_text(said)


def _answer(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_ASK_S, check=False, errors="replace",
            text=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv}: {error}"
    return done.stdout
