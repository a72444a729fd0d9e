"""Each inventory of the README that no other test builds: built as it is, verified, and removed again.

The only changes are the addresses, and a mirror with doubles of the release files, which no test downloads. Other tests
build local (test_main_path), seed-000-static (test_without_scheduler) and seed-002-ondemand (test_elastic). Those with
Kubernetes are built by test_kubernetes_inventories.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpucluster.localcloud.compute import memory_fabrics
from tests.doubles.nerdctl import bundle
from tests.doubles.pyxis import packages as pyxis
from tests.e2e import budget, containers_harness
from tests.e2e.inventory_life import build_verify_and_remove
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S, Site, worked_example
from tests.mirror import Mirror

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

# Not the pinned version: the mirror's own list states the checksum of its file then.
NERDCTL = "2.99.0"


def _nothing(_site: Site) -> str:
    return ""


def _nerdctl(site: Site) -> str:
    bundle(Mirror(site.folder / "mirror"), NERDCTL)
    return f"  mirror: mirror\n  versions: {{nerdctl: {NERDCTL}}}\n"  # `software` is the last section of the file


def _enroot(site: Site) -> str:
    containers_harness.mirror(site, pyxis.VERSION)
    return f"software: {{mirror: mirror, versions: {{pyxis: {pyxis.VERSION}}}}}\n"


def _rack(site: Site) -> str:
    """Give the tenancy the rack that the inventory names."""
    site.home.mkdir(parents=True, exist_ok=True)
    (site.home / memory_fabrics.FILE).write_text('[{"name": "rack-1", "shape": "BM.GPU.GB200.4"}]')
    return ""


@pytest.mark.parametrize(
    ("name", "software", "hosts"),
    [
        ("elastic", _nothing, 2),
        ("private", _nothing, 5),
        ("rack", _rack, 3),
        ("seed-001-single-node", _nerdctl, 2),
        ("seed-003-measurements", _enroot, 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_inventory_is_built_as_it_is(name: str, software: Callable[[Site], str], hosts: int) -> None:
    with Site(worked_example(name)) as site:
        site.file.write_text(site.file.read_text().rstrip() + "\n" + software(site))
        build_verify_and_remove(site, hosts, name, budget.held)
