"""A cluster with the scheduler kubernetes on the local cloud: it is built, carries pods, and survives a lost node.

Real: Kubernetes 1.20.2, kubeadm, etcd, containerd, runc, the plugins of pods' networks. Doubles (tests/doubles):
CoreDNS, crictl, Multus. It runs by `make test-kubernetes`. Files test_kubernetes_*.py share the cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpucluster.waiting import wait_until
from tests.e2e.kubernetes_site import KubernetesSite, Watch, pod, service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SERVE = ("python3", "-c", "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=8000)")
SLEEP = ("sleep", "infinity")
#: A sum over two pods by TCP with the addresses of net1. It stands for gloo: the image has no PyTorch.
ALL_REDUCE = """
import array, json, pathlib, socket, sys, threading, time
rank, size = int(sys.argv[1]), 1 << 17
mine = array.array("d", [rank * i for i in range(size)])
def received():
    return int(pathlib.Path("/sys/class/net/net1/statistics/rx_bytes").read_text())
before = received()
if rank == 1:
    with socket.create_server(("203.0.113.1", 9000)) as server:
        server.settimeout(60)
        other, _ = server.accept()
else:
    for _ in range(600):
        try:
            other = socket.create_connection(("203.0.113.1", 9000), 60, ("203.0.113.2", 0))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
sending = threading.Thread(target=other.sendall, args=(mine.tobytes(),))
sending.start()
theirs = array.array("d", other.makefile("rb").read(8 * size))
sending.join()
right = all(a + b == 3 * i for i, (a, b) in enumerate(zip(mine, theirs)))
print(json.dumps({"right": right, "over_net1": received() - before >= 8 * size}))
"""
MULTUS = Path(__file__).parents[1] / "doubles" / "multus" / "multus"
NETWORKS = "/etc/cni/net.d"
ATTACHMENTS = "network-attachment-definitions.k8s.cni.cncf.io"


def test_all_nodes_are_ready_and_kubectl_answers(kubernetes: KubernetesSite) -> None:
    assert sorted(kubernetes.nodes().values()) == [True, True]
    assert kubernetes.get("nodes", kubernetes.controller)["status"]["nodeInfo"]["kubeletVersion"] == "v1.20.2"
    kubernetes.await_ready("kube-system")


def test_a_second_apply_changes_nothing(kubernetes: KubernetesSite) -> None:
    before = {name: node["metadata"]["uid"] for name, node in _by_name(kubernetes, "nodes").items()}
    kubernetes.good("apply")
    assert {name: node["metadata"]["uid"] for name, node in _by_name(kubernetes, "nodes").items()} == before


def test_kubelet_may_not_remove_what_no_registry_gives_back(kubernetes: KubernetesSite) -> None:
    """kubelet of 1.20 does not ask for it: this is what containerd says of its images."""
    pinned = 'labels."io.cri-containerd.pinned"==pinned'
    needed = set(kubernetes.on(kubernetes.controller, "kubeadm", "config", "images", "list",
                               "--kubernetes-version=v1.20.2").split())  # fmt: skip
    for host in kubernetes.nodes():
        kept = kubernetes.on(host, "ctr", "--namespace=k8s.io", "images", "list", "--quiet", pinned).split()
        assert needed <= set(kept), host


def test_pods_of_two_nodes_reach_each_other_and_a_service_by_its_name(kubernetes: KubernetesSite) -> None:
    here, there = kubernetes.nodes()
    with kubernetes.namespace() as space:
        kubernetes.apply(
            pod("server", space, here, *SERVE, labels={"app": "web"}),
            pod("client", space, there, *SLEEP),
            service("web", space, 8000, app="web"),
        )
        addresses = kubernetes.await_ready(space)
        for host in (addresses["server"], "web", f"web.{space}.svc.cluster.local"):
            page = _fetch(kubernetes, space, "client", f"http://{host}:8000/")
            assert "Directory listing" in page
        # What the cluster does not know is asked of the servers of the host.
        assert kubernetes.in_pod(space, "client", "getent", "hosts", "kubernetes.default").split()[0] == "10.96.0.1"


@pytest.fixture
def multus(kubernetes: KubernetesSite) -> Iterator[list[str]]:
    """Both nodes with the double of Multus and a spare interface, `rdma0`. Afterwards they are as before."""
    nodes = list(kubernetes.nodes())
    kubernetes.apply(_definition_of_attachments())
    kubernetes.kubectl("wait", "--for=condition=Established", f"crd/{ATTACHMENTS}", "--timeout=30s")
    token = kubernetes.on(kubernetes.controller, "cat", "/etc/kubernetes/admin.conf")
    account, networks = f"{NETWORKS}/multus.kubeconfig", f"{NETWORKS}/00-multus.conflist"
    for node in nodes:
        install = "cat > /usr/lib/cni/multus && chmod 0755 /usr/lib/cni/multus"
        kubernetes.on(node, "sh", "-c", install, stdin=MULTUS.read_text())
        whole = json.loads(kubernetes.on(node, "sh", "-c", f"cat {NETWORKS}/*-gpucluster.conflist"))
        whole["plugins"].append({"type": "multus", "kubeconfig": account, "binDir": "/usr/lib/cni"})
        kubernetes.on(node, "sh", "-c", f"umask 077; cat > {account}", stdin=token)
        kubernetes.on(node, "ip", "link", "add", "rdma0", "link", "eth0", "type", "macvlan", "mode", "bridge")
        # containerd takes the first list by name, and reads it when a file is renamed: never half of it.
        kubernetes.on(
            node, "sh", "-c", f"cat > {networks}.new && mv {networks}.new {networks}", stdin=json.dumps(whole)
        )
    yield nodes
    for node in nodes:
        kubernetes.on(node, "sh", "-c", f"rm {networks} {account}; ip link delete rdma0 || true")
    kubernetes.kubectl("delete", "crd", ATTACHMENTS)


def test_an_interface_of_the_node_moves_into_a_pod_and_comes_back(
    kubernetes: KubernetesSite, multus: list[str]
) -> None:
    with kubernetes.namespace() as space:
        for number, node in enumerate(multus, 1):
            kubernetes.apply(
                _attachment(f"rdma-{number}", space, f"203.0.113.{number}/24"),
                pod(
                    f"pod-{number}", space, node, *SLEEP, annotations={"k8s.v1.cni.cncf.io/networks": f"rdma-{number}"}
                ),
            )
        kubernetes.await_ready(space)
        assert "203.0.113.1" in kubernetes.in_pod(space, "pod-1", "ip", "-4", "address", "show", "dev", "net1")
        assert "rdma0" not in kubernetes.on(multus[0], "ip", "-brief", "link")
        assert " 0% packet loss" in kubernetes.in_pod(space, "pod-1", "ping", "-c2", "-w10", "203.0.113.2")
        with ThreadPoolExecutor() as pool:
            reduce = ["python3", "-c", ALL_REDUCE]
            sums = list(pool.map(lambda n: kubernetes.in_pod(space, f"pod-{n}", *reduce, str(n)), (1, 2)))
        assert [json.loads(each) for each in sums] == [{"right": True, "over_net1": True}] * 2
        kubernetes.kubectl("delete", "pod", f"--namespace={space}", "pod-1", "pod-2")
    assert wait_until(lambda: "rdma0" in kubernetes.on(multus[0], "ip", "-brief", "link"), 30, 0.5)


def test_a_lost_node_is_replaced_and_carries_pods_again(kubernetes: KubernetesSite) -> None:
    watch = Watch()
    lost, other = sorted(kubernetes.nodes())
    before = _by_name(kubernetes, "nodes")[lost]["metadata"]["uid"]
    subprocess.run(["podman", "kill", kubernetes.hosts()[lost]], check=True, capture_output=True)
    assert wait_until(lambda: not kubernetes.nodes()[lost], 120, 1)
    with watch("replace"):
        kubernetes.good("replace", lost, "--yes", "--drain-timeout", "0")
    print(f"\nA lost node was replaced in {watch.seconds['replace']:.0f} s.", file=sys.__stderr__)
    assert wait_until(lambda: kubernetes.nodes() == {lost: True, other: True}, 60, 1)
    assert _by_name(kubernetes, "nodes")[lost]["metadata"]["uid"] != before
    kubernetes.import_tools([lost])
    with kubernetes.namespace() as space:
        kubernetes.apply(pod("server", space, lost, *SERVE), pod("client", space, other, *SLEEP))
        address = kubernetes.await_ready(space)["server"]
        assert "Directory listing" in _fetch(kubernetes, space, "client", f"http://{address}:8000/")


def _by_name(site: KubernetesSite, kind: str) -> dict[str, Any]:
    return {found["metadata"]["name"]: found for found in site.get(kind)["items"]}


def _fetch(site: KubernetesSite, space: str, client: str, url: str) -> str:
    """A page, as soon as there is one: a server begins, and a service's rules get to the nodes, a little later."""
    patience = "--max-time 5 --retry 20 --retry-delay 1 --retry-all-errors"
    return site.in_pod(space, client, "curl", "--silent", "--fail", *patience.split(), url)


def _attachment(name: str, namespace: str, address: str) -> dict[str, Any]:
    ipam = {"type": "static", "addresses": [{"address": address}]}
    config = {"cniVersion": "0.3.1", "type": "host-device", "device": "rdma0", "ipam": ipam}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"config": json.dumps(config)},
    }


def _definition_of_attachments() -> dict[str, Any]:
    group, plural, kind = "k8s.cni.cncf.io", "network-attachment-definitions", "NetworkAttachmentDefinition"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": "network-attachment-definition", "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
