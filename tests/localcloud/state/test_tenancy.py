"""The public keys of the tenancy: whose key a request is signed with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gpucluster.localcloud.state.tenancy import Tenancy, key_id
from tests.localcloud.auth.test_policies import TENANCY
from tests.localcloud.entitled import key_of_an_earlier_release

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("owner", ["../stolen", "stolen", "ocid1.user.local..x", "ocid1.instance.local..", "."])
def test_a_key_id_leads_nowhere_else(tmp_path: Path, owner: str) -> None:
    """The client chooses the owner in a keyId: only an instance's OCID may become the name of a folder."""
    key_of_an_earlier_release(tmp_path, TENANCY, "ocid1.instance.local..a")
    made = tmp_path / "credentials" / "instances" / "ocid1.instance.local..a"
    public = load_pem_public_key((made / "public.pem").read_bytes())
    assert isinstance(public, RSAPublicKey)
    for name in ("stolen", "ocid1.user.local..x", "ocid1.instance.local.."):
        shutil.copytree(made, made.parent / name)
    shutil.copy(made / "public.pem", made.parent)
    identity = Tenancy(TENANCY, (), made.parent)
    assert identity.key(key_id(TENANCY, "ocid1.instance.local..a", public)) is not None
    assert identity.key(key_id("ocid1.tenancy.local..z", "ocid1.instance.local..a", public)) is None
    assert identity.key(key_id(TENANCY, owner, public)) is None
