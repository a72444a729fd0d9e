"""The role kubernetes: kubeadm's configuration for each of its API versions, and the runtime of each kind of host."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucluster import shapes
from gpucluster.kubernetes.labels import node_labels, node_taints
from gpucluster.node_agent.kubernetes import routes
from tests.ansible.loading import ANSIBLE, read, tasks_of
from tests.ansible.render import CONTROLLER, evaluate, host_facts, render, variables
from tests.kubernetes.schemas import validate_all

KUBERNETES: dict[str, Any] = {
    "kubernetes_control_plane": "self",
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


def known(
    release: str, facts: dict[str, Any], host: str = CONTROLLER, system: str = "Debian-13", **more: Any
) -> dict[str, Any]:
    given = KUBERNETES | {"kubernetes_release": release} | more
    return variables(given, role="kubernetes", host=host, facts=facts, system=system)


def host_task(name: str) -> dict[str, Any]:
    """A task of host.yml."""
    (found,) = (each for each in tasks_of(read("roles/kubernetes/tasks/host.yml")) if each["name"] == name)
    return dict(found)


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
    files = task["vars"]["kubernetes_host_files"]
    limits = evaluate("{{ kubernetes_containerd_limits }}", known("1.20.2", MACHINE))
    assert limits.startswith("/etc/systemd/system/containerd.service.d/")
    (written,) = [each["content"] for each in files if "kubernetes_containerd_limits" in each["path"]]
    assert written == "[Service]\nLimitMEMLOCK=infinity\n"
    assert text.count("kubernetes_containerd_limits") == 2, "containerd follows the file"


ORACLE_8 = MACHINE | {"system": "OracleLinux-8", "cgroup": {"version": 1}, "kernel": "4.18.0-553.el8_10.x86_64"}


def test_kubelet_and_the_runtimes_of_all_nodes_agree_on_control_groups() -> None:
    """kubelet's configuration is one for the cluster, made on the controller; containerd's is each node's."""
    of_controller = documents(render("kubernetes", "kubeadm.yaml", known("1.30.1", MACHINE)))["KubeletConfiguration"]
    of_node = known("1.30.1", ORACLE_8, host="compute-1", system="OracleLinux-8", kubernetes_pause="pause:3")
    runtimes = tomllib.loads(render("kubernetes", "containerd.toml", of_node))["plugins"]["io.containerd.grpc.v1.cri"]
    assert of_controller["cgroupDriver"] == "systemd"
    assert all(each["options"]["SystemdCgroup"] for each in runtimes["containerd"]["runtimes"].values())


@pytest.mark.parametrize(("release", "said"), [("1.30.9", None), ("1.31.0", False), ("1.36.4", False)])
def test_a_node_with_version_1_of_control_groups_is_not_a_reason_for_kubelet_to_end(release: str, said: Any) -> None:
    made = documents(render("kubernetes", "kubeadm.yaml", known(release, MACHINE)))["KubeletConfiguration"]
    # Older kubelets do not know the field.
    assert made.get("failCgroupV1") is said


def test_what_kubeadm_finds_on_oracle_linux_is_ignored_and_on_ubuntu_is_not() -> None:
    oracle = known("1.36.4", ORACLE_8, host="compute-1", system="OracleLinux-8")
    assert evaluate("{{ kubernetes_ignored_checks }}", oracle) == ["Swap", "SystemVerification"]


def test_oracle_linux_gets_containerd_of_the_bundle_and_plugins_beside_those_that_manifests_install() -> None:
    more = {"kubernetes_pause": "pause:3", "kubernetes_network": "calico"}
    given = known("1.36.4", ORACLE_8, host="compute-1", system="OracleLinux-8", **more)
    task = host_task("Configure the kernel, the runtime and kubelet")
    plugins = evaluate(task["vars"]["kubernetes_plugin_files"], given)
    by_path = {each["path"]: each for each in plugins}
    assert (
        by_path["/opt/cni/bin/host-device"]["copy_of"] == "/opt/gpucluster/kubernetes-runtime/libexec/cni/host-device"
    )
    # Calico's manifest brings these, of its own version: the two would replace each other in every run.
    assert not {"/opt/cni/bin/" + name for name in ("loopback", "portmap", "host-local", "bandwidth")} & set(by_path)
    config = tomllib.loads(render("kubernetes", "containerd.toml", given))["plugins"]["io.containerd.grpc.v1.cri"]
    assert config["cni"]["bin_dir"] == "/opt/cni/bin"
    unit = render("kubernetes", "containerd.service", given)
    assert "ExecStart=/opt/gpucluster/kubernetes-runtime/bin/containerd\n" in unit
    assert "Environment=PATH=/opt/gpucluster/kubernetes-runtime/bin:" in unit
    (units,) = [evaluate(task["gpucluster_service"]["units"], given | task["vars"])]
    (containerd,) = (each for each in units if each["name"] == "containerd")
    assert {"/etc/systemd/system/containerd.service", "/opt/gpucluster/kubernetes-runtime/.gpucluster-sha256"} <= set(
        containerd["follows"]
    )
    assert {
        "name": "NetworkManager",
        "reload": True,
        "follows": [evaluate("{{ kubernetes_unmanaged_file }}", given)],
    } in units
    here = known("1.36.4", MACHINE)
    assert evaluate("{{ kubernetes_is_bundled }}", given) is True
    assert evaluate("{{ kubernetes_is_bundled }}", here) is False
    assert "NetworkManager" not in {
        each["name"] for each in evaluate(task["gpucluster_service"]["units"], here | task["vars"])
    }


def test_a_host_without_calico_has_the_plugins_that_flannel_and_containerd_call() -> None:
    """flannel's manifest brings flannel: its network is bridge with addresses of host-local, and portmap after it."""
    task = host_task("Configure the kernel, the runtime and kubelet")
    for name in ("compute-1", CONTROLLER):
        given = known("1.34.2", ORACLE_8, host=name, system="OracleLinux-8", kubernetes_control_plane="oke")
        brought = {Path(each["path"]).name for each in evaluate(task["vars"]["kubernetes_plugin_files"], given)}
        assert {"bridge", "host-local", "loopback", "portmap", "bandwidth", "tuning", "host-device"} <= brought


def test_kubeadm_finds_its_programs_where_sudo_leaves_their_folder_out() -> None:
    """Oracle Linux: secure_path of /etc/sudoers is /sbin:/bin:/usr/sbin:/usr/bin."""
    tasks = [
        task
        for file in sorted((ANSIBLE / "roles" / "kubernetes" / "tasks").glob("*.yml"))
        for task in tasks_of(yaml.safe_load(file.read_text()))
        if "/usr/local/bin/kubeadm" in (task.get("ansible.builtin.command") or {}).get("argv", ())
    ]
    assert len(tasks) >= 9
    lacking = [task["name"] for task in tasks if task.get("environment") != "{{ kubernetes_environment }}"]
    assert not lacking
    path = evaluate("{{ kubernetes_environment.PATH }}", known("1.36.4", MACHINE)).split(":")
    assert {"/usr/local/bin", "/usr/sbin"} <= set(path)


def test_containerd_has_the_template_of_routes_and_none_beside_another_network() -> None:
    given = {"kubernetes_pause": "registry.k8s.io/pause:3.10"}
    for network, template in (("routes", routes.TEMPLATE), ("calico", None)):
        text = render("kubernetes", "containerd.toml", known("1.36.4", CONTAINER, kubernetes_network=network) | given)
        cni = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]["cni"]
        assert cni.get("conf_template") == template
        # containerd writes 10-containerd-net.conflist there (internal/cri/server of 1.7).
        assert f"{cni['conf_dir']}/10-containerd-net.conflist" == routes.CONFIGURATION


@pytest.mark.parametrize(("toolkit", "goes_on"), [(True, True), (False, False)])
def test_a_node_whose_gpus_no_pod_can_have_is_named_before_it_joins(toolkit: bool, goes_on: bool) -> None:
    given = known("1.36.4", MACHINE, host="compute-1")
    given["ansible_facts"] = given["ansible_facts"] | {"gpucluster_nvidia": {"toolkit": toolkit}}
    condition = host_task("Check that pods can have the GPUs")["ansible.builtin.assert"]["that"]
    assert evaluate("{{ " + condition + " }}", given) is goes_on


@pytest.mark.parametrize(("host", "unused"), [("demo-controller", 0), ("compute-1", 4)])
def test_every_host_brings_what_it_runs_of_the_release_of_the_network_and_of_our_own_objects(
    host: str, unused: int
) -> None:
    parts = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    of_control_plane = [*(f"registry.k8s.io/{name}:v1.36.4" for name in parts), "registry.k8s.io/etcd:3.6.8-0"]
    of_all = [
        "registry.k8s.io/kube-proxy:v1.36.4",
        "registry.k8s.io/coredns/coredns:v1.14.1",
        "registry.k8s.io/pause:3.10",
    ]
    given = known("1.36.4", MACHINE, host=host, kubernetes_network="calico") | {
        "software_files": [{"file": "kubernetes-images-1.36.4-x86_64.tar", "sha256": "f" * 64}],
        "kubernetes_archive": {"paths": {"kubernetes-images-1.36.4-x86_64.tar": "/cache/images.tar"}},
        "kubernetes_calico": {"paths": {"calico-3.31.7.yaml": "/cache/calico.yaml"}},
        "kubernetes_images": {"stdout_lines": of_control_plane + of_all},
        "kubernetes_system_images": ["nvcr.io/nvidia/k8s-device-plugin:v0.20.0"],
    }
    task = host_task("Bring the images")
    asked = evaluate(task["ansible.builtin.command"]["stdin"], given | task["vars"])
    asked = json.loads(asked) if isinstance(asked, str) else asked
    assert asked == {
        "archive": "/cache/images.tar",
        "checksum": "f" * 64,
        "images": [*of_control_plane[unused:], *of_all, "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"],
        "unused": of_control_plane[:unused],
        "manifests": ["/cache/calico.yaml"],
    }


@pytest.mark.parametrize(("release", "collected"), [("1.28.9", False), ("1.29.0", True)])
def test_kubelet_removes_images_only_where_it_leaves_those_that_are_pinned(release: str, collected: bool) -> None:
    made = documents(render("kubernetes", "kubeadm.yaml", known(release, MACHINE)))["KubeletConfiguration"]
    assert ("imageGCHighThresholdPercent" not in made) is collected


@pytest.mark.parametrize(("status", "failed"), [(0, False), (1, False), (2, True)])
def test_calico_is_applied_only_where_it_differs(status: int, failed: bool) -> None:
    compare, apply = (
        task for task in tasks_of(read("roles/kubernetes/tasks/network.yml")) if "Calico's" in task["name"]
    )
    given = {"kubernetes_difference": {"rc": status}}
    assert evaluate("{{ " + compare["failed_when"] + " }}", given) is failed
    assert evaluate("{{ " + apply["when"] + " }}", given) is (status == 1)


@pytest.mark.parametrize("release", ["1.20.2", "1.36.4"])
def test_a_node_has_its_labels_and_taints_when_the_api_first_sees_it(release: str) -> None:
    """Pods that are scheduled in between would stay on it: NoSchedule ends nothing."""
    labels = node_labels(
        "gpu",
        shapes.get("BM.GPU4.8"),
        elastic=False,
        zone="Uocm:PHX-AD-1",
        rdma_network="ocid1.clusternetwork.oc1.phx.a",
    )
    taints = node_taints(shapes.get("BM.GPU4.8"))
    given = known(release, MACHINE, host="compute-1", kubernetes_node_labels=labels, kubernetes_node_taints=taints)
    given |= {"kubernetes_token": {"stdout": "abcdef.0123456789abcdef"}}
    given["hostvars"][CONTROLLER]["kubernetes_authority_read"] = {"stdout": "f" * 64}
    node = documents(render("kubernetes", "join.yaml", given))["JoinConfiguration"]["nodeRegistration"]
    assert node["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    options = node["kubeletExtraArgs"]
    options = {each["name"]: each["value"] for each in options} if isinstance(options, list) else options
    assert dict(label.split("=") for label in options["node-labels"].split(",")) == labels
    assert options["node-ip"] == "10.0.0.2"


def test_kubelet_may_set_every_label_of_its_own_node() -> None:
    """It ends with another one of these domains: pkg/kubelet/apis/well_known_labels.go of Kubernetes."""
    labels = node_labels("gpu", shapes.get("BM.GPU4.8"), elastic=True, zone="x", rdma_network="y", emulated=True)
    allowed = {"topology.kubernetes.io/zone", "topology.kubernetes.io/region", "node.kubernetes.io/instance-type"}
    theirs = {name for name in labels if re.search(r"(^|\.)(kubernetes|k8s)\.io/", name)}
    assert theirs <= allowed


CALICO = """\
data:
  calico_backend: "bird"
spec:
          env:
            # Auto-detect the BGP IP address.
            - name: IP
              value: "autodetect"
            - name: CALICO_IPV4POOL_IPIP
              value: "Always"
            - name: CALICO_IPV4POOL_VXLAN
              value: "Never"
            - name: CALICO_IPV6POOL_VXLAN
              value: "Never"
          livenessProbe:
            exec:
              command:
                - /bin/calico-node
                - -felix-live
                - -bird-live
          readinessProbe:
            exec:
              command:
                - /bin/calico-node
                - -felix-ready
                - -bird-ready
"""


def test_calico_takes_the_address_of_the_node_and_wraps_packets_as_a_vcn_carries_them() -> None:
    """The first address that it finds may be one of the RDMA network, which leads to no other host."""

    def changed(text: str) -> str:
        read_text = {"kubernetes_calico_read": {"content": base64.b64encode(text.encode()).decode()}}
        return str(evaluate("{{ kubernetes_calico_text }}", known("1.36.4", MACHINE) | read_text))

    made = yaml.safe_load(changed(CALICO))
    options = {each["name"]: each["value"] for each in made["spec"]["env"]}
    assert options == {
        "IP": "autodetect",
        "IP_AUTODETECTION_METHOD": "kubernetes-internal-ip",
        "CALICO_IPV4POOL_IPIP": "Never",
        "CALICO_IPV4POOL_VXLAN": "Always",
        "CALICO_IPV6POOL_VXLAN": "Never",
    }
    # Without BGP: a probe that asks for it would never pass.
    assert made["data"]["calico_backend"] == "vxlan"
    assert "bird" not in changed(CALICO)
    assert made["spec"]["livenessProbe"]["exec"]["command"] == ["/bin/calico-node", "-felix-live"]
    # A site's own manifest may name a method: an option comes once.
    again = changed(changed(CALICO).replace("kubernetes-internal-ip", "can-reach=10.0.0.2"))
    assert again.count("IP_AUTODETECTION_METHOD") == 1
    assert "can-reach=10.0.0.2" in again


@pytest.mark.parametrize(
    "left",
    [
        "/etc/kubernetes/pki/ca.key",
        "/etc/kubernetes/manifests/etcd.yaml",
        "/etc/kubernetes/manifests/kube-scheduler.yaml",
        # Its kubelet runs: kubeadm wants the port to be free.
        "/var/lib/kubelet/config.yaml",
        "/var/lib/etcd/member",
    ],
)
def test_whatever_an_interrupted_run_of_kubeadm_has_left_is_removed_first(left: str) -> None:
    tasks = tasks_of(read("roles/kubernetes/tasks/control_plane.yml"))
    look, remove = (task for task in tasks if "interrupted run" in task["name"])
    condition = "{{ " + remove["when"] + " }}"
    given = known("1.36.4", MACHINE)
    paths = evaluate(look["loop"], given)
    for rest in (left, None):
        found = [{"item": path, "stat": {"exists": path == rest}} for path in paths]
        assert evaluate(condition, given | {"kubernetes_rest": {"results": found}}) is (rest == left)


def test_each_host_records_where_its_name_servers_are_and_kubelet_asks_by_one_name() -> None:
    """kubeadm would write the controller's path into the configuration of all: without it there no pod starts."""
    task = host_task("Configure the kernel, the runtime and kubelet")
    made = documents(render("kubernetes", "kubeadm.yaml", known("1.36.4", MACHINE)))["KubeletConfiguration"]
    for system, path in (("Debian-13", "/run/systemd/resolve/resolv.conf"), ("OracleLinux-9", "/etc/resolv.conf")):
        given = known("1.36.4", MACHINE | {"resolver": path}, host="compute-1", system=system)
        (link,) = (each for each in task["vars"]["kubernetes_host_files"] if "link" in each)
        assert evaluate(link, given) == {"path": made["resolvConf"], "link": path}


@pytest.mark.parametrize(("release", "named"), [("1.30.1", False), ("1.31.0", True), ("1.36.4", True)])
def test_kubelet_starts_on_a_machine_with_version_1_of_cgroups(release: str, named: bool) -> None:
    kubelet = documents(render("kubernetes", "kubeadm.yaml", known(release, CONTAINER)))["KubeletConfiguration"]
    # Before 1.31 kubelet does not know the field; from 1.35 on its default is true.
    assert kubelet.get("failCgroupV1") is (False if named else None)


def test_hosts_may_list_the_nodes_for_routes_before_one_joins() -> None:
    network = yaml.safe_load((ANSIBLE / "roles" / "kubernetes" / "tasks" / "network.yml").read_text())
    task = network[0]
    assert "kubernetes_routes_rights" in task["ansible.builtin.command"]["stdin"]
    assert "kubernetes_on_controller" in task["when"]
    role, binding = evaluate("{{ kubernetes_routes_rights }}", known("1.36.4", MACHINE))
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [each["name"] for each in binding["subjects"]] == ["system:nodes"]
    validate_all([role, binding])


def test_kubelet_finds_the_folder_for_parts_of_a_control_plane_on_every_host() -> None:
    text = (ANSIBLE / "roles" / "kubernetes" / "tasks" / "host.yml").read_text()
    assert '{path: "{{ kubernetes_folder }}/manifests", directory: true}' in text


OKE: dict[str, Any] = {
    "kubernetes_control_plane": "oke",
    "kubernetes_oke": {
        "id": "ocid1.cluster.oc1..aaaa",
        "region": "eu-frankfurt-1",
        "endpoint": "https://10.0.0.9:6443",
        "ca": base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode(),
        "cloud_ca": "",
    },
}


@pytest.mark.parametrize(("release", "cloud_ca"), [("1.20.2", "/run/localcloud/ca.pem"), ("1.34.2", "")])
def test_access_to_kubernetes_engine_has_no_secret(release: str, cloud_ca: str) -> None:
    given = known(release, MACHINE, **OKE | {"kubernetes_oke": OKE["kubernetes_oke"] | {"cloud_ca": cloud_ca}})
    made = yaml.safe_load(render("kubernetes", "oke.conf", given))
    assert made["clusters"][0]["cluster"] == {
        "server": "https://10.0.0.9:6443",
        "certificate-authority-data": OKE["kubernetes_oke"]["ca"],
    }
    [user] = made["users"]
    assert user["user"]["exec"] == {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": evaluate("{{ agent_program }}", given),
        "args": ["kubernetes", "token", "--cluster=ocid1.cluster.oc1..aaaa"],
        **({"env": [{"name": "SSL_CERT_FILE", "value": cloud_ca}]} if cloud_ca else {}),
        **({"interactiveMode": "Never"} if release == "1.34.2" else {}),
    }
    assert made["current-context"] == made["contexts"][0]["name"]


@pytest.mark.parametrize("release", ["1.20.2", "1.26.0", "1.34.2"])
def test_a_node_of_kubernetes_engine_has_its_labels_and_taints_from_its_first_second(release: str) -> None:
    shape = shapes.catalogue()["BM.GPU4.8"]
    labels = node_labels("gpu", shape, elastic=False)
    dns = {"kubernetes_dns": {"stdout": json.dumps({"spec": {"clusterIP": "10.96.5.5"}})}}
    more = {"kubernetes_node_labels": labels, "kubernetes_node_taints": node_taints(shape), "private_ip": "10.0.1.7"}
    given = known(release, MACHINE, host="compute-1", **OKE | more) | dns
    text = render("kubernetes", "oke_kubelet.env", given).strip()
    assert text.startswith('KUBELET_KUBEADM_ARGS="')
    words = dict(word[2:].split("=", 1) for word in text.split('"')[1].split())
    # OKE knows a node by its address: its certificate has no other name.
    assert (words["hostname-override"], words["node-ip"]) == ("10.0.1.7", "10.0.1.7")
    assert dict(pair.split("=", 1) for pair in words["node-labels"].split(",")) == {
        **labels,
        # So commands find the node by the name of its host.
        "gpucluster.io/host": "compute-1",
    }
    assert words["register-with-taints"] == "nvidia.com/gpu=present:NoSchedule"
    minor = int(release.split(".")[1])
    assert (words.get("container-runtime"), "container-runtime-endpoint" in words) == (
        "remote" if minor < 24 else None,
        minor < 27,
    )
    config = yaml.safe_load(render("kubernetes", "oke_kubelet.yaml", given))
    assert config["clusterDNS"] == ["10.96.5.5"]
    assert ("containerRuntimeEndpoint" in config) == (minor >= 27)
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["cgroupDriver"] == "systemd"


def test_each_kind_of_control_plane_has_its_tasks() -> None:
    for kind in ("self", "oke"):
        for tasks in (kind, f"{kind}_node"):
            assert tasks_of(read(f"roles/kubernetes/tasks/{tasks}.yml"))
    of_oke = [each.get("ansible.builtin.include_tasks") for each in tasks_of(read("roles/kubernetes/tasks/oke.yml"))]
    assert "certificates.yml" not in of_oke
    assert "control_plane.yml" not in of_oke
