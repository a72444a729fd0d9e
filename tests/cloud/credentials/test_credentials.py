"""Which credentials a run has: those of cluster.yml, or of the machine that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cloud.credentials import VARIABLE, authentication_of, open_credentials
from gpucluster.cloud.credentials.principals import Principal
from gpucluster.cloud.credentials.session import ExchangedSession
from gpucluster.errors import InputError
from gpucluster.spec.sections.cloud import Cloud, Oidc

DOMAIN = Oidc(domain_url="https://idcs.example.com", client_id="app")


def test_the_machine_decides_before_the_file() -> None:
    cloud = Cloud(provider="oci", auth="oidc", oidc=DOMAIN)
    assert authentication_of(cloud, {}) == "oidc"
    assert authentication_of(cloud, {VARIABLE: "profile"}) == "profile"


def test_an_unknown_method_of_the_machine_is_refused() -> None:
    with pytest.raises(InputError, match="unknown method of authentication: instance-principal") as refused:
        authentication_of(Cloud(provider="oci"), {VARIABLE: "instance-principal"})
    assert "instance_principal" in refused.value.hint
    with pytest.raises(InputError, match="no identity domain"):
        authentication_of(Cloud(provider="oci"), {VARIABLE: "oidc"})


def test_no_configuration_file_is_read_where_none_is_used() -> None:
    nowhere = (Path("/nowhere/config"), "DEFAULT")
    opened = open_credentials(Cloud(provider="oci", auth="oidc", oidc=DOMAIN), {}, profile=nowhere)
    assert isinstance(opened, ExchangedSession)
    assert isinstance(
        open_credentials(Cloud(provider="oci", auth="instance_principal"), {}, profile=nowhere), Principal
    )
    with pytest.raises(InputError, match="can't read the OCI configuration file"):
        open_credentials(Cloud(provider="oci"), {}, profile=nowhere)
