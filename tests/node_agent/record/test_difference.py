"""What counters did between two snapshots: wraps, resets, devices that come and go, and rubbish."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.node_agent.record import difference
from gpucluster.node_agent.record.difference import compare, group_of, grown


def taken(boot: str = "a", up: float = 0.0, complete: bool = True, **kinds: Any) -> dict[str, Any]:
    return {"boot": boot, "up": up, "at": 1e9 + up, "complete": complete, **kinds}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (5, 5, (0, "")),
        (5, 9, (4, "")),
        (2**32 - 10, 5, (15, "wrapped")),
        (2**64 - 10, 5, (15, "wrapped")),
        (2**33, 7, (None, "reset")),
        (100, 3, (None, "reset")),
        (2**31, 3, (None, "reset")),
        # Of 64 bits, so what is below is a reset and no wrap of 32.
        (2**40 + 5, 2**32 - 1, (None, "reset")),
        (2**64 + 5, 1, (None, "reset")),
    ],
)
def test_a_counter_never_shrinks(before: int, after: int, expected: tuple[int | None, str]) -> None:
    assert grown(before, after) == expected


def test_what_changed_is_kept_with_its_class() -> None:
    before = taken(rdma={"mlx5_0/1": {"port_rcv_data": 10, "packet_seq_err": 0, "quiet": 3}}, ethernet={}, files={})
    after = taken(up=60, rdma={"mlx5_0/1": {"port_rcv_data": 1010, "packet_seq_err": 2, "quiet": 3}})
    found = compare(before, after)
    assert [(each.counter, each.change, each.group) for each in found.changes] == [
        ("packet_seq_err", 2, "retransmits"),
        ("port_rcv_data", 1000, ""),
    ]
    # That a counter stayed the same is known too: it was measured.
    assert found.devices == [difference.DeviceDifference("rdma", "mlx5_0/1", 3)]
    assert found.notes == []


def test_a_node_that_booted_has_no_differences() -> None:
    found = compare(taken(rdma={"x/1": {"a": 9}}), taken(boot="b", rdma={"x/1": {"a": 10}}))
    assert found.changes == []
    assert found.devices == [difference.DeviceDifference("rdma", "x/1", 0, "rebooted")]
    assert any("booted" in note for note in found.notes)


def test_devices_come_and_go() -> None:
    found = compare(
        taken(ethernet={"eth0": {"a": 1}, "eth1": {"a": 1}}), taken(ethernet={"eth1": {}, "eth2": {"a": 5}})
    )
    assert {each.name: each.remark for each in found.devices} == {"eth0": "gone", "eth1": "", "eth2": "new"}
    assert found.changes == []


def test_a_number_that_no_network_carries_is_none() -> None:
    # A reset, and then more than before: nothing but its size tells.
    found = compare(taken(ethernet={"eth0": {"rx_bytes": 0}}), taken(up=10, ethernet={"eth0": {"rx_bytes": 2**60}}))
    assert [(each.change, each.remark) for each in found.changes] == [(None, "implausible")]


def test_a_snapshot_that_was_cut_off_is_reported() -> None:
    assert compare(taken(complete=False), taken()).notes == ["not all counters could be read in time before the job"]


@pytest.mark.parametrize(
    "rubbish", [{}, {"rdma": 3}, {"rdma": {"x": 3}}, {"rdma": {"x": {"a": "b", "c": -1, "d": True, "e": None}}}]
)
def test_rubbish_is_survived(rubbish: dict[str, Any]) -> None:
    assert compare(rubbish, rubbish).changes == []
    assert compare(rubbish, taken(rdma={"x": {"a": 1}})).changes == []


@pytest.mark.parametrize(
    ("counter", "group"),
    [
        ("roce_adp_retrans", "retransmits"), ("out_of_sequence", "retransmits"),
        ("local_ack_timeout_err", "retransmits"), ("rx_prio3_pause", "pause"),
        ("rx_global_pause_duration", "pause"), ("np_ecn_marked_roce_packets", "congestion"),
        ("rp_cnp_handled", "congestion"), ("port_xmit_discards", "errors"), ("rx_dropped", "errors"),
        ("req_cqe_flush_error", ""), ("port_rcv_data", ""), ("rx_bytes", ""),
    ],
)  # fmt: skip
def test_classes_of_counters(counter: str, group: str) -> None:
    assert group_of(counter) == group
