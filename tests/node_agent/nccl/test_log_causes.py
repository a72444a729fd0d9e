"""The causes of a low bandwidth that NCCL's log names. The lines have the formats of NCCL's source (`info_log`)."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.nccl import text_output
from gpucluster.node_agent.nccl.causes import IN_USE
from gpucluster.node_agent.nccl.judge import FAIL, PASS, UNKNOWN, ExpectedRun, NcclVerdict, judge
from tests.node_agent.nccl.logs import A10, A100, H100, devices, info
from tests.node_agent.nccl.outputs import output, row

NODE, PAIR = ExpectedRun(H100, 1, 8), ExpectedRun(H100, 2, 8)
HCA = H100.devices


def verdict(wanted: ExpectedRun, busbw: float, *lines: str, gpu: str = "NVIDIA H100 80GB HBM3") -> NcclVerdict:
    ranks = wanted.nodes * (wanted.gpus or 4)
    factor = 2 * (ranks - 1) / ranks
    text = output(*lines, row(busbw / factor, factor), ranks=ranks, gpu=gpu, each=wanted.gpus or 4)
    return judge(text_output.parse(text), wanted)


def causes(wanted: ExpectedRun, busbw: float, *lines: str) -> list[str]:
    """What is said beside the comparison."""
    return verdict(wanted, busbw, *lines).reasons[1:]


HEALTHY = (
    info("NCCL_IB_GID_INDEX set by environment to 3."),
    info("NCCL_IB_QPS_PER_CONNECTION set by environment to 1."),
    devices(HCA),
    info("Using network IB"),
    info("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"),
    info("comm 0x55d0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"),
    info("NVLS multicast support is available on dev 0"),
    info("16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer"),
    info("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"),
    info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA"),
    info("Channel 01/0 : 9[1] -> 6[6] [receive] via NET/IB/3(7)/GDRDMA/Shared"),
    info("Connected all rings, use ring PXN 0 GDR 1"),
    info("Pattern 4, crossNic 0, nChannels 16, bw 20.000000/24.000000, type NVL/PIX, sameChannels 1"),
    info("AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}"),
)


def test_a_log_without_a_fault_names_no_cause() -> None:
    (hint,) = causes(PAIR, 100, *HEALTHY)
    assert hint.startswith("NCCL's log names no cause")
    (hint,) = [said for said in causes(NODE, 100) if "settings of" not in said]
    assert "NCCL_DEBUG=INFO" in hint, "without a log, how to get one"
    assert verdict(PAIR, 460, *HEALTHY).verdict == PASS


@pytest.mark.parametrize(
    ("wanted", "busbw", "line", "what", "do"),
    [
        (
            NODE,
            25,
            info(
                "1 coll channels, 1 collnet channels, 0 nvls channels, 1 p2p channels, 1 p2p channels per peer", gpu=3
            ),
            "NCCL uses 1 channel, and 8 or more are usual",
            "unset NCCL_MAX_NCHANNELS",
        ),
        (
            NODE,
            40,
            info("Channel 00 : 2[2] -> 3[3] via SHM/direct/direct"),
            "ranks 2->3 of one node exchange through the host's memory (SHM), though NVLink joins their GPUs",
            "unset NCCL_P2P_DISABLE",
        ),
        (
            NODE,
            40,
            info("Channel 04 : 5[5] -> 6[6] via SHM/direct"),
            "ranks 5->6 of one node exchange through the host's memory (SHM)",
            "nvidia-smi topo -p2p r",
        ),
        (
            PAIR,
            9,
            info("Channel 01/0 : 1[1] -> 2[2] [send] via NET/IB/2/GDRDMA"),
            "ranks 1->2 of one node exchange over the network (IB), though NVLink joins their GPUs",
            "nvidia-smi topo -p2p r",
        ),
        (
            PAIR,
            150,
            info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/Shared"),
            "RDMA between nodes goes through the host's memory: without GDRDMA",
            "load nvidia_peermem",
        ),
        (
            PAIR,
            150,
            info("NET/IB : GPU Direct RDMA Disabled for HCA 5 'mlx5_7'"),
            "RDMA between nodes goes through the host's memory",
            "load nvidia_peermem",
        ),
        (
            PAIR,
            150,
            info("Connected all rings, use ring PXN 1 GDR 0"),
            "RDMA between nodes goes through the host's memory",
            "load nvidia_peermem",
        ),
        (
            PAIR,
            30,
            devices(HCA[:1]),
            f"NCCL uses 1 of the {len(HCA)} RDMA devices of BM.GPU.H100.8 (without {', '.join(HCA[1:4])} and 12 more)",
            "give NCCL_IB_HCA as /etc/nccl.conf",
        ),
        (
            PAIR,
            200,
            devices((*HCA, "mlx5_2")),
            "NCCL also uses mlx5_2, which the RDMA network of BM.GPU.H100.8 has not",
            "give NCCL_IB_HCA",
        ),
        (
            NODE,
            30,
            info("Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type PHB/PIX, sameChannels 1"),
            "NCCL's rings within a node use PHB and not NVLink",
            "nvidia-smi nvlink --status",
        ),
        (
            NODE,
            360,
            info("NVLS multicast support is not available on dev 5", gpu=5),
            "the NVSwitches do not add up what GPUs send (NVLS)",
            "nvidia-fabricmanager",
        ),
        (
            NODE,
            60,
            info("AllReduce: 8589934592 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..23}"),
            "a large message was sent by LL, a protocol for small ones",
            "unset NCCL_PROTO",
        ),
        (
            PAIR,
            60,
            info("comm 0x55d0 rank 0 nRanks 16 nNodes 4 localRanks 4 localRank 0 MNNVL 0"),
            "NCCL counts 4 nodes and 4 ranks on this one, and not 2 with 8 each",
            "how the launcher places tasks",
        ),
        (
            NODE,
            40,
            info("P2P is disabled between connected GPUs 1 and 6. You can repress this message with NCCL_IGNORE_..."),
            "the driver does not let GPUs exchange directly",
            "the IOMMU",
        ),
    ],
)
def test_a_cause_is_named_with_its_line_and_what_to_do(
    wanted: ExpectedRun, busbw: float, line: str, what: str, do: str
) -> None:
    found = verdict(wanted, busbw, line)
    assert found.verdict == FAIL
    (said,) = [reason for reason in found.reasons[1:] if "settings of" not in reason]
    shown = line.partition("NCCL INFO ")[2].strip()[:150]
    assert said.startswith(what), said
    assert f'(on node-0: "{shown}' in said
    assert do in said.rpartition('"); ')[2]


def test_what_is_normal_on_one_node_is_not_a_cause() -> None:
    lines = (
        devices(HCA[:1]),
        info("NET/IB : No device found."),
        info("Using network Socket"),
        info("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
        info("NCCL_IB_DISABLE set by environment to 1."),
    )
    (hint,) = causes(NODE, 100, *lines)
    assert hint.startswith("NCCL's log names no cause")


def test_few_channels_are_no_cause_of_their_own_where_gpus_can_not_exchange_directly() -> None:
    lines = (
        info("4 coll channels, 4 p2p channels, 2 p2p channels per peer"),
        info("Channel 00 : 0[0] -> 1[1] via SHM/CE/CE"),
    )
    assert [said.partition(" (")[0] for said in causes(NODE, 25, *lines)] == [
        "ranks 0->1 of one node exchange through the host's memory"
    ]


def test_few_channels_are_no_cause_where_a_setting_forbids_direct_copies_and_switches_add_up() -> None:
    # Two H200 with NCCL_P2P_DISABLE=1, measured: no line names a route, because the sums are those of the switches.
    lines = (
        info("NCCL_P2P_DISABLE set by environment to 1"),
        info("4 coll channels, 4 collnet channels, 16 nvls channels"),
    )
    named = causes(NODE, 207.5, *lines)
    assert any("NCCL_P2P_DISABLE=1 is set in the environment" in each for each in named), named
    assert not any("NCCL uses 4 channels" in each for each in named), named
    harmless = info("NCCL_P2P_DISABLE set by environment to 0")
    assert any("NCCL uses 4 channels" in each for each in causes(NODE, 207.5, harmless, lines[1]))


def test_the_host_with_the_fewest_devices_is_named() -> None:
    lines = (devices(HCA), devices(HCA[1:], "node-1"))
    (said,) = [reason for reason in causes(PAIR, 300, *lines) if "settings of" not in reason]
    assert said.startswith(f"NCCL uses 15 of the 16 RDMA devices of BM.GPU.H100.8 (without {HCA[0]}) (on node-1: ")


def test_devices_of_another_naming_are_counted_only() -> None:
    (said,) = [reason for reason in causes(PAIR, 100, devices(("rdma0", "rdma1"))) if "settings of" not in reason]
    assert said.startswith("NCCL uses 2 of the 16 RDMA devices of BM.GPU.H100.8 (on node-0: ")
    assert verdict(PAIR, 460, devices(tuple(f"rdma{number}" for number in range(16)))).verdict == PASS


@pytest.mark.parametrize("line", ["Using network Socket", "Channel 00/0 : 8[0] -> 7[7] [receive] via NET/Socket/0"])
def test_sockets_between_nodes_with_rdma_are_a_fault_with_the_line_that_shows_why(line: str) -> None:
    found = verdict(PAIR, 450, info("NET/IB : No device found."), info(line))
    assert found.verdict == FAIL
    (said,) = found.reasons
    assert said.startswith('NCCL used sockets and not RDMA between the nodes (on node-0: "NET/IB : No device found.")')
    forced = verdict(PAIR, 450, info("NCCL_NET set by environment to Socket"), info(line))
    assert any(reason.startswith("NCCL_NET=Socket is set in the environment") for reason in forced.reasons)


def test_the_line_that_is_shown_is_about_the_ranks_that_are_named() -> None:
    lines = [info(f"Channel 00/0 : {pair} [send] via NET/IB/0/GDRDMA") for pair in ("7[7] -> 8[0]", "4[4] -> 5[5]")]
    (said,) = [reason for reason in causes(PAIR, 60, *lines) if "settings of" not in reason]
    assert said.startswith("ranks 4->5 of one node exchange over the network (IB)")
    assert '"Channel 00/0 : 4[4] -> 5[5] [send]' in said


def test_containers_of_one_name_do_not_make_one_node() -> None:
    text = [line.replace("node-1", "node-0") for line in output(*HEALTHY, row(100, 1.875))]
    found = judge(text_output.parse(text), PAIR)
    assert not any("of one node" in reason for reason in found.reasons), found


def test_groups_of_ranks_are_no_wrong_placement() -> None:
    layout = info("comm 0x55d0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0")
    ranks = [line.replace("Group  0", f"Group  {n % 8}") for n, line in enumerate(output(layout, row(20.0, 1.0)))]
    assert not any("NCCL counts" in reason for reason in judge(text_output.parse(ranks), PAIR).reasons)


def test_sockets_within_a_node_are_no_sockets_between_nodes() -> None:
    found = verdict(PAIR, 450, info("Channel 00/0 : 3[3] -> 2[2] [send] via NET/Socket/0"))
    assert found.verdict == PASS


def test_a_shape_without_nvlink_is_told_what_its_gpus_do() -> None:
    found = verdict(
        ExpectedRun(A10, 1, 4), 9, info("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"), gpu="NVIDIA A10"
    )
    assert found.verdict == UNKNOWN
    assert "no figure is published" in found.reasons[0]
    assert "ranks 0->1 of one node exchange through the host's memory (SHM) and not directly" in found.reasons[1]


def test_nvls_is_not_a_cause_where_no_switch_can_add_up() -> None:
    lines = (
        info("NCCL_NVLS_ENABLE set by environment to 0."),
        info("NVLS multicast support is not available on dev 0"),
    )
    assert not any("NVLS" in said for said in causes(ExpectedRun(A100, 1, 8), 100, *lines))


def test_without_the_sums_of_switches_a_node_is_as_fast_as_a_ring_and_no_slower() -> None:
    # Two H200 while another program computed on one of them, measured: 191.88, and 345 without it.
    off = info("NCCL_NVLS_ENABLE set by environment to 0.")
    no_multicast = info("NVLS multicast support is not available on dev 0")
    for line in (off, no_multicast):
        assert all("sums of" not in each and "add up" not in each for each in causes(NODE, 191.88, line))
    assert any("sums of the NVSwitches" in each for each in causes(NODE, 360, off))


def test_another_program_on_a_gpu_is_named_where_the_result_is_low() -> None:
    lines = [f"{IN_USE} gpu-1: python3 (process {number})\n" for number in range(4711, 4716)]
    (named,) = causes(NODE, 191.88, lines[0])
    assert named == "another program uses a GPU: gpu-1: python3 (process 4711); end it, and look whose it is"
    (named,) = causes(NODE, 191.88, *lines)
    assert named.count("python3") == 3
    assert ", and more; end it" in named
    assert verdict(NODE, 470, lines[0]).verdict == PASS


def test_advice_in_a_warning_is_not_a_setting() -> None:
    warning = "node-0:1:2 [0] graph/paths.cc:396 NCCL WARN set NCCL_P2P_DISABLE=1 to avoid this\n"
    assert not any("is set in the environment" in said for said in verdict(NODE, 100, warning).reasons)


# --- without a shape -----

UNNAMED = ExpectedRun(None, 1, 0)


@pytest.mark.parametrize(
    ("gpu", "busbw", "lines", "status"),
    [
        ("NVIDIA A100-SXM4-80GB", 232, (), PASS),
        ("NVIDIA B200", 460, (), UNKNOWN),
        ("NVIDIA H200", 100, (), FAIL),
        ("Tesla V100-SXM2-16GB", 130, (), UNKNOWN),
        ("NVIDIA H100 PCIe", 360, (), UNKNOWN),
        ("NVIDIA H200 NVL", 360, (), UNKNOWN),
        ("NVIDIA GH200 480GB", 360, (), UNKNOWN),
    ],
)
def test_without_a_shape_the_names_of_the_gpus_give_the_limit(
    gpu: str, busbw: float, lines: tuple[str, ...], status: str
) -> None:
    found = verdict(UNNAMED, busbw, *lines, gpu=gpu)
    assert found.verdict == status, found
    assert (found.limit is None) == ("V100" in gpu or "PCIe" in gpu or "NVL" in gpu or "GH200" in gpu)
    if found.limit is None:
        assert "give --shape or --expect" in found.reasons[0]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Using network Socket", UNKNOWN),
        ("NVLS multicast support is not available on dev 0", UNKNOWN),
        ("NVLS multicast support is available on dev 0", FAIL),
        ("            + NVL[370.8] - NVS/0-0", FAIL),
    ],
)
def test_two_gpus_that_may_be_joined_without_switches_are_not_accused(line: str, status: str) -> None:
    """On a board with four H100 and no switch, two of them have a third of the links between them."""
    two = output(info(line), row(120, 1.0), ranks=2, gpu="NVIDIA H100 80GB HBM3")
    assert judge(text_output.parse(two), UNNAMED).verdict == status


def test_how_many_gpus_a_node_has_comes_from_the_output() -> None:
    text = output(row(220.0, 1.75), ranks=16)
    pair = judge(text_output.parse(text), ExpectedRun(None, 2, 0, expect=100))
    assert pair.verdict == FAIL, "8 ranks measured, and 16 name their GPU"
    alone = [line for line in output(row(220.0, 1.5), ranks=4) if "Rank" not in line]
    unknown = judge(text_output.parse(alone), ExpectedRun(None, 1, 0, expect=100))
    assert (unknown.verdict, unknown.reasons[0].rpartition(": ")[2]) == (UNKNOWN, "give --shape or --gpus")
    layout = info("comm 0x1 rank 2 nRanks 4 nNodes 1 localRanks 4 localRank 2 MNNVL 0")
    assert judge(text_output.parse([layout, *alone]), ExpectedRun(None, 1, 0, expect=100)).verdict == PASS


def test_between_nodes_a_shape_is_needed() -> None:
    text = output(row(220.0, 1.875), ranks=16, gpu="NVIDIA H100 80GB HBM3")
    found = judge(text_output.parse(text), ExpectedRun(None, 2, 0))
    assert found.verdict == UNKNOWN
    assert "no shape is given" in found.reasons[0]


# --- a process whose time differs -----
