"""Routes to the pods of other nodes: pure parts, and the configuration of the network plugins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes import routes
from gpucluster.node_agent.kubernetes.routes import PROTOCOL, NodeRange


def _node(name: str, address: str, pods: str) -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]
    return {"metadata": {"name": name}, "spec": {"podCIDR": pods}, "status": {"addresses": addresses}}


def test_nodes_without_an_address_or_a_part_have_no_route() -> None:
    new: dict[str, Any] = {"metadata": {"name": "new"}, "spec": {}, "status": {}}
    nodes = [_node("a", "10.0.0.2", "10.244.0.0/24"), new]
    assert routes.parts(nodes) == [NodeRange("a", "10.0.0.2", "10.244.0.0/24")]


def test_routes_lead_to_every_node_but_our_own_and_follow_changes() -> None:
    known = [
        NodeRange("a", "10.0.0.2", "10.244.0.0/24"),
        NodeRange("b", "10.0.1.3", "10.244.1.0/24"),
        NodeRange("c", "10.0.1.9", "10.244.2.0/24"),
    ]
    wanted = routes.desired_routes(known, "a")
    assert wanted == {"10.244.1.0/24": "10.0.1.3", "10.244.2.0/24": "10.0.1.9"}
    present = {"10.244.1.0/24": "10.0.1.3", "10.244.2.0/24": "10.0.1.4", "10.244.7.0/24": "10.0.1.7"}
    assert routes.changes(wanted, present) == [
        ["route", "replace", "10.244.2.0/24", "via", "10.0.1.9", "proto", PROTOCOL],
        ["route", "del", "10.244.7.0/24", "via", "10.0.1.7", "proto", PROTOCOL],
    ]
    assert routes.changes(wanted, wanted) == []


def test_what_ip_prints_is_read_and_nonsense_is_an_error() -> None:
    assert routes.present_routes("") == {}
    assert routes.present_routes('[{"dst": "10.244.1.0/24", "gateway": "10.0.1.3"}]') == {"10.244.1.0/24": "10.0.1.3"}
    with pytest.raises(Failed):
        routes.present_routes("[7]")


@pytest.mark.parametrize(
    ("addresses", "stale"),
    [
        ([("eth0", "10.0.1.3")], False),
        ([("eth0", "10.0.1.3"), ("cni0", "10.244.2.1")], False),
        ([("eth0", "10.0.1.3"), ("cni0", "10.244.1.1")], True),
        ([("cni0", "10.244.2.1"), ("cni0", "10.244.1.1")], True),
    ],
)
def test_a_bridge_of_a_former_part_is_seen(addresses: list[tuple[str, str]], *, stale: bool) -> None:
    text = json.dumps([{"ifname": name, "addr_info": [{"local": address}]} for name, address in addresses])
    assert routes.is_of_another_part(text, "10.244.2.0/24") is stale


def test_addresses_that_can_t_be_read_are_an_error() -> None:
    assert not routes.is_of_another_part("", "10.244.2.0/24")
    with pytest.raises(Failed):
        routes.is_of_another_part("[7]", "10.244.2.0/24")


def test_a_host_has_its_own_part_and_masquerades_only_what_leaves_the_range() -> None:
    plugin = json.loads(routes.plugins("10.244.1.0/24"))["plugins"][0]
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.244.1.0/24"}]]
    assert "ipMasq" not in plugin
    assert "ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade" in routes.masquerade("10.244.0.0/16")


def test_the_server_is_that_of_kubelet() -> None:
    assert routes.server_in("clusters:\n- cluster:\n    server: https://demo-controller:6443\n") == (
        "https://demo-controller:6443"
    )
    with pytest.raises(Failed, match="names no API server"):
        routes.server_in("clusters: []\n")
