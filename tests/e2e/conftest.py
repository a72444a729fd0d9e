"""The cluster that all tests of Kubernetes share: to build one takes two minutes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.e2e.kubernetes_site import KubernetesSite


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[KubernetesSite]:
    """A cluster with the scheduler kubernetes and two ready nodes, which have the image for pods of tests."""
    from tests.e2e import budget
    from tests.e2e.kubernetes_site import KubernetesSite
    from tests.kubernetes_sources import need_kubernetes, tools_archive

    need_kubernetes()
    tools_archive()
    with KubernetesSite(more="monitoring: {enabled: true}\n") as site:
        with budget.held(site, "kubernetes, two nodes: first apply"):
            site.good("apply")
        site.import_tools()
        yield site
