"""A cluster with the scheduler kubernetes on the local cloud: it is built, carries pods, and survives a lost node.

Real: Kubernetes 1.20.2, kubeadm, etcd, containerd, runc, the plugins of pods' networks. Doubles (tests/doubles):
CoreDNS, crictl, Multus. It runs by `make test-kubernetes`. Files test_kubernetes_*.py share the cluster.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes.containers import PARTS
from gpucluster.node_agent.kubernetes import routes
from tests.e2e import budget
from tests.e2e.kubernetes_site import KubernetesSite, pod, service
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.kubernetes_sources import TORCH, torch_archive
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

SERVE = ("python3", "-c", "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=8000)")
SLEEP = ("sleep", "infinity")
#: What gloo of PyTorch sums over two pods. They find each other at the first one's address in the network of pods.
#: Debian 13's PyTorch wants libuv and is built without it.
ALL_REDUCE = """
import json, os, pathlib, sys, torch, torch.distributed as dist
rank, size = int(sys.argv[1]), 1 << 20
os.environ |= {"GLOO_SOCKET_IFNAME": "net1", "USE_LIBUV": "0"}
count = lambda name: int(pathlib.Path(f"/sys/class/net/{name}/statistics/rx_bytes").read_text())
dist.init_process_group("gloo", init_method=f"tcp://{sys.argv[2]}:29500", rank=rank, world_size=2)
values = torch.arange(size, dtype=torch.float32) * (rank + 1)
before = {name: count(name) for name in ("net1", "eth0")}
dist.all_reduce(values)
received = {name: count(name) - before[name] for name in before}
dist.barrier()
print(json.dumps({"wrong": int((values != torch.arange(size) * 3).sum()), "bytes": 4 * size, **received}))
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
    with budget.held(kubernetes, "kubernetes, two nodes: nothing to do"):
        kubernetes.good("apply")
    assert {name: node["metadata"]["uid"] for name, node in _by_name(kubernetes, "nodes").items()} == before


def test_kubelet_may_not_remove_what_no_registry_gives_back(kubernetes: KubernetesSite) -> None:
    """kubelet of 1.20 does not ask for it: this is what containerd reports of its images."""
    pinned = 'labels."io.cri-containerd.pinned"==pinned'
    needed = set(kubernetes.on(kubernetes.controller, "kubeadm", "config", "images", "list",
                               "--kubernetes-version=v1.20.2").split())  # fmt: skip
    of_control_plane = {name for name in needed if any(f"/{part}:" in name for part in PARTS)}
    assert len(of_control_plane) == len(PARTS)
    for host in (kubernetes.controller, *kubernetes.nodes()):
        kept = set(kubernetes.on(host, "ctr", "--namespace=k8s.io", "images", "list", "--quiet", pinned).split())
        # A node does not even import what it never runs.
        assert needed & kept == (needed if host == kubernetes.controller else needed - of_control_plane), host


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
    """Both nodes with the double of Multus, PyTorch, and a spare interface, `rdma0`. Afterwards they are as before."""
    nodes = list(kubernetes.nodes())
    kubernetes.import_tools(nodes, torch_archive())
    kubernetes.apply(_definition_of_attachments())
    kubernetes.kubectl("wait", "--for=condition=Established", f"crd/{ATTACHMENTS}", f"--timeout={PATIENCE_S:.0f}s")
    token = kubernetes.on(kubernetes.controller, "cat", "/etc/kubernetes/admin.conf")
    account, networks = f"{NETWORKS}/multus.kubeconfig", f"{NETWORKS}/00-multus.conflist"
    for node in nodes:
        install = "cat > /usr/lib/cni/multus && chmod 0755 /usr/lib/cni/multus"
        kubernetes.on(node, "sh", "-c", install, stdin=MULTUS.read_text())
        whole = json.loads(kubernetes.on(node, "sh", "-c", f"cat {routes.CONFIGURATION}"))
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
                    *(f"pod-{number}", space, node, *SLEEP),
                    annotations={"k8s.v1.cni.cncf.io/networks": f"rdma-{number}"},
                    container={"image": TORCH},
                ),
            )
        first = kubernetes.await_ready(space)["pod-1"]
        assert "203.0.113.1" in kubernetes.in_pod(space, "pod-1", "ip", "-4", "address", "show", "dev", "net1")
        assert "rdma0" not in kubernetes.on(multus[0], "ip", "-brief", "link")
        assert " 0% packet loss" in kubernetes.in_pod(space, "pod-1", "ping", "-c2", "-w10", "203.0.113.2")
        with ThreadPoolExecutor() as pool:
            reduce = ["python3", "-c", ALL_REDUCE]
            said = pool.map(lambda n: kubernetes.in_pod(space, f"pod-{n + 1}", *reduce, str(n), first), (0, 1))
            sums = [json.loads(each.splitlines()[-1]) for each in said]
        for each in sums:
            assert each["wrong"] == 0, sums
            # Of two ranks each gets from the other as much as the tensor has. What is sent may wait in a buffer yet.
            assert each["net1"] >= each["bytes"] > 100 * each["eth0"], sums
        kubernetes.kubectl("delete", "pod", f"--namespace={space}", "pod-1", "pod-2")
    kubernetes.until(
        "the interface is the node's again", lambda: "rdma0" in kubernetes.on(multus[0], "ip", "-brief", "link")
    )


def test_ddp_of_pytorch_trains_on_two_nodes_over_the_moved_interface(
    kubernetes: KubernetesSite, multus: list[str]
) -> None:
    """The template as a user submits it. PyTorch and gloo are real; the pictures are random."""
    steps, width = 2 * 2, 8
    # The pods of a job have one attachment, and host-local of each node knows its own addresses alone: each finds that
    # of the other one taken.
    taken = "/var/lib/cni/networks/rdma"
    for node, other in zip(multus, ("203.0.113.3", "203.0.113.2"), strict=True):
        kubernetes.on(node, "sh", "-c", f"rm -rf {taken} && mkdir -p {taken} && echo other > {taken}/{other}")
    two = {"subnet": "203.0.113.0/29", "rangeStart": "203.0.113.2", "rangeEnd": "203.0.113.3"}
    kubernetes.apply(_attachment("rdma", "user-alice", ranges=[[two]]))

    def sent(node: str) -> int:
        return int(kubernetes.on(node, "cat", "/sys/class/net/rdma0/statistics/tx_bytes"))

    before = {node: sent(node) for node in multus}
    small = {"synthetic": 100, "width": width, "epochs": 2, "batch": 25}
    options = {**small, "image": TORCH, "networks": "rdma", "network_interface": "net1", "job_name": "ddp"}
    words = [f"--set={key}={value}" for key, value in options.items()]
    try:
        done = kubernetes.good("job", "submit", "pytorch_ddp", "--user", "alice", "--nodes", "2", *words, "--wait")
        found = {each["check"]: each["status"] for each in done["findings"]}
        assert found["epochs"] == found["ranks"] == "pass", done
        assert [step["epoch"] for step in done["steps"]] == [1, 2]
    finally:
        kubernetes.run("job", "cancel", "ddp")
        kubernetes.as_alice("rm -rf gpucluster-jobs")
    # The interface comes back with its counters. In each step a rank sends all gradients.
    kubernetes.until(
        "the interfaces are the nodes' again",
        lambda: all("rdma0" in kubernetes.on(node, "ip", "-brief", "link") for node in multus),
    )
    wanted = steps * 4 * _parameters_of_resnet18(width)
    for node in multus:
        assert sent(node) - before[node] >= wanted, (node, wanted)


def test_apply_makes_a_node_again_whose_host_is_gone_and_its_job_runs_on(kubernetes: KubernetesSite) -> None:
    lost, other = sorted(kubernetes.nodes())
    before = _by_name(kubernetes, "nodes")[lost]["metadata"]["uid"]
    with kubernetes.namespace() as space:
        kubernetes.kubectl("cordon", other)
        try:
            # The pods of a Job are those of its namespace's accounts.
            kubernetes.kubectl(
                *("create", "rolebinding", "pods", f"--namespace={space}", "--clusterrole=gpucluster-privileged"),
                f"--group=system:serviceaccounts:{space}",
            )
            kubernetes.apply(_job("work", space))
            kubernetes.await_ready(space)
        finally:
            kubernetes.kubectl("uncordon", other)
        subprocess.run(
            ["podman", "rm", "--force", "--volumes", "--time=0", kubernetes.hosts()[lost]],
            check=True,
            capture_output=True,
        )
        kubernetes.good("apply")
        kubernetes.until("both nodes are ready", lambda: kubernetes.nodes() == {lost: True, other: True})
        assert _by_name(kubernetes, "nodes")[lost]["metadata"]["uid"] != before
        kubernetes.import_tools([lost])

        def runs() -> bool:
            pods = kubernetes.get("pods", f"--namespace={space}", "--field-selector=status.phase=Running")["items"]
            return len(pods) == 1 and not pods[0]["metadata"].get("deletionTimestamp")

        kubernetes.until("the job's pod runs on the other node", runs)
        assert kubernetes.get("jobs", "work", f"--namespace={space}")["status"].get("active") == 1


def test_a_lost_node_is_replaced_and_carries_pods_again(kubernetes: KubernetesSite) -> None:
    lost, other = sorted(kubernetes.nodes())
    before = _by_name(kubernetes, "nodes")[lost]["metadata"]["uid"]
    subprocess.run(["podman", "kill", kubernetes.hosts()[lost]], check=True, capture_output=True)
    kubernetes.until("the lost node is not ready", lambda: not kubernetes.nodes()[lost])
    kubernetes.good("replace", lost, "--yes", "--drain-timeout", "0")
    kubernetes.until("both nodes are ready", lambda: kubernetes.nodes() == {lost: True, other: True})
    assert _by_name(kubernetes, "nodes")[lost]["metadata"]["uid"] != before
    kubernetes.import_tools([lost])
    with kubernetes.namespace() as space:
        kubernetes.apply(pod("server", space, lost, *SERVE), pod("client", space, other, *SLEEP))
        address = kubernetes.await_ready(space)["server"]
        assert "Directory listing" in _fetch(kubernetes, space, "client", f"http://{address}:8000/")


def _job(name: str, namespace: str) -> dict[str, Any]:
    """A Job that works for as long as its namespace exists."""
    inner = pod(name, namespace, "", *SLEEP)["spec"]
    del inner["nodeName"]
    specification = {"backoffLimit": 9, "template": {"spec": inner}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": specification}


def _by_name(site: KubernetesSite, kind: str) -> dict[str, Any]:
    return {found["metadata"]["name"]: found for found in site.get(kind)["items"]}


def _fetch(site: KubernetesSite, space: str, client: str, url: str) -> str:
    """A page, as soon as there is one: a server begins, and a service's rules get to the nodes, a little later."""
    patience = "--max-time 5 --retry 20 --retry-delay 1 --retry-all-errors"
    return site.in_pod(space, client, "curl", "--silent", "--fail", *patience.split(), url)


def _attachment(name: str, namespace: str, address: str = "", **ipam: Any) -> dict[str, Any]:
    """The interface rdma0 of a node, with one address, or with those that host-local gives."""
    ipam |= {"type": "static", "addresses": [{"address": address}]} if address else {"type": "host-local"}
    config = {"cniVersion": "0.3.1", "type": "host-device", "device": "rdma0", "ipam": ipam}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"config": json.dumps(config)},
    }


def _parameters_of_resnet18(width: int, classes: int = 10) -> int:
    """How many numbers ResNet-18 for pictures of 32 pixels learns."""
    count, before = 3 * 9 * width + 2 * width, width
    for after in (width, 2 * width, 4 * width, 8 * width):
        count += before * after * 9 + 3 * after * after * 9 + 4 * 2 * after
        count += 0 if before == after else before * after + 2 * after
        before = after
    return count + before * classes + classes


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
