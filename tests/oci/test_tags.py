"""The tags of a resource fit into what OCI allows."""

from __future__ import annotations

import pytest

from gpucluster.oci import tags
from gpucluster.spec.sections.cloud import FREEFORM_TAGS


@pytest.mark.parametrize(("own", "identity"), [(0, True), (FREEFORM_TAGS - 1, True), (FREEFORM_TAGS, False)])
def test_an_elastic_node_has_no_more_tags_than_oci_allows(own: int, identity: bool) -> None:
    configuration = {f"team-{number}": "x" for number in range(own)}
    configuration |= {tags.CLUSTER: "demo", tags.IDENTITY: "0123456789abcdef", tags.ROLE: tags.COMPUTE}
    found = tags.fitting({**configuration, **tags.for_elastic_node("demo", "gpu", "gpu-e1", 3)})
    assert len(found) <= tags.MOST
    assert (tags.IDENTITY in found) is identity
    assert found.keys() >= {tags.CLUSTER, tags.POOL, tags.NODE, tags.GENERATION, *list(configuration)[:own]}
