"""Networks, addresses and file systems, existing ones too: each fault is reported with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.preflight.facts import (
    ExistingFileSystem,
    IngressRule,
    Vcn,
)
from tests.preflight.cases import (
    Case,
    reported,
    subnet_fact,
)
from tests.preflight.preflight_facts import (
    AD1,
    AD2,
    EXISTING,
    FILES,
    HOME_FILES,
    SHARED,
    VCN,
    refused,
)

# What is changed, what is so, and what must be reported of it: level, check, a passage.
CASES: dict[str, Case] = {
    # networks
    "no VCN": (EXISTING, {"vcn": refused("network")}, "error", "network", "does not exist"),
    "VCN unknown": (
        EXISTING,
        {"vcn": refused("network", "the VCN", 503)},
        "warning",
        "network",
        "could not read the VCN",
    ),
    "VCN ends": (
        EXISTING,
        {"vcn": Vcn(VCN, "net", ("10.0.0.0/16",), "net", "TERMINATING")},
        "error",
        "network",
        "TERMINATING",
    ),
    "VCN has other range": (
        EXISTING,
        {"vcn": Vcn(VCN, "net", ("10.1.0.0/16",), "net")},
        "error",
        "network",
        "10.1.0.0/16",
    ),
    "VCN without names": (EXISTING, {"vcn": Vcn(VCN, "net", ("10.0.0.0/16",))}, "error", "network", "no DNS label"),
    "no subnet": (EXISTING, {"subnets": {"private": refused("network")}}, "error", "network", "the private subnet"),
    "subnet of another VCN": (
        EXISTING,
        subnet_fact("private", vcn_id="ocid1.vcn.other"),
        "error",
        "network",
        "is in the VCN",
    ),
    "subnet has other range": (EXISTING, subnet_fact("private", cidr="10.0.2.0/23"), "error", "network", "10.0.2.0/23"),
    "subnet without names": (EXISTING, subnet_fact("private", dns_label=""), "error", "network", "no DNS label"),
    "subnet in another domain": (
        (*EXISTING, ("compartment_id", f"availability_domain: {AD1}\n  compartment_id")),
        subnet_fact("private", domain=AD2),
        "error",
        "network",
        "only",
    ),
    "public subnet is private": (EXISTING, subnet_fact("public", private=True), "error", "network", "prohibits public"),
    "public subnet without gateway": (
        EXISTING,
        subnet_fact("public", routes=()),
        "error",
        "network",
        "internet gateway",
    ),
    "private subnet is public": (
        EXISTING,
        subnet_fact("private", private=False),
        "warning",
        "network",
        "allows public",
    ),
    "no NAT gateway": (
        EXISTING,
        subnet_fact("private", routes=("servicegateway",)),
        "warning",
        "network",
        "NAT gateway",
    ),
    "no service gateway": (
        EXISTING,
        subnet_fact("private", routes=("natgateway",)),
        "warning",
        "network",
        "service gateway",
    ),
    "routes unknown": (
        EXISTING,
        subnet_fact("private", routes=refused("network", "the route table")),
        "warning",
        "network",
        "route table",
    ),
    "VCN shut out": (
        EXISTING,
        subnet_fact("private", ingress=(IngressRule("6", "10.0.0.0/16"), IngressRule("all", "fd00::/8"))),
        "warning",
        "network",
        "do not allow all traffic",
    ),
    "ssh shut out": (
        EXISTING,
        subnet_fact("public", ingress=(IngressRule("all", "10.0.0.0/16"), IngressRule("6", "0.0.0.0/0", (80, 80)))),
        "warning",
        "network",
        "do not allow ssh",
    ),
    "subnet full": (
        EXISTING,
        subnet_fact("private", in_use=tuple(f"10.0.1.{n}" for n in range(2, 245))),
        "error",
        "addresses",
        "10 free addresses, 243 are in use, and 12 more",
    ),
    "RDMA in another range of the VCN": (
        EXISTING,
        {"vcn": Vcn(VCN, "net", ("10.0.0.0/16", "192.168.4.0/24"), "net")},
        "error",
        "overlap",
        "192.168.4.0/24",
    ),
    "rootless containers": ((("10.0.1.0/24", "10.0.2.0/24"),), {}, "warning", "overlap", "rootless"),
    "Docker": (
        (("10.0.0.0/16", "172.17.0.0/16"), ("10.0.0.0/24", "172.17.0.0/24"), ("10.0.1.0/24", "172.17.1.0/24")),
        {},
        "warning",
        "overlap",
        "Docker",
    ),
    "neighbour": ((), {"vcns": (Vcn("v", "other", ("10.0.0.0/8",)),)}, "note", "overlap", "other"),
    # file system
    "no file system": (SHARED, {"file_systems": {HOME_FILES: refused("storage")}}, "error", "storage", FILES),
    "file system ends": (
        SHARED,
        {"file_systems": {HOME_FILES: ExistingFileSystem("DELETING", AD1)}},
        "error",
        "storage",
        "DELETING",
    ),
    "file system elsewhere": (
        SHARED,
        {"file_systems": {HOME_FILES: ExistingFileSystem("ACTIVE", AD2)}},
        "error",
        "storage",
        f"is in {AD2}",
    ),
    "mount targets of more throughput than is usual": (
        (("ssh:\n", "storage: {home: {throughput_gbps: 80}}\nssh:\n"),),
        {},
        "note",
        "limits",
        "1 mount target of 80 Gbps: OCI allows none",
    ),
    "file system of a share ends": (
        (("ssh:\n", f"storage: {{shares: {{data: {{mount_path: /mnt/data, file_system_id: {FILES}}}}}}}\nssh:\n"),),
        {"file_systems": {"storage.shares.data.file_system_id": ExistingFileSystem("DELETED", AD1)}},
        "error",
        "storage",
        "DELETED",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_with_level_reason_and_action(case: str, tmp_path: Path) -> None:
    reported(CASES[case], tmp_path)
