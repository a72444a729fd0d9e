"""Rules for the nodes of a pool: counts, removed nodes, RDMA and platforms."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported
from tests.spec.test_spec_oci import POOL, pool

SHAPE = "shape: BM.GPU4.8\n"

RACK = f"{SHAPE}{POOL}"
FABRIC = "memory_fabric_id: ocid1.computegpumemoryfabric.oc1.iad.a"


def rack(*lines: str) -> str:
    """What stands in the place of the shape and the count of a pool of two nodes."""
    return f"shape: BM.GPU.GB200.4\n{pool(*lines)}"


# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "volume of odd speed": (POOL, pool("boot_volume_vpus_per_gb: §15"), "pools.compute.boot_volume_vpus_per_gb", "must be a multiple of 10; got 15"),
    "slow volume": (POOL, pool("boot_volume_vpus_per_gb: §0"), "pools.compute.boot_volume_vpus_per_gb", "at least 10"),
    "fast volume": ("memory_gb: 32", "memory_gb: 32\n  boot_volume_vpus_per_gb: §130", "controller.boot_volume_vpus_per_gb", "at most 120"),
    "no RDMA": ("    max_count: 4", "    max_count: 4\n    rdma: §true", "pools.cpu.rdma", "VM.Standard.E5.Flex has no RDMA. Delete the line, or use a shape with RDMA"),
    "addresses without RDMA": ("    max_count: 4", "    max_count: 4\n    §rdma_addressing: cloud-init", "pools.cpu.rdma_addressing", "has no meaning for VM.Standard.E5.Flex"),
    "addresses with RDMA off": (POOL, pool("rdma: false", "§rdma_addressing: cloud-init"), "pools.compute.rdma_addressing", "has no meaning with rdma false"),
    "unknown addressing": (POOL, pool("rdma_addressing: §cloudinit"), "pools.compute.rdma_addressing", "must be plugin or cloud-init; got \"cloudinit\". Did you mean cloud-init?"),
    "NPS": (POOL, pool("platform: {numa_nodes_per_socket: §NPS3}"), "pools.compute.platform.numa_nodes_per_socket", "must be NPS0 or NPS1 or NPS2 or NPS4"),
    "NPS as number": (POOL, pool("platform: {numa_nodes_per_socket: §4}"), "pools.compute.platform.numa_nodes_per_socket", "must be NPS0 or"),
    "firmware of a virtual machine": ("    max_count: 4", "    max_count: 4\n    platform: {§smt: false}", "pools.cpu.platform.smt", "VM.Standard.E5.Flex has no firmware settings"),
    "rack without its fabric": ("shape: BM.GPU4.8", "shape: BM.GPU.GB200.4", "pools.compute.memory_fabric_id", "is missing: OCI launches BM.GPU.GB200.4 on the hosts of one GPU memory fabric"),
    "fabric of another shape": (POOL, pool("§memory_fabric_id: ocid1.computegpumemoryfabric.oc1.iad.a"), "pools.compute.memory_fabric_id", "has no meaning for BM.GPU4.8, whose hosts share no NVLink fabric"),
    "not a fabric": (RACK, rack("memory_fabric_id: §mine"), "pools.compute.memory_fabric_id", "must be the OCID of a GPU memory fabric"),
    "elastic rack": (RACK, rack(FABRIC, "max_count: §3"), "pools.compute.max_count", "OCI has no elastic nodes of BM.GPU.GB200.4"),
    "more than a rack": (RACK, rack(FABRIC).replace("count: 2", "count: §19"), "pools.compute.count", "a rack of BM.GPU.GB200.4 has 18 hosts, and a pool is one rack; got 19"),
    "rack without RDMA": (RACK, rack(FABRIC, "rdma: §false"), "pools.compute.rdma", "BM.GPU.GB200.4 is always in a compute cluster"),
    "rack and reservation": (RACK, rack(FABRIC, "capacity_reservation_id: §ocid1.capacityreservation.oc1.iad.a"), "pools.compute.capacity_reservation_id", "no reservation has them"),
    "firmware elsewhere": (POOL, pool("§smt: false"), "pools.compute.smt", "unknown key. It belongs under pools.<name>.platform"),
    "reservation": (POOL, pool("capacity_reservation_id: §mine"), "pools.compute.capacity_reservation_id", "must be the OCID of a capacity reservation"),
    "node of another pool": (POOL, pool("removed_nodes: [§cpu-1]"), "pools.compute.removed_nodes[0]", "is not a permanent node of the pool compute: \"cpu-1\". The pool has compute-1, compute-2"),
    "elastic node": (POOL, pool("removed_nodes: [compute-1, §compute-e1]"), "pools.compute.removed_nodes[1]", "The pool has compute-2, compute-3"),
    "node 0": (POOL, pool("removed_nodes: [§compute-0]"), "pools.compute.removed_nodes[0]", "is not a permanent node"),
    "node with a zero in front": (POOL, pool("removed_nodes: [§compute-01]"), "pools.compute.removed_nodes[0]", "is not a permanent node"),
    "node twice": (POOL, pool("removed_nodes: [compute-2, §compute-2]"), "pools.compute.removed_nodes[1]", "occurs twice: \"compute-2\". Keep one"),
    "node of a pool on demand": ("    max_count: 4", "    max_count: 4\n    removed_nodes: [§compute-1]", "pools.cpu.removed_nodes[0]", "Their names are cpu-1, cpu-2 and so on"),
    "preemptible bare metal": ("    count: 2\n", "    count: 0\n    max_count: 2\n    preemptible: §true\n", "pools.compute.preemptible", "BM.GPU4.8 is bare metal, and OCI has no preemptible bare metal. Use a VM shape"),
    "preemptible and permanent": ("    max_count: 4", "    count: 1\n    max_count: 4\n    preemptible: §true", "pools.cpu.preemptible", "needs count: 0, because the nodes that OCI ends"),
    "preemptible and reserved": ("    max_count: 4", "    max_count: 4\n    capacity_reservation_id: ocid1.capacityreservation.oc1.iad.a\n    preemptible: §true", "pools.cpu.preemptible", "preemptible capacity is not taken from a reservation"),
    "number for a node": (POOL, pool("removed_nodes: [§2]"), "pools.compute.removed_nodes[0]", "must be text; got 2"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
