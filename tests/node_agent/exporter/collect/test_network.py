"""Statistics of network interfaces: the kernel's own structures, a real interface, and which statistics are kept."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.collect.ethtool import Ethtool
from gpucluster.node_agent.exporter.collect.network import MOST, NetworkCollector, chosen
from gpucluster.node_agent.exporter.exposition import page
from tests.doubles.clock import Clock
from tests.node_agent.exposition import Series, having, of, series

MLX5 = {
    "rx_packets": 7, "rx_bytes": 8, "rx_out_of_buffer": 1, "rx_discards_phy": 2, "rx_crc_errors_phy": 3,
    "rx_prio3_pause": 4, "tx_prio3_pause": 5, "rx_prio3_discards": 6, "tx_pause_ctrl_phy": 9,
    "link_down_events_phy": 10, "rx0_wqe_err": 11, "tx12_dropped": 12, "ch3_poll": 13, "rx_xdp_drop": 14,
    "tx_pause_storm_warning_events": 15,
}  # fmt: skip
ICE = {
    "rx_dropped.nic": 1,
    "link_xoff_rx.nic": 2,
    "rx_queue_0_packets": 3,
    "tx-0.tx_dropped": 4,
    "rx_crc_errors.nic": 5,
}


class KernelDouble:
    """Stands for the kernel's side of SIOCETHTOOL: it reads and writes the caller's memory as the kernel does.

    Not proved: that drivers answer so. A test below asks the real kernel about a real interface.
    """

    def __init__(self, interfaces: dict[str, dict[str, int]]) -> None:
        self.interfaces = interfaces
        self.asked: list[int] = []

    def ioctl(self, _socket: Any, request: int, data: bytes) -> int:
        assert request == 0x8946
        name, address = struct.unpack("=16sQ16x", data)
        found = self.interfaces.get(name.rstrip(b"\0").decode())
        if found is None:
            raise OSError(errno.ENODEV, "No such device")
        if not found:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            (command,) = struct.unpack("=I", memory.read(4))
            memory.seek(address)
            memory.write(self._answer(command, found))
        return 0

    def _answer(self, command: int, found: dict[str, int]) -> bytes:
        self.asked.append(command)
        return {
            0x37: struct.pack("=IIQI", command, 0, 2, len(found)),
            0x1B: struct.pack("=III", command, 1, len(found))
            + b"".join(each.encode().ljust(32, b"\0") for each in found),
            0x1D: struct.pack(f"=II{len(found)}Q", command, len(found), *found.values()),
        }[command]


def collector(
    sysfs: Path, interfaces: dict[str, dict[str, int]], clock: Clock | None = None
) -> tuple[NetworkCollector, KernelDouble]:
    for name in interfaces:
        (sysfs / "class/net" / name / "device").mkdir(parents=True)
    (sysfs / "class/net/lo").mkdir()
    kernel = KernelDouble(interfaces)
    return NetworkCollector(Place(sysfs=str(sysfs)), Ethtool(kernel.ioctl), clock or Clock()), kernel


def read(network: NetworkCollector) -> Series:
    return series(page(line for name in network.subjects() for line in network.samples(name)))


def test_pauses_discards_and_errors_are_kept_and_queues_are_not(tmp_path: Path) -> None:
    network, _kernel = collector(tmp_path, {"rdma0": MLX5, "ens1f0": ICE})
    found = having(read(network), "gpucluster_network_counter_total")
    kept = {(dict(labels)["interface"], dict(labels)["counter"]): value for labels, value in found.items()}
    assert kept == {
        **{("rdma0", name): value for name, value in MLX5.items() if name not in (
            "rx_packets", "rx_bytes", "rx0_wqe_err", "tx12_dropped", "ch3_poll", "rx_xdp_drop")},
        **{("ens1f0", name): ICE[name] for name in ("rx_dropped.nic", "link_xoff_rx.nic", "rx_crc_errors.nic")},
    }  # fmt: skip
    assert "lo" not in network.subjects()


def test_names_are_asked_for_once_and_again_when_there_are_others(tmp_path: Path) -> None:
    clock = Clock()
    network, kernel = collector(tmp_path, {"rdma0": dict(MLX5)}, clock)
    read(network)
    read(network)
    assert [hex(each) for each in kernel.asked] == ["0x37", "0x1b", "0x1d", "0x1d"]
    kernel.interfaces["rdma0"] = {"new_errors": 1, **MLX5}
    assert having(read(network), "gpucluster_network_counter_total") == {}, "a value of another name"
    assert of(read(network), "gpucluster_network_counter_total", interface="rdma0", pci="", counter="new_errors") == 1
    # A driver may rename without another number.
    kernel.interfaces["rdma0"] = {"newer_errors": 1, **MLX5}
    clock.now += 601
    assert of(read(network), "gpucluster_network_counter_total", interface="rdma0", pci="", counter="newer_errors") == 1


def test_an_interface_without_statistics_costs_itself(tmp_path: Path) -> None:
    network, kernel = collector(tmp_path, {"rdma0": MLX5, "virtual": {}})
    del kernel.interfaces["rdma0"]
    kernel.interfaces["rdma1"] = MLX5
    (tmp_path / "class/net/rdma1/device").mkdir(parents=True)
    for times in (1, 2):
        found = read(network)
        failed = {
            name: of(found, "gpucluster_network_read_errors_total", interface=name, pci="")
            for name in network.subjects()
        }
        assert failed == {"rdma0": times, "rdma1": 0, "virtual": times}


def test_an_interface_has_a_limit_of_series() -> None:
    assert len(chosen([f"error_kind_{number}" for number in range(1000)])) == MOST


def test_a_real_interface_of_a_network_namespace() -> None:
    script = (
        "from gpucluster.node_agent.exporter.collect.ethtool import Ethtool\n"
        "tool = Ethtool(); count = tool.count('one'); names = tool.names('one', count)\n"
        "values = tool.values('one', count, range(count))\n"
        "assert tool.values('one', count + 1, [0]) is None\n"
        "print(count, len(names), len(values), names[0], sorted(names)[0])\n"
        "try: tool.count('nosuch')\nexcept OSError as error: print(error.errno)\n"
    )
    shell = 'ip link add one type veth peer name two && exec "$0" -c "$1"'
    argv = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", shell, sys.executable, script]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[4])}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0 and ("unshare" in done.stderr or "RTNETLINK" in done.stderr or "ip:" in done.stderr):
        pytest.skip(f"no network namespaces here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    (first, second) = done.stdout.splitlines()
    count, names, values, name, _sorted = first.split()
    assert int(count) == int(names) == int(values) > 0
    assert name == "peer_ifindex"
    assert int(second) == errno.ENODEV
