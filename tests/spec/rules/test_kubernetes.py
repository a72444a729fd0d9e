"""`scheduler` and the section `kubernetes`: one field decides, and what contradicts it is refused."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import loads
from tests.spec import unbuilt_shapes
from tests.spec.spec_texts import KEY, MINIMAL

KUBERNETES = MINIMAL + "scheduler: kubernetes\n"


def found(text: str) -> list[tuple[str, str]]:
    """The path and the message of each error of a file."""
    with pytest.raises(InputError) as caught:
        loads(text)
    return [(each.path, each.message) for each in caught.value.findings]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ("slurm", True, True)),
        ("slurm: {enabled: true}", ("slurm", True, True)),
        ("slurm: {enabled: false}", ("none", False, False)),
        ("slurm: {enabled: false, accounting: false}", ("none", False, False)),
        ("scheduler: none", ("none", False, False)),
        ("scheduler: none\nslurm: {enabled: false}", ("none", False, False)),
        ("scheduler: kubernetes", ("kubernetes", False, True)),
        ("scheduler: kubernetes\nslurm: {enabled: false}", ("kubernetes", False, True)),
    ],
)
def test_one_field_decides_and_an_earlier_file_means_what_it_meant(more: str, expected: tuple[str, bool, bool]) -> None:
    spec = loads(f"{MINIMAL}{more}\n")
    assert (spec.scheduler, spec.slurm.enabled, spec.storage.home.enabled) == expected


@pytest.mark.parametrize(
    ("more", "path", "words"),
    [
        ("scheduler: slurm\nslurm: {enabled: false}", "slurm.enabled", "is false, but scheduler is slurm"),
        ("scheduler: kubernetes\nslurm: {enabled: true}", "slurm.enabled", "is true, but scheduler is kubernetes"),
        ("scheduler: kubernetes\nslurm: {accounting: true}", "slurm.accounting", "has no effect"),
        ("scheduler: none\nslurm: {private: true}", "slurm.private", "has no effect"),
        ("kubernetes: {}", "kubernetes", "has no effect with scheduler slurm"),
        ("slurm: {enabled: false}\nkubernetes: {rdma: host}", "kubernetes", "has no effect with scheduler none"),
        ("scheduler: nomad", "scheduler", "must be slurm or kubernetes or none"),
        ("scheduler: kubernetes\ncontainers: {runtimes: [enroot]}", "containers.runtimes[0]", "is kubernetes"),
    ],
)
def test_a_file_that_contradicts_its_scheduler_is_refused(more: str, path: str, words: str) -> None:
    ((where, message),) = found(f"{MINIMAL}{more}\n")
    assert where == path
    assert words in message


def test_a_release_that_the_network_of_pods_does_not_know_is_refused_before_anything_is_made() -> None:
    old = f"{KUBERNETES}kubernetes: {{release: 1.28.15}}\n"
    ((path, message),) = found(old)
    assert (path, "this release's Calico begins" in message) == ("kubernetes.release", True)
    assert loads(f"{KUBERNETES}kubernetes: {{release: 1.29.0}}\n").kubernetes.network == "calico"
    # A user who names a Calico knows which releases it supports.
    assert loads(f"{old}software: {{versions: {{calico: 3.27.4}}}}\n").kubernetes.release == "1.28.15"


@pytest.mark.parametrize(
    "image",
    [
        '{operating_system: Oracle Linux, version: "9"}',
        "{listing: Oracle Linux - GPU Cluster Networking Image, login_user: opc}",
    ],
)
def test_the_containerd_for_oracle_linux_speaks_no_version_of_cri_that_old_kubelets_have(image: str) -> None:
    cloud = "cloud: {provider: oci, region: us-ashburn-1, compartment_id: ocid1.compartment.oc1..a}"
    machines = f"{cloud}\nssh: {{public_keys: [{KEY}]}}"
    text = KUBERNETES.replace("cloud: {provider: local}", machines)
    text += 'controller: {image: {operating_system: Canonical Ubuntu, version: "24.04"}}\n'
    text += "software: {versions: {calico: 3.20.6}}\n"
    text = text.replace("count: 1", f"count: 1, image: {image}") + "kubernetes: {release: 1.RELEASE.0}\n"
    ((path, message),) = found(text.replace("RELEASE", "22"))
    assert (path, "(pools.compute)" in message) == ("kubernetes.release", True)
    assert loads(text.replace("RELEASE", "23")).kubernetes.release == "1.23.0"


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        ("pod_cidr: 10.244.0.0", "pod_cidr", "must be a network with its prefix"),
        ("pod_cidr: 169.254.0.0/16", "pod_cidr", "link-local"),
        ("pod_cidr: 10.244.0.0/24", "pod_cidr", "is a /24 for 1 host; the cluster has 2"),
        ("pod_cidr: 10.0.0.0/8, service_cidr: 172.20.0.0/16", "pod_cidr", "overlaps network.vcn_cidr 10.77.0.0/16"),
        ("pod_cidr: 192.168.128.0/17", "pod_cidr", "overlaps network.rdma_cidr 192.168.0.0/16"),
        ("service_cidr: 10.77.8.0/22", "service_cidr", "overlaps network.vcn_cidr"),
        ("service_cidr: 10.244.128.0/20", "service_cidr", "overlaps pod_cidr 10.244.0.0/16"),
        ("service_cidr: 10.96.0.0/11, pod_cidr: 172.20.0.0/16", "service_cidr", "between /12 and /24; got /11"),
        ("service_cidr: 10.96.0.0/25", "service_cidr", "between /12 and /24; got /25"),
        ("oke: {endpoint: public}", "oke", "has no effect with control_plane self"),
        ("kubeconfig_hours: 0", "kubeconfig_hours", "at least 1"),
        ("user_quota: {gpus: 0}", "user_quota.gpus", "at least 1"),
    ],
)
def test_what_the_section_can_not_have(section: str, path: str, words: str) -> None:
    ((where, message),) = found(f"{KUBERNETES}kubernetes: {{{section}}}\n")
    assert where == f"kubernetes.{path}"
    assert words in message


@pytest.mark.parametrize(
    ("shape", "access", "words"),
    [
        ("BM.GPU.GB200.4", "device", "no source states where"),
        ("BM.GPU.MI355X.8", "sr-iov", "no source states where"),
        ("BM.GPU.GM4.8", "sr-iov", "no source states where"),
    ],
)
def test_a_way_to_rdma_that_a_shape_does_not_have(
    shape: str, access: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbuilt_shapes.allow(monkeypatch)
    text = KUBERNETES.replace("BM.GPU4.8", shape)
    ((path, message),) = found(f"{text}kubernetes: {{rdma: {access}}}\n")
    assert (path, words in message) == ("kubernetes.rdma", True)
    assert loads(f"{text}kubernetes: {{rdma: host}}\n").kubernetes.rdma == "host"


@pytest.mark.parametrize("access", ["device", "sr-iov"])
def test_pods_and_hosts_do_not_share_the_addresses_of_rdma(access: str) -> None:
    text = f"{KUBERNETES}kubernetes: {{rdma: {access}}}\n"
    assert loads(text).kubernetes.rdma == access
    ((path, message),) = found(text.replace("count: 1", "count: 1, rdma_addressing: cloud-init"))
    assert (path, "are for pods" in message) == ("pools.compute.rdma_addressing", True)


def test_pods_may_have_the_default_range_of_rdma_where_no_shape_has_rdma() -> None:
    text = KUBERNETES.replace("shape: BM.GPU4.8", "shape: VM.Standard.E5.Flex, ocpus: 8, memory_gb: 64")
    assert loads(f"{text}kubernetes: {{pod_cidr: 192.168.0.0/16}}\n").kubernetes.pod_cidr == "192.168.0.0/16"


def test_ranges_are_apart_from_the_containers_of_docker_and_from_the_file_server() -> None:
    pods = f"{KUBERNETES}kubernetes: {{pod_cidr: 198.18.0.0/16}}\n"
    assert loads(pods).kubernetes.pod_cidr == "198.18.0.0/16"
    ((path, message),) = found(f"{pods}containers: {{runtimes: [docker]}}\n")
    assert (path, "container networks" in message) == ("kubernetes.pod_cidr", True)
    ((path, message),) = found(f"{KUBERNETES}storage: {{home: {{server: 10.96.0.7}}}}\n")
    assert (path, "storage.home.server" in message) == ("kubernetes.service_cidr", True)


def test_routes_are_for_the_local_cloud() -> None:
    routes = f"{KUBERNETES}kubernetes: {{network: routes}}\n"
    assert loads(routes).kubernetes.network == "routes"
    on_oci = "cloud: {provider: oci, region: us-ashburn-1, compartment_id: ocid1.tenancy.oc1..aaaa}"
    messages = dict(found(routes.replace("cloud: {provider: local}", on_oci)))
    assert "carries any address" in messages["kubernetes.network"]


def test_pools_are_elastic_unless_their_nodes_must_boot_twice() -> None:
    elastic = KUBERNETES.replace("count: 1", "count: 0, max_count: 2")
    assert next(iter(loads(elastic).elastic_pools.values())).elastic_count == 2
    ((path, message),) = found(f"{elastic}kubernetes: {{rdma: device}}\n")
    assert path.endswith(".max_count")
    assert "second boot" in message
