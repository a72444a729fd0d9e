"""The health service with a real API server of Kubernetes, and a report with the certificate of a kubelet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.health.control import Control
from gpucluster.controller.health.kubernetes import Follower, KubernetesNodes
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.health.store import ReportStore
from gpucluster.controller.kubernetes import health_access
from gpucluster.controller.rules.unhealthy import TAINT
from gpucluster.node_agent.checks.model import Status
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.health.node_object import CONDITION, publish
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.health.doubles import DRAINS, ControllerClock, report
from tests.controller.kubernetes.api_server import ApiServer, controllers, needs_api_server, running_with_kubelet
from tests.controller.kubernetes.objects import node
from tests.waiting import wait_for

ROLES = Path(__file__).resolve().parents[3] / "ansible/roles"
NAMES = ("compute-1", "compute-2", "compute-3")


def test_metrics_say_that_the_api_server_is_silent(tmp_path: Path) -> None:
    settings = HealthSettings(slurm=False, interval=300, max_drained_percent=20, shadow=False, networks=(),
                        pools={"compute": NAMES}, kubernetes=True)  # fmt: skip
    store, clock = ReportStore(tmp_path, interval=300), ControllerClock()
    unreachable = KubernetesNodes(Kubectl("none", str(tmp_path / "kubectl")), settings.pool_of)
    control = Control(store, unreachable, settings.policy, drains=DRAINS, moment=clock)
    with pytest.raises(Failed):
        Follower(settings, store, unreachable, control, drains=DRAINS, moment=clock).tick()
    written = measured(tmp_path)
    assert written["gpucluster_kubernetes_up"] == "0"
    assert "gpucluster_health_interval_seconds" in written
    assert not any(name.startswith("gpucluster_kubernetes_node_ready") for name in written)


def measured(folder: Path) -> dict[str, str]:
    """The samples in the file of metrics."""
    lines = (folder / "metrics.prom").read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiServer, Kubectl]]:
    """The API server as kubeadm configures it, and kubectl as the kubelet of compute-1."""
    with running_with_kubelet(tmp_path_factory.mktemp("kubernetes"), "compute-1") as both:
        yield both


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_kubelet_may_list_all_nodes_with_the_rights_of_the_role(server: tuple[ApiServer, Kubectl]) -> None:
    """Releases from 1.32 on let it read its own node alone."""
    # The oldest Python, which collects this file, has no yaml.
    yaml = pytest.importorskip("yaml")
    api, kubelet = server
    made = yaml.safe_load((ROLES / "kubernetes/vars/main.yml").read_text())["kubernetes_routes_rights"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    api.kubectl.run("apply", "--filename=-", text=text)

    wait_for("the kubelet may list nodes", lambda: kubelet.run("get", "--raw=/api/v1/nodes"), ignore=ApiFailed)


@pytest.fixture(scope="module")
def health(server: tuple[ApiServer, Kubectl]) -> Kubectl:
    """kubectl as the health service, with the file that it gets on a controller."""
    api, kubelet = server
    file = api.folder / "health.kubeconfig"
    with controllers(api, "serviceaccount-token"):
        assert health_access.keep(api.kubectl, time.sleep, file)
    return Kubectl(str(file), kubelet._argv[0])


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_the_service_may_change_nodes_and_nothing_else(server: tuple[ApiServer, Kubectl], health: Kubectl) -> None:
    api, _kubelet = server
    file = api.folder / "health.kubeconfig"
    assert file.stat().st_mode & 0o777 == 0o600
    may = ["get nodes", "list nodes", "patch nodes", "update nodes/status"]
    never = ["delete nodes", "create nodes", "update nodes", "list secrets", "list pods", "create pods",
             "list configmaps", "impersonate users", "create clusterrolebindings", "list namespaces"]  # fmt: skip

    def allowed(words: str) -> bool:
        verb, resource = words.split()
        kind, _slash, part = resource.partition("/")
        try:
            return health.run("auth", "can-i", verb, kind, *[f"--subresource={part}"] * bool(part)).strip() == "yes"
        except ApiFailed:
            return False

    wait_for("the service has its rights", lambda: all(map(allowed, may)), interval=0.2)
    assert [words for words in never if allowed(words)] == []


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_failed_check_becomes_a_condition_and_a_taint_and_recovery_removes_only_them(
    server: tuple[ApiServer, Kubectl], health: Kubectl, tmp_path: Path
) -> None:
    api, kubelet = server
    api.create(*(node(name) for name in NAMES))
    theirs = {"key": "example.com/reserved", "value": "x", "effect": "NoSchedule"}
    api.kubectl.patch("node", "compute-1", {"spec": {"taints": [theirs]}})
    api.kubectl.run("cordon", "compute-3")
    clock = ControllerClock()
    settings = HealthSettings(slurm=False, interval=300, max_drained_percent=20, shadow=False, networks=(),
                        pools={"compute": NAMES}, kubernetes=True)  # fmt: skip
    store = ReportStore(tmp_path, interval=300)
    cluster = KubernetesNodes(health, settings.pool_of)
    control = Control(store, cluster, settings.policy, drains=DRAINS, moment=clock)
    follower = Follower(settings, store, cluster, control, drains=DRAINS, moment=clock)

    def of(name: str) -> dict[str, Any]:
        return api.kubectl.get("node", name)

    def taints(name: str) -> list[tuple[str, str]]:
        found = [(each["key"], each.get("value", "")) for each in of(name)["spec"].get("taints", ())]
        return sorted(each for each in found if not each[0].startswith("node.kubernetes.io/"))

    def says(by: Kubectl, name: str, started: float, **results: Status) -> None:
        made = report(name, {"disk": Status.PASS, "gpu": Status.PASS, **results})
        publish(
            by, type(made)(name, made.profile, started, 0.1, made.boot_id, made.findings), DRAINS, 1_000_000 + started
        )
        clock.pass_(60)
        follower.tick()

    says(api.kubectl, "compute-2", 1)
    assert measured(tmp_path)["gpucluster_kubernetes_up"] == "1"
    assert measured(tmp_path)['gpucluster_kubernetes_node_ready{node="compute-3",pool="compute"}'] == "1"
    says(api.kubectl, "compute-3", 1, disk=Status.FAIL)
    assert taints("compute-3") == []
    says(kubelet, "compute-1", 1, gpu=Status.FAIL)
    (written,) = [each for each in of("compute-1")["status"]["conditions"] if each["type"] == CONDITION]
    assert (written["status"], written["message"]) == ("False", "gpu: gpu is fail")
    assert {each["type"] for each in of("compute-1")["status"]["conditions"]} == {"Ready", CONDITION}
    assert taints("compute-1") == [("example.com/reserved", "x"), (TAINT, "gpu")]
    # The breaker: one node of three in an hour.
    says(api.kubectl, "compute-2", 2, disk=Status.FAIL)
    assert taints("compute-2") == []
    # The same report, read again after a restart of the service, is not newer evidence.
    before = store.last("compute-1", clock())
    Follower(settings, ReportStore(tmp_path, interval=300), cluster, control, drains=DRAINS, moment=clock).tick()
    assert before is not None
    again = ReportStore(tmp_path, interval=300).last("compute-1", clock())
    assert again is not None
    assert again.at == before.at
    api.kubectl.run("cordon", "compute-1")
    says(kubelet, "compute-1", 3)
    assert taints("compute-1") == [("example.com/reserved", "x")]
    assert of("compute-1")["spec"]["unschedulable"] is True
    # A taint with our key that an operator has set stays, and so does the node.
    api.kubectl.patch(
        "node", "compute-2", {"spec": {"taints": [{"key": TAINT, "value": "me", "effect": "NoSchedule"}]}}
    )
    clock.pass_(7200)
    says(api.kubectl, "compute-2", 4)
    assert taints("compute-2") == [(TAINT, "me")]
    cluster.undrain("compute-2")
    assert taints("compute-2") == [(TAINT, "me")]
    # A kubelet speaks for its own node alone, and sets no taint.
    with pytest.raises(ApiFailed):
        publish(kubelet, report("compute-2", {"gpu": Status.FAIL}), DRAINS, 1, away_s=0)
    with pytest.raises(ApiFailed):
        KubernetesNodes(kubelet, settings.pool_of).drain("compute-1", "gpucluster: check failed: gpu: x")


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_node_that_stops_reporting_becomes_unknown_and_shows_since_when(
    server: tuple[ApiServer, Kubectl], health: Kubectl, tmp_path: Path
) -> None:
    api, _kubelet = server
    names = ("silent-1", "silent-2", "silent-3")
    api.create(*(node(name) for name in names))
    clock = ControllerClock()
    settings = HealthSettings(slurm=False, interval=300, max_drained_percent=20, shadow=False, networks=(),
                        pools={"silent": names}, kubernetes=True)  # fmt: skip
    store = ReportStore(tmp_path, interval=300)
    cluster = KubernetesNodes(health, settings.pool_of)
    control = Control(store, cluster, settings.policy, drains=DRAINS, moment=clock)
    follower = Follower(settings, store, cluster, control, drains=DRAINS, moment=clock)

    def said(name: str) -> dict[str, str]:
        found = api.kubectl.get("node", name)["status"]["conditions"]
        return next((each for each in found if each["type"] == CONDITION), {})

    def says(name: str, started: float) -> None:
        made = report(name, {"disk": Status.PASS, "gpu": Status.PASS})
        made = type(made)(name, made.profile, started, 0.1, made.boot_id, made.findings)
        publish(api.kubectl, made, DRAINS, clock().wall)

    for name in names[:2]:
        says(name, 1)
    follower.tick()
    came = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock().wall))
    clock.pass_(899)
    follower.tick()
    assert said("silent-1")["status"] == said("silent-2")["status"] == "True"
    clock.pass_(2)
    says("silent-2", 2)
    follower.tick()
    assert (said("silent-1")["status"], said("silent-1")["reason"]) == ("Unknown", "NoReport")
    assert said("silent-1")["message"] == f"no report of this node's checks since {came}"
    assert said("silent-2")["status"] == "True"
    # A node that has never reported has no condition, and kubelet's own stay.
    assert said("silent-3") == {}
    kinds = {each["type"] for each in api.kubectl.get("node", "silent-1")["status"]["conditions"]}
    assert kinds == {"Ready", CONDITION}
    # It is reported once: the time of change stays.
    before = said("silent-1")
    clock.pass_(300)
    follower.tick()
    assert said("silent-1") == before
    # A node that reported after the service had read it is left alone.
    seen = api.kubectl.get("node", "silent-2")
    clock.pass_(60)
    says("silent-2", 3)
    cluster.say_silent(seen, 0.0, clock().wall)
    assert said("silent-2")["status"] == "True"
    says("silent-1", 2)
    follower.tick()
    assert said("silent-1")["status"] == "True"
