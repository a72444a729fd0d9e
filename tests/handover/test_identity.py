"""What a cluster is, as its state records it."""

from __future__ import annotations

import pytest

from gpucluster.errors import NewerReleaseError, TerraformError
from gpucluster.handover import Identity
from gpucluster.handover.outputs import CONTRACT_VERSION


def test_the_identity_is_read_and_an_empty_state_has_none() -> None:
    assert Identity.parse({}) == Identity()
    identity = {"contract_version": 1, "name": "demo", "compartment_id": "d", "login_keys": {"bob": "ssh-ed25519 A b"}}
    known = Identity.parse({"cluster": {"compartment_id": "c"}, "identity": identity})
    assert known == Identity("d", {"bob": "ssh-ed25519 A b"}, name="demo", release="0.1.0")
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


def test_a_later_format_is_refused_with_what_has_written_it() -> None:
    later = {"contract_version": CONTRACT_VERSION + 1, "release": "9.1.0", "host_keys": "of another form"}
    with pytest.raises(NewerReleaseError, match=r"which gpucluster 9\.1\.0 has written"):
        Identity.parse({"identity": later})
    with pytest.raises(TerraformError, match="contract_version is None"):
        Identity.parse({"identity": {"name": "demo"}})
