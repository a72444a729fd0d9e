"""Sessions of the Bastion service: which one serves, and where it is met."""

from __future__ import annotations

import pytest

from gpucluster.cloud.bastion import BastionSession, endpoint_of
from gpucluster.errors import CloudError

SESSION = BastionSession(
    "ocid1.bastionsession.oc1..s", "ocid1.bastion.oc1..b", "10.0.1.2", "ssh-ed25519 AAAA", "h", 22, 1000.0
)


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (
            "ssh -i <privateKey> -N -L <localPort>:10.0.1.12:22 -p 22 "
            "ocid1.bastionsession.oc1.iad.x@host.bastion.us-ashburn-1.oci.oraclecloud.com",
            ("host.bastion.us-ashburn-1.oci.oraclecloud.com", 22),
        ),
        ("ssh -i <privateKey> -N -L <localPort>:10.0.1.12:22 -p 41022 ocid1.s@127.0.0.1", ("127.0.0.1", 41022)),
        ("ssh ocid1.s@host.bastion.example", ("host.bastion.example", 22)),
    ],
)
def test_the_meeting_point_is_in_the_command_line(command: str, place: tuple[str, int]) -> None:
    assert endpoint_of(command) == place


def test_a_command_line_without_a_host_is_refused() -> None:
    with pytest.raises(CloudError, match="no host to connect to"):
        endpoint_of("")


def test_a_session_serves_its_own_bastion_address_and_key_until_it_ends() -> None:
    request = (SESSION.bastion_id, SESSION.address, SESSION.public_key)
    assert SESSION.serves(*request, until=999.0)
    assert not SESSION.serves(*request, until=1000.0)
    for index in range(len(request)):
        other = [*request]
        other[index] += "x"
        assert not SESSION.serves(other[0], other[1], other[2], until=999.0)
