"""RDMA devices as the kernel shows them: a tree of files in the form of /sys/class/infiniband."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.node_agent.rdma_files import Counters, Port, counters, devices, number, ports, text


@pytest.fixture
def port(tmp_path: Path) -> Path:
    """The folder of a port with two counters of the kernel, and one of the driver."""
    folder = tmp_path / "class/infiniband/mlx5_0/ports/1"
    for name, content in (
        ("counters/port_rcv_data", "12\n"),
        ("counters/symbol_error", "0\n"),
        ("hw_counters/out_of_sequence", "3\n"),
        ("hw_counters/lifespan", "10\n"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_devices_and_ports_come_sorted_with_their_folders(port: Path, tmp_path: Path) -> None:
    (tmp_path / "class/infiniband/mlx5_1").mkdir()
    first, second = devices(str(tmp_path))
    assert (Path(first).name, Path(second).name) == ("mlx5_0", "mlx5_1")
    assert ports(first) == [Port("mlx5_0", "1", str(port))]
    assert ports(second) == []
    assert devices(str(tmp_path / "none")) == []


def test_the_counters_of_both_folders_are_read_and_the_lifespan_is_none_of_them(port: Path) -> None:
    values = {"port_rcv_data": 12, "symbol_error": 0, "out_of_sequence": 3}
    assert counters(Port("mlx5_0", "1", str(port))) == Counters(values, 10, 0)


def test_a_file_without_a_number_counts_as_unread(port: Path) -> None:
    (port / "counters/symbol_error").write_text("N/A (no PMA)\n")
    (port / "hw_counters/lifespan").unlink()
    (port / "counters/folder").mkdir()
    read = counters(Port("mlx5_0", "1", str(port)))
    assert (read.lifespan, read.unread, sorted(read.values)) == (None, 2, ["out_of_sequence", "port_rcv_data"])


def test_a_name_in_both_folders_is_the_kernels_own(port: Path) -> None:
    (port / "hw_counters/symbol_error").write_text("7\n")
    assert counters(Port("mlx5_0", "1", str(port))).values["symbol_error"] == 0


def test_a_port_without_files_has_no_counters(tmp_path: Path) -> None:
    assert counters(Port("mlx5_0", "1", str(tmp_path))) == Counters({}, None, 0)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("18446744073709551615\n", 2**64 - 1),
        ("0", 0),
        ("", None),
        ("-1", None),
        ("0x10", None),
        ("٣", None),  # a digit of another script
        ("9" * 21, None),
    ],
)
def test_which_text_is_a_number(content: str, value: int | None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(content)
    assert number(str(tmp_path / "file")) == value


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert number(str(tmp_path / "none")) is None
    with pytest.raises(FileNotFoundError):
        text(str(tmp_path / "none"))
