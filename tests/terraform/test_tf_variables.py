"""Each invalid value of a variable is refused, with a message that names the variable and the rule. What our own rules
accept is accepted.

Only variables.tf is given to Terraform: no provider is started, so a case takes a tenth of a second.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.errors import InputError
from gpucluster.paths import terraform_dir
from gpucluster.resource_manager import variable_files
from gpucluster.resource_manager.migration import migrate
from gpucluster.spec import ClusterSpec, loads
from tests.resource_manager.convert_cases import CASES
from tests.resource_manager.stacks import FORK
from tests.spec.spec_texts import KEY

IMAGE = {"operating_system": "Debian", "version": "13"}
HOME = {"export_path": "/mnt/home"}
SUBNET = "ocid1.subnet.oc1..a"
NETWORK = {
    "vcn_cidr": "10.0.0.0/16",
    "public_subnet_cidr": "10.0.0.0/24",
    "private_subnet_cidr": "10.0.1.0/24",
    "ssh_allowed_cidrs": ["203.0.113.0/24"],
    "dns_label": "demo",
}
PRIVATE = {**NETWORK, "access": "bastion", "public_subnet_cidr": None}
POOL = {
    "kind": "compute_cluster",
    "shape": "BM.GPU4.8",
    "count": 1,
    "max_count": 4,
    "node_names": ["compute-1"],
    "boot_volume_gb": 256,
    "boot_volume_vpus_per_gb": 10,
    "rdma": True,
    "rdma_plugins": [],
}
GOOD: dict[str, Any] = {
    "cluster_name": "demo",
    "region": "us-ashburn-1",
    "home_region": "us-phoenix-1",
    "tenancy_id": "ocid1.tenancy.oc1..aaaa",
    "compartment_id": "ocid1.compartment.oc1..aaaa",
    "ssh_authorized_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 operator@host"],
    "network": NETWORK,
    "controller": {
        "shape": "VM.Standard.E5.Flex",
        "ocpus": 4,
        "memory_gb": 32,
        "boot_volume_gb": 256,
        "boot_volume_vpus_per_gb": 20,
    },
    "login": {
        "names": ["demo-login-1"],
        "shape": "VM.Standard.E5.Flex",
        "ocpus": 4,
        "memory_gb": 32,
        "boot_volume_gb": 256,
        "boot_volume_vpus_per_gb": 10,
    },
    "images": {"controller": IMAGE, "login": IMAGE, "pool/compute": IMAGE},
    "home": HOME,
    "pools": {"compute": POOL},
    "freeform_tags": {"gpucluster": "demo"},
}

# Path of the value, the value, and words of the refusal.
WRONG: list[tuple[str, Any, str]] = [
    ("cluster_name", "", "cluster_name must be 1 to 15"),
    ("cluster_name", "Demo", "cluster_name must be 1 to 15"),
    ("cluster_name", "1demo", "cluster_name must be 1 to 15"),
    ("cluster_name", "demo-", "cluster_name must be 1 to 15"),
    ("cluster_name", "demo_1", "cluster_name must be 1 to 15"),
    ("cluster_name", "a" * 16, "cluster_name must be 1 to 15"),
    ("cluster_name", None, "may not be set to null"),
    ("region", "Ashburn", "region must be the identifier"),
    ("tenancy_id", "acme", "tenancy_id must be the OCID"),
    ("tenancy_id", "ocid1.compartment.oc1..aaaa", "tenancy_id must be the OCID"),
    ("compartment_id", "acme", "compartment_id must be the OCID"),
    ("ssh_authorized_keys", [], "at least one key"),
    ("ssh_authorized_keys", ["AAAA"], "must be OpenSSH public keys"),
    ("ssh_authorized_keys", ["ssh-ed25519 AAAA a\nssh-ed25519 AAAA b"], "must be OpenSSH public keys"),
    ("home_region", "home", "home_region must be the identifier"),
    ("defined_tags", {"CostCenter": "42"}, "every key must be a namespace, a dot and a key"),
    ("elastic_tags", {"Cluster": "demo"}, "elastic_tags: every key must be a namespace, a dot and a key"),
    ("network.access", "vpn", "access must be public or bastion"),
    ("network.access", "bastion", "access bastion has no public subnet"),
    ("network.public_subnet_cidr", None, "access public needs public_subnet_cidr"),
    ("network.private_subnet_id", "ocid1.subnet.oc1..a", "need vcn_id"),
    ("network.vcn_id", "ocid1.vcn.oc1..a", "vcn_id needs private_subnet_id"),
    ("network", {**NETWORK, "vcn_id": "ocid1.vcn.oc1..a", "private_subnet_id": SUBNET}, "also public_subnet_id"),
    ("network", {**PRIVATE, "vcn_id": "my-vcn", "private_subnet_id": SUBNET}, 'vcn_id must begin with "ocid1.vcn."'),
    ("network.vcn_cidr", "10.0.0.0", "must be IPv4 blocks"),
    ("network.vcn_cidr", "fd00::/56", "must be IPv4 blocks"),
    ("network.vcn_cidr", "10.0.0.1/16", "must be IPv4 blocks"),
    ("network.vcn_cidr", "10.0.0.0/8", "from /16 to /30"),
    ("network.public_subnet_cidr", "ten", "must be IPv4 blocks"),
    ("network.private_subnet_cidr", "10.0.1.7/24", "must be IPv4 blocks"),
    ("network.public_subnet_cidr", "10.1.0.0/24", "must be inside vcn_cidr"),
    ("network.private_subnet_cidr", "10.2.0.0/15", "must be inside vcn_cidr"),
    ("network.private_subnet_cidr", "10.0.0.0/24", "must not overlap"),
    ("network.private_subnet_cidr", "10.0.0.128/25", "must not overlap"),
    ("network.private_subnet_cidr", "10.0.0.0/20", "must not overlap"),
    ("network.ssh_allowed_cidrs", [], "at least one block"),
    ("network.ssh_allowed_cidrs", ["0.0.0.0/0"], "the whole internet"),
    ("network.ssh_allowed_cidrs", ["203.0.113.0/24", "198.51.100.1/0"], "the whole internet"),
    ("network.ssh_allowed_cidrs", ["203.0.113.1/00"], "the whole internet"),
    ("network.ssh_allowed_cidrs", ["::/0"], "the whole internet"),
    ("network.ssh_allowed_cidrs", ["2001:db8::/32"], "must be an IPv4 block"),
    ("network.ssh_allowed_cidrs", ["my house"], "must be an IPv4 block"),
    ("network.dns_label", "de-mo", "dns_label must be 1 to 15"),
    ("controller.ocpus", None, "needs ocpus and memory_gb"),
    ("controller.memory_gb", None, "needs ocpus and memory_gb"),
    ("controller.shape", "VM.Standard2.4", "only be given for a flexible shape"),
    ("controller.boot_volume_gb", 49, "from 50 to 32768"),
    ("controller.boot_volume_vpus_per_gb", 15, "must be 10, 20, 30"),
    ("images.controller", {"operating_system": "Debian"}, "either ocid, or"),
    ("images.controller", {"listing": "GPU", "name": "Debian-13"}, "either ocid, or"),
    ("images.controller", {**IMAGE, "listing_version": "1"}, "either ocid, or"),
    ("images.controller", {"name": "Debian-13", "version": "13"}, "either ocid, or"),
    ("images.controller", {**IMAGE, "make_compatible": True}, "make_compatible is for an image given by ocid"),
    ("images.controller", {"ocid": "ocid1.image.oc1..a", "version": "13"}, "either ocid, or"),
    ("images.controller", {}, "either ocid, or"),
    ("login.names", [], "login: names must be different names"),
    ("login.names", ["demo-login-1", "demo-login-1"], "login: names must be different names"),
    ("login.ocpus", None, "login: a flexible shape"),
    ("login.shape", "VM.Standard2.4", "login: ocpus and memory_gb can only be given"),
    ("login.boot_volume_gb", 49, "login: boot_volume_gb must be from 50"),
    ("login.boot_volume_vpus_per_gb", 15, "login: boot_volume_vpus_per_gb must be"),
    ("home.export_path", "mnt/home", "must be an absolute path"),
    ("home.export_path", "/", "must be an absolute path"),
    ("home.file_system_id", "homes", "must be the OCID of a file system"),
    ("home.server", "nfs.example.com", "must be an IPv4 address"),
    ("home", {**HOME, "file_system_id": "ocid1.filesystem.oc1..a", "server": "10.0.1.9"}, "can't both be given"),
    ("shares", {"data": {"export_path": "data"}}, "must be an absolute path"),
    ("shares", {"data": {"export_path": "/data", "file_system_id": "data"}}, "must be the OCID of a file system"),
    ("shares", {"data": {"export_path": "/data", "server": "nfs.example.com"}}, "must be an IPv4 address"),
    ("home.throughput_gbps", 10, "throughput_gbps is 1, 20, 40 or 80"),
    ("shares", {"data": {"export_path": "/data", "throughput_gbps": 100}}, "throughput_gbps is 1, 20, 40 or 80"),
    ("shares", {"data": {"export_path": "/data", "mount_target": "other"}}, "mount_target is home or own"),
    (
        "shares",
        {"data": {"export_path": "/data", "file_system_id": "ocid1.filesystem.oc1..a", "server": "10.0.1.9"}},
        "can't both be given",
    ),
    ("pools", {"Compute": POOL}, "every name must be 1 to 32"),
    ("pools", {"gpu_pool": POOL}, "every name must be 1 to 32"),
    ("pools", {"gpu-": POOL}, "every name must be 1 to 32"),
    ("pools.compute.kind", "batch", "kind must be"),
    ("pools.compute.count", 5, "must not be greater than max_count"),
    ("pools.compute.count", -1, "whole numbers, 0 or more"),
    ("pools.compute.count", 0.5, "whole numbers, 0 or more"),
    ("pools.compute.max_count", 1.5, "whole numbers, 0 or more"),
    ("pools.compute.kind", "cluster_network", "has permanent nodes only"),
    ("pools.compute.node_names", [], "the number of node_names must be count"),
    ("pools.compute.node_names", ["Node 1"], "must be different names"),
    ("pools.compute.boot_volume_vpus_per_gb", 130, "must be 10, 20, 30"),
    ("pools.compute.capacity_reservation_id", "mine", "must be the OCID of a capacity reservation"),
    ("pools.compute.platform", {"type": "AMD_MILAN_BM_GPU", "numa_nodes_per_socket": "4"}, "must be NPS0, NPS1"),
    ("pools.compute.rdma", False, "rdma must be true for kind"),
    ("pools.compute.kind", "instances", "rdma must be true for kind"),
    ("pools.compute.shape", "VM.Standard.E5.Flex", "needs ocpus and memory_gb"),
    ("pools.compute.ocpus", 4, "only be given for a flexible shape"),
    ("pools.compute.boot_volume_gb", 40000, "from 50 to 32768"),
    ("images", {"controller": IMAGE, "pool/compute": {"version": "13"}}, "either ocid, or"),
    ("pools.compute.baked_image_id", "debian-13", "baked_image_id must be the OCID of an image"),
    ("pools.compute.availability_domain", "", "availability_domain must not be empty"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with only the variables."""
    folder = tmp_path_factory.mktemp("variables")
    shutil.copy(terraform_dir() / "cluster" / "variables.tf", folder)
    return folder


def _plan(terraform: str, environment: Mapping[str, str], folder: Path, values: Mapping[str, Any]) -> tuple[int, str]:
    (folder / "terraform.tfvars.json").write_text(json.dumps(values))
    done = subprocess.run(
        [terraform, "plan", "-no-color", "-input=false"],
        cwd=folder,
        env={**environment, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    words = " ".join((done.stdout + done.stderr).replace("│", " ").split())
    return done.returncode, words


# Other valid values of the variables.
RIGHT: list[Mapping[str, Any]] = [
    {},
    {"network": PRIVATE, "home": {**HOME, "server": "10.0.1.9"}, "defined_tags": {"Operations.CostCenter": "42"}},
    {
        "network": {**PRIVATE, "vcn_id": "ocid1.vcn.oc1..a", "private_subnet_id": SUBNET},
        "images": {
            "controller": {**IMAGE, "name": "Debian-13-2026.01"},
            "login": {"name": "Debian-13-2026.01"},
            "pool/known": {"name": "Debian-13-2026.01", "operating_system": "Debian"},
            "pool/listed": {"listing": "Debian GPU", "listing_version": "1.0"},
            "pool/compute": {"ocid": "ocid1.image.oc1..a", "make_compatible": True},
        },
    },
]


def test_good_values_are_taken(terraform: str, terraform_environment: Mapping[str, str], folder: Path) -> None:
    for values in RIGHT:
        code, words = _plan(terraform, terraform_environment, folder, {**GOOD, **values})
        assert code == 0, words


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[f"{path}={value}"[:60] for path, value, _ in WRONG])
@pytest.mark.slow
def test_a_wrong_value_is_refused(
    terraform: str, terraform_environment: Mapping[str, str], folder: Path, path: str, value: Any, message: str
) -> None:
    values = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = values
    for parent in parents:
        place = place[parent]
    place[last] = value
    code, words = _plan(terraform, terraform_environment, folder, values)
    assert code == 1
    assert message in words
    # An invalid value breaks one rule, and the message names that rule.
    assert words.count("Error: ") == 1, words


# Texts of cluster.yml at the bounds of its rules; each becomes the value of the key before it.
_BOUNDS: dict[str, tuple[Any, ...]] = {
    "name": ("a", "a9", "a--b", "a" * 15, "a" + "-" * 13 + "z"),
    "cloud.region": ("a-1", "us-gov-ashburn-1", "a-" + "b9-" * 20 + "0"),
    "cloud.compartment_id": ("ocid1.tenancy.oc1..a", "ocid1.compartment.oc1.-_.A"),
    "cloud.availability_domain": ("x", "Uocm:US-ASHBURN-AD-1", "${x}", "%{x}", '"'),
    "cloud.freeform_tags": ({"!": ""}, {"${a}": '"'}, {"x" * 100: "y" * 256}),
    "cloud.defined_tags": ({"a.b": ""}, {"!.~": "${x}"}, {"-./": "x"}, {"x" * 100 + "." + "y" * 100: "z" * 256}),
    "iam.tag": ("c.d", "~.!", "y" * 100 + "." + "x" * 100),
    "iam.elastic_compartment": ("create", "ocid1.compartment.oc1..a"),
    "network.ssh_allowed_cidrs": (["203.0.113.7/32"], ["8.0.0.0/8"], ["203.0.113.0/24", "198.51.100.0/24"]),
    "network.private_subnet_cidr": ("10.0.128.0/17", "10.0.2.0/25"),
    "ssh.public_keys": ([KEY], [f"  {KEY}"], [f'{KEY} ${{x}} "y"'], [KEY.rpartition(" ")[0]]),
    "controller.boot_volume_gb": (50, 32768),
    "controller.boot_volume_vpus_per_gb": (10, 120),
    "storage.home.export_path": ("/a", "/a/b.c-d_e", "/" + "x" * 254),
    "storage.home.server": ("10.0.1.200", "1.2.3.4"),
    "login.count": (1, 32),
    "pools.gpu.count": (0, 1, 8),
    "pools.gpu.image": (
        {"name": "${x} %{y}", "login_user": "ubuntu"},
        {"listing": 'ünï "x"', "login_user": "ubuntu"},
        {"listing": "x", "listing_version": "1.0 ${x}", "login_user": "ubuntu"},
        {"ocid": "ocid1.image.oc1.-_.A", "login_user": "ubuntu"},
    ),
    "pools.gpu.availability_domain": ("x", "${x}"),
    "pools.gpu.platform": ({"numa_nodes_per_socket": "NPS4", "smt": False},),
}
_GPU = {"shape": "BM.GPU4.8", "count": 2, "max_count": 8, "image": {"operating_system": "Debian", "version": "13"}}
#: Words of HCL, and the bounds of the rule.
_POOLS = ("a", "z9", "a--9", "a" * 20, "a" + "-" * 18 + "z", "null", "true", "each", "for", "if", "count", "none")
_BASE: dict[str, Any] = {
    "version": 1,
    "name": "demo",
    "cloud": {"provider": "oci", "region": "us-ashburn-1", "compartment_id": "ocid1.compartment.oc1..a"},
    "network": {
        "vcn_cidr": "10.0.0.0/16",
        "public_subnet_cidr": "10.0.0.0/24",
        "private_subnet_cidr": "10.0.1.0/24",
        "ssh_allowed_cidrs": ["203.0.113.0/24"],
    },
    "ssh": {"public_keys": [KEY]},
    "controller": {"image": {"operating_system": "Debian", "version": "13"}},
    "pools": {"gpu": _GPU, **{name: {**_GPU, "count": 1, "max_count": 1} for name in _POOLS}},
}


def _spec_with(values: Mapping[str, Any]) -> ClusterSpec:
    data = copy.deepcopy(_BASE)
    for path, value in values.items():
        *parents, last = path.split(".")
        place = data
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return loads(json.dumps(data))


@pytest.mark.slow
def test_terraform_takes_what_cluster_yml_can_have(
    terraform: str, terraform_environment: Mapping[str, str], folder: Path
) -> None:
    for number in range(max(map(len, _BOUNDS.values()))):
        # One of each in a run: they are independent of each other.
        values = {path: texts[number] for path, texts in _BOUNDS.items() if number < len(texts)}
        try:
            spec = _spec_with(values)
        except InputError as error:
            pytest.fail(f"these are no bounds: {error}")
        code, words = _plan(terraform, terraform_environment, folder, _handed_over(spec))
        assert code == 0, f"{values}: {words}"


def _handed_over(spec: ClusterSpec) -> dict[str, Any]:
    return handover.tfvars(
        spec,
        tenancy_id="ocid1.tenancy.oc1..t",
        compartment_id=spec.cloud.compartment_id or "",
        ssh_authorized_keys=spec.ssh.authorized_keys,
        baked_images={},
        cluster_id="0123456789abcdef",
        origin="ada@build-3:/srv/demo",
    )


@pytest.mark.slow
def test_terraform_takes_what_migrate_makes_of_a_stack(
    terraform: str, terraform_environment: Mapping[str, str], folder: Path
) -> None:
    stacks = {**CASES, "a fork of 2.11": variable_files.read(FORK, "terraform.tfvars")}
    for name, values in stacks.items():
        spec = migrate(values, file="v", target="cluster.yml", folder="lab", settings={}).spec
        code, words = _plan(terraform, terraform_environment, folder, _handed_over(spec))
        assert code == 0, f"{name}: {words}"
