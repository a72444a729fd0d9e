"""The verdict on outputs of nccl-tests: what is good, what is bad, and what is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.node_agent.nccl.judge import FAIL, PASS, UNKNOWN, ExpectedRun
from gpucluster.node_agent.nccl.shape_limits import SHAPES
from tests.node_agent.nccl.outputs import ALONE, HEADER, MISTUNED, TUNED, output, row
from tests.node_agent.nccl.verdicts import A100, H100, H200, PAIR, V100, of, told, verdict

UNCHECKED = TUNED.replace("224.57      0", "224.57    N/A").replace("224.87      0", "224.87    N/A")
ONE = ExpectedRun(A100, 1, 8)


# --- the worked examples -----


def test_a_tuned_pair_passes_and_one_that_is_not_tuned_fails_with_the_settings_that_it_lacks() -> None:
    good = verdict(output(TUNED))
    assert (good.verdict, good.operation, good.ranks, good.size, good.limit) == (
        PASS,
        "all_reduce",
        16,
        10737418240,
        185,
    )
    assert good.busbw == pytest.approx(224.72)
    bad = verdict(output(MISTUNED))
    assert bad.verdict == FAIL
    assert "71.56" in bad.reasons[0]
    assert "NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_GID_INDEX=3" in bad.reasons[1]
    shown = output(
        "NCCL INFO NCCL_IB_GID_INDEX set by environment to 3\n", "-x NCCL_IB_QPS_PER_CONNECTION=4 NCCL\n", MISTUNED
    )
    assert "settings of BM.GPU4.8" not in told(shown)


def test_a_row_that_was_cut_out_of_a_complete_output_is_enough() -> None:
    assert of([HEADER, TUNED]) == PASS
    assert of([HEADER, UNCHECKED]) == UNKNOWN


def test_one_node_uses_no_network_so_sockets_blame_no_node() -> None:
    sockets = "node:1:2 [0] NCCL INFO Using network Socket\n"
    assert of(output(sockets, ALONE, ranks=8), ONE) == PASS
    assert "sockets and not RDMA" in told(output(sockets, TUNED))
    assert of(output("node:1:2 [0] NCCL INFO Using network IBext_v8\n", TUNED)) == PASS
    assert of(output("node:1:2 [0] NCCL INFO Assigned NET plugin Socket to comm\n", TUNED)) == FAIL
    assert of(output("node:1:2 [0] NCCL INFO Assigned NET plugin IB to comm\n", TUNED)) == PASS
    assert "sockets" not in told(output(sockets, row(2.0, 1.875)), ExpectedRun(V100, 2, 8))


def test_a_shape_without_a_published_figure_is_not_judged() -> None:
    a10 = SHAPES["BM.GPU.A10.4"]
    slow = verdict(output(row(8.0, 1.5), ranks=4), ExpectedRun(a10, 1, 4))
    assert (slow.verdict, slow.limit) == (UNKNOWN, None)
    assert (
        "no figure is published for 1 x BM.GPU.A10.4 with 4 GPUs each, and none follows from NVLink" in slow.reasons[0]
    )
    assert of(output(row(8.0, 1.5), ranks=4), ExpectedRun(a10, 1, 4, expect=10)) == PASS
    assert of(output(row(8.0, 1.5), ranks=4), ExpectedRun(a10, 1, 4, expect=14)) == FAIL


@pytest.mark.parametrize(("algbw", "status"), [(77.43, PASS), (70.0, UNKNOWN), (30.0, FAIL)])
def test_a_shape_is_compared_with_what_others_have_measured_where_no_limit_is_published(
    algbw: float, status: str
) -> None:
    found = verdict(output(row(algbw, 1.75), ranks=8), ExpectedRun(V100, 1, 8))
    assert found.verdict == status, found
    assert "derived from the 135.5 GB/s that others have measured on BM.GPU3.8" in found.reasons[0]


def test_one_node_is_not_judged_by_the_limit_of_two() -> None:
    """A pair is limited by its network; both limits of Oracle's stack are 185 on A100, and 440 on B200."""
    a100 = [of(output(row(algbw, 1.75), ranks=8), ONE) for algbw in (230 / 1.75, 200 / 1.75, 180 / 1.75)]
    assert a100 == [PASS, UNKNOWN, FAIL]
    assert "NVLink of each GPU of BM.GPU4.8" in told(output(row(200 / 1.75, 1.75), ranks=8), ONE)
    assert "is below 185, the published limit of 1 x BM.GPU4.8" in told(output(row(180 / 1.75, 1.75), ranks=8), ONE)
    b200 = ExpectedRun(SHAPES["BM.GPU.B200.8"], 1, 8)
    assert [of(output(row(busbw / 1.75, 1.75), ranks=8), b200) for busbw in (700, 460, 430)] == [PASS, UNKNOWN, FAIL]
    on_ring = ExpectedRun(H100, 1, 8, algorithm="ring")
    assert [of(output(row(busbw / 1.75, 1.75), ranks=8), on_ring) for busbw in (360, 200)] == [PASS, FAIL]


# --- who took part -----


def test_one_rank_uses_no_link() -> None:
    text = output(row(600.0, 0.0), ranks=1)
    assert (of(text, ExpectedRun(A100, 1, 1)), "one rank" in told(text, ExpectedRun(A100, 1, 1))) == (UNKNOWN, True)


def test_groups_are_counted_each() -> None:
    """NCCL_TESTS_SPLIT="MOD 8": the GPUs of the same place on each node measure together."""
    text = [line.replace("Group  0", f"Group  {index % 8}") for index, line in enumerate(output(row(20.0, 1.0)))]
    assert "in groups" in told(text)
    assert of(text, PAIR._replace(expect=19)) == PASS


# --- the other operations -----


def test_a_good_alltoall_is_not_accused() -> None:
    fast = row(40.0, 15 / 16, operator="none")
    assert of(output(fast, program="alltoall_perf")) == PASS
    slow = output(row(10.0, 15 / 16, operator="none"), program="alltoall_perf")
    assert of(slow) == UNKNOWN
    assert "proves no fault" in told(slow)
    assert of(output(row(210.0, 7 / 8, operator="none"), ranks=8, program="alltoall_perf"), ONE) == UNKNOWN
    assert of(output(row(260.0, 7 / 8, operator="none"), ranks=8, program="alltoall_perf"), ONE) == PASS


def test_rings_are_compared_with_the_wires() -> None:
    for name, operator in (("all_gather", "none"), ("reduce_scatter", "sum")):
        assert of(output(row(200.0, 15 / 16, operator=operator), program=f"{name}_perf")) == PASS
        assert of(output(row(150.0, 15 / 16, operator=operator), program=f"{name}_perf")) == UNKNOWN
        assert of(output(row(60.0, 15 / 16, operator=operator), program=f"{name}_perf")) == FAIL


def test_an_operation_that_is_not_named_is_never_accused_as_another() -> None:
    """In a row, all_gather and alltoall look the same: a good alltoall is as fast as a broken all_gather."""
    text = output(row(40.0, 15 / 16, operator="none"))
    assert of(text) == UNKNOWN
    assert verdict(text).operation == "all_gather or alltoall or hypercube"
    assert of(text, PAIR._replace(operation="alltoall")) == PASS
    assert of(output("mpirun -np 16 ./build/alltoall_perf -b 8G -e 8G\n", row(40.0, 15 / 16, operator="none"))) == PASS
    assert verdict(output(row(30.0, 15 / 16))).operation == "reduce_scatter"


# --- which limit -----


def test_a_limit_is_that_of_nodes_and_algorithm() -> None:
    assert verdict(output(row(250.0, 1.875)), ExpectedRun(H100, 2, 8)).limit == 440
    ring = ["NCCL INFO NCCL_ALGO set by environment to Ring\n"]
    on_ring = verdict(output(*ring, row(200.0, 1.875)), ExpectedRun(H100, 2, 8))
    assert (on_ring.verdict, on_ring.algorithm, on_ring.limit) == (PASS, "ring", 368.0)
    four = output(row(175.0, 2 * 31 / 32), ranks=32)
    assert of(four, ExpectedRun(H100, 4, 8)) == UNKNOWN
    assert of(output(row(195.0, 2 * 31 / 32), ranks=32), ExpectedRun(H100, 4, 8)) == PASS
    assert of(output(row(60.0, 2 * 31 / 32), ranks=32), ExpectedRun(H100, 4, 8)) == FAIL
    assert of(output(row(120.0, 2 * 15 / 16)), ExpectedRun(H200, 2, 8)) == FAIL
    assert of(output(row(100.0, 2 * 7 / 8), ranks=8), ExpectedRun(H200, 2, 4)) == UNKNOWN


def test_the_row_of_the_largest_message_counts_and_a_small_one_is_not_judged() -> None:
    small = "1048576 262144 float sum -1 60.1 17.45 32.72 0 59.8 17.53 32.88 0\n"
    assert verdict(output(TUNED, small)).size == 10737418240
    assert (of(output(small)), "run with -e 8G" in told(output(small))) == (UNKNOWN, True)


# --- what is missing is never good -----


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["srun: error: it broke\n"], "no row"),
        (output(TUNED)[:-2], "cut off"),
        (output(TUNED, end="# Out of bounds values : 0 OK\n".replace("Out", "In")), "cut off"),
        (output(MISTUNED)[:-2], "cut off"),
        (output(UNCHECKED), "not checked"),
        (output(TUNED[:60] + "\n"), "no row"),
        (output("node: Test NCCL failure common.cu:958 'unhandled system error'\n", TUNED), "unhandled system error"),
        (output(TUNED.replace("119.77  224.57", "0.00  0.00")), "no bandwidth"),
    ],
)  # fmt: skip
def test_what_is_missing_makes_it_unknown(lines: list[str], why: str) -> None:
    found = verdict(lines)
    assert found.verdict == UNKNOWN, found
    assert why in " ".join(found.reasons)


def test_wrong_results_fail_however_fast() -> None:
    assert "results were wrong" in told(output(TUNED.replace("224.57      0", "224.57      3")))
    assert "results were wrong" in told(output(TUNED, end="# Out of bounds values : 2 FAILED\n"))
    assert of(output(TUNED.replace("224.87      0", "224.87  3e+06"))) == FAIL


# --- forms of the text -----


# --- JSON -----


# --- outputs of two H200 (nccl-tests 2.19.6, NCCL 2.28.9, NVLink multicast off), with another host name -----


# --- outputs of four H200 with NCCL's lines of all subsystems, which tear the rows, and with planted faults -----

OF_FOUR = Path(__file__).with_name("data_of_four")


@pytest.mark.parametrize(
    ("name", "busbw", "status", "said"),
    [
        ("as_it_is", 362.53, PASS, "reaches 337.5"),
        ("p2p_off", 25.20, FAIL, "NCCL_P2P_DISABLE=1 is set in the environment"),
        (
            "p2p_off",
            25.20,
            FAIL,
            "of one node exchange through the host's memory (SHM)",
        ),
        ("one_channel", 24.99, FAIL, "NCCL uses 1 channel"),
        ("protocol_ll", 149.26, FAIL, "a large message was sent by LL"),
        ("gpu_in_use", 164.70, FAIL, "is below 225"),
        ("tree", 259.31, UNKNOWN, "NCCL_ALGO=Tree is set in the environment"),
    ],
)
def test_the_output_of_four_gpus(name: str, busbw: float, status: str, said: str) -> None:
    lines = (OF_FOUR / f"{name}.txt").read_text().splitlines()
    found = verdict(lines, ExpectedRun(H200, 1, 4))
    assert found.verdict == status
    assert found.busbw == pytest.approx(busbw, abs=0.02)
    assert said in " ".join(found.reasons)


# --- the command -----


# --- what NCCL itself reports of a failure -----

NVLS = """\
[2026-03-15 10:00:00] node-1:1800:1900 [{gpu}] transport/nvls.cc:287 NCCL WARN Failed to bind NVLink SHARP (NVLS) \
Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.
node-1: Test NCCL failure common.cu:1000 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '
"""
COMPLETION = (
    "node-1:353236:353423 [6] transport/net_ib.cc:2244 NCCL WARN NET/IB: Got completion from peer 10.171.3.5<53908> "
    "with status=12 opcode=129 len=1048576 vendor err 129 (Recv) hca mlx5_10"
)


def test_a_crash_names_host_and_gpus_and_what_to_do() -> None:
    """NVIDIA/nccl#1788: eight ranks report the same."""
    lines = [line for gpu in range(8) for line in NVLS.format(gpu=gpu).splitlines()]
    found = verdict([*output(end=""), *lines], ONE)
    assert found.verdict == UNKNOWN
    (crash,) = [reason for reason in found.reasons if reason.startswith("NCCL on")]
    assert crash.startswith("NCCL on node-1, GPU 0, 1, 2, 3, 4, 5, 6, 7: Failed to bind NVLink SHARP")
    assert "nvidia-fabricmanager" in crash
    assert sum("unhandled cuda error" in reason for reason in found.reasons) == 1, "the same text once"


def test_a_network_that_fails_in_the_middle_names_device_and_peer() -> None:
    """NVIDIA/nccl#1698: some rows are there."""
    text = told([*output(TUNED, end=""), COMPLETION])
    assert "NCCL on node-1, GPU 6: NET/IB: Got completion from peer 10.171.3.5" in text
    assert "hca mlx5_10 (the other side did not answer" in text


def test_a_warning_does_not_make_a_good_result_bad() -> None:
    assert of([*output(TUNED), "node-1:1:2 [0] NCCL WARN a new thing"]) == PASS


def test_of_many_warnings_those_with_a_known_meaning_are_told() -> None:
    noise = [f"node-{number}:1:2 [0] misc.cc:1 NCCL WARN thing {number}" for number in range(9)]
    found = [
        reason for reason in verdict([*output(end=""), *noise, COMPLETION]).reasons if reason.startswith("NCCL on")
    ]
    assert len(found) == 3
    assert "completion" in found[0]


def test_a_run_that_hung_is_not_one_that_ended() -> None:
    text = "slurmstepd: error: *** STEP 12.0 ON node-1 CANCELLED AT 2026-03-15T10:15:00 DUE TO TIME LIMIT ***"
    assert "the program hung until its time limit" in told([*output(end=""), text])


# --- some GPUs of a node -----

#: Four H100 of one host, measured: with nothing set, with NCCL_P2P_DISABLE=1, with one channel, beside another program.
PART = ExpectedRun(H100, 1, 4)


def part_of_a_node(busbw: float, *settings: str) -> list[str]:
    factor = 2 * 3 / 4
    figures = f"{busbw / factor:.2f} {busbw:.2f} 0"
    lines = [f"vm:1812:1831 [0] NCCL INFO {name} set by environment to {value}" for name, _, value in
             (setting.partition("=") for setting in settings)]  # fmt: skip
    table = output(f" 4294967296 1073741824 float sum -1 17756.4 {figures} 17724.8 {figures}", ranks=4)
    return [*lines, *table]


@pytest.mark.parametrize(
    ("busbw", "settings", "status", "said"),
    [
        (
            363.15,
            (),
            PASS,
            "reaches 337.5, derived from the 450 GB/s that the NVLink of each GPU",
        ),
        (24.95, ("NCCL_P2P_DISABLE=1",), FAIL, "NCCL_P2P_DISABLE=1 is set in the environment: GPUs exchange through"),
        (24.95, ("NCCL_MAX_NCHANNELS=1",), FAIL, "few channels are used; unset it"),
        (163.0, (), FAIL, "is below 225"),
        (300.0, (), UNKNOWN, "which proves no fault"),
        (363.15, ("NCCL_P2P_DISABLE=0", "NCCL_MAX_NCHANNELS=32", "NCCL_NVLS_ENABLE=0."), PASS, ""),
    ],
)
def test_some_gpus_of_a_node_reach_what_all_do(busbw: float, settings: tuple[str, ...], status: str, said: str) -> None:
    lines = part_of_a_node(busbw, *settings)
    found = verdict(lines, PART)
    assert found.verdict == status, found
    assert said in " ".join(found.reasons)
    if status == FAIL and not settings:
        assert "set in the environment" not in " ".join(found.reasons)


def test_gpus_that_no_switch_joins_have_no_limit_for_some_of_them() -> None:
    # A V100 has one or two links to another one.
    assert of(part_of_a_node(120.0), ExpectedRun(V100, 1, 4)) == UNKNOWN
