"""The address that moves with the service; the real `ip` in a network of the test's own is in tests/e2e."""

from __future__ import annotations

from gpucluster.node_agent.state_volume.address import announcement, halves, routes


def test_two_halves_win_against_the_route_for_the_whole() -> None:
    assert halves("10.0.0.0/16") == ["10.0.0.0/17", "10.0.128.0/17"]
    assert halves("10.0.0.9/32") == ["10.0.0.9/32"]


def test_its_own_subnet_is_on_the_link_and_the_others_are_behind_the_gateway() -> None:
    assert routes(["10.0.0.0/16"], "10.0.0.0/24", "10.0.0.1") == [
        ("10.0.0.0/17", "10.0.0.1"),
        ("10.0.128.0/17", "10.0.0.1"),
        ("10.0.0.0/25", ""),
        ("10.0.0.128/25", ""),
    ]
    assert routes(["10.0.0.0/16"], "10.0.0.0/16", "10.0.0.1") == [("10.0.0.0/17", ""), ("10.0.128.0/17", "")]


def test_the_announcement_is_an_arp_frame_for_all_neighbours() -> None:
    frame = announcement("10.0.0.9", bytes.fromhex("020000000001"))
    assert frame[:14] == b"\xff" * 6 + bytes.fromhex("020000000001") + b"\x08\x06"
    assert frame[14:22] == bytes.fromhex("0001080006040001")
    assert (frame[28:32], frame[38:42]) == (bytes([10, 0, 0, 9]),) * 2
