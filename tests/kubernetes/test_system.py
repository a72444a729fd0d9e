"""What gpucluster runs in a cluster for its hardware: valid for every shape, way to RDMA and release."""

from __future__ import annotations

import itertools
import json
import platform
import subprocess
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import yaml

from gpucluster import shapes
from gpucluster.kubernetes import images, manifests
from gpucluster.kubernetes.manifests import gpus, networks
from gpucluster.kubernetes.system import GpuSoftware, needed_images, system
from gpucluster.node_agent.rules.devices import NETWORKS
from gpucluster.shapes import GpuVendor, Shape
from tests.controller.kubernetes.api_server import ApiServer, needs_api_server, running
from tests.kubernetes.schemas import releases, validate, validate_all

ALL = list(shapes.catalogue().values())
MINORS = (20, 28, releases()[-1])


def _system(
    *names: str,
    minor: int = 36,
    access: str = "host",
    software: str = "device-plugin",
    emulated: bool = False,
    engine: bool = False,
    divided: bool = False,
) -> list[Any]:
    found = [shapes.get(name) for name in names]
    rdma = [shape for shape in found if shape.rdma]
    return system(
        found, rdma, minor=minor, software=cast("GpuSoftware", software),
        access=cast("networks.RdmaAccess", access), emulated=emulated, rdma_cidr="192.168.0.0/16", engine=engine,
        divided=divided,
    )  # fmt: skip


def _kinds(made: list[Any]) -> set[str]:
    return {f"{each['kind']} {each['metadata']['name']}" for each in made}


@pytest.mark.parametrize("access", get_args(networks.RdmaAccess))
def test_what_every_shape_gets_is_valid_for_every_release(access: str) -> None:
    for minor, software in itertools.product(MINORS, get_args(GpuSoftware)):
        validate_all(_system(*(shape.name for shape in ALL), minor=minor, access=access, software=software), oldest=20)


@pytest.mark.parametrize(("minor", "bound"), [(20, True), (24, True), (25, False)])
def test_pods_of_the_system_may_be_privileged_where_policies_decide(minor: int, bound: bool) -> None:
    assert ("RoleBinding gpucluster-privileged" in _kinds(_system("VM.Standard.E5.Flex", minor=minor))) == bound


def test_the_device_plugin_runs_on_nodes_of_its_maker_and_no_other() -> None:
    assert _kinds(_system("BM.GPU4.8", "VM.Standard.E5.Flex")) == {
        "Namespace gpucluster-system",
        "RuntimeClass nvidia",
        "DaemonSet nvidia-device-plugin",
    }
    both = _system("BM.GPU.MI300X.8", "BM.GPU.H100.8")
    selected = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["nodeSelector"]
        for each in both
        if each["kind"] == "DaemonSet"
    }
    assert selected == {
        "nvidia-device-plugin": {"gpucluster.io/gpu-vendor": "nvidia"},
        "amd-device-plugin": {"gpucluster.io/gpu-vendor": "amd"},
    }
    assert _kinds(_system("VM.Standard.E5.Flex")) == {"Namespace gpucluster-system"}


def test_the_plugin_tolerates_the_taints_of_its_nodes() -> None:
    """A taint that its pods do not tolerate would leave the node without GPUs for ever."""
    from gpucluster.kubernetes.labels import node_taints

    for shape in (shape for shape in ALL if shape.gpus):
        for each in _system(shape.name):
            if each["kind"] == "DaemonSet":
                tolerated = {one.get("key") for one in each["spec"]["template"]["spec"]["tolerations"]}
                assert {one["key"] for one in node_taints(shape)} <= tolerated


@pytest.mark.parametrize(("minor", "strategy"), [(20, "envvar"), (28, "envvar"), (29, "cdi-cri"), (37, "cdi-cri")])
def test_cdi_is_used_where_kubelet_passes_it_on(minor: int, strategy: str) -> None:
    plugin = next(each for each in _system("BM.GPU4.8", minor=minor) if each["kind"] == "DaemonSet")
    container = plugin["spec"]["template"]["spec"]["containers"][0]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["DEVICE_LIST_STRATEGY"] == strategy
    assert gpus.operator_values(minor, exporter=False)["cdi"]["enabled"] is (strategy == "cdi-cri")
    assert plugin["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"


def test_with_the_operator_only_amd_has_a_plugin_of_ours() -> None:
    assert _kinds(_system("BM.GPU4.8", software="operator")) == {"Namespace gpucluster-system"}
    assert "DaemonSet amd-device-plugin" in _kinds(_system("BM.GPU.MI300X.8", software="operator"))
    values = gpus.operator_values(36, exporter=True)
    assert (values["driver"]["enabled"], values["toolkit"]["enabled"]) == (False, False), "the image has both"
    assert values["dcgmExporter"]["enabled"] is True
    assert values["devicePlugin"]["version"] == images.software()["nvidia-device-plugin"].tag
    assert yaml.safe_load(yaml.safe_dump(values)) == values


def test_with_the_dra_driver_no_plugin_gives_away_the_same_gpus() -> None:
    assert _kinds(_system("BM.GPU4.8", software="dra-driver")) == {"Namespace gpucluster-system"}
    assert "DaemonSet amd-device-plugin" in _kinds(_system("BM.GPU.MI300X.8", software="dra-driver"))
    values = gpus.dra_driver_values(engine=False)
    # Its chart fails without the first; the second needs hosts with NVLink between them.
    assert values["gpuResourcesEnabledOverride"] is True
    assert (values["resources"]["gpus"]["enabled"], values["resources"]["computeDomains"]["enabled"]) == (True, False)
    entry = images.software()["dra-driver"]
    assert entry.chart is not None
    assert entry.tag == f"v{entry.chart.version}"
    assert entry.reference in needed_images([], ["nvidia"], software="dra-driver", exporter=False)
    assert needed_images([], ["amd"], software="dra-driver", exporter=False) == []
    (rule,) = _selected(values["kubeletPlugin"]["affinity"])
    assert rule == {"key": "gpucluster.io/gpu-vendor", "operator": "In", "values": ["nvidia"]}
    both = _selected(gpus.dra_driver_values(engine=True)["kubeletPlugin"]["affinity"])
    assert {"key": "gpucluster.io/host", "operator": "Exists"} in both
    assert yaml.safe_load(yaml.safe_dump(values)) == values
    # The parts of a pod in these values are those that Kubernetes has.
    plugin = values["kubeletPlugin"]
    pod = {"containers": [{"name": "gpus", "image": entry.reference}], **plugin}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": manifests.metadata("p", "default"), "spec": pod})


def test_in_kubernetes_engine_each_node_has_one_plugin() -> None:
    """Oracle's add-on, there from the beginning, leaves our hosts alone, and ours leaves the nodes that OKE manages."""
    (rule,) = _selected(gpus.on_hosts(ours=True))
    assert rule == {"key": "gpucluster.io/host", "operator": "Exists"}
    (rule,) = _selected(gpus.on_hosts(ours=False))
    assert rule == {"key": "gpucluster.io/host", "operator": "DoesNotExist"}
    for engine in (True, False):
        for each in _system("BM.GPU4.8", "BM.GPU.MI300X.8", engine=engine):
            if each["kind"] == "DaemonSet":
                affinity = each["spec"]["template"]["spec"].get("affinity")
                assert affinity == (gpus.on_hosts(ours=True) if engine else None)
                validate(each)


def _selected(affinity: dict[str, Any]) -> list[dict[str, str]]:
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return list(term["matchExpressions"])


def _settings(made: list[dict[str, Any]]) -> dict[str, str]:
    plugin = next(each for each in made if each["metadata"]["name"] == "nvidia-device-plugin" and "spec" in each)
    return {each["name"]: each["value"] for each in plugin["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_containers_with_gpus_may_open_the_rdma_devices_that_moved_into_their_pod_and_no_others() -> None:
    """With `host` they would be those of the node; virtual functions have a plugin of their own."""
    assert _settings(_system("BM.GPU4.8", access="device"))["MOFED_ENABLED"] == "true"
    for access in ("host", "sr-iov"):
        assert "MOFED_ENABLED" not in _settings(_system("BM.GPU4.8", access=access))
    assert "MOFED_ENABLED" not in _settings(_system("VM.GPU.A10.1", access="device"))
    values = gpus.operator_values(36, exporter=True, rdma=True)
    assert {"name": "MOFED_ENABLED", "value": "true"} in values["devicePlugin"]["env"]
    assert gpus.gives_rdma("device", [shapes.get("BM.GPU4.8")])
    assert not gpus.gives_rdma("device", [shapes.get("BM.GPU.MI300X.8")])


def test_instances_of_divided_gpus_have_resources_of_their_own() -> None:
    """With `single` the plugin does not start on a node that has two profiles, or whole GPUs beside divided ones."""
    assert _settings(_system("BM.GPU.H100.8"))["MIG_STRATEGY"] == "single"
    for minor in MINORS:
        made = _system("BM.GPU.H100.8", minor=minor, divided=True)
        assert _settings(made)["MIG_STRATEGY"] == "mixed"
        validate_all(made, oldest=20)
    values = gpus.operator_values(36, exporter=False, divided=True)
    assert (values["mig"]["strategy"], values["migManager"]["enabled"]) == ("mixed", False)
    assert gpus.operator_values(36, exporter=False)["migManager"]["enabled"] is True


def test_emulated_hardware_has_no_plugin_that_finds_nothing() -> None:
    for access in get_args(networks.RdmaAccess):
        assert _kinds(_system("BM.GPU4.8", access=access, emulated=True)) == {"Namespace gpucluster-system"}


@pytest.mark.parametrize("shape", [shape for shape in ALL if shape.rdma_pci_addresses], ids=lambda shape: shape.name)
def test_each_rdma_interface_of_a_shape_is_attached_by_its_place(shape: Shape) -> None:
    made = networks.attachments(shape, "192.168.0.0/16")
    configs = [json.loads(each["spec"]["config"]) for each in made]
    assert [config["plugins"][0]["pciBusID"] for config in configs] == list(shape.rdma_pci_addresses)
    for config in configs:
        moved, *chained = config["plugins"]
        assert (moved["type"], moved["ipam"]["type"]) == ("host-device", "whereabouts")
        assert [each["type"] for each in chained] == ["rdma", "tuning"]
        assert chained[0]["deviceID"] == moved["pciBusID"]
        assert chained[1]["mtu"] == 4220
    validate_all(made)
    asked = networks.pod_rdma("device", shape, privileged=False).annotations[NETWORKS].split(",")
    assert asked == [f"gpucluster-system/{each['metadata']['name']}" for each in made]


@pytest.mark.parametrize(("name", "count"), [("BM.GPU4.8", 16), ("BM.GPU.H100.8", 16), ("BM.GPU.H200.8", 8)])
def test_virtual_functions_of_a_shape(name: str, count: int) -> None:
    policy = next(each for each in _system(name, access="sr-iov") if each["kind"] == "SriovNetworkNodePolicy")
    spec = policy["spec"]
    assert (spec["mtu"], spec["numVfs"], spec["externallyManaged"]) == (4220, 1, True)
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": name}
    assert len(spec["nicSelector"]["rootDevices"]) == count
    asked = networks.pod_rdma("sr-iov", shapes.get(name), privileged=False)
    assert asked.container["resources"]["limits"] == {"nvidia.com/rdma-vf": str(count)}
    assert len(asked.annotations[NETWORKS].split(",")) == count
    assert not asked.privileged
    values = networks.network_operator_values()
    assert values["sriovNetworkOperator"]["enabled"] is True


def test_shapes_of_other_makers_have_no_policy_of_nvidias_operator() -> None:
    assert not networks.has_virtual_functions(shapes.get("BM.GPU.MI355X.8"))
    assert networks.virtual_functions([shapes.get("BM.GPU.MI355X.8")], "192.168.0.0/16") == []


@pytest.mark.parametrize("access", get_args(networks.RdmaAccess))
@pytest.mark.parametrize("name", ["BM.GPU4.8", "BM.GPU.A10.4"])
@pytest.mark.parametrize("privileged", [True, False])
def test_a_pod_with_rdma_is_valid(access: str, name: str, privileged: bool) -> None:
    need = networks.pod_rdma(cast("networks.RdmaAccess", access), shapes.get(name), privileged=privileged)
    container = {"name": "work", "image": "example.org/nccl:1", **need.container}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": manifests.metadata("p", "default", annotations=need.annotations),
        "spec": {**need.spec, "containers": [container], "volumes": list(need.volumes)},
    }
    validate(pod)
    more_rights = privileged and name == "BM.GPU4.8"
    assert ("hostNetwork" in need.spec) is (access == "host" and more_rights)
    assert need.privileged is (access != "sr-iov" and more_rights)


def test_the_archive_has_every_image_of_the_objects() -> None:
    made = _system("BM.GPU4.8", access="device")
    needed = needed_images(made, ["nvidia"], software="device-plugin", exporter=False)
    assert needed == sorted(
        images.reference(name) for name in ("multus", "nvidia-device-plugin", "rdma-cni", "whereabouts")
    )
    operator = needed_images(_system("BM.GPU4.8", software="operator"), ["nvidia"], software="operator", exporter=True)
    assert images.reference("dcgm-exporter") in operator
    script = images.archive_script(needed, "1.36.4", "x86_64", calico=True)
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert all(f"echo {image} >> images" in script for image in needed)
    assert "--output=kubernetes-images-1.36.4-x86_64.tar" in script
    assert "calico" not in images.archive_script(needed, "1.36.4", "aarch64", calico=False)


_KUBEADM = """#!/bin/sh
[ "$*" = "config images list --kubernetes-version 1.36.4" ] || exit 64
printf 'registry.example/%s:1\\n' kube-apiserver kube-proxy etcd/etcd pause
"""
_PODMAN = """#!/bin/sh
echo "$*" >> "$0.log"
case $1 in save) for word; do case $word in --output=*) echo archive > "${word#*=}" ;; esac; done ;; esac
"""


def _mirror(folder: Path, *, kubeadm: str) -> dict[str, str]:
    """Programs that stand in for those that need a network, and for the real kubeadm."""
    (folder / "bin").mkdir(parents=True)
    for path, text in ((folder / "bin" / "podman", _PODMAN), (folder / kubeadm, _KUBEADM)):
        path.write_text(text)
    (folder / "bin" / "podman").chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}


@pytest.mark.parametrize("control_plane", [True, False])
def test_the_archive_is_made_with_the_kubeadm_of_the_mirror(tmp_path: Path, control_plane: bool) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    environment = _mirror(tmp_path, kubeadm=f"kubeadm-1.36.4-linux-{machine}")
    script = images.archive_script(["quay.io/a/b:2"], "1.36.4", "x86_64", calico=False, control_plane=control_plane)
    subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, check=True)
    saved = (tmp_path / "bin" / "podman.log").read_text().splitlines()[-1].split()
    parts = ["etcd/etcd", "kube-apiserver"] if control_plane else []
    expected = sorted(f"registry.example/{name}:1" for name in (*parts, "kube-proxy", "pause"))
    assert sorted(word for word in saved if ":" in word) == ["quay.io/a/b:2", *expected]
    assert (tmp_path / "SHA256SUMS").read_text().endswith("kubernetes-images-1.36.4-x86_64.tar\n")


def test_no_archive_is_made_where_there_is_no_kubeadm(tmp_path: Path) -> None:
    environment = _mirror(tmp_path, kubeadm="kubeadm-of-another-release")
    script = images.archive_script(["quay.io/a/b:2"], "1.36.4", "x86_64", calico=False)
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "kubeadm" in done.stderr
    assert not list(tmp_path.glob("*.tar"))


def test_every_image_has_a_version_and_a_source_and_is_used_once() -> None:
    entries = images.software().values()
    assert len({entry.image for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.tag not in ("latest", "snapshot")
        assert entry.source
        assert entry.image.count("/") >= 2, "the whole name: an archive keeps no short ones"


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_real_api_server_of_1_20_takes_them_all(tmp_path: Path) -> None:
    with running(tmp_path, "--allow-privileged=true") as server:  # as kubeadm starts it
        made = _system(*(shape.name for shape in ALL), minor=20, access="device")
        _apply(server, [each for each in made if each["kind"] in ("Namespace", "CustomResourceDefinition")])
        server.kubectl.run("wait", "--for=condition=Established", "--all", "crd")
        said = _apply(server, made, "--dry-run=server")
        assert len(said.splitlines()) == len(made)


def _apply(server: ApiServer, made: list[Any], *words: str) -> str:
    return server.kubectl.run("apply", "--filename=-", *words, text=manifests.to_json(made))


def test_vendors_are_those_of_the_catalogue() -> None:
    assert {shape.gpu_vendor for shape in ALL} == set(get_args(GpuVendor))
