"""The versions that gpucluster installs by default, against the table of advisories."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest

from gpucluster.advisories import table
from gpucluster.advisories.evaluate import InstalledVersion as Installed
from gpucluster.advisories.evaluate import faults, warnings
from gpucluster.artifacts import catalogue
from gpucluster.slurm import releases
from gpucluster.spec import loads
from tests.spec.spec_texts import MINIMAL

#: Pins with known faults, with the reason. SchedMD publishes no checksums that could be read, and Debian's archive, the
#: source of others, was not found to have 25.05.9 or 25.11.8. So these pins stay, and `validate`, `verify` and
#: `slurm upgrade --plan` warn of them.
WITH_FAULTS = {
    "slurm-23.11": "SchedMD's support has ended, and there is no fixed version",
    "slurm-24.11": "SchedMD's support has ended, and there is no fixed version",
    "slurm-25.05": "25.05.9 is fixed, and no source that states its checksum was found (searched on 2026-11-28)",
    "slurm-25.11": "25.11.8 is fixed, and no source that states its checksum was found (searched on 2026-11-28)",
}


def _pins() -> Iterator[tuple[str, str, str]]:
    """Component, product and version of each pin that the table can be asked about."""
    for component, release in catalogue._releases().items():
        product = "slurm" if component.startswith("slurm-") else component
        if product in table.PRODUCTS:
            yield component, product, release.version


def test_no_pin_has_a_known_fault_that_is_not_listed_here() -> None:
    """Who adds an advisory raises the pin, or states here why it can't be raised."""
    pins = list(_pins())
    assert {product for _, product, _ in pins} == {"slurm", "enroot", "pyxis", "nvidia-container-toolkit", "kubernetes"}
    # On the day of the table, so that the test has the same result on every day.
    bad = {
        component: [fault.title for fault in faults(Installed(product, version), "", table.searched())]
        for component, product, version in pins
    }
    assert {component for component, found in bad.items() if found} == set(WITH_FAULTS), bad


def test_the_default_release_of_slurm_has_none() -> None:
    assert f"slurm-{releases.NEWEST}" not in WITH_FAULTS


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
    spec = loads(f"{MINIMAL}{section}\n")
    assert catalogue.slurm_version(spec) == version
    assert catalogue.release_versions(spec).get("slurm", "") == version


def test_other_components_are_taken_from_the_file_too() -> None:
    old = "containers: {runtimes: [docker]}\nsoftware: {versions: {nvidia-container-toolkit: 1.17.3}}\n"
    found = catalogue.release_versions(loads(f"{MINIMAL}{old}"))
    said = " ".join(warnings("nvidia-container-toolkit", found["nvidia-container-toolkit"], date(2026, 11, 28)))
    assert "CVE-2025-23266 and 1 other, critical" in said
    assert "versions: {nvidia-container-toolkit: 1.17.8}" in said


def test_a_file_that_names_what_the_catalogue_lacks_still_has_its_slurm() -> None:
    spec = loads(f'{MINIMAL}slurm: {{release: "25.11"}}\nsoftware: {{versions: {{slrum: "1"}}}}\n')
    assert catalogue.release_versions(spec) == {"slurm": "25.11.7"}
