"""requirements.lock: what is declared is in it, with hashes, and nothing else is needed."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import lock

ROOT = Path(__file__).parents[2]
SECTIONS = lock.sections(lock.LOCK.read_text())
PYTHONS = ("3.11", "3.12", "3.13")


def _environment(python: str, extra: str = "") -> dict[str, str]:
    return {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}


def _pinned(python: str, *sections: str) -> dict[str, str]:
    """The version of each package that these sections install on a Python."""
    found: dict[str, str] = {}
    for section in sections:
        for entry in lock.entries(SECTIONS[section]).values():
            needed = Requirement(entry.partition("\\\n")[0])
            if needed.marker is None or needed.marker.evaluate(_environment(python)):
                name = canonicalize_name(needed.name)
                assert name not in found, f"{name} is there twice for Python {python}"
                found[name] = str(needed.specifier).removeprefix("==")
    return found


def test_every_file_has_a_hash_and_no_address_is_in_it() -> None:
    assert list(SECTIONS) == ["controller", "build", "run", "dev", "checkov", "audit", "docs"]
    for name, text in SECTIONS.items():
        for pin, entry in lock.entries(text).items():
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"{pin} of {name}"
    assert "://" not in lock.LOCK.read_text()
    assert not re.search(r"^\s*-[a-z-]", lock.LOCK.read_text().replace("    --hash=", ""), re.MULTILINE), (
        "an option of pip"
    )


@pytest.mark.parametrize("python", PYTHONS)
def test_what_is_declared_is_locked(python: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    extras = project["optional-dependencies"]
    for sections, lines in (
        (
            ("controller", "build", "run"),
            [*project["dependencies"], *extras["local"], *declared["build-system"]["requires"]],
        ),
        (("controller", "build", "run", "dev"), [line for line in extras["dev"] if "gpucluster" not in line]),
    ):
        pinned = _pinned(python, *sections)
        for line in lines:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate(_environment(python)):
                assert needed.specifier.contains(pinned[canonicalize_name(needed.name)]), f"{line}: run make lock"


def test_what_the_locked_packages_require_is_locked() -> None:
    """As the packages of this environment declare it. pip does not resolve, so it does not notice what is missing."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    asked = 0
    for sections in (("controller",), ("controller", "build", "run"), ("controller", "build", "run", "dev")):
        pinned = _pinned(python, *sections)
        for name, version in pinned.items():
            try:
                found = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            if found.version != version:
                continue  # make test-newest
            for line in found.requires or ():
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate(_environment(python)):
                    assert canonicalize_name(needed.name) in pinned, f"{name} needs {line}"
                    asked += 1
    assert asked > 50


def test_a_section_is_printed_by_a_python_without_packages() -> None:
    """The first installation does it."""
    argv = [sys.executable, "-I", "-S", str(ROOT / "tools" / "lock.py"), "show", "controller", "build"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert lock.entries(printed).keys() == lock.entries(SECTIONS["controller"] + SECTIONS["build"]).keys()
