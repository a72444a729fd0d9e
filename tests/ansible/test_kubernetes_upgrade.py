"""What the role kubernetes does in an upgrade, and what it leaves to one: expressions, and the order of tasks."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.ansible.loading import read, tasks_of
from tests.ansible.render import evaluate, render, variables

ROLE = read("roles/kubernetes/vars/main.yml")
TASKS = "roles/kubernetes/tasks"


def named(file: str, name: str) -> dict[str, Any]:
    """One task."""
    (found,) = (task for task in tasks_of(read(f"{TASKS}/{file}.yml")) if task["name"] == name)
    return found


def names(file: str) -> list[str]:
    return [task["name"] for task in tasks_of(read(f"{TASKS}/{file}.yml"))]


def node(version: str) -> str:
    return json.dumps({"status": {"nodeInfo": {"kubeletVersion": version}}})


@pytest.mark.parametrize(
    ("in_api", "authority", "fine"),
    [
        (node("v1.34.2"), "ours", True),
        (node("v1.33.1"), "ours", False),
        # A machine that joins gets the release at once, whatever the one before it had.
        (node("v1.33.1"), "", True),
        (node("v1.33.1"), "another", True),
        ("", "", True),
    ],
)
def test_apply_leaves_a_node_alone_whose_release_is_another_one(in_api: str, authority: str, fine: bool) -> None:
    known = {
        **ROLE,
        "kubernetes_release": "1.34.2",
        "kubernetes_object": {"stdout": in_api},
        "kubernetes_known": {"stdout": f"{authority}\n"},
        "kubernetes_authority": "ours",
    }
    condition = named("self_node", "Check that kubelet has this release")["ansible.builtin.assert"]["that"]
    assert evaluate("{{ " + condition + " }}", known) is fine
    # Before anything of the new release is installed.
    order = names("self_node")
    assert order.index("Check that kubelet has this release") < order.index("Install the programs and the runtime")


def test_kubelet_and_kubectl_stay_until_the_control_plane_has_the_new_release() -> None:
    task = named("host", "Install the programs")
    paths = {name: f"/opt/{name}-1.34.2-linux-amd64" for name in ("kubectl", "kubelet", "kubeadm")}
    prepare = named("upgrade_prepare", "Bring kubeadm and the images of the new release")["vars"]
    installed = {}
    for step, given in (("prepare", prepare), ("node", {})):
        known = {**ROLE, **task["vars"], **given, "kubernetes_programs": {"paths": paths}, "os_package_manager": "apt"}
        files = evaluate(task["gpucluster_service"]["files"], known)
        installed[step] = {file["path"]: file.get("copy_of") or file["link"] for file in files}
    crictl = {"/usr/local/bin/crictl": "/opt/gpucluster/cri-tools/crictl"}
    assert installed["prepare"] == {"/usr/local/bin/kubeadm": paths["kubeadm"], **crictl}
    assert installed["node"] == {f"/usr/local/bin/{name}": path for name, path in paths.items()} | crictl


def test_the_cluster_has_the_configuration_of_the_new_release_before_kubeadm_reads_it() -> None:
    order = names("upgrade_control_plane")
    assert order.index("Store the configuration in the cluster") < order.index("Upgrade the control plane")
    # That of kubelet, too: a release may refuse what it was told before.
    stored = named("upgrade_control_plane", "Store the configuration in the cluster")["ansible.builtin.command"]["argv"]
    assert stored[1:5] == ["init", "phase", "upload-config", "all"]
    # What an interrupted run has left is not recorded as complete.
    assert order[-2:] == ["Wait until it answers without a break", "Record the release of the control plane"]


def test_a_step_on_the_controller_ends_when_the_api_server_has_no_more_breaks() -> None:
    order = names("upgrade_node")
    assert order.index("Run the new kubelet") < order.index("Wait until the control plane answers without a break")
    assert order[-1] == "Wait until the control plane answers without a break"
    assert named("upgrade_node", order[-1])["when"] == "kubernetes_on_controller"
    (waits,) = read(f"{TASKS}/upgrade_await.yml")
    assert waits["ansible.builtin.command"]["argv"][1:] == ["kubernetes", "await"]


@pytest.mark.parametrize(
    ("marker", "on_controller", "again"),
    [("v1.33.1\n", True, True), ("v1.34.2\n", True, False), ("v1.33.1\n", False, False)],
)
def test_an_interrupted_upgrade_of_the_control_plane_is_ended(marker: str, on_controller: bool, again: bool) -> None:
    condition = named("upgrade_node", "End an interrupted upgrade of the control plane")["when"]
    known = {
        "kubernetes_on_controller": on_controller,
        "kubernetes_made": {"content": base64.b64encode(marker.encode()).decode()} if on_controller else {},
        "kubernetes_release": "1.34.2",
    }
    assert evaluate("{{ " + condition + " }}", known) is again


@pytest.mark.parametrize(
    ("release", "api", "admission"),
    [
        ("1.24.17", "v1beta3", "NodeRestriction,PodSecurityPolicy,DenyServiceExternalIPs"),
        ("1.25.1", "v1beta3", "NodeRestriction,DenyServiceExternalIPs"),
        ("1.31.0", "v1beta4", "NodeRestriction,DenyServiceExternalIPs"),
    ],
)
def test_the_configuration_follows_the_release(release: str, api: str, admission: str) -> None:
    known = {
        **variables(role="kubernetes"),
        "kubernetes_release": release,
        "private_ip": "10.0.0.2",
        "kubernetes_endpoint": "c:6443",
    }
    text = render("kubernetes", "kubeadm.yaml", known)
    assert f"kubernetesVersion: v{release}" in text
    assert f"apiVersion: kubeadm.k8s.io/{api}" in text
    assert admission in text
