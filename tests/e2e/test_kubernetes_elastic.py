"""Elastic nodes on Kubernetes: an empty pool, pods that get nodes launched, idle time after which these are removed.

The tests run in the order of this file, on one cluster of their own. Real: Kubernetes 1.20.2, its scheduler, the
autoscaler and the playbook that configures a node. GPUs are emulated: the status of a node reports that it has them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e import budget
from tests.e2e.kubernetes_site import KubernetesSite
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S, all_pass, containers
from tests.kubernetes_sources import RELEASE, need_kubernetes
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

IDLE_TIMEOUT = 20
POOL = f"{{shape: BM.GPU4.8, count: 0, max_count: 2, idle_timeout: {IDLE_TIMEOUT}}}"
KUBECONFIG = "/etc/gpucluster/autoscaler.kubeconfig"
GPU = "nvidia.com/gpu"
WHY = "gpucluster.io/why"
NAMESPACE = "elastic-test"
REPORT, TAINT = "gpucluster.io/checks-", "gpucluster.io/unhealthy"
# When the directory is known, homes go whenever they are mounted.
POLL = "findmnt --poll=mount --first-only --timeout 200"
BREAK = f"until getent passwd alice; do :; done; while :; do umount --lazy /mnt/home; {POLL}; done"


@pytest.fixture(scope="module")
def site() -> Iterator[KubernetesSite]:
    need_kubernetes()
    with KubernetesSite("scale", more="monitoring: {enabled: true}\n", work=POOL) as made:
        yield made


@pytest.fixture(scope="module")
def image(site: KubernetesSite) -> str:
    """An image that each node has from its first second: new ones get no other."""
    listed = site.on(site.controller, "kubeadm", "config", "images", "list", f"--kubernetes-version=v{RELEASE}")
    return next(line for line in listed.split() if "/pause:" in line)


def until(what: str, holds: Callable[[], object], site: KubernetesSite) -> None:
    """Wait; a failure shows what the autoscaler has done. A node that a pod waits for takes a minute and more.

    A command of the condition that fails means "not yet", as in `Site.until`.
    """
    units = ("-u", "gpucluster-autoscaler", "-u", "gpucluster-join")
    wait_for(
        what,
        holds,
        patience=3 * PATIENCE_S,
        interval=0.5,
        state=lambda: site.on(site.controller, "journalctl", *units, "-n", "60"),
        ignore=AssertionError,
    )


def looked_at(site: KubernetesSite) -> float:
    """When the autoscaler's last pass was."""
    return float(json.loads(site.on(site.controller, "cat", "/var/lib/gpucluster-autoscaler/status.json"))["looked_at"])


def specified(image: str, gpus: int = 8) -> dict[str, Any]:
    """A pod that runs until it is deleted."""
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "resources": {"limits": {GPU: str(gpus)}}}
    tolerated = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return {"containers": [container], "tolerations": tolerated, "terminationGracePeriodSeconds": 0}


def submit(site: KubernetesSite, image: str, name: str, gpus: int = 8, gang: int = 0) -> None:
    """A pod; with `gang` so many pods NAME-N that start together."""
    labels = {"gpucluster.io/gang": name, "gpucluster.io/gang-size": str(gang)} if gang else {}
    names = [f"{name}-{number}" for number in range(gang)] or [name]
    site.apply(
        *(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": each, "namespace": NAMESPACE, "labels": labels},
                "spec": specified(image, gpus),
            }
            for each in names
        )
    )


def delete(site: KubernetesSite) -> None:
    site.kubectl("delete", "pods", "--all", f"--namespace={NAMESPACE}", "--wait=true")


def pods(site: KubernetesSite) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in site.get("pods", f"--namespace={NAMESPACE}")["items"]}


def running(site: KubernetesSite) -> dict[str, str]:
    """The nodes of the pods that run, by pod."""
    return {name: pod["spec"]["nodeName"] for name, pod in pods(site).items() if pod["status"]["phase"] == "Running"}


def elastic_hosts(site: KubernetesSite) -> int:
    return len(containers(site.home)) - 1


def elastic(site: KubernetesSite) -> dict[str, str]:
    """The containers of elastic nodes, by the names of these."""
    return {name: container for name, container in site.hosts().items() if name != site.controller}


def asked(site: KubernetesSite, expression: str) -> list[float]:
    """What Prometheus reports: the last values of the series of an expression."""
    request = json.dumps({"queries": [{"name": "it", "expr": expression}]})
    said = json.loads(site.on(site.controller, "gpucluster-agent", "monitor", "query", stdin=request))
    assert (said["why"], said["errors"]) == ("", {})
    return [series["values"][-1][1] for series in said["results"]["it"]]


def notes(site: KubernetesSite, node: str) -> dict[str, str]:
    """The annotations of a node."""
    found: dict[str, str] = site.get("node", node)["metadata"]["annotations"]
    return found


def taints(site: KubernetesSite, node: str) -> set[str]:
    return {taint["key"] for taint in site.get("node", node)["spec"].get("taints", ())}


def said(site: KubernetesSite, *words: str) -> str:
    done = site.plain("autoscaler", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_apply_builds_a_cluster_without_nodes(site: KubernetesSite) -> None:
    result = site.good("apply")
    assert all_pass(result), result["checks"]
    assert "the autoscaler is healthy" in {check["name"] for check in result["checks"]}
    assert elastic_hosts(site) == 0
    site.kubectl("create", "namespace", NAMESPACE)
    site.until(
        "the namespace has its account", lambda: any(site.get("serviceaccounts", f"--namespace={NAMESPACE}")["items"])
    )


def test_the_second_apply_changes_nothing(site: KubernetesSite) -> None:
    result = site.good("apply")
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_the_autoscaler_has_few_rights_and_its_token_is_its_own(site: KubernetesSite) -> None:
    def may(*words: str) -> str:
        ask = shlex.join(["kubectl", f"--kubeconfig={KUBECONFIG}", "auth", "can-i", *words])
        return site.on(site.controller, "runuser", "-u", "gpucluster", "--", "sh", "-c", f"cd /; {ask} || true").strip()

    assert {may(verb, kind) for verb in ("get", "list", "patch") for kind in ("nodes", "pods")} == {"yes"}
    assert may("delete", "nodes") == "yes"
    refused = [("create", "pods"), ("delete", "pods"), ("create", "nodes"), ("get", "secrets"), ("list", "secrets"),
               ("create", "pods", "--subresource=exec"),
               ("patch", "nodes", "--subresource=status"), ("create", "clusterrolebindings")]  # fmt: skip
    assert {words: may(*words, "--all-namespaces") for words in refused} == dict.fromkeys(refused, "no")
    assert site.on(site.controller, "stat", "-c", "%a %U %G", KUBECONFIG).split() == ["640", "root", "gpucluster"]
    assert "refused" in site.as_alice(f"cat {KUBECONFIG} > /dev/null 2>&1 || echo refused")


def test_a_pod_that_waits_brings_a_node_and_runs_there(site: KubernetesSite, image: str) -> None:
    submit(site, image, "one")
    until("the pod runs", lambda: "one" in running(site), site)
    (node,) = running(site).values()
    assert elastic_hosts(site) == 1
    budget.hold_new_nodes(site, "kubernetes: elastic node")
    found = site.get("node", node)
    assert found["metadata"]["labels"]["gpucluster.io/elastic"] == "true"
    assert found["status"]["allocatable"][GPU] == "8"
    assert found["spec"]["providerID"].startswith("oci://ocid1.instance.")
    # Pods tolerate that a node is not ready for some minutes, so one may run before that taint is taken away.
    until(
        "the node has the taint of GPUs alone",
        lambda: [taint["key"] for taint in site.get("node", node)["spec"]["taints"]] == [GPU],
        site,
    )
    status = json.loads(said(site, "status", "--output", "json"))
    assert (status["scheduler"], status["healthy"]) == ("kubernetes", True)
    until("the autoscaler has seen it", lambda: "1 allocated" in said(site, "status"), site)
    told = said(site, "status")
    assert "Kubernetes" in told
    assert "Slurm" not in told
    assert "is in service" in said(site, "explain", node)
    for name in ("one", f"{NAMESPACE}/one"):
        assert f"Job {NAMESPACE}/one is RUNNING on 1 node" in said(site, "explain", name)
    assert "no pod, job or gang of this name" in said(site, "explain", "nobody")
    # The checks of its boot were made before it joined, and their report came with the first of the others.
    until("it reports", lambda: f"{REPORT}periodic" in notes(site, node), site)
    assert json.loads(notes(site, node)[f"{REPORT}boot"])["profile"] == "boot"


def test_prometheus_has_the_metrics_of_the_autoscaler(site: KubernetesSite) -> None:
    counted = 'gpucluster_nodes{pool="work", node_state="allocated", cloud_state="running"}'
    until("Prometheus knows the node", lambda: asked(site, counted) == [1.0], site)
    assert asked(site, "time() - gpucluster_last_success_timestamp < 120")
    until("the autoscaler is scraped", lambda: asked(site, 'up{job="autoscaler"}') == [1.0], site)
    (node,) = running(site).values()
    until("its exporters are scraped", lambda: asked(site, f'up{{node="{node}"}} == 1') == [1.0, 1.0], site)


def test_a_gang_that_can_not_have_all_nodes_gets_none(site: KubernetesSite, image: str) -> None:
    submit(site, image, "pair", gang=2)
    until("its pods wait", lambda: len(pods(site)) == 3, site)
    waits = f"Job {NAMESPACE}/pair waits for 2 nodes"
    until("the autoscaler knows the gang", lambda: waits in said(site, "explain", "pair-1"), site)
    # Two passes more: one node is left, and the gang needs two.
    for _ in range(2):
        before = looked_at(site)
        until("the autoscaler's next pass", lambda before=before: looked_at(site) > before, site)  # type: ignore[misc]
    assert elastic_hosts(site) == 1
    told = said(site, "explain", "pair-1")
    assert waits in told
    assert "Slurm" not in told
    delete(site)


def test_a_pod_that_fits_on_no_node_is_told_so(site: KubernetesSite, image: str) -> None:
    submit(site, image, "large", gpus=9)

    def why() -> str:
        return str(pods(site)["large"]["metadata"].get("annotations", {}).get(WHY, ""))

    until("the pod shows why", lambda: "no elastic pool has nodes" in why(), site)
    delete(site)


def test_idle_nodes_go_away_and_explain_shows_why(site: KubernetesSite) -> None:
    until("only the controller is left", lambda: elastic_hosts(site) == 0, site)
    until("the node is deleted", lambda: not site.nodes(), site)
    told = said(site, "explain", "work-e1")
    assert "terminate" in told
    assert "Slurm" not in told


def test_a_node_whose_checks_fail_at_boot_does_not_join_and_another_one_comes(site: KubernetesSite, image: str) -> None:
    # What makes pods for a Deployment has no right to a policy of pods, which 1.20 asks for.
    group = "rbac.authorization.k8s.io"
    meta = {"name": "pods", "namespace": NAMESPACE}
    use = {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "verbs": ["use"]}
    site.apply(
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [use]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "pods"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}],
        },
    )
    labels = {"app": "service"}
    template = {"metadata": {"labels": labels}, "spec": specified(image)}
    site.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "service", "namespace": NAMESPACE},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        }
    )
    until("an instance is launched", lambda: elastic(site), site)
    ((node, bad),) = elastic(site).items()
    # Its homes go away when they have been mounted, and before its checks.
    subprocess.run(["podman", "exec", "--detach", bad, "sh", "-c", BREAK], check=True, timeout=PATIENCE_S)
    until("the pod runs", lambda: running(site), site)
    assert bad not in elastic(site).values()
    told = said(site, "explain", node)
    assert "its checks at boot failed: mounts: /mnt/home" in told
    log = site.on(site.controller, "journalctl", "-u", "gpucluster-join", "--no-pager", "-n", "200")
    assert "gpucluster: check failed: mounts" in log


def test_replace_moves_its_pods_and_ends_its_instance(site: KubernetesSite) -> None:
    (node,) = running(site).values()
    before = elastic(site)[node]
    site.good("replace", node, "--drain-timeout", "120")
    assert before not in elastic(site).values()
    until("the pod runs elsewhere", lambda: running(site), site)
    assert elastic(site)[next(iter(running(site).values()))] != before


def test_a_node_that_fails_its_checks_in_service_is_given_up_when_it_is_empty(site: KubernetesSite) -> None:
    (node,) = running(site).values()
    site.on(node, "umount", "--lazy", "/mnt/home")
    site.on(node, "systemctl", "start", "gpucluster-checks.service")
    until("its pods are told", lambda: TAINT in taints(site, node), site)
    until("the autoscaler knows", lambda: "DRAIN" in said(site, "explain", node), site)
    # Its pod stays, and so does it.
    assert list(running(site).values()) == [node]
    site.kubectl("delete", "deployment", "service", f"--namespace={NAMESPACE}")
    until("only the controller is left", lambda: elastic_hosts(site) == 0, site)
    assert "check failed: mounts" in said(site, "explain", node)


def test_a_gang_gets_both_of_its_nodes(site: KubernetesSite, image: str) -> None:
    submit(site, image, "pair", gang=2)
    until("both pods run", lambda: len(running(site)) == 2, site)
    assert len(set(running(site).values())) == 2
    assert elastic_hosts(site) == 2


def test_destroy_takes_elastic_nodes_with_it(site: KubernetesSite) -> None:
    site.good("destroy", "--delete-data")
    assert containers(site.home) == []
