"""Each inventory of the README with Kubernetes: built as its reader would, verified, and removed again.

Changed are the addresses, the release to the newest that can be built here, and a mirror for its files, because no
archive that tests may use has others. Images that only a registry has never come: what waits for them is reported.
"""

from __future__ import annotations

import re

import pytest

from tests.e2e.inventory_life import build_verify_and_remove
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S, Site, worked_example
from tests.kubernetes_sources import CRICTL, RELEASE, mirror, need_kubernetes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]


# In Kubernetes Engine the control plane is a container of the local cloud, too.
@pytest.mark.parametrize(("name", "hosts"), [("kubernetes-local", 3), ("oke", 5), ("seed-003-kubernetes", 3)])
def test_an_inventory_is_built_as_it_is(name: str, hosts: int) -> None:
    need_kubernetes()
    text, changed = re.subn(r"(?m)^  release: [0-9.]+", f"  release: {RELEASE}", worked_example(name))
    assert changed == 1
    software = f"software: {{mirror: {mirror()}, versions: {{cri-tools: '{CRICTL}'}}}}\n"
    with Site(f"{text.rstrip()}\n{software}") as site:
        build_verify_and_remove(site, hosts, name)
