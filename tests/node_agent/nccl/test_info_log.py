"""What is read of NCCL's log, line by line. What follows from it: `test_log_causes.py`."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.nccl.info_log import InfoLog
from gpucluster.node_agent.nccl.measurement import Line, Log, RankRoute
from tests.node_agent.nccl.logs import devices, info


def log(*lines: str) -> Log:
    collected = InfoLog()
    for line in lines:
        collected.line(line)
    return collected.log()


def test_a_log_is_there_with_its_first_line() -> None:
    assert InfoLog().log() == Log()
    assert log(info("Bootstrap: Using eth0")) == Log(present=True)


@pytest.mark.parametrize(
    ("words", "route"),
    [
        ("P2P/CUMEM/read", RankRoute("P2P")),
        ("SHM/direct/direct", RankRoute("SHM")),
        ("NET/IB/3/GDRDMA", RankRoute("NET", "IB", True)),
        ("NET/IB/3", RankRoute("NET", "IB")),
        ("NET/Socket/0", RankRoute("NET", "Socket")),
        ("NET/IB/3(1)/GDRDMA", RankRoute("NET", "IB", True)),
    ],
)
@pytest.mark.parametrize("direction", ["", "[send] ", "[receive] "])
def test_a_connection_has_its_ranks_and_its_kind(words: str, route: RankRoute, direction: str) -> None:
    text = f"Channel 00/0 : 1[1] -> 12[4] {direction}via {words}"
    assert log(info(text)).routes == {route: {(1, 12): Line("node-0", text)}}


def test_each_pair_of_ranks_counts_once_with_its_first_line() -> None:
    pairs = log(*(info(f"Channel 0{number}/0 : 0[0] -> 1[1] via P2P/CUMEM") for number in range(4))).routes
    assert list(pairs.values()) == [{(0, 1): Line("node-0", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")}]


def test_the_fewest_channels_count() -> None:
    text = "{} coll channels, 16 collnet channels, 0 nvls channels, 24 p2p channels"
    found = log(*(info(text.format(number), f"node-{number}") for number in (24, 2, 16))).channels
    assert found == (2, Line("node-2", text.format(2)))


def test_the_devices_of_each_host_and_the_fewest_that_a_rank_found() -> None:
    found = log(devices(("mlx5_0", "mlx5_1")), devices(("mlx5_0",)), devices(("mlx5_0", "mlx5_3"), "node-1")).devices
    assert {host: names for host, (names, _line) in found.items()} == {
        "node-0": ("mlx5_0",), "node-1": ("mlx5_0", "mlx5_3"),
    }  # fmt: skip


def test_the_path_of_a_ring_is_the_slowest_one() -> None:
    ring = "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type {}/PIX, sameChannels 1"
    assert log(*(info(ring.format(kind)) for kind in ("NVL", "SYS", "PIX", "XXX"))).ring == (
        "SYS", Line("node-0", ring.format("SYS")),
    )  # fmt: skip
    assert log(info(ring.replace("4", "3").format("SYS"))).ring is None


def test_the_protocol_is_that_of_the_largest_message() -> None:
    text = "AllReduce: {} Bytes -> Algo RING proto {} channel{{Lo..Hi}}={{0..23}}"
    found = log(*(info(text.format(size, name)) for size, name in ((8, "LL"), (1 << 30, "SIMPLE"), (1024, "LL128"))))
    assert found.protocol is not None
    assert found.protocol[:2] == (1 << 30, "SIMPLE")


def test_one_gpu_without_multicast_is_enough() -> None:
    texts = ("NVLS multicast support is {}available on dev 0", "NVLS multicast support is {}available on dev 1")
    assert log(info(texts[0].format(""))).multicast == (True, Line("node-0", texts[0].format("")))
    found = log(info(texts[0].format("")), info(texts[1].format("not ")), info(texts[0].format(""))).multicast
    assert found == (False, Line("node-0", texts[1].format("not ")))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("NET/IB : No device found.", "no_device"),
        ("GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "indirect"),
        ("Connected all rings, use ring PXN 0 GDR 0", "indirect"),
        ("P2P is disabled between connected GPUs 1 and 0", "forbidden"),
    ],
)
def test_the_first_line_of_a_fault_is_kept(text: str, field: str) -> None:
    found = log(info(text), info(text, "node-1"))
    assert getattr(found, field) == Line("node-0", text)


def test_rings_with_gpudirect_are_none_without_it() -> None:
    assert log(info("Connected all rings, use ring PXN 0 GDR 1")).indirect is None


def test_nodes_are_counted_as_nccl_does() -> None:
    text = "comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
    assert log(info(text)).layout == (2, 8, Line("node-0", text))


def test_switches_are_seen_in_the_topology() -> None:
    assert log(info("+ NVL[450.0] - NVS/0")).switches


@pytest.mark.parametrize("line", ["NCCL INFO x via P2P/", "Channel via NET/", "\0 coll channels,", " Bytes -> Algo "])
def test_a_line_of_another_form_adds_nothing(line: str) -> None:
    assert log(line) == Log(present=True)


def test_a_line_without_end_is_shortened() -> None:
    found = log(info("NET/IB : No device found." + "x" * 10000)).no_device
    assert found is not None
    assert len(found.text) == 160
