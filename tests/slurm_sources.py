"""Slurm's source for tests that build it, and a cache of what they have built, outside of the repository.

    ~/.cache/gpucluster/tests/slurm/sources/    tarballs, by the names of the catalogue
    ~/.cache/gpucluster/tests/slurm/packages/   archives of packages; their names have the hash of a build's inputs

A source is taken from the Debian mirror of this machine, where that has it: it keeps the sources of the suites of now.
Any other is put there by hand.
"""

from __future__ import annotations

import hashlib
import shutil
import urllib.request
from pathlib import Path

import pytest

from gpucluster.artifacts import catalogue
from gpucluster.artifacts.catalogue import Artifact
from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.image import package_mirror
from gpucluster.localcloud.image.suites import SUITES
from gpucluster.paths import cache_dir
from tests.waiting import PATIENCE_S

CACHE = cache_dir() / "tests" / "slurm"


def source(release: str) -> tuple[Artifact, Path]:
    """The pinned source of a release. Skips the test where it is neither here nor in the mirror."""
    found = catalogue.needed((), {"x86_64"}, gpus_present=False, versions={}, checksums={}, slurm_release=release)
    (artifact,) = found
    file = CACHE / "sources" / artifact.file
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            mirror = package_mirror.find(SUITES["trixie"], CACHE)
            url = f"{mirror.uri}/pool/main/s/slurm-wlm/{artifact.file}"
            part = file.with_suffix(".part")
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer, part.open("wb") as out:
                shutil.copyfileobj(answer, out)
        except (OSError, EnvironmentFault) as error:
            pytest.skip(f"{artifact.file} is not in {file.parent}, and the mirror of this machine has none: {error}")
        part.rename(file)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == artifact.sha256
    return artifact, file
