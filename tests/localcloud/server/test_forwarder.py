"""The API at the gateway of every VCN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import oci
import pytest

from gpucluster.localcloud import control
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cloud"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running(home) as api:
        yield api


# access from a VCN


def test_the_api_answers_at_the_gateway_of_each_vcn(api: Api) -> None:
    # A part of the loopback network: every machine can bind it, and no route leads there.
    vcn = api.vcn("127.90.0.0/24", "loop")
    port = int(api.endpoint.rpartition(":")[2])

    def through() -> str:
        client = oci.identity.IdentityClient(
            api.config, service_endpoint=f"http://127.90.0.1:{port}", retry_strategy=oci.retry.NoneRetryStrategy(),
            timeout=PATIENCE_S,
        )  # fmt: skip
        return str(client.list_availability_domains(api.tenancy).data[0].name)

    # It begins to listen after the network is there.
    found = wait_for("the gateway answers", through, ignore=oci.exceptions.RequestException)
    assert found == api.domain
    control.stop(api.home)
    api.start()
    assert through() == api.domain
    api.network.delete_vcn(vcn.id)

    def refuses() -> bool:
        try:
            through()
        except oci.exceptions.RequestException:
            return True
        return False

    wait_for("the gateway answers no longer", refuses)
