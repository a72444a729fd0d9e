"""Certificates of users: what is signed, for how long, and with which rights; by a real API server."""

from __future__ import annotations

import time

import pytest

from gpucluster.controller.kubernetes import client_certificates
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed
from tests.controller.kubernetes.api_server import (
    needs_api_server,
)
from tests.controller.kubernetes.people_world import People

pytestmark = [pytest.mark.slow, needs_api_server, pytest.mark.xdist_group("kubernetes-api-server")]


def test_a_certificate_that_has_expired_is_refused(start: People) -> None:
    old = start.log_in("ada", now=time.time() - 2 * 3600)
    with pytest.raises(ApiFailed) as raised:
        old.run("get", "pods", "--namespace=user-ada")
    assert raised.value.kind == "expired"


def test_a_request_asks_for_no_rights_by_its_own_names(start: People) -> None:
    # The request of these tests names system:masters.
    with pytest.raises(ApiFailed, match='User "eve" cannot list'):
        start.log_in("eve").list("secrets")


@pytest.mark.parametrize(
    ("request_text", "hours"), [("no", 1), (None, 1), ("-----BEGIN CERTIFICATE REQUEST-----\nx", 1)]
)
def test_what_is_not_a_request_is_refused(world: People, request_text: object, hours: int) -> None:
    with pytest.raises(Refused):
        client_certificates.sign(request_text, "ada", (), hours, world.authority)


@pytest.mark.parametrize("hours", [0, 721, "12", True, None])
def test_hours_out_of_the_range_are_refused(world: People, hours: object) -> None:
    with pytest.raises(Refused, match="1 to 720 hours"):
        client_certificates.sign((world.authority / "own.csr").read_text(), "ada", (), hours, world.authority)
