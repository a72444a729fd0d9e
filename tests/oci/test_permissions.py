"""Which permission a call needs, and what narrows it."""

from __future__ import annotations

from gpucluster.localcloud.auth.policies import tables
from gpucluster.oci import permissions


def test_every_narrowed_permission_is_one_that_its_verb_gives() -> None:
    known = tables().types
    for right in {right for needed in permissions.NEEDED.values() for right in needed}:
        assert set(right.permissions) <= known[right.resource][right.verb], right


def test_the_autoscaler_reports_what_it_lacks() -> None:
    said = permissions.advice("launch_instance_configuration", "demo")
    assert "`use subnets`" in said
    assert "where a pool has such, `use compute-clusters`" in said
    assert said.endswith("gpucluster policies")
    assert "`manage instances` for the dynamic group gpucluster-demo" in permissions.advice("list_instances", "demo")
    assert permissions.advice("sign_in", "demo") == ""
