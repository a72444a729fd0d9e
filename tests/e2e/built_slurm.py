"""Clusters with a Slurm that gpucluster has built, in tests: the source and the packages come from the cache of tests.

It needs slurm-26.05.*.tar.bz2 there (tests/slurm_sources.py): no archive that the tests may rely on has one. Where the
cache has no packages, a build takes ten minutes or more for each system. So these tests run by hand, before a release
of gpucluster: `make test-build`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.site_harness import Site
from tests.slurm_sources import CACHE

FOLDER = "/var/lib/gpucluster-software"
SECONDS = 3600


def newest_source() -> Path:
    """The newest source of the cache. Without one, or without `make test-build`, the test is skipped."""
    if os.environ.get("GPUCLUSTER_TEST_BUILD") != "1":
        pytest.skip("it may build Slurm for half an hour: GPUCLUSTER_TEST_BUILD=1, or make test-build")
    tarballs = sorted((CACHE / "sources").glob("slurm-26.05.*.tar.bz2"))
    if not tarballs:
        pytest.skip(f"{CACHE}/sources has no slurm-26.05.*.tar.bz2")
    return tarballs[-1]


def version_of(source: Path) -> str:
    """The version of a source."""
    return source.name.removeprefix("slurm-").removesuffix(".tar.bz2")


def make_mirror(site: Site, source: Path) -> None:
    """Make a folder `mirror` beside cluster.yml, with the source and its checksum."""
    mirror = site.folder / "mirror"
    mirror.mkdir()
    shutil.copy(source, mirror)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    (mirror / "SHA256SUMS").write_text(f"{digest}  {source.name}\n")


def on_host(site: Site, host: str, *command: str) -> str:
    """What a command prints on a host."""
    done = site.plain("ssh", host, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def from_cache(of_controller: str) -> None:
    """Put the packages of earlier runs where the controller keeps what it has built."""
    subprocess.run(["podman", "exec", of_controller, "mkdir", "-p", FOLDER], check=True)
    for file in (CACHE / "packages").glob("*slurm-packages_26.05*"):
        subprocess.run(["podman", "cp", str(file), f"{of_controller}:{FOLDER}/{file.name}"], check=True)


def to_cache(of_controller: str) -> None:
    """Keep what the controller has for later runs."""
    folder = CACHE / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["podman", "exec", of_controller, "ls", "-A", FOLDER]
    for name in subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split():
        if re.fullmatch(r"\.?slurm-packages_26\.05.*\.(tar|json)", name) and not (folder / name).exists():
            subprocess.run(["podman", "cp", f"{of_controller}:{FOLDER}/{name}", str(folder / name)], check=True)
