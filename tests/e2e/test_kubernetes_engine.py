"""A cluster whose control plane is a local Kubernetes Engine, from the first apply to the last destroy.

The tests run in the order of this file, on one cluster of their own: a controller, a node of ours, and a node that the
engine manages. Real: Kubernetes 1.20.2, Terraform, the playbook. The engine is the local cloud's: OKE's admission,
images and cloud controller are not there (tests/e2e/test_kubernetes_oke.py tries the engine alone).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes_site import KubernetesSite, pod
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S, all_pass, containers
from tests.kubernetes_sources import NEXT, REGISTRY, RELEASE, mirror, need_kubernetes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

SPACE = "user-alice"
OWN, HOST = "work-1", "gpucluster.io/host"
_SHAPE = "shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, count: 1"
PAUSE = f"{REGISTRY}/pause:3.2"


@pytest.fixture(scope="module")
def site() -> Iterator[KubernetesSite]:
    need_kubernetes()
    managed = f"  service: {{{_SHAPE}, managed: true}}\n"
    with KubernetesSite(
        "engine", files=mirror(rehearsal=True), work=f"{{{_SHAPE}}}", pools=managed, plane="oke"
    ) as made:
        yield made


@pytest.fixture(scope="module")
def built(site: KubernetesSite) -> dict[str, Any]:
    return site.good("apply")


def labels_of(site: KubernetesSite) -> dict[str, dict[str, str]]:
    """The labels of each node, by the name that the API has."""
    return {node["metadata"]["name"]: node["metadata"]["labels"] for node in site.get("nodes")["items"]}


def shown(site: KubernetesSite) -> dict[str, tuple[str, str]]:
    """What status shows: pool and release by node."""
    return {row["node"]: (row["pool"], row["version"]) for row in site.good("status", "--timeout", "60")["kubernetes"]}


def changed_tasks(result: dict[str, Any]) -> int:
    return sum(result["changed"].values())


def test_hosts_join_beside_the_nodes_that_the_engine_manages(site: KubernetesSite, built: dict[str, Any]) -> None:
    assert all_pass(built), built["checks"]
    judged = {check["check"] for check in built["checks"]}
    assert {"kubernetes_node", "kubernetes_managed_nodes", "kubernetes_names"} <= judged
    assert "kubernetes_certificates" not in judged, "Oracle renews them"
    # The names of nodes are addresses; ours also have the name of their host.
    labels = labels_of(site)
    assert [name for name, has in labels.items() if has.get(HOST) == OWN] == [
        name for name, has in labels.items() if has["gpucluster.io/pool"] == "work"
    ]
    assert all(name.startswith(f"{site.net}.1.") for name in labels)
    rows = shown(site)
    assert rows.pop(OWN) == ("work", f"v{RELEASE}")
    assert list(rows.values()) == [("service", f"v{RELEASE}")]
    # The controller is not a node.
    assert "kubelet" not in site.on(site.controller, "ls", "/usr/local/bin").split()


def test_no_secret_is_stored_on_a_host(site: KubernetesSite, built: dict[str, Any]) -> None:
    for host in (site.controller, OWN):
        kept = site.on(host, "sh", "-c", "cat /etc/kubernetes/*.conf")
        assert "token:" not in kept
        assert "client-key-data" not in kept
    assert site.on(site.controller, "stat", "--format=%a", "/etc/kubernetes/admin.conf").strip() == "600"


def test_our_node_reports_its_checks_into_its_own_object(site: KubernetesSite, built: dict[str, Any]) -> None:
    def healthy() -> list[str]:
        (node,) = [each for each in site.get("nodes")["items"] if each["metadata"]["labels"].get(HOST) == OWN]
        return [each["status"] for each in node["status"]["conditions"] if each["type"] == "GpuclusterHealthy"]

    site.until("our node reports that it is healthy", lambda: healthy() == ["True"])

    def said() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            site.on(site.controller, "gpucluster-agent", "health", "status", "--output", "json")
        )
        return found

    # The service on the controller reads it with its own account, some seconds later.
    site.until(
        "the service on the controller has read the report",
        lambda: [row["stale"] for row in said()["nodes"] if row["node"] == OWN] == [False],
    )
    assert said()["problems"] == []


def test_a_second_apply_changes_nothing(site: KubernetesSite, built: dict[str, Any]) -> None:
    again = site.good("apply")
    assert changed_tasks(again) == 0, again["changed"]


def test_a_user_works_with_a_token_and_has_their_home_on_our_nodes(
    site: KubernetesSite, built: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "alice.yaml"
    done = site.good("kubeconfig", "--user", "alice", str(file))
    assert (done["namespace"], done["forward"]) == (SPACE, None)
    site.import_tools([OWN])
    names = {has.get(HOST, "managed"): name for name, has in labels_of(site).items()}
    uid = int(site.on(site.controller, "id", "-u", "alice"))
    ids = {"runAsUser": uid, "runAsGroup": int(site.on(site.controller, "id", "-g", "alice"))}
    volume = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}
    mounted = {"volumeMounts": [{"name": "home", "mountPath": "/home/alice"}]}

    def home_pod(name: str, node: str) -> dict[str, Any]:
        made = pod(name, SPACE, "", "sh", "-c", "id -u > /home/alice/from-a-pod", container=mounted, volumes=[volume],
                   securityContext=ids, nodeSelector={"kubernetes.io/hostname": node})  # fmt: skip
        del made["spec"]["nodeName"]
        return made

    def as_alice(*words: str, stdin: str | None = None) -> str:
        """What kubectl prints with her file, on the controller."""
        site.on(site.controller, "sh", "-c", "umask 077; cat > /run/alice.yaml", stdin=file.read_text())
        return site.on(site.controller, "kubectl", "--kubeconfig=/run/alice.yaml", *words, stdin=stdin).strip()

    def refused() -> bool:
        try:
            as_alice("get", "pods")
        except AssertionError as error:
            return "Unauthorized" in str(error) or "logged in" in str(error)
        return False

    # She gets one herself, too.
    assert f"alice, namespace {SPACE}, until " in site.as_alice("gpucluster-kubeconfig")
    assert site.as_alice("kubectl auth can-i create pods && rm -r ~/.kube") == "yes"
    as_alice("apply", "--filename=-", stdin=json.dumps(home_pod("here", names[OWN])))
    as_alice("apply", "--filename=-", stdin=json.dumps(home_pod("there", names["managed"])))

    def phase(name: str) -> str:
        return str(site.get("pod", name, f"--namespace={SPACE}")["status"]["phase"])

    site.until("the pod has succeeded", lambda: phase("here") == "Succeeded")
    assert site.on(site.controller, "cat", "/mnt/home/alice/from-a-pod").strip() == str(uid)
    # A node that the engine manages has no home: the scheduler reports it, and no pod gets an empty folder instead.
    assert phase("there") == "Pending"
    assert "volume node affinity conflict" in site.kubectl("describe", "pod", "there", f"--namespace={SPACE}")
    as_alice("delete", "pod", "here", "there", "--wait=false")
    site.confirmed("user", "disable", "alice")
    site.until("her token ends with her account", refused)
    site.good("user", "enable", "alice")
    assert site.good("kubeconfig", "--user", "alice", str(file))["hours"] == 12
    assert as_alice("auth", "can-i", "create", "pods") == "yes"


def test_commands_for_a_control_plane_of_ours_name_who_runs_it(site: KubernetesSite, built: dict[str, Any]) -> None:
    for words in (["kubernetes", "status"], ["kubernetes", "certificates"], ["kubernetes", "compact"]):
        code, events = site.run(*words)
        assert (code, "Oracle runs the control plane" in events[-1]["message"]) == (2, True), words


def test_a_host_is_drained_and_replaced_by_its_name(site: KubernetesSite, built: dict[str, Any]) -> None:
    before = next(name for name, has in labels_of(site).items() if has.get(HOST) == OWN)
    with site.namespace() as namespace:
        # It has no controller, so a drain with patience would name it.
        site.apply(pod("alone", namespace, before, container={"image": PAUSE, "command": []}))
        site.await_ready(namespace)
        code, events = site.run("replace", OWN, "--yes", "--drain-timeout", "5")
        assert code != 0
        assert f"{namespace}/alone" in json.dumps(events[-1])
        (node,) = [each for each in site.get("nodes")["items"] if each["metadata"]["name"] == before]
        assert node["spec"].get("unschedulable") is True
        assert site.good("replace", OWN, "--yes", "--drain-timeout", "0")
        assert not site.get("pods", f"--namespace={namespace}")["items"], "nothing was left of the old node's pods"
    rows = shown(site)
    assert rows[OWN] == ("work", f"v{RELEASE}")
    assert len(rows) == 2, rows
    assert not [node for node in site.get("nodes")["items"] if node["spec"].get("unschedulable")]


def test_apply_takes_the_whole_cluster_to_the_next_release(site: KubernetesSite, built: dict[str, Any]) -> None:
    site.file.write_text(site.file.read_text().replace(f'release: "{RELEASE}"', f'release: "{NEXT}"'))
    result = site.good("apply")
    assert all_pass(result), [each for each in result["checks"] if each["status"] not in ("pass", "skip")] + [
        site.on(host, "sh", "-c", "journalctl --no-pager --lines=20 $(systemctl list-units --failed --plain --no-legend"
                " | sed 's/ .*//; s/^/--unit=/') --unit=none")
        for host in site.hosts()
    ]  # fmt: skip
    assert json.loads(site.kubectl("get", "--raw=/version"))["gitVersion"] == f"v{NEXT}"
    assert {version for _pool, version in shown(site).values()} == {f"v{NEXT}"}


def test_destroy_leaves_nothing(site: KubernetesSite, built: dict[str, Any]) -> None:
    site.good("destroy", "--delete-data", "--yes")
    assert containers(site.home) == []
