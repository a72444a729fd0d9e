"""What keeps a namespace that is being deleted."""

from __future__ import annotations

import calendar
import time

import pytest

from gpucluster.controller.kubernetes import namespaces


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("NamespaceDeletionDiscoveryFailure", "get apiservices"),
        ("NamespaceFinalizersRemaining", "edit KIND NAME"),
        ("NamespaceContentRemaining", "get all"),
    ],
)
def test_a_namespace_that_does_not_end(kind: str, hint: str) -> None:
    meta = {"name": "user-a", "deletionTimestamp": "2026-11-23T00:00:00Z"}
    condition = {"type": kind, "status": "True", "message": "2 pods, example.com/x in 1 resource"}
    deleted = {"metadata": meta, "status": {"conditions": [condition]}}
    began = calendar.timegm(time.strptime(meta["deletionTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    assert namespaces.stuck(deleted, began + 119) is None, "its pods may be ending"
    found = namespaces.stuck(deleted, began + 120)
    assert found is not None
    assert "user-a does not end since 2026-11-23T00:00:00Z: 2 pods" in found[0]
    assert hint in found[1]
    assert namespaces.stuck({"metadata": {"name": "user-a"}}, 0) is None
