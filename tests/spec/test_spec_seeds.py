"""The worked inventories: as they stand for this machine, and with the sections of their headers for OCI."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucluster import handover, shapes
from gpucluster.jobs import registry
from gpucluster.oci.image_names import version_filter
from gpucluster.operations.job_choice import job_for
from gpucluster.slurm.releases import NEWEST
from gpucluster.spec import ClusterSpec, load, loads, template
from gpucluster.systems import matrix
from tests.spec.spec_texts import KEY

INVENTORIES = Path(__file__).parents[2] / "inventories"
SEEDS = ("seed-000-static", "seed-001-single-node", "seed-002-ondemand", "seed-003-measurements", "seed-003-kubernetes")


def local(name: str) -> ClusterSpec:
    return load(INVENTORIES / name / "cluster.yml")


def for_oci(text: str) -> str:
    """The text with the sections that its header gives, as a user would put them in."""
    header, _, body = text.partition("\nversion:")
    given = "\n".join(line[4:] for line in header.splitlines() if line.startswith("#   "))
    for section in yaml.safe_load(given):
        body = re.sub(rf"^{section}:\n(?:[ #].*\n|\n)*", "", body, flags=re.MULTILINE)
    return f"version:{body}\n{given}\n"


@pytest.fixture
def oci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads an inventory with its sections for OCI; the operator has a key pair."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(KEY)
    (tmp_path / ".ssh" / "id_ed25519").write_text("private")
    monkeypatch.setenv("HOME", str(tmp_path))

    def read(name: str) -> ClusterSpec:
        (tmp_path / "cluster.yml").write_text(for_oci((INVENTORIES / name / "cluster.yml").read_text()))
        return load(tmp_path / "cluster.yml")

    return read


def tfvars(spec: ClusterSpec) -> dict[str, Any]:
    return handover.tfvars(
        spec, tenancy_id="t", compartment_id="c", ssh_authorized_keys=["k"], baked_images={}, home_region="us-ashburn-1"
    )


@pytest.mark.parametrize("name", SEEDS)
def test_only_where_it_stands_differs(name: str, oci: Any) -> None:
    here, there = local(name), oci(name)
    assert (here.cloud.provider, there.cloud.provider) == ("local", "oci")
    assert there.ssh.public_key == KEY
    assert [person.ssh_keys for person in there.users.people] == [(KEY,)]
    place = {"cloud", "ssh", "users"}
    # The local cloud's images have Slurm already; hosts on OCI get one release.
    assert (here.slurm.release, there.slurm.release) == ("distribution", NEWEST)
    left_out: dict[str, Any] = {**dict.fromkeys(place, True), "slurm": {"release"}, "kubernetes": {"network"}}
    assert here.model_dump(exclude=left_out) == there.model_dump(exclude=left_out)
    assert here.users.model_dump(exclude={"people"}) == there.users.model_dump(exclude={"people"})
    assert "203.0.113.0/24" in there.network.ssh_allowed_cidrs


def test_no_two_inventories_share_addresses() -> None:
    networks = [IPv4Network(load(file).network.vcn_cidr) for file in INVENTORIES.glob("*/cluster.yml")]
    assert len(networks) >= 5
    assert not any(a.overlaps(b) for index, a in enumerate(networks) for b in networks[index + 1 :])


@pytest.mark.parametrize("name", SEEDS)
def test_a_vcn_with_a_public_and_a_private_subnet(name: str, oci: Any) -> None:
    network = tfvars(oci(name))["network"]
    vcn = IPv4Network(network["vcn_cidr"])
    public, private = IPv4Network(network["public_subnet_cidr"]), IPv4Network(network["private_subnet_cidr"])
    assert (vcn.prefixlen, public.prefixlen, private.prefixlen) == (16, 24, 24)
    assert list(vcn.subnets(new_prefix=24))[:2] == [public, private]
    assert (network["access"], network["vcn_id"], network["private_subnet_id"]) == ("public", None, None)


VERSIONS = [
    "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-GPU-570-OPEN-CUDA-12.8-2025.07.18-0",
    "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-GPU-550-CUDA-12.4-2025.07.19-0",
    "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-AMD-ROCM-632-2025.07.20-0",
]


@pytest.mark.parametrize("file", [*sorted(INVENTORIES.glob("*/cluster.yml")), "init"], ids=str)
def test_no_file_of_ours_dies_with_the_next_build_of_an_image(file: Path | str, oci: Any) -> None:
    """No build of a platform image by its name; of a listing the newest version that has one driver, and one exists."""
    oci("seed-000-static")  # for its key pair
    spec = loads(template("demo", "oci")) if isinstance(file, str) else load(file)
    for machine in (spec.controller, *spec.pools.values()):
        image = machine.image
        assert image.name is None
        assert image.ocid is None
        if image.listing:
            chosen = version_filter(image.listing_version, amd=False)
            assert [version for version in VERSIONS if chosen.fits(version)] == VERSIONS[:1]
        else:
            found = matrix.find(str(image.operating_system), str(image.version))
            assert found is not None
            assert "platform" in found.kinds("controller" if machine is spec.controller else "node")


def test_two_nodes_in_a_cluster_network_with_fixed_rdma_addresses(oci: Any) -> None:
    spec = oci("seed-000-static")
    found = tfvars(spec)
    assert (found["controller"]["shape"], found["controller"]["ocpus"]) == ("VM.Optimized3.Flex", 1)
    assert (found["images"]["controller"]["operating_system"], found["images"]["controller"]["version"]) == (
        "Canonical Ubuntu",
        "24.04",
    )
    pool = found["pools"]["gpu"]
    image = found["images"]["pool/gpu"]
    assert (pool["kind"], pool["shape"], pool["count"], pool["rdma"]) == ("cluster_network", "BM.GPU4.8", 2, True)
    assert pool["node_names"] == ["gpu-1", "gpu-2"]
    assert image["listing"] == "Oracle Linux - GPU Cluster Networking Image"
    assert (image["ocid"], image["name"]) == (None, None)
    assert pool["platform"] is None, "the firmware stays as the shape comes"
    assert "Compute HPC RDMA Auto-Configuration" not in pool["rdma_plugins"]
    assert (spec.network.rdma_cidr, spec.pools["gpu"].rdma_addressing) == ("192.168.0.0/16", "cloud-init")
    assert spec.storage.local_disk.mount_path == "/mnt/localdisk"
    assert spec.pools["gpu"].image.login_user == "opc"
    assert (spec.slurm.enabled, found["home"]["enabled"], spec.containers.runtimes) == (False, False, ("docker",))
    assert spec.users.people[0].groups == ("privilege",)


def test_one_node_without_rdma(oci: Any) -> None:
    spec = oci("seed-001-single-node")
    found = tfvars(spec)
    assert found["controller"]["shape"] == "VM.Standard.E5.Flex"
    pool = found["pools"]["gpu"]
    image = found["images"]["pool/gpu"]
    assert (pool["kind"], pool["shape"], pool["count"], pool["rdma"]) == ("instances", "BM.GPU4.8", 1, False)
    assert (pool["rdma_plugins"], pool["boot_volume_gb"]) == ([], 200)
    assert (image["name"], image["version"]) == (None, "9")
    assert spec.pools["gpu"].image.login_user == "opc"
    assert (spec.slurm.enabled, found["home"]["enabled"], spec.containers.runtimes) == (False, False, ("containerd",))
    assert spec.users.people[0].groups == ()
    assert (spec.software.timezone, spec.storage.local_disk.enabled) == ("Asia/Tokyo", True)


def test_nodes_on_demand(oci: Any) -> None:
    spec = oci("seed-002-ondemand")
    found = tfvars(spec)
    pool = found["pools"]["compute"]
    image = found["images"]["pool/compute"]
    assert (pool["kind"], pool["shape"], pool["rdma"]) == ("compute_cluster", "BM.GPU4.8", True)
    assert (pool["count"], pool["max_count"], pool["node_names"], pool["boot_volume_gb"]) == (0, 2, [], 100)
    assert pool["rdma_plugins"] == list(handover.RDMA_PLUGINS)
    assert image["listing"] == "Oracle Linux - GPU Cluster Networking Image"
    home = {"enabled": True, "export_path": "/mnt/home", "file_system_id": None, "server": None}
    assert found["home"] == {**home, "throughput_gbps": None}
    assert spec.storage.home.mount_path == "/mnt/home"
    assert (spec.users.privilege_group, spec.users.privilege_gid, spec.users.first_uid) == ("privilege", 9876, 10001)
    assert spec.users.people[0].groups == ("privilege",)
    assert spec.containers.runtimes == ("enroot",)
    assert (spec.pools["compute"].idle_timeout, spec.iam.create) == (600, True)


def test_two_nodes_to_measure_with_what_their_jobs_need(oci: Any) -> None:
    spec = oci("seed-003-measurements")
    pool = tfvars(spec)["pools"]["gpu"]
    assert (pool["kind"], pool["shape"], pool["count"], pool["rdma"]) == ("cluster_network", "BM.GPU4.8", 2, True)
    assert (spec.slurm.enabled, spec.monitoring.enabled, spec.containers.runtimes) == (True, True, ("enroot",))
    # Its four measurements run on it as they are: job submit asks the same question.
    for name in ("rdma_perftest", "nccl_tests", "pytorch_ddp", "horovod_resnet50", "tensorflow_mnist"):
        template = registry.template(name)
        job = job_for(spec, template, registry.launcher(template), {}, nodes=2, pool="")
        assert (job.shape, job.gpus, job.rdma) == (shapes.get("BM.GPU4.8"), 8, True)


def test_a_control_plane_of_oracle_with_both_kinds_of_nodes(oci: Any) -> None:
    spec = oci("oke")
    found = tfvars(spec)
    assert (found["oke"]["kubernetes_version"], found["oke"]["endpoint"]) == ("v1.34.1", "private")
    assert list(found["oke"]["node_pools"]) == ["service"]
    assert found["pools"]["gpu"]["kind"] == "cluster_network"
    assert "service" not in found["pools"]
    here = local("oke")
    assert {name: pool.managed for name, pool in here.pools.items()} == {"service": True, "gpu": False}
