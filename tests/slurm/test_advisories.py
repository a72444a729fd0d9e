"""Known vulnerabilities of Slurm, and the versions that gpucluster builds."""

from __future__ import annotations

import pytest

from gpucluster.artifacts import catalogue
from gpucluster.slurm import advisories, releases
from gpucluster.spec import loads
from tests.spec.spec_texts import MINIMAL


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("25.05.8", "versions: {slurm: 25.05.9}"),
        ("", ""),
        ("25.05.9", ""),
        ("25.11.7", "versions: {slurm: 25.11.8}"),
        ("25.11.8", ""),
        ("25.11.8-1", ""),
        ("25.11.10", ""),
        ("26.05.3", "versions: {slurm: 26.05.4}"),
        ("26.05.0rc1", "versions: {slurm: 26.05.4}"),
        ("26.05.5", ""),
        ("24.11.5", "support of 24.11 ended in 2026-05, and it gets no fix"),
        ("23.11.11", "support of 23.11 ended in 2025-05, and it gets no fix"),
        ("26.11.0", ""),
    ],
)
def test_what_is_known_of_a_version(version: str, says: str) -> None:
    said = " ".join(advisories.warnings(version))
    assert says in said
    assert bool(says) == bool(said)
    if said:
        assert "2026-09 (CVE-2026-65107 and 7 others)" in said


def test_the_default_has_none() -> None:
    assert advisories.known(catalogue._releases()[f"slurm-{releases.NEWEST}"].version) == ()


def test_the_pins_with_known_vulnerabilities_are_these() -> None:
    """Who moves a pin, or adds an advisory, changes this list: no such pin is there by chance."""
    pins = {name: catalogue._releases()[f"slurm-{name}"].version for name in releases.BUILDABLE}
    assert {name for name, version in pins.items() if advisories.known(version)} == {"23.11", "24.11", "25.05", "25.11"}


@pytest.mark.parametrize(
    ("section", "version"),
    [
        ('slurm: {release: "25.11"}', "25.11.7"),
        ('slurm: {release: "25.11"}\nsoftware: {versions: {slurm: 25.11.8}}', "25.11.8"),
        ("slurm: {release: distribution}", ""),
        ("scheduler: none\nstorage: {home: {enabled: false}}", ""),
    ],
)
def test_the_version_of_a_cluster(section: str, version: str) -> None:
    assert catalogue.slurm_version(loads(f"{MINIMAL}{section}\n")) == version
