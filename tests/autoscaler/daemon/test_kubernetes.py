"""KubernetesClient against a real API server: what it reads, what it writes, what a lost file and a failure cost.

There is no scheduler and no kubelet: the tests write what those would, the condition of a pod and the state of a node.
The client has the rights of the autoscaler's own account, and no others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.daemon.kubernetes import (
    GANG,
    GANG_SIZE,
    HOLD,
    IDLE,
    NOT_BEFORE,
    OUT_OF_SERVICE,
    KubernetesClient,
    KubernetesUnavailable,
    quantity,
)
from gpucluster.autoscaler.daemon.kubernetes import _pod as parsed_pod
from gpucluster.autoscaler.decide.explain import jobs_called
from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.pods import NodeTemplate
from gpucluster.autoscaler.decide.types import Delay, DrainNodes, Hold, MarkDown, Observation, PowerDown
from gpucluster.controller.kubernetes import service_access
from gpucluster.controller.kubernetes.nodes import CORDONED_BY, WHY
from gpucluster.controller.kubernetes.nodes import REASON as DRAIN_REASON
from gpucluster.controller.rules import unhealthy
from gpucluster.kubernetes.manifests import autoscaler, to_json
from gpucluster.node_agent.rules import reasons
from gpucluster.slurm.states import JobState
from tests.controller.kubernetes.api_server import ApiServer, binaries, needs_api_server, running
from tests.doubles.clock import Clock

pytestmark = [pytest.mark.slow, needs_api_server, pytest.mark.xdist_group("kubernetes-api-server")]

POOL = NodeTemplate(
    "cpu", tuple(f"cpu-e{n}" for n in range(1, 7)), 4, {"cpu": 4.0, "memory": 2.0**33, "pods": 110.0}, 300.0,
    {"gpucluster.io/pool": "cpu"},
)  # fmt: skip
NAMESPACE = "user-ada"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("api-server")) as one:
        one.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        account = service_access.account(autoscaler.ACCOUNT, autoscaler.rules(privileged_policy=None))
        one.kubectl.run("create", "--filename=-", text=to_json(account))
        yield one


@pytest.fixture
def api(server: ApiServer) -> Iterator[ApiServer]:
    yield server
    for kind in ("pods", "nodes"):
        for item in server.kubectl.list(kind):
            meta = item["metadata"]
            server.kubectl.delete(kind, meta["name"], meta.get("namespace", ""), "--grace-period=0", "--force")


@pytest.fixture
def clock() -> Clock:
    # Whole seconds, in which annotations are written.
    return Clock(now=float(int(datetime.now(UTC).timestamp()) + 60))


def client(api: ApiServer, state: Path, clock: Clock, *, may_write: bool = True, program: str = "") -> KubernetesClient:
    folder = binaries()
    account = f"--as=system:serviceaccount:{service_access.NAMESPACE}:{autoscaler.ACCOUNT}"
    kubectl = (program or str(folder / "kubectl"), f"--kubeconfig={api.kubeconfig}", account)
    return KubernetesClient(kubectl, (POOL,), state=state, may_write=lambda: may_write, clock=clock)


def pod(name: str, *, node: str = "", gang: str = "", size: int = 0, cpu: str = "3") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    spec: dict[str, Any] = {
        "containers": [{"name": "a", "image": "a", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}],
        "nodeSelector": {"gpucluster.io/pool": "cpu"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {GANG: gang} if gang else {},
            "annotations": {GANG_SIZE: str(size)} if size else {},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "1-2-3"}],
        },
        "spec": {**spec, **({"nodeName": node} if node else {})},
        "status": {"phase": "Pending", "conditions": [] if node else [condition]},
    }


def node(name: str, *, ready: bool = True) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"gpucluster.io/pool": "cpu"}},
        "spec": {"providerID": f"oci://ocid1.instance.test..{name}"},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def notes(api: ApiServer, name: str) -> dict[str, str]:
    return dict(api.kubectl.get("pod", name, NAMESPACE)["metadata"].get("annotations") or {})


def admit(api: ApiServer, name: str) -> None:
    """Lift the gates of a pod, as Kueue does, and report that there is no node for it, as the scheduler then does."""
    one = api.kubectl.get("pod", name, NAMESPACE)
    one["spec"].pop("schedulingGates", None)
    one["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    for part in ("", "/status"):
        words = ["replace", f"--raw=/api/v1/namespaces/{NAMESPACE}/pods/{name}{part}", "--filename=-"]
        one["metadata"].pop("resourceVersion", None)
        api.kubectl.run(*words, text=json.dumps(one))


def names(api: ApiServer, kind: str = "nodes") -> list[str]:
    return sorted(item["metadata"]["name"] for item in api.kubectl.list(kind))


def test_pods_of_the_control_plane_wait_for_its_host_first(api: ApiServer, tmp_path: Path, clock: Clock) -> None:
    of_dns = pod("dns")
    of_dns["metadata"]["namespace"] = "kube-system"
    api.create(of_dns)
    one = client(api, tmp_path, clock)

    def powering_up() -> list[str]:
        return [name for name, each in one.nodes().items() if phase(each.flags) is Phase.POWERING_UP]

    assert powering_up() == []
    clock.now += 3600  # it waits two minutes, from when the server has made it
    assert powering_up() == ["cpu-e1"]


def test_a_gang_that_waits_gets_its_nodes_and_a_restart_changes_nothing(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    api.create(*(pod(f"train-{rank}", gang="train", size=2) for rank in range(2)))
    one = client(api, tmp_path, clock)
    up = [name for name, each in one.nodes().items() if phase(each.flags) is Phase.POWERING_UP]
    job = one.jobs()[f"{NAMESPACE}/train"]
    assert (up, job.state, job.nodes, job.user) == (["cpu-e1", "cpu-e2"], JobState.CONFIGURING, tuple(up), "ada")
    api.create(node("cpu-e1"), node("cpu-e2", ready=False))
    again = client(api, tmp_path, clock).nodes()
    assert phase(again["cpu-e1"].flags) is Phase.IN_SERVICE
    assert again["cpu-e1"].instance_id == "ocid1.instance.test..cpu-e1"
    assert phase(again["cpu-e2"].flags) is Phase.POWERING_UP
    assert phase(again["cpu-e3"].flags) is Phase.POWERED_DOWN


def test_a_lost_placement_launches_nothing_a_second_time(api: ApiServer, tmp_path: Path, clock: Clock) -> None:
    api.create(*(pod(f"train-{rank}", gang="train", size=2) for rank in range(2)))
    booting = {name: each.flags for name, each in client(api, tmp_path, clock).nodes().items()}
    for content in ("", "{", '{"given": 3}'):
        (tmp_path / "placement.json").write_text(content)
        assert {name: each.flags for name, each in client(api, tmp_path, clock).nodes().items()} == booting
    api.create(node("cpu-e1"), node("cpu-e2"))
    (tmp_path / "placement.json").unlink()
    lost = client(api, tmp_path, clock).nodes()
    assert not [name for name, each in lost.items() if phase(each.flags) is Phase.POWERING_UP]


def test_an_idle_node_is_cordoned_then_let_back_or_deleted(api: ApiServer, tmp_path: Path, clock: Clock) -> None:
    api.create(node("cpu-e1"), node("cpu-e2"))
    one = client(api, tmp_path, clock)
    one.nodes()
    clock.now += 301
    one.nodes()
    for name in ("cpu-e1", "cpu-e2"):
        found = api.kubectl.get("node", name)
        assert found["spec"]["unschedulable"] is True
        assert found["metadata"]["annotations"][CORDONED_BY] == "gpucluster"
    api.create(pod("late", node="cpu-e1"))  # the scheduler was faster than the cordon
    seen = one.nodes()
    assert "unschedulable" not in api.kubectl.get("node", "cpu-e1")["spec"]
    assert (seen["cpu-e2"].drained, seen["cpu-e2"].busy, seen["cpu-e2"].reason) == (True, False, IDLE)
    one.apply(PowerDown(("cpu-e2",), "it is idle"))
    one.apply(PowerDown(("cpu-e2",), "it is idle"))
    assert names(api) == ["cpu-e1"]
    assert phase(one.nodes()["cpu-e2"].flags) is Phase.POWERING_DOWN
    assert not one.nodes()["cpu-e1"].drained


def test_a_node_that_an_operator_cordoned_is_left_alone(api: ApiServer, tmp_path: Path, clock: Clock) -> None:
    api.create(node("cpu-e1"))
    api.kubectl.run("cordon", "cpu-e1")
    one = client(api, tmp_path, clock)
    one.nodes()
    clock.now += 1000
    seen = one.nodes()["cpu-e1"]
    assert (seen.drained, seen.reason) == (True, "")
    assert CORDONED_BY not in (api.kubectl.get("node", "cpu-e1")["metadata"].get("annotations") or {})


def test_a_node_that_registers_again_after_it_was_given_up_is_deleted_again(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    one = client(api, tmp_path, clock)
    api.create(node("cpu-e1"))
    one.nodes()
    one.apply(PowerDown(("cpu-e1",), "lost"))
    api.create(node("cpu-e1"))
    clock.now += 100
    assert phase(one.nodes()["cpu-e1"].flags) is Phase.POWERING_DOWN
    assert names(api) == []


def test_nothing_is_changed_while_nothing_may_be(api: ApiServer, tmp_path: Path, clock: Clock) -> None:
    api.create(node("cpu-e1"), pod("large", cpu="99"), pod("waits"))
    looks = client(api, tmp_path, clock, may_write=False)
    before = api.kubectl.list("nodes") + api.kubectl.list("pods")
    looks.nodes()
    clock.now += 1000
    looks.nodes()
    assert api.kubectl.list("nodes") + api.kubectl.list("pods") == before
    assert list(tmp_path.iterdir()) == []


def test_pods_show_why_they_wait_and_a_hold_ends_when_a_user_removes_it(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    api.create(pod("large", cpu="99"), pod("held"), pod("later"))
    one = client(api, tmp_path, clock)
    one.nodes()
    assert "no elastic pool has nodes" in notes(api, "large")[WHY]
    one.apply(Hold(f"{NAMESPACE}/held", "gpucluster: five tries"))
    one.apply(Delay(f"{NAMESPACE}/later", clock.now + 600, "gpucluster: no host"))
    assert (notes(api, "held")[HOLD], notes(api, "later")[WHY]) == ("true", "gpucluster: no host")
    assert notes(api, "later")[NOT_BEFORE] == str(math.ceil(clock.now + 600))
    one.nodes()
    assert {name: job.reason for name, job in one.jobs().items()} == {
        f"{NAMESPACE}/held": "JobHeldAdmin", f"{NAMESPACE}/large": "Resources", f"{NAMESPACE}/later": "BeginTime",
    }  # fmt: skip
    api.kubectl.run("annotate", "pod", "held", f"--namespace={NAMESPACE}", f"{HOLD}-")
    clock.now += 601
    one.nodes()
    assert {name for name, job in one.jobs().items() if job.nodes} == {f"{NAMESPACE}/held", f"{NAMESPACE}/later"}


def test_nodes_that_do_not_help_make_their_pods_wait_longer_each_time(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    api.create(pod("odd"), node("cpu-e1"))
    waits = []
    for _ in range(2):
        one = client(api, tmp_path, clock)
        one.nodes()
        clock.now += 130  # longer than a node in service is waited for
        chosen = next(name for name, each in one.nodes().items() if phase(each.flags) is Phase.POWERING_UP)
        api.create(node(chosen))
        one.nodes()
        clock.now += 130
        one.nodes()
        until = int(notes(api, "odd")[NOT_BEFORE])
        waits.append(int(until - clock.now))
        clock.now = until + 1
    assert waits == [600, 1200]


def test_what_is_out_of_service_gets_a_taint_and_what_does_not_exist_is_remembered(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    api.create(node("cpu-e1"))
    one = client(api, tmp_path, clock)
    one.nodes()
    one.apply(MarkDown(("cpu-e1", "cpu-e2"), "gpucluster: no host"))
    one.apply(DrainNodes(("cpu-e1", "cpu-e9"), "gpucluster: maintenance"))
    (taint,) = [each for each in api.kubectl.get("node", "cpu-e1")["spec"]["taints"] if each["key"] == OUT_OF_SERVICE]
    assert taint["effect"] == "NoExecute"
    seen = client(api, tmp_path, clock).nodes()
    assert phase(seen["cpu-e1"].flags) is Phase.DOWN
    assert (phase(seen["cpu-e2"].flags), seen["cpu-e2"].reason) == (Phase.DOWN_POWERED_OFF, "gpucluster: no host")


def test_a_command_that_fails_half_way_is_repeated_by_the_next_pass(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    """The first pass reads, and is refused when it writes: nothing is decided for good."""
    folder = binaries()
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *annotate*) echo broken >&2; exit 1;; esac\nexec {folder}/kubectl "$@"\n'
    )
    program.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir()
    api.create(pod("odd"), node("cpu-e1"))
    first = client(api, state, clock)
    (state / "placement.json").write_text(
        json.dumps(
            {"given": {f"{NAMESPACE}/odd": ["cpu-e1"]}, "ready_since": {f"{NAMESPACE}/odd": clock.now - 1000},
             "idle_since": {}, "released": {}, "closed": {}, "stuck": {}}
        )
    )  # fmt: skip
    before = (state / "placement.json").read_text()
    with pytest.raises(KubernetesUnavailable, match="broken"):
        client(api, state, clock, program=str(program)).nodes()
    assert (state / "placement.json").read_text() == before
    client(api, state, clock).nodes()
    assert NOT_BEFORE in notes(api, "odd")
    assert first.node_states(["cpu-e1", "unknown"]).keys() == {"cpu-e1"}


def test_words_that_users_write_never_end_a_pass(api: ApiServer, tmp_path: Path, clock: Clock) -> None:
    odd = pod("odd", gang="odd")
    odd["metadata"]["annotations"] = {GANG_SIZE: "9" * 5000, NOT_BEFORE: "²"}
    api.create(odd)
    one = client(api, tmp_path, clock)
    one.nodes()
    assert one.jobs()[f"{NAMESPACE}/odd"].nodes == ("cpu-e1",)


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2", 2.0), ("1Gi", 2.0**30), ("1e3", 1000.0), ("1.5k", 1500.0), ("100n", 1e-7)],
)
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def test_a_node_that_a_command_drains_is_given_up_by_the_plan_and_not_an_administrators(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    api.create(node("cpu-e1"))
    change = {"metadata": {"annotations": {DRAIN_REASON: reasons.CHANGED}}, "spec": {"unschedulable": True}}
    api.kubectl.patch("node", "cpu-e1", change)
    seen = client(api, tmp_path, clock).nodes()["cpu-e1"]
    assert seen.drained
    assert reasons.from_gpucluster(seen.reason)


def test_a_node_that_failed_its_checks_is_given_up_by_the_plan_and_one_for_an_operator_is_not(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    """As the health service marks them: its taint, and the annotation with the reason."""
    said = {
        "cpu-e1": reasons.of_checks([("mounts", "/mnt/home is not mounted")], again=False),
        "cpu-e2": reasons.of_checks([("mounts", "/mnt/home is not mounted")], again=True),
        "cpu-e3": "",  # another user's
    }
    for name, reason in said.items():
        one = node(name)
        one["metadata"]["annotations"] = {unhealthy.REASON: reason}
        one["spec"]["taints"] = [{"key": unhealthy.TAINT, "value": "mounts", "effect": unhealthy.EFFECT}]
        api.create(one)
    seen = client(api, tmp_path, clock).nodes()
    assert {name: (each.drained, each.reason) for name, each in seen.items() if each.in_service} == {
        "cpu-e1": (True, said["cpu-e1"]), "cpu-e2": (True, said["cpu-e2"]), "cpu-e3": (False, ""),
    }  # fmt: skip
    assert [reasons.from_gpucluster(seen[name].reason) for name in ("cpu-e1", "cpu-e2")] == [True, False]
    # An operator's cordon is an operator's decision.
    api.kubectl.patch("node", "cpu-e1", {"spec": {"unschedulable": True}})
    assert client(api, tmp_path, clock).nodes()["cpu-e1"].reason == ""


def test_pods_behind_a_scheduling_gate_get_nodes_when_it_is_lifted(
    api: ApiServer, tmp_path: Path, clock: Clock
) -> None:
    """The condition is the one that 1.26 and newer write. 1.20 has no gates: it drops them, and takes the condition."""
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    for rank in range(2):
        raw = pod(f"rank-{rank}")
        raw["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "train"}
        raw["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "2"}
        raw["spec"]["schedulingGates"] = gates
        raw["status"]["conditions"][0] |= {
            "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
        }  # fmt: skip
        api.create(raw)
    one = client(api, tmp_path, clock)

    def powering_up() -> list[str]:
        return [name for name, each in one.nodes().items() if phase(each.flags) is Phase.POWERING_UP]

    clock.now += 3600
    assert powering_up() == []
    assert one.jobs()[f"{NAMESPACE}/train"].reason == "SchedulingGated"
    for rank in range(2):
        assert WHY not in notes(api, f"rank-{rank}")
        admit(api, f"rank-{rank}")
        # The first one alone gets nothing.
        assert bool(powering_up()) is (rank == 1)
    assert powering_up() == ["cpu-e1", "cpu-e2"]


def test_a_gated_pod_is_known_by_its_gates_and_a_group_of_kueue_by_its_size() -> None:
    """A pod as the API of 1.36 gives it, reduced."""
    raw = pod("rank-0")
    raw["metadata"] |= {
        "creationTimestamp": "2026-11-23T12:00:00Z",
        "labels": {"kueue.x-k8s.io/pod-group-name": "train"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    }
    raw["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    found = parsed_pod(raw)
    assert (found.gated, found.gang, found.gang_size) == (True, f"{NAMESPACE}/train", 2)
    del raw["spec"]["schedulingGates"]
    assert not parsed_pod(raw).gated
    assert parsed_pod(raw).unschedulable


def test_a_job_is_known_by_its_pods_and_by_what_made_them(api: ApiServer, tmp_path: Path, clock: Clock) -> None:
    api.create(pod("train-x7k2p"), pod("alone"))
    one = client(api, tmp_path, clock)
    one.nodes()
    seen = Observation(None, one.jobs(), None)
    # `a` is the Job of both.
    assert jobs_called("a", seen) == (f"{NAMESPACE}/alone", f"{NAMESPACE}/train-x7k2p")
    assert jobs_called(f"{NAMESPACE}/alone", seen) == jobs_called("alone", seen) == (f"{NAMESPACE}/alone",)
    assert jobs_called("other", seen) == jobs_called("user-eve/alone", seen) == ()


@pytest.mark.parametrize(
    ("message", "unbound"),
    [
        ("0/3 nodes are available: 3 pod has unbound immediate PersistentVolumeClaims.", True),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes are", True),
        ('0/3 nodes are available: persistentvolumeclaim "home" not found. preemption: not helpful.', True),
        ('persistentvolumeclaim "home" not found', True),
        ('0/11 nodes are available: persistentvolumeclaim "a" bound to non-existent persistentvolume "b".', True),
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", False),
        ("0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods.", False),
        ("", False),
    ],
)
def test_a_claim_that_no_node_binds_is_known_by_the_words_of_the_scheduler(message: str, unbound: bool) -> None:
    raw = pod("first")
    (scheduled,) = (each for each in raw["status"]["conditions"] if each["type"] == "PodScheduled")
    scheduled["message"] = message
    assert parsed_pod(raw).unbound is unbound
    assert parsed_pod(raw).unschedulable
