"""Rules for networks: ranges that overlap, are too small, or are not usable."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from gpucluster import shapes
from gpucluster.errors import InputError
from gpucluster.spec import loads, overlapping_routes
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import LOCAL, MARK, MINIMAL, marked
from tests.spec.test_spec_oci import HOME, NETWORK, POOL, home, pool

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "no network": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §ten", "network.vcn_cidr", "must be a network with its prefix"),
    "address": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.0.0", "network.vcn_cidr", "Write 10.77.0.0/32"),
    "host bits": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.1.0/16", "network.vcn_cidr", "Write 10.77.0.0/16"),
    "wrong number": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.777.0.0/16", "network.vcn_cidr", "is not a network"),
    "wrong prefix": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.0.0/33", "network.vcn_cidr", "is not a network"),
    "netmask": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.0.0/255.255.0.0", "network.vcn_cidr", "with its prefix"),
    "IPv6": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §fd00::/16", "network.vcn_cidr", "IPv4"),
    "large VCN": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.0.0.0/8", "network.vcn_cidr", "between /16 and /30; got /8"),
    "small subnet": ("10.77.0.0/24", "§10.77.0.0/31", "network.public_subnet_cidr", "between /16 and /30; got /31"),
    "outside": ("public_subnet_cidr: 10.77.0.0/24", "public_subnet_cidr: §10.78.0.0/24", "network.public_subnet_cidr", "outside of vcn_cidr"),
    "overlap": ("private_subnet_cidr: 10.77.1.0/24", "private_subnet_cidr: §10.77.0.0/23", "network.private_subnet_cidr", "overlaps public_subnet_cidr"),
    "no room": (
        "private_subnet_cidr: 10.77.1.0/24",
        "private_subnet_cidr: §10.77.1.0/29",
        "network.private_subnet_cidr",
        "10.77.1.0/29 has 8 addresses, 14 are needed: 6 nodes, 1 controller, 1 to bake an image, 3 for the mount target, 3 reserved by the cloud. "
        "Use a /28 or larger",
    ),
    "all of it": ("[127.0.0.0/8]", "[10.0.0.0/24, §0.0.0.0/0]", "network.ssh_allowed_cidrs[1]", "the whole internet"),
    "all of IPv6": ("[127.0.0.0/8]", '[§"::/0"]', "network.ssh_allowed_cidrs[0]", "the whole internet"),
    "all of IPv6, spelled out": ("[127.0.0.0/8]", '[§"0:0:0:0:0:0:0:0/0"]', "network.ssh_allowed_cidrs[0]", "the whole internet"),
    "half of it": ("[127.0.0.0/8]", "[§0.0.0.0/1]", "network.ssh_allowed_cidrs[0]", "too large: at most a /8"),
    "from nowhere": ("[127.0.0.0/8]", "§[]", "network.ssh_allowed_cidrs", "must have at least 1 entry"),
    "only a number": ("[127.0.0.0/8]", "[§5]", "network.ssh_allowed_cidrs[0]", "must be text; got 5"),
    "number in a list": ("[127.0.0.0/8]", "[127.0.0.0/8, §5]", "network.ssh_allowed_cidrs[1]", "must be text; got 5"),
    "nothing in a list": ("[127.0.0.0/8]", "[127.0.0.0/8, §null]", "network.ssh_allowed_cidrs[1]", "has no value"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


def test_the_field_that_the_file_has_is_the_one_to_lower() -> None:
    permanent = LOCAL.replace("max_count: 4", "count: 0")
    messages = {path: message for _, _, path, message in findings(permanent.replace("count: 2", "count: 300", 1))}
    assert messages["network.private_subnet_cidr"].endswith("or lower count")


@pytest.mark.parametrize(
    ("routes", "overlapping"),
    [
        ([], []),
        (["default", "0.0.0.0/0", "192.168.1.0/24"], []),
        (["10.77.3.0/24"], ["10.77.3.0/24"]),
        (["10.0.0.0/8", "172.17.0.0/16", "10.77.0.5"], ["10.0.0.0/8", "10.77.0.5"]),
        (["10.77.9.9/24"], ["10.77.9.9/24"]),
        (["fe80::/64", "unreachable", "", "10.78.0.0/16"], []),
    ],
)
def test_routes_of_the_host_that_overlap(routes: list[str], overlapping: list[str]) -> None:
    assert overlapping_routes("10.77.0.0/16", routes) == overlapping


def test_a_vcn_and_the_networks_of_containers_are_apart() -> None:
    inside = MINIMAL.replace("10.77.", "198.18.")
    assert loads(inside).network.vcn_cidr == "198.18.0.0/16"
    with pytest.raises(InputError, match=r"198\.18\.0\.0/15, the range of the container networks"):
        loads(inside + "containers: {runtimes: [docker]}\n")


def with_rdma(rdma_cidr: str, private: str = "10.77.1.0/24", *more: str) -> str:
    text = LOCAL.replace(NETWORK, f"{NETWORK}  rdma_cidr: {rdma_cidr}\n").replace("10.77.1.0/24", private)
    return text.replace(POOL, pool("rdma_addressing: cloud-init", *more))


def test_the_rdma_range_holds_a_block_for_each_interface() -> None:
    interfaces = len(shapes.get("BM.GPU4.8").rdma_interfaces)
    assert interfaces == 16
    text, line, column = marked(with_rdma(f"{MARK}192.168.0.0/21"))
    ((found_line, found_column, path, words),) = findings(text)
    assert (found_line, found_column, path) == (line, column, "network.rdma_cidr")
    assert "192.168.0.0/21 has 2048 addresses, 4096 are needed: pool compute has 16 RDMA interfaces" in words
    assert "Use a /20 or larger" in words
    assert loads(with_rdma("192.168.0.0/20")).network.rdma_cidr == "192.168.0.0/20"
    assert loads(with_rdma("192.168.0.0/21", "10.77.1.0/25")).pools["compute"].rdma_addressing == "cloud-init"


def test_what_no_pool_uses_may_overlap_as_long_as_it_is_a_default() -> None:
    """A VCN in 192.168.0.0/16 is fine where no node has RDMA, and an error where one has."""
    text = LOCAL.replace("10.77.", "192.168.")
    assert [found[2] for found in findings(text)] == ["network.rdma_cidr"]
    assert loads(text.replace(POOL, pool("rdma: false"))).network.vcn_cidr == "192.168.0.0/16"


def test_unknown_interfaces_get_no_addresses() -> None:
    unknown = next(
        shape for shape in shapes.catalogue().values() if shape.rdma and not shape.rdma_interfaces and not shape.flex
    )
    text = LOCAL.replace("shape: BM.GPU4.8", f"shape: {unknown.name}\n    rdma_addressing: {MARK}cloud-init")
    text, line, column = marked(text)
    ((found_line, found_column, _, words),) = findings(text)
    assert (found_line, found_column) == (line, column)
    assert f"the names of the RDMA interfaces of {unknown.name} are not known. Write plugin" in words


def test_a_bastion_takes_an_address_and_a_server_of_homes_gives_some_back() -> None:
    """Six nodes, the controller, a builder and what the cloud keeps are 11; a mount target takes three, a bastion one."""
    tight = LOCAL.replace("10.77.1.0/24", "10.77.1.0/28")
    private = tight.replace(NETWORK, "  access: bastion\n")
    assert loads(tight)
    assert loads(private)
    crowded = private.replace("max_count: 4", "max_count: 6")
    ((_, _, path, words),) = findings(crowded)
    assert path == "network.private_subnet_cidr"
    assert (
        "17 are needed: 8 nodes, 1 controller, 1 to bake an image, 3 for the mount target, 1 for the bastion" in words
    )
    assert loads(crowded.replace(HOME, home("server: 10.77.0.9")))
