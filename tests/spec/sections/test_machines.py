"""Machines of pools, the controller and login nodes: wrong values, each at its place."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported
from tests.spec.spec_texts import LOCAL

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "unknown shape": ("shape: BM.GPU4.8", "shape: §BM.GPU5.8", "pools.compute.shape", "Did you mean BM.GPU4.8"),
    "unlike any shape": ("shape: BM.GPU4.8", "shape: §p5.48xlarge", "pools.compute.shape", "Known: BM.GPU3.8"),
    "size of a fixed shape": ("    count: 2", "    count: 2\n    §ocpus: 4", "pools.compute.ocpus", "BM.GPU4.8 has a fixed size"),
    "no size of a flexible shape": ("    ocpus: 8\n", "", "pools.cpu.ocpus", "is missing: VM.Standard.E5.Flex is a flexible shape. Add `ocpus: 4`"),
    "too many OCPUs": ("ocpus: 8", "ocpus: §200", "pools.cpu.ocpus", "at most 126 OCPUs; got 200"),
    "too much memory": ("memory_gb: 64", "memory_gb: §1024", "pools.cpu.memory_gb", "with 8 OCPUs has 8 to 512 GB; got 1024"),
    "too little memory": ("memory_gb: 64", "memory_gb: §4", "pools.cpu.memory_gb", "has 8 to 512 GB; got 4"),
    "small disk": ("    count: 2", "    count: 2\n    boot_volume_gb: §20", "pools.compute.boot_volume_gb", "at least 50; got 20"),
    "maximum below count": ("    count: 2", "    count: 2\n    max_count: §1", "pools.compute.max_count", "below count: 1 < 2"),
    "no nodes": ("    max_count: 4\n", "", "pools.cpu.count", "the pool has no nodes"),
    "no pools": (
        LOCAL[LOCAL.index("pools:") : LOCAL.index("users:")],
        "pools: §{}\n",
        "pools",
        "must have at least 1 entry",
    ),
    "no idle time": ("    max_count: 4", "    max_count: 4\n    idle_timeout: §0", "pools.cpu.idle_timeout", "at least 1"),
    "two defaults": (
        LOCAL[LOCAL.index("    count: 2") : LOCAL.index("users:")],
        "    count: 2\n    default: true\n  cpu:\n    shape: BM.HPC2.36\n    count: 1\n    default: §true\n",
        "pools.cpu.default",
        "a second default pool; the first is in line 22",
    ),
    "image in two ways": (
        "    count: 2",
        "    count: 2\n    image: {operating_system: Debian, version: '13', §ocid: ocid1.image.oc1..x}",
        "pools.compute.image.ocid",
        "conflicts with operating_system",
    ),
    "image without version": ("    count: 2", "    count: 2\n    image: §{operating_system: Debian}", "pools.compute.image", "lacks version"),
    "empty image": ("    count: 2", "    count: 2\n    image: §{}", "pools.compute.image", "lacks operating_system and version"),
    "image without user": ("    count: 2", "    count: 2\n    §image: {ocid: ocid1.image.oc1..x}", "pools.compute.image.login_user", "user of this image"),
    "unknown system": ("    count: 2", "    count: 2\n    §image: {operating_system: Plan 9, version: '4'}", "pools.compute.image.login_user", "user of this image"),
    "no OCID": ("    count: 2", "    count: 2\n    image: {ocid: §ami-123}", "pools.compute.image.ocid", "OCID of an image"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
