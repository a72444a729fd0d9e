"""The role kubernetes: kubeadm's configuration for each of its API versions, and the runtime of each kind of host."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml

from tests.ansible.loading import ANSIBLE
from tests.ansible.render import CONTROLLER, evaluate, host_facts, render, variables

KUBERNETES: dict[str, Any] = {
    "scheduler": "kubernetes",
    "kubernetes_network": "routes",
    "kubernetes_pod_cidr": "10.244.0.0/16",
    "kubernetes_service_cidr": "10.96.0.0/16",
    "private_ip": "10.0.0.2",
}
CONTAINER = host_facts() | {
    "container": "podman",
    "can_raise_limits": False,
    "cgroup": {"version": 1},
    "nvidia_gpus": 0,
}
MACHINE = host_facts() | {"nvidia_gpus": 8}


def known(release: str, facts: dict[str, Any], host: str = CONTROLLER, **more: Any) -> dict[str, Any]:
    return variables(
        KUBERNETES | {"kubernetes_release": release} | more, role="kubernetes", host=host, facts=facts
    )  # fmt: skip


def documents(text: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.mark.parametrize(
    ("release", "api", "socket"),
    [
        ("1.20.2", "v1beta2", "/run/containerd/containerd.sock"),
        ("1.22.0", "v1beta3", "/run/containerd/containerd.sock"),
        ("1.30.1", "v1beta3", "unix:///run/containerd/containerd.sock"),
        ("1.36.4", "v1beta4", "unix:///run/containerd/containerd.sock"),
    ],
)
def test_each_release_gets_the_api_of_its_kubeadm(release: str, api: str, socket: str) -> None:
    made = documents(render("kubernetes", "kubeadm.yaml", known(release, MACHINE)))
    first, cluster = made["InitConfiguration"], made["ClusterConfiguration"]
    assert {first["apiVersion"], cluster["apiVersion"]} == {f"kubeadm.k8s.io/{api}"}
    assert first["nodeRegistration"]["criSocket"] == socket
    assert cluster["kubernetesVersion"] == f"v{release}"
    assert cluster["controlPlaneEndpoint"] == f"{CONTROLLER}:6443"
    # From v1beta4 on arguments are a list, because an option may come twice.
    assert isinstance(cluster["apiServer"]["extraArgs"], list) == (api == "v1beta4")
    assert isinstance(first["nodeRegistration"]["kubeletExtraArgs"], list) == (api == "v1beta4")


@pytest.mark.parametrize(
    ("release", "plugins"),
    [
        ("1.20.2", "NodeRestriction,PodSecurityPolicy"),
        ("1.24.9", "NodeRestriction,PodSecurityPolicy,DenyServiceExternalIPs"),
        ("1.25.0", "NodeRestriction,DenyServiceExternalIPs"),
    ],
)
def test_policies_are_enforced_by_what_the_release_has(release: str, plugins: str) -> None:
    cluster = documents(render("kubernetes", "kubeadm.yaml", known(release, MACHINE)))["ClusterConfiguration"]
    assert cluster["apiServer"]["extraArgs"]["enable-admission-plugins"] == plugins


def test_a_container_as_host_gets_what_it_needs_and_a_machine_does_not() -> None:
    here = documents(render("kubernetes", "kubeadm.yaml", known("1.20.2", CONTAINER)))
    there = documents(render("kubernetes", "kubeadm.yaml", known("1.20.2", MACHINE)))
    assert here["KubeProxyConfiguration"]["conntrack"]["maxPerCore"] == 0
    assert "conntrack" not in there["KubeProxyConfiguration"]
    assert here["KubeletConfiguration"]["cgroupDriver"] == "cgroupfs"
    assert there["KubeletConfiguration"]["cgroupDriver"] == "systemd"
    assert ("evictionHard" in here["KubeletConfiguration"], "evictionHard" in there["KubeletConfiguration"]) == (
        True,
        False,
    )
    ignored = evaluate("{{ kubernetes_ignored_checks }}", known("1.20.2", MACHINE, host="compute-1"))
    assert ignored == ["Swap"]


def test_the_runtime_of_a_node_with_gpus_is_nvidias_and_its_groups_are_those_of_kubelet() -> None:
    pause = {"kubernetes_pause": "registry.k8s.io/pause:3.10"}
    machine = tomllib.loads(render("kubernetes", "containerd.toml", known("1.36.4", MACHINE) | pause))
    container = tomllib.loads(render("kubernetes", "containerd.toml", known("1.20.2", CONTAINER) | pause))
    of_machine = machine["plugins"]["io.containerd.grpc.v1.cri"]
    of_container = container["plugins"]["io.containerd.grpc.v1.cri"]
    assert of_machine["sandbox_image"] == "registry.k8s.io/pause:3.10"
    assert of_machine["containerd"]["default_runtime_name"] == "nvidia"
    assert all(each["options"]["SystemdCgroup"] for each in of_machine["containerd"]["runtimes"].values())
    assert of_container["containerd"]["default_runtime_name"] == "runc"
    assert not of_container["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"]
    assert (of_container["restrict_oom_score_adj"], "restrict_oom_score_adj" in of_machine) == (True, False)


def test_a_token_is_in_the_file_for_kubeadm_and_nowhere_else() -> None:
    given = known("1.36.4", MACHINE, host="compute-1") | {"kubernetes_token": {"stdout": "abcdef.0123456789abcdef\n"}}
    given["hostvars"][CONTROLLER]["kubernetes_authority_read"] = {"stdout": "f" * 64 + "\n"}
    made = documents(render("kubernetes", "join.yaml", given))["JoinConfiguration"]
    assert made["discovery"]["bootstrapToken"] == {
        "apiServerEndpoint": f"{CONTROLLER}:6443",
        "token": "abcdef.0123456789abcdef",
        "caCertHashes": ["sha256:" + "f" * 64],
    }


def test_pods_may_lock_the_memory_that_rdma_pins() -> None:
    text = (ANSIBLE / "roles" / "kubernetes" / "tasks" / "host.yml").read_text()
    (task,) = (
        each
        for task in yaml.safe_load(text)
        for each in task.get("block", ())
        if each["name"] == "Configure the kernel, the runtime and kubelet"
    )
    files = task["gpucluster_service"]["files"]
    limits = evaluate("{{ kubernetes_containerd_limits }}", known("1.20.2", MACHINE))
    assert limits.startswith("/etc/systemd/system/containerd.service.d/")
    (written,) = [each["content"] for each in files if "kubernetes_containerd_limits" in each["path"]]
    assert written == "[Service]\nLimitMEMLOCK=infinity\n"
    assert text.count("kubernetes_containerd_limits") == 2, "containerd follows the file"
