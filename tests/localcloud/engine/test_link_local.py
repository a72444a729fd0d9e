"""The rules of the packet filter for the way to 169.254.169.254; without containers."""

from __future__ import annotations

from pathlib import Path

from gpucluster.localcloud.engine.link_local import rules, table_name
from gpucluster.localcloud.engine.protocol import NetworkListeners
from tests.localcloud.test_metadata_path import ADDRESS

# The server is killed in the middle, and the network goes at the end.


def test_without_networks_the_table_goes() -> None:
    assert rules("t", {}) == "table ip t\ndelete table ip t\n"


def test_each_network_has_its_own_listener_and_no_other_address() -> None:
    text = rules(
        "t",
        {
            "podman1": NetworkListeners("10.1.0.1", 4001, 5001, 6001, 7001),
            "podman2": NetworkListeners("10.2.0.1", 4002, 2, 6002, 7002),
        },
    )
    assert f'iifname "podman1" ip daddr {ADDRESS} tcp dport 80 dnat to 10.1.0.1:4001' in text
    assert f'iifname "podman2" ip daddr {ADDRESS} tcp dport 80 dnat to 10.2.0.1:4002' in text
    assert text.startswith("table ip t\ndelete table ip t\n"), "the earlier rules go in the same transaction"
    assert 'iifname "podman1" ip daddr 10.1.0.1 tcp dport 443 dnat to 10.1.0.1:5001' in text
    assert f'iifname "podman2" ip daddr {ADDRESS} udp dport 53 dnat to 10.2.0.1:6002' in text
    assert f'iifname "podman2" ip daddr {ADDRESS} tcp dport 53 dnat to 10.2.0.1:7002' in text
    assert all("iifname" in line for line in text.splitlines() if "dnat" in line and "priority" not in line)


def test_two_local_clouds_have_two_tables() -> None:
    assert table_name(Path("/one")) != table_name(Path("/two"))
    assert table_name(Path("/one")) == table_name(Path("/one"))
