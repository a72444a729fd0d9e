"""Fixtures that several tests of this folder use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node_agent.record.node_tree import COUNTERS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with one RDMA device, one interface and one file server."""
    found = tmp_path / "root"
    for path, text in {
        f"{COUNTERS}/counters/port_rcv_data": "1000",
        f"{COUNTERS}/hw_counters/out_of_sequence": "0",
        "sys/class/net/eth0/statistics/rx_bytes": "5",
        "sys/class/net/lo/statistics/rx_bytes": "5",
        "proc/sys/kernel/random/boot_id": "boot-1",
        "proc/self/mountstats": "device 10.0.0.5:/home mounted on /home with fstype nfs4 statvers=1.1\n"
        "\tbytes:\t1 2 3 4 500 600 7 8\ndevice proc mounted on /proc with fstype proc\n",
    }.items():
        (found / path).parent.mkdir(parents=True, exist_ok=True)
        (found / path).write_text(text)
    return found
