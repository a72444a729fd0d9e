"""What explains a bad result: settings that forbid what is fast, and warnings. `test_log_causes.py` has NCCL's log."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.nccl import causes
from gpucluster.node_agent.nccl.causes import Causes


def warning(text: str, host: str = "gpu-1", gpu: int = 0, time: str = "") -> str:
    return f"{time}{host}:4711:4720 [{gpu}] transport/net_ib.cc:94 NCCL WARN {text}"


@pytest.mark.parametrize(
    ("name", "slow", "harmless"),
    [
        ("NCCL_P2P_DISABLE", "1", "0"),
        ("NCCL_P2P_LEVEL", "loc", "NVL"),
        ("NCCL_SHM_DISABLE", "1", "0"),
        ("NCCL_IB_DISABLE", "1.", "0."),  # the log ends the sentence with a point
        ("NCCL_NET_GDR_LEVEL", "0", "SYS"),
        ("NCCL_MAX_NCHANNELS", "4", "32"),
        ("NCCL_MAX_CTAS", "1", "none"),
        ("NCCL_NET", "Socket", "IB"),
        ("NCCL_BUFFSIZE", "65536", "4194304"),
        ("NCCL_NTHREADS", "64", "512"),
        ("NCCL_PROTO", "LL128", "Simple"),
        ("NCCL_ALGO", "Tree", "Ring"),
        ("NCCL_NVLS_ENABLE", "0", "1"),
    ],
)
def test_a_setting_that_slows_down_is_named_and_one_that_does_not_is_not(name: str, slow: str, harmless: str) -> None:
    (words,) = causes.of_settings({name: slow, "NCCL_DEBUG": "INFO"}, nodes=2, added_by_switches=True)
    assert words.startswith(f"{name}={slow.rstrip('.')} is set in the environment: ")
    assert "unset it" in words
    assert causes.of_settings({name: harmless}, nodes=2, added_by_switches=True) == []


@pytest.mark.parametrize("name", ["NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_GDR_LEVEL"])
def test_settings_of_the_network_mean_nothing_on_one_node(name: str) -> None:
    value = "socket" if name == "NCCL_NET" else "LOC"
    assert causes.of_settings({name: value}, nodes=1, added_by_switches=True) == []
    assert causes.of_settings({name: value}, nodes=2, added_by_switches=True)


def test_sums_of_switches_are_missed_only_where_there_are_some() -> None:
    assert causes.of_settings({"NCCL_NVLS_ENABLE": "0"}, nodes=1, added_by_switches=False) == []
    assert causes.of_settings({"NCCL_NVLS_ENABLE": "0"}, nodes=1, added_by_switches=True)


@pytest.mark.parametrize(
    ("settings", "forbids"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, True),
        ({"NCCL_P2P_LEVEL": "LOC."}, True),
        ({"NCCL_P2P_DISABLE": "0"}, False),
        ({}, False),
    ],
)
def test_whether_settings_forbid_direct_copies(settings: dict[str, str], forbids: bool) -> None:
    assert causes.forbids_direct_copies(settings) is forbids


def test_other_programs_on_a_gpu_are_named_up_to_three() -> None:
    lines = [f"gpu-{number}: python3 (process {number})" for number in range(5)]
    assert causes.of_others([]) == []
    (words,) = causes.of_others(lines)
    assert "gpu-2: python3 (process 2), and more; end it" in words
    assert "gpu-3" not in words


def test_a_warning_names_its_host_its_gpus_and_what_helps() -> None:
    collected = Causes()
    for gpu in (3, 1, 3):
        collected.line(warning("Got completion from peer 10.0.0.2 with status=12 opcode=0 0x7f12", gpu=gpu))
    (words,) = collected.reasons()
    assert words.startswith("NCCL on gpu-1, GPU 1, 3: Got completion from peer 10.0.0.2 with status=12 opcode=0 0x...")
    assert "look at cable, switch and GID index" in words


def test_addresses_that_differ_do_not_make_another_warning() -> None:
    collected = Causes()
    for number in range(50):
        collected.line(warning(f"Call to ibv_create_qp failed at 0x{number:x}"))
    assert collected.reasons() == ("NCCL on gpu-1, GPU 0: Call to ibv_create_qp failed at 0x...",)


def test_of_many_warnings_three_are_told_and_those_with_a_meaning_come_first() -> None:
    collected = Causes()
    for number in range(100):
        collected.line(warning(f"warning {number}", time="[2026-01-01 00:00:00] "))
    reasons = collected.reasons()
    assert (len(reasons), reasons[0]) == (3, "NCCL on gpu-1, GPU 0: warning 0")
    collected = Causes()
    for text in ("one", "two", "three", "Cuda failure 2 'out of memory'"):
        collected.line(warning(text, gpu=-1))
    assert collected.reasons()[0].startswith("NCCL on gpu-1: Cuda failure 2 'out of memory' (another program has")


@pytest.mark.parametrize("line", ["NCCL WARN", "x NCCL WARN y", warning("a").replace("WARN", "INFO"), "\0" * 100])
def test_a_line_of_another_form_is_left_out(line: str) -> None:
    collected = Causes()
    collected.line(line)
    assert collected.reasons() == ()
