"""The list of what is state, and the unit that mounts the volume."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.state_volume import layout


def test_no_place_is_in_another_one() -> None:
    places = [*layout.DIRECTORIES.values(), layout.MOUNT]
    assert len(set(places)) == len(places)
    for place in places:
        assert not [other for other in places if other.startswith(f"{place}/")], place


def test_what_starts_in_order_needs_the_volume_or_the_directory() -> None:
    assert set(layout.IN_ORDER) - set(layout.SERVICES) == {"sssd.service"}
    assert layout.IN_ORDER.index("mariadb.service") < layout.IN_ORDER.index("slurmdbd.service")
    assert layout.IN_ORDER[-1] == "slurmctld.service"


@pytest.mark.parametrize("with_address", [True, False])
def test_an_address_waits_for_the_network(with_address: bool) -> None:
    text = layout.unit("/program", with_address=with_address)
    assert ("After=network-online.target" in text) is with_address
    lines = text.splitlines()
    assert lines[lines.index("[Service]") - 2].startswith("StartLimitIntervalSec=0")
    assert "" not in lines[: lines.index("[Service]") - 1]
