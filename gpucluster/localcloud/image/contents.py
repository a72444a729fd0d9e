"""What an image of the local cloud really contains: a suite, and the traps of the image whose name it has."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpucluster.errors import InputError
from gpucluster.localcloud.image import package_mirror, traps
from gpucluster.localcloud.image.suites import SUITES, Suite


@dataclass(frozen=True)
class Contents:
    """What an image contains.

    Args:
        suite: the release of Debian or Ubuntu that it boots.
        traps: names of the traps in it, in the order in which they are laid.
        stand_in: it has the name of another system.
    """

    suite: Suite
    traps: tuple[str, ...] = ()
    stand_in: bool = False

    @property
    def label(self) -> str:
        """For names of files and container images."""
        return f"{self.suite.label}-trapped" if self.traps else self.suite.label


DEBIAN_13 = Contents(SUITES["trixie"])


@dataclass(frozen=True)
class ImageSettings:
    """The operator's `<home>/images/settings.json`.

    Args:
        stand_ins: whether an image that is a stand-in may be launched.
        without_traps: names of traps that no image gets.
    """

    stand_ins: bool = True
    without_traps: tuple[str, ...] = ()


def folder_of(home: Path) -> Path:
    """The folder of a home with the base images, the mirrors and the settings."""
    return home / "images"


def read_settings(folder: Path) -> ImageSettings:
    """The settings of a home; the defaults where it has no such file.

    Raises:
        InputError: the file is not what it should be.
    """
    file = folder / "settings.json"
    if not file.exists():
        return ImageSettings()
    try:
        read = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"not a JSON file: {error}", where=str(file), hint="Correct it or remove it") from error
    known = set(traps.catalogue())
    stand_ins, without = (
        (read.get("stand_ins", True), read.get("without_traps", [])) if isinstance(read, dict) else (None, None)
    )
    if (
        not isinstance(stand_ins, bool)
        or not isinstance(without, list)
        or not set(read) <= {"stand_ins", "without_traps"}
        or not all(name in known for name in without)
    ):
        raise InputError(
            "it must be an object with stand_ins (true or false) and without_traps (a list of "
            f"{', '.join(sorted(known))}), both optional",
            where=str(file),
            hint="Correct it or remove it",
        )
    return ImageSettings(stand_ins, tuple(without))


def contents_of(operating_system: str, version: str, folder: Path) -> Contents:
    """What the image of an operating system contains: its own suite where that can be made, else a stand-in.

    Args:
        operating_system, version: as OCI shows them: "Canonical Ubuntu", "24.04".
        folder: with the operator's mirrors and settings.
    """
    entry = next(
        (
            entry
            for entry in _systems()
            if entry["operating_system"] == operating_system and entry["version"] == version
        ),
        None,
    )
    if entry is None:
        return DEBIAN_13 if operating_system == "Debian" else Contents(DEBIAN_13.suite, stand_in=True)
    without = read_settings(folder).without_traps
    laid = tuple(name for name in entry.get("traps", ()) if name not in without)
    own = SUITES[entry["suite"]] if "suite" in entry else None
    if own is not None and (own.distribution == "Debian" or own.name in package_mirror.named_suites(own, folder)):
        return Contents(own, laid)
    return Contents(SUITES[entry["stand_in"]], laid, stand_in=True)


def all_contents(folder: Path) -> list[Contents]:
    """Every contents that an image of the catalogue can have."""
    contents = (contents_of(entry["operating_system"], entry["version"], folder) for entry in _systems())
    return list(dict.fromkeys([DEBIAN_13, *contents]))


@functools.cache
def _systems() -> tuple[Mapping[str, Any], ...]:
    text = (files("gpucluster.localcloud.image") / "systems.toml").read_text()
    return tuple(tomllib.loads(text)["system"])
