"""What a cluster is, as its state records it."""

from __future__ import annotations

import pytest

from gpucluster.errors import TerraformError
from gpucluster.handover import Identity


def test_the_identity_is_read_and_an_empty_state_has_none() -> None:
    assert Identity.parse({}) == Identity()
    identity = {"contract_version": 1, "name": "demo", "compartment_id": "d", "login_keys": {"bob": "ssh-ed25519 A b"}}
    known = Identity.parse({"cluster": {"compartment_id": "c"}, "identity": identity})
    assert known == Identity("d", {"bob": "ssh-ed25519 A b"}, name="demo")
    own = {"id": "0123456789abcdef", "origin": "ada@build-3:/srv/demo"}
    known = Identity.parse({"identity": {**identity, **own}})
    assert (known.id, known.origin) == tuple(own.values())
    recorded = {
        "host_keys": {"ocid1.c": "ssh-ed25519 A"},
        "certificates": {"directory": "PEM"},
        "secrets": {"munge": "1f"},
        "physical_hosts": {"ocid1.c": "host-1"},
        "reported_hosts": {"host-2": "{}"},
    }
    assert Identity.parse({"identity": {**identity, **recorded}}).recorded == recorded


def test_a_later_version_is_refused() -> None:
    with pytest.raises(TerraformError, match="has version 2"):
        Identity.parse({"identity": {"contract_version": 2}})
