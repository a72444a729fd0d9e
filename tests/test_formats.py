"""Which formats this release reads, and how it refuses the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucluster import __version__, formats
from gpucluster.errors import NewerReleaseError

ROOT = Path(__file__).parents[1]


def test_a_newer_format_is_refused_with_what_where_and_what_next() -> None:
    with pytest.raises(NewerReleaseError) as caught:
        formats.require_known(3, what="this cluster's folder", where="/x/release.json", release="9.1.0", known=2)
    assert str(caught.value) == (
        f"this cluster's folder has the format 3, which gpucluster 9.1.0 has written; this gpucluster {__version__} "
        "reads formats up to 2. Nothing was changed (/x/release.json). Use gpucluster 9.1.0 or a newer one here "
        "(docs/how-to/upgrade-gpucluster.md)"
    )
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("found", [1, 2, None, "3"])
def test_known_formats_and_what_is_none_are_the_affair_of_the_reader(found: object) -> None:
    formats.require_known(found, what="it", known=2)


@pytest.mark.parametrize(
    ("release", "than", "older"),
    [
        ("0.1.0", "0.2.0.dev0", True),
        ("0.2.0.dev0", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("0.2.0", "0.2.0", False),
        ("0.2.0", "0.1.0", False),
        ("", "0.1.0", False),
        ("0.1.0", "of a colleague", False),
    ],
)
def test_releases_are_ordered_as_packages_are(release: str, than: str, *, older: bool) -> None:
    assert formats.is_older(release, than) is older


def test_terraform_writes_the_format_that_is_read() -> None:
    text = (ROOT / "terraform" / "cluster" / "outputs.tf").read_text()
    assert {int(each) for each in re.findall(r"contract_version\s*= (\d+)", text)} == {formats.CLUSTER_FORMAT}
