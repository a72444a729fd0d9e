"""The interface of engines: hardware addresses, and that every engine has what the server calls."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.podman_engine import PodmanEngine
from gpucluster.localcloud.engine.process_engine import ProcessEngine
from gpucluster.localcloud.engine.protocol import Engine, mac_address

addresses = st.ip_addresses(v=4).map(str)


@given(addresses, addresses)
def test_a_hardware_address_belongs_to_one_address(one: str, other: str) -> None:
    assert (mac_address(one) == mac_address(other)) == (one == other)


@given(addresses)
def test_a_hardware_address_is_a_local_one_of_a_single_host(address: str) -> None:
    octets = [int(part, 16) for part in mac_address(address).split(":")]
    assert len(octets) == 6
    # IEEE 802: of the first octet, bit 0 is for groups, bit 1 for addresses that no vendor has assigned.
    assert octets[0] & 0b11 == 0b10


def test_the_hardware_address_of_an_address() -> None:
    assert mac_address("10.0.1.254") == "02:00:0a:00:01:fe"


@pytest.mark.parametrize("engine", [NullEngine, ProcessEngine, PodmanEngine])
def test_every_engine_takes_the_calls_of_the_server(engine: type) -> None:
    calls = {name: call for name, call in vars(Engine).items() if inspect.isfunction(call) and name[0] != "_"}
    assert len(calls) > 20
    for name, call in calls.items():
        assert list(inspect.signature(getattr(engine, name)).parameters) == list(inspect.signature(call).parameters)
    for name in ("workers", "networked"):
        assert hasattr(engine, name)
