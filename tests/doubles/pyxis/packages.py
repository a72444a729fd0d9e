"""The double of Pyxis as the archive of its source, in the form in which the real project's tags are downloaded."""

from __future__ import annotations

from pathlib import Path

from tests.mirror import Mirror

# Not the pinned version, whose checksum no double has.
VERSION = "0.23.0"
FOLDER = Path(__file__).parent


def add(mirror: Mirror, version: str = VERSION) -> None:
    """Put pyxis-VERSION.tar.gz into a mirror."""
    makefile = (FOLDER / "Makefile").read_text().replace(f"VERSION ?= {VERSION}", f"VERSION ?= {version}")
    tree = {"Makefile": makefile, "double.c": (FOLDER / "double.c").read_text()}
    mirror.tar(f"pyxis-{version}.tar.gz", {f"pyxis-{version}/{name}": text for name, text in tree.items()})
