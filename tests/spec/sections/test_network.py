"""The section `network`, with an existing network: wrong values, each at its place."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported
from tests.spec.test_spec_oci import EXISTING, NETWORK, PRIVATE, PUBLIC, VCN

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "no public subnet": (NETWORK, "", "network.public_subnet_cidr", "is missing: with access public it is the subnet of the controller. Add it, such as `public_subnet_cidr: 10.0.0.0/24`, or write `access: bastion`"),
    "public subnet of a private cluster": (NETWORK, f"  access: bastion\n  §{NETWORK.strip()}\n", "network.public_subnet_cidr", "has no meaning with access bastion"),
    "unknown access": (NETWORK, f"{NETWORK}  access: §bastian\n", "network.access", "must be public or bastion; got \"bastian\". Did you mean bastion?"),
    "no OCID of a network": (NETWORK, f"{EXISTING}".replace(VCN, f"§{PUBLIC}"), "network.vcn_id", "must be the OCID of a virtual cloud network"),
    "no OCID of a subnet": (NETWORK, f"{EXISTING}".replace(PUBLIC, f"§{VCN}"), "network.public_subnet_id", "must be the OCID of a subnet"),
    "subnet without its network": (NETWORK, f"{NETWORK}  §private_subnet_id: {PRIVATE}\n", "network.private_subnet_id", "needs vcn_id, the network that contains it. Add `vcn_id:"),
    "network without a subnet": (NETWORK, f"{NETWORK}  vcn_id: {VCN}\n  public_subnet_id: {PUBLIC}\n", "network.private_subnet_id", "is missing: with an existing network, its subnets must be named, too. Add `private_subnet_id: ocid1.subnet"),
    "network without public subnet": (NETWORK, f"{NETWORK}  vcn_id: {VCN}\n  private_subnet_id: {PRIVATE}\n", "network.public_subnet_id", "is missing"),
    "one subnet for both": (NETWORK, EXISTING.replace(PRIVATE, f"§{PUBLIC}"), "network.private_subnet_id", "is the same as public_subnet_id"),
    "public subnet behind a bastion": (NETWORK, EXISTING.replace(NETWORK, "  access: bastion\n").replace("  public", "  §public"), "network.public_subnet_id", "has no meaning with access bastion"),
    "RDMA in the network": (NETWORK, f"{NETWORK}  rdma_cidr: §10.77.128.0/17\n", "network.rdma_cidr", "10.77.128.0/17 overlaps vcn_cidr 10.77.0.0/16. Use another range"),
    "RDMA on no network": (NETWORK, f"{NETWORK}  rdma_cidr: §192.168.0.0\n", "network.rdma_cidr", "with its prefix"),
    "RDMA on the cloud's own": (NETWORK, f"{NETWORK}  rdma_cidr: §169.254.0.0/16\n", "network.rdma_cidr", "link-local"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
