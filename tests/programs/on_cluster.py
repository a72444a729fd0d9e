"""Programs of the page on a cluster of a test: packages of PyPI for its hosts, and the sections' commands as alice.

Hosts of the local cloud may reach no package index. So this machine fetches the wheels for the Python of the hosts into
the cache of tests, the share gets them, and alice's pip takes them from there: the commands are those of the page.
"""

from __future__ import annotations

import hashlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpucluster.paths import cache_dir
from tests.cache_lock import locked
from tests.e2e.site_harness import Site
from tests.programs.page import section
from tests.waiting import PATIENCE_S

#: By package, what it needs and PyPI has no wheel of. They are Python alone, so one that is built here is good there.
_SOURCE_ONLY = {"snakemake": ("connection-pool",)}
_SYSTEMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def bring_packages(site: Site, *requirements: str) -> None:
    """Let alice's pip install these, each on its own: programs may exclude each other's dependencies.

    Args:
        requirements: as pip has them; with spaces between them: those that share an environment.
    """
    version = site.as_alice("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'")
    (home,) = (site.home / "exports").glob("*/*/alice")
    there = home.parent / "wheels"
    there.mkdir(exist_ok=True)
    for requirement in requirements:
        for wheel in _wheels(requirement, version).glob("*.whl"):
            shutil.copyfile(wheel, there / wheel.name)
    settings = "[global]\nno-index = true\nfind-links = /mnt/home/wheels\ndisable-pip-version-check = true\n"
    site.as_alice("mkdir -p ~/.config/pip && cat > ~/.config/pip/pip.conf", stdin=settings)


def run_section(site: Site, title: str) -> str:
    """What the commands of a section print, in a folder of its own in alice's home, with its files; they must end well.

    A shell for a login reads them from a file: `srun` would read the rest of a standard input.
    """
    found = section(title)
    folder = title.lower().replace(" ", "-") + ".d"
    site.as_alice(f"mkdir -p {folder}")
    for name, text in {**found.files, "commands": "set -e\n" + "".join(found.commands)}.items():
        site.as_alice(f"cat > {folder}/{shlex.quote(name)}", stdin=text)
    return site.as_alice(
        f"cd {folder} && bash --login commands 2> errors < /dev/null || {{ tail -n 60 errors >&2; false; }}"
    )


def environment(*requirements: str) -> Path:
    """The Python of a virtual environment of this machine with these packages, which is kept in the cache of tests."""
    place = _place("environment", sys.version, *requirements)
    python = place / "bin" / "python"
    with locked(place.with_name(f"{place.name}.lock")):
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True)
            _pip(str(python), "install", *requirements)
            (place / "complete").touch()
    return python


def _wheels(requirement: str, version: str) -> Path:
    """The folder with a package and all that it needs, for this version of Python."""
    place = _place("wheels", version, requirement)
    with locked(place.with_name(f"{place.name}.lock")):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=place.parent, prefix="fetching-") as scratch:
                built, fetched = Path(scratch, "built"), Path(scratch, "fetched")
                for name in _SOURCE_ONLY.get(requirement.partition("==")[0], ()):
                    _pip(sys.executable, "wheel", "--no-deps", f"--wheel-dir={built}", name)
                systems = [f"--platform={system}_{platform.machine()}" for system in _SYSTEMS]
                built.mkdir(exist_ok=True)
                only = ("--only-binary=:all:", f"--python-version={version}", f"--find-links={built}")
                _pip(sys.executable, "download", *only, *systems, f"--dest={fetched}", *requirement.split())
                fetched.rename(place)
    return place


def _place(kind: str, *words: str) -> Path:
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
    place = cache_dir() / "tests" / f"programs-{kind}-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _pip(python: str, command: str, *words: str) -> None:
    argv: Sequence[str] = (python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *words)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    if done.returncode != 0:
        pytest.skip(f"no package index has {words[-1]}: {done.stderr.strip()[-300:]}")
