"""Plugins that give GPUs to pods: on which nodes, for which makers, and with which software of others."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpucluster import shapes
from gpucluster.kubernetes import images, manifests
from gpucluster.kubernetes.manifests import gpus
from gpucluster.kubernetes.system import needed_images
from tests.kubernetes.schemas import validate, validate_all
from tests.kubernetes.test_system import ALL, MINORS, _kinds, _system


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
