"""`control_plane: oke`: add-ons, managed pools, and what can't be combined with them."""

from __future__ import annotations

import pytest

from gpucluster import handover
from gpucluster.errors import InputError
from gpucluster.spec import loads
from tests.spec.spec_texts import MINIMAL

SELF = f"{MINIMAL}scheduler: kubernetes\n"
OKE = f"{SELF}kubernetes: {{control_plane: oke, release: 1.34.1}}\n"
CPU = "cpu: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 2, managed: true}"
MANAGED = OKE.replace("pools: {", f"pools: {{{CPU}, ")


def found(text: str) -> list[tuple[str, str]]:
    """The path and the message of each error of a file."""
    with pytest.raises(InputError) as caught:
        loads(text)
    return [(each.path, each.message) for each in caught.value.findings]


def test_a_managed_pool_is_a_node_pool_without_names_of_nodes() -> None:
    spec = loads(MANAGED)
    assert {name: pool.kind for name, pool in spec.pools.items()} == {"cpu": "node_pool", "compute": "cluster_network"}
    assert handover.permanent_names("cpu", spec.pools["cpu"]) == ()
    assert handover.permanent_names("compute", spec.pools["compute"]) == ("compute-1",)


@pytest.mark.parametrize("more", ["scheduler: slurm", "scheduler: none", "scheduler: kubernetes"])
def test_only_oke_manages_pools(more: str) -> None:
    ((path, message),) = found(MANAGED.replace(SELF.removeprefix(MINIMAL), "").partition("kubernetes:")[0] + more)
    assert (path, message) == ("pools.cpu.managed", "only OKE has node pools that it manages")


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("{shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32", "{shape: BM.GPU4.8", "managed", "BM.GPU4.8 has RDMA"),
        ("count: 2", "count: 1, max_count: 2", "max_count", "no pool of a cluster with control_plane oke is elastic"),
        ("count: 2", "count: 2, removed_nodes: [cpu-1]", "removed_nodes", "no such setting"),
        ("count: 2", "count: 2, boot_volume_vpus_per_gb: 20", "boot_volume_vpus_per_gb", "no such setting"),
        ("count: 2", "count: 2, rdma: false", "rdma", "no such setting"),
        ("managed: true", "managed: 1", "managed", "must be true or false"),
    ],
)
def test_what_a_managed_pool_can_not_have(old: str, new: str, path: str, words: str) -> None:
    ((where, message),) = found(MANAGED.replace(CPU, CPU.replace(old, new)))
    assert where == f"pools.cpu.{path}"
    assert words in message


def test_a_managed_pool_takes_no_image_of_a_listing() -> None:
    oci = "cloud: {provider: oci, region: us-ashburn-1, compartment_id: ocid1.compartment.oc1..a}\n"
    image = 'image: {operating_system: Oracle Linux, version: "8"}'
    text = MANAGED.replace("cloud: {provider: local}\n", oci).replace("count: ", f"{image}, count: ")
    text += f"controller: {{{image}}}\n"
    listing = "{listing: Oracle Linux - GPU Cluster Networking Image, login_user: opc}"
    where = [path for path, _ in found(text.replace(image, f"image: {listing}", 1))]
    assert "pools.cpu.image.listing" in where
    assert "pools.compute.image.listing" not in where


def test_an_image_of_oke_needs_no_user_to_log_in() -> None:
    image = "image: {ocid: ocid1.image.oc1.iad.okeimage}"
    spec = loads(MANAGED.replace("managed: true", f"managed: true, {image}"))
    assert spec.pools["cpu"].image.ocid == "ocid1.image.oc1.iad.okeimage"
    ((path, _),) = found(OKE.replace("count: 1", f"count: 1, {image}"))
    assert path == "pools.compute.image.login_user"


def with_addons(text: str) -> str:
    return OKE.replace("release: 1.34.1", f"release: 1.34.1, oke: {{addons: {text}}}")


def test_add_ons_have_a_version_or_the_one_that_oke_chooses() -> None:
    text = "{NvidiaGpuPlugin: null, CertManager: v1.17.2, CoreDNS: v1.12.1-3}"
    assert loads(with_addons(text)).kubernetes.oke.addons == {
        "NvidiaGpuPlugin": None,
        "CertManager": "v1.17.2",
        "CoreDNS": "v1.12.1-3",
    }


@pytest.mark.parametrize(
    ("addons", "path", "words"),
    [
        ("{nvidia-gpu-plugin: null}", ".nvidia-gpu-plugin", "is not the name of an add-on"),
        ("{NvidiaGpuOperator: null}", ".NvidiaGpuOperator", "brings a device plugin of its own"),
        ("{CertManager: 1.17.2}", ".CertManager", "must be a version of an add-on"),
        ("{CertManager: latest}", ".CertManager", "must be a version of an add-on"),
        ("{CertManager: 1}", ".CertManager", "must be text"),
        ("[CertManager]", "", "must be keys with values"),
    ],
)
def test_what_looks_like_no_add_on_is_refused(addons: str, path: str, words: str) -> None:
    ((where, message),) = found(with_addons(addons))
    assert where == f"kubernetes.oke.addons{path}"
    assert words in message


def test_a_public_endpoint_needs_a_public_subnet() -> None:
    public = OKE.replace("release: 1.34.1", "release: 1.34.1, oke: {endpoint: public}")
    assert loads(public).kubernetes.oke.endpoint == "public"
    closed = public.replace("public_subnet_cidr: 10.77.0.0/24", "access: bastion")
    ((path, message),) = found(closed)
    assert (path, "no public subnet" in message) == ("kubernetes.oke.endpoint", True)
