"""RDMA counters from trees of files: drivers with names of their own, files that refuse, devices that come and go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.collect.rdma import Rdma
from gpucluster.node_agent.exporter.exposition import page
from tests.node_agent.exporter.trees import IB, IRDMA, MLX5, port, write
from tests.node_agent.exposition import Series, having, of, series


def read(collector: Rdma) -> Series:
    return series(page(line for device in collector.subjects() for line in collector.samples(device)))


@pytest.fixture
def rdma(tmp_path: Path) -> Rdma:
    return Rdma(Place(sysfs=str(tmp_path)))


def test_every_file_of_every_port_is_a_counter_whatever_the_driver_calls_it(rdma: Rdma, tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", IB, MLX5)
    port(tmp_path, "mlx5_1", IB, MLX5, number="2")
    port(tmp_path, "irdma0", (), IRDMA)
    found = read(rdma)
    names = {dict(labels)["counter"] for labels in having(found, "gpucluster_rdma_counter_total")}
    assert names == {*IB, *MLX5, *IRDMA} - {"lifespan"}
    value = of(found, "gpucluster_rdma_counter_total", device="irdma0", port="1", counter="iwInRdmaWrites")
    assert value == IRDMA.index("iwInRdmaWrites")
    assert of(found, "gpucluster_rdma_counter_total", device="mlx5_1", port="2", counter="rp_cnp_handled") is not None
    lifespan = of(found, "gpucluster_rdma_lifespan_seconds", device="mlx5_0", port="1")
    assert lifespan == MLX5.index("lifespan") / 1000
    assert len(having(found, "gpucluster_rdma_counter_total")) == 2 * (len(IB) + len(MLX5) - 1) + len(IRDMA) - 1


def test_bytes_are_four_times_the_words_of_port_data(rdma: Rdma, tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", IB, MLX5)
    found = read(rdma)
    for metric, counter in (("received", "port_rcv_data"), ("transmitted", "port_xmit_data")):
        assert of(found, f"gpucluster_rdma_{metric}_bytes_total", device="mlx5_0", port="1") == 4 * IB.index(counter)


def test_a_driver_without_port_data_counts_octets(rdma: Rdma, tmp_path: Path) -> None:
    port(tmp_path, "irdma0", (), IRDMA)
    found = read(rdma)
    octets = IRDMA.index("ip4InOctets") + IRDMA.index("ip6InOctets")
    assert of(found, "gpucluster_rdma_received_bytes_total", device="irdma0", port="1") == octets


def test_a_port_reports_what_it_is_and_whether_it_is_up(rdma: Rdma, tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", IB, ())
    write(port(tmp_path, "mlx5_1", IB, ()) / "state", "1: DOWN\n")
    found = read(rdma)
    assert [of(found, "gpucluster_rdma_port_up", device=name, port="1") for name in ("mlx5_0", "mlx5_1")] == [1, 0]
    assert of(found, "gpucluster_rdma_port_rate_bytes_per_second", device="mlx5_0", port="1") == 12.5e9
    info = {
        "device": "mlx5_0", "port": "1", "interface": "net_mlx5_0", "link_layer": "Ethernet",
        "firmware": "28.39.1002", "board": "MT_0000000838",
    }  # fmt: skip
    assert of(found, "gpucluster_rdma_port_info", **info) == 1


@pytest.mark.parametrize("content", ["", "N/A\n", "-1\n", "1 2\n", "0x10\n", "9" * 5000, b"\xff\xfe", "٣\n", "1" * 21])
def test_a_file_that_has_no_number_costs_itself_and_is_counted(
    content: str | bytes, rdma: Rdma, tmp_path: Path
) -> None:
    write(port(tmp_path, "mlx5_0", IB, MLX5) / "counters/link_downed", content)
    for times in (1, 2):
        found = read(rdma)
        assert of(found, "gpucluster_rdma_read_errors_total", device="mlx5_0", port="1") == times
    assert of(found, "gpucluster_rdma_counter_total", device="mlx5_0", port="1", counter="link_downed") is None
    assert of(found, "gpucluster_rdma_counter_total", device="mlx5_0", port="1", counter="port_xmit_wait") is not None


@pytest.mark.parametrize("code", [2, 5, 22, 95, 13])
def test_a_file_that_refuses_costs_only_itself_whatever_it_has(
    code: int, rdma: Rdma, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port(tmp_path, "mlx5_0", IB, MLX5)
    real = os.open

    def refusing(path: str, *how: int) -> int:
        if str(path).endswith("out_of_buffer"):
            raise OSError(code, os.strerror(code), path)
        return real(path, *how)

    monkeypatch.setattr(os, "open", refusing)
    found = read(rdma)
    assert of(found, "gpucluster_rdma_read_errors_total", device="mlx5_0", port="1") == 1
    assert len(having(found, "gpucluster_rdma_counter_total")) == len(IB) + len(MLX5) - 2


def test_the_same_name_in_both_folders_is_one_series(rdma: Rdma, tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0", IB, IB)
    write(folder / "hw_counters/link_downed", "77\n")
    found = read(rdma)
    value = of(found, "gpucluster_rdma_counter_total", device="mlx5_0", port="1", counter="link_downed")
    assert value == IB.index("link_downed")


def test_names_that_are_no_text_are_shown_and_break_nothing(rdma: Rdma, tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0", IB, ())
    with open(os.fsencode(folder) + b'/counters/odd"\\\n\xff', "w") as file:
        file.write("5\n")
    found = read(rdma)
    assert of(found, "gpucluster_rdma_counter_total", device="mlx5_0", port="1", counter='odd"\\\n\ufffd') == 5


def test_a_counter_that_wraps_or_is_set_back_is_given_as_it_is(rdma: Rdma, tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0", IB, ())
    for value in (2**64 - 1, 3, 0):
        write(folder / "counters/port_rcv_data", f"{value}\n")
        labels = {"device": "mlx5_0", "port": "1", "counter": "port_rcv_data"}
        assert of(read(rdma), "gpucluster_rdma_counter_total", **labels) == float(value)


def test_devices_come_and_go(rdma: Rdma, tmp_path: Path) -> None:
    assert read(rdma) == {}
    folder = port(tmp_path, "mlx5_0", IB, ())
    assert read(rdma)
    folder.parents[1].rename(tmp_path / "away")
    assert read(rdma) == {}


def test_a_port_without_files_has_no_counters_and_no_error(rdma: Rdma, tmp_path: Path) -> None:
    (tmp_path / "class/infiniband/mlx5_0/ports/1").mkdir(parents=True)
    found = read(rdma)
    assert of(found, "gpucluster_rdma_read_errors_total", device="mlx5_0", port="1") == 0
    assert {name for name, _labels in found} == {"gpucluster_rdma_read_errors_total", "gpucluster_rdma_port_info"}
