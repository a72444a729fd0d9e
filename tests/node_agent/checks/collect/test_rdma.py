"""RDMA counters within a window of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.checks.collect.place import MeasuredHost
from gpucluster.node_agent.checks.model import Status
from tests.node_agent.checks.collect.measured_tree import BOOT, BootClock, collect, write
from tests.node_agent.checks.measured import NODE, judged


def grow(host: MeasuredHost, counter: str, value: int) -> None:
    (host.root / "sys/class/infiniband/mlx5_3/ports/1/counters" / counter).write_text(f"{value}\n")


def window(host: MeasuredHost) -> dict[str, Any]:
    found: dict[str, Any] = collect("rdma_errors", host)["mlx5_3"]
    return found


def test_the_window_of_the_counters(host: MeasuredHost, clock: BootClock) -> None:
    grow(host, "link_downed", 2)
    first = window(host)
    assert (first["seconds"], first["since_boot"], first["grown"]["link_downed"]) == (5000.0, True, 2)
    clock.now += 300
    assert (window(host)["seconds"], window(host)["grown"]["link_downed"]) == (300.0, 0)
    clock.now += 300
    grow(host, "link_downed", 4)
    second = window(host)
    assert (second["seconds"], second["since_boot"], second["grown"]["link_downed"]) == (600.0, False, 2)
    assert judged(
        "rdma_errors", {"rdma_errors": {"mlx5_3": second}}, replace(NODE, rdma_devices=("mlx5_3",))
    ).status is (Status.FAIL)
    clock.now += 3600
    window(host)
    clock.now += 60
    assert window(host)["grown"]["link_downed"] == 0, "samples are forgotten after an hour"


def test_counters_that_were_set_back_start_a_new_window(host: MeasuredHost, clock: BootClock) -> None:
    grow(host, "symbol_error", 50)
    window(host)
    clock.now += 100
    grow(host, "symbol_error", 3)
    assert window(host)["seconds"] is None
    clock.now += 100
    grow(host, "symbol_error", 5)
    after = window(host)
    assert (after["seconds"], after["grown"]["symbol_error"]) == (100.0, 2)
    assert collect("rdma_errors", host)["mlx5_0"]["seconds"] == 200.0, "the window of the other device goes on"


def test_a_restart_starts_a_new_window(host: MeasuredHost, clock: BootClock) -> None:
    window(host)
    write(host.root / "proc/sys/kernel/random/boot_id", "another\n")
    clock.now = 100.0
    assert (window(host)["seconds"], window(host)["since_boot"]) == (100.0, False)


@pytest.mark.parametrize("kept", ["", "{", "[]", "17", '[{"boot": 1}]', f'[{{"boot": "{BOOT}", "at": 1}}]'])
def test_a_damaged_file_of_samples_is_no_window(host: MeasuredHost, kept: str) -> None:
    write(host.state / "rdma.json", kept)
    assert window(host)["since_boot"] is True


def test_a_folder_that_can_t_be_written_costs_the_window_only(host: MeasuredHost) -> None:
    write(host.state, "a file in its place")
    assert window(host)["since_boot"] is True
    assert collect("clock_jump", host) == {"seconds": None}


def test_a_counter_that_is_missing(host: MeasuredHost) -> None:
    (host.root / "sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error").unlink()
    assert window(host)["grown"]["symbol_error"] is None


def test_a_clock_that_jumps(host: MeasuredHost, clock: BootClock) -> None:
    assert collect("clock_jump", host) == {"seconds": None}
    clock.now += 60
    assert collect("clock_jump", host) == {"seconds": 0.0}
    clock.offset -= 7200
    assert collect("clock_jump", host) == {"seconds": -7200.0}
