"""Which nodes a replacement takes, and that it leaves an operator's alone. Schedulers and the cloud are doubles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpucluster.cloud.elastic_instances import ElasticInstance, ElasticInstances
from gpucluster.controller.rules.unhealthy import TAINT
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle import replace as replacing
from gpucluster.lifecycle.host_reports import HostFault, HostReporting
from gpucluster.lifecycle.replace import Chosen, ElasticReplacement, OnKubernetes, OnSlurm, choose, is_elastic
from gpucluster.node_agent.rules.reasons import CHANGED, FAILED_CHECKS, FOR_A_PERSON, RETURNED
from gpucluster.operations.drain import Draining, SlurmJob, SlurmNode
from gpucluster.operations.kubernetes import ControlPlaneClient, KubernetesNode
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL

SPEC = loads(LOCAL.replace("    count: 2\n", "    count: 2\n    max_count: 4\n", 1), "cluster.yml")


def test_names_are_sorted_by_what_replaces_them() -> None:
    assert choose(SPEC, ["compute-2", "compute-e1", "compute-2"]) == Chosen(("compute-2",), ("compute-e1",))
    # Slurm has two more than twice as many names as nodes.
    assert is_elastic(SPEC, "compute-e6")
    assert not any(is_elastic(SPEC, name) for name in ("compute-e7", "compute-e0", "compute-1", "other-e1"))


@pytest.mark.parametrize("name", ["compute-3", "demo-controller", "compute-e99", "", "computer-1"])
def test_what_is_not_a_node_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="there is no node"):
        choose(SPEC, ["compute-1", name])


class CloudDouble:
    """Stands for the cloud and the autoscaler: instances whose states change with each look. Terminates nothing."""

    def __init__(self, *looks: Mapping[str, str]) -> None:
        self._looks = list(looks)

    def instances(self) -> tuple[ElasticInstance, ...]:
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        builder = ElasticInstance("ocid1.bake", "compute-e1", "compute", "RUNNING", builder=True)
        nodes = [ElasticInstance(f"ocid1.{ocid}", node, "compute", state)
                 for node, told in look.items() for ocid, state in [told.split()]]  # fmt: skip
        return (builder, *nodes)


class DrainingDouble:
    """Stands for Slurm: remembers what was drained. Its jobs end after some looks."""

    def __init__(self, nodes: Mapping[str, SlurmNode], *, looks: int = 0) -> None:
        self._nodes = nodes
        self._looks = looks
        self.drained: list[tuple[dict[str, str], float]] = []

    def nodes(self) -> Mapping[str, SlurmNode]:
        return self._nodes

    def drain(self, reasons: dict[str, str], timeout: float) -> None:
        self.drained.append((reasons, timeout))

    def begin(self, reasons: dict[str, str]) -> None:
        self.drained.append((reasons, -1))

    def jobs(self, names: Collection[str]) -> tuple[SlurmJob, ...]:
        self._looks -= 1
        return (SlurmJob("7", "alice", "1:00", ",".join(names)),) if names and self._looks >= 0 else ()


NO_REPORTS = cast(HostReporting, SimpleNamespace(report=lambda faults, _instances, _physical: None))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    monkeypatch.setattr(replacing, "_POLL", 0.001)
    monkeypatch.setattr(replacing, "GIVEN_UP_WITHIN", 0.05)
    return []


def replacement(draining: DrainingDouble, cloud: CloudDouble, on_event: Callable[[Event], None]) -> ElasticReplacement:
    scheduler = OnSlurm(cast(Draining, draining), on_event)
    return ElasticReplacement(scheduler, lambda: cast(ElasticInstances, cloud), reporting=NO_REPORTS, on_event=on_event)


def test_an_elastic_node_is_drained_and_awaited_until_its_own_instance_goes(events: list[Event]) -> None:
    slurm = DrainingDouble({"compute-e1": SlurmNode("mixed", "none"), "compute-e2": SlurmNode("idle", "none")}, looks=2)
    # The name may have another instance already: that is the replacement.
    cloud = CloudDouble(
        *[{"compute-e1": "old RUNNING"}] * 5,
        {"compute-e1": "new PROVISIONING"},
    )
    replacement(slurm, cloud, events.append).replace(["compute-e1"], 60)
    # Once: a name whose node is powered down meanwhile must not be drained.
    assert slurm.drained == [({"compute-e1": CHANGED}, -1)]
    assert [(each.name, each.status) for each in events] == [
        ("slurm", "waiting"),
        ("instance compute-e1", "deleting"),
        ("instance compute-e1", "deleted"),
    ]


def test_a_node_without_an_instance_and_one_that_ends_already_need_nothing(events: list[Event]) -> None:
    slurm = DrainingDouble({"compute-e1": SlurmNode("idle", "none")})
    replacement(slurm, CloudDouble({"compute-e1": "old TERMINATING"}), events.append).replace(["compute-e1"], 60)
    assert (slurm.drained, events) == ([], [])


def test_what_an_operator_drained_is_refused_before_anything_is_drained(events: list[Event]) -> None:
    slurm = DrainingDouble({"compute-e1": SlurmNode("idle", "none"), "compute-e2": SlurmNode("drained", "broken fan")})
    cloud = CloudDouble({"compute-e1": "one RUNNING", "compute-e2": "two RUNNING"})
    with pytest.raises(ToolError, match=r"compute-e2 \(broken fan\)") as caught:
        replacement(slurm, cloud, events.append).replace(["compute-e1", "compute-e2"], 60)
    assert "nodename=compute-e2 state=resume" in caught.value.hint
    assert (slurm.drained, events) == ([], [])


def test_jobs_that_do_not_end_are_named_and_nothing_is_terminated(events: list[Event]) -> None:
    slurm = DrainingDouble({"compute-e1": SlurmNode("mixed", "none")}, looks=10_000)
    cloud = CloudDouble({"compute-e1": "old RUNNING"})
    with pytest.raises(ToolError, match=r"after 0 s there is still job 7 of alice on compute-e1") as caught:
        replacement(slurm, cloud, events.append).replace(["compute-e1"], 0.01)
    assert "--drain-timeout 0" in caught.value.hint
    assert [each.status for each in events] == ["waiting"]


def test_without_patience_jobs_are_requeued(events: list[Event]) -> None:
    slurm = DrainingDouble({"compute-e1": SlurmNode("mixed", "none")}, looks=10_000)
    cloud = CloudDouble({"compute-e1": "old RUNNING"}, {})
    replacement(slurm, cloud, events.append).replace(["compute-e1"], 0)
    assert slurm.drained == [({"compute-e1": CHANGED}, 0)]


def test_an_autoscaler_that_does_nothing_is_told(events: list[Event]) -> None:
    slurm = DrainingDouble({"compute-e1": SlurmNode("drained", CHANGED)})
    with pytest.raises(ToolError, match="has not terminated compute-e1 within") as caught:
        replacement(slurm, CloudDouble({"compute-e1": "old RUNNING"}), events.append).replace(["compute-e1"], 60)
    assert "autoscaler explain compute-e1" in caught.value.hint


class ControlPlaneDouble:
    """Stands for Kubernetes: remembers what was drained."""

    def __init__(self, *nodes: KubernetesNode) -> None:
        self._nodes = {each.name: each for each in nodes}
        self.drained: list[tuple[dict[str, str], float]] = []

    def nodes(self) -> dict[str, KubernetesNode]:
        return self._nodes

    def drain(self, reasons: dict[str, str], timeout: float) -> None:
        self.drained.append((reasons, timeout))


@pytest.mark.parametrize("timeout", [60, 0])
def test_with_kubernetes_its_pods_leave_and_its_instance_is_awaited(events: list[Event], timeout: int) -> None:
    # One that the autoscaler has cordoned has its reason: it is not an operator's.
    plane = ControlPlaneDouble(
        KubernetesNode("compute-e1", "True", cordoned=False),
        KubernetesNode("compute-e2", "True", cordoned=True, reason="gpucluster: it had no pods for a while"),
    )
    running = {"compute-e1": "one RUNNING", "compute-e2": "two RUNNING"}
    cloud = CloudDouble(running, running, {"compute-e2": "two RUNNING"}, {})
    scheduler = OnKubernetes(cast(ControlPlaneClient, plane))
    replacing_them = ElasticReplacement(
        scheduler, lambda: cast(ElasticInstances, cloud), reporting=NO_REPORTS, on_event=events.append
    )
    replacing_them.replace(["compute-e1", "compute-e2"], timeout)
    assert plane.drained == [({"compute-e1": CHANGED, "compute-e2": CHANGED}, timeout)]
    assert [each.status for each in events] == ["deleting", "deleting", "deleted", "deleted"]


def test_with_kubernetes_what_an_operator_cordoned_is_refused(events: list[Event]) -> None:
    plane = ControlPlaneDouble(KubernetesNode("compute-e1", "True", cordoned=True))
    cloud = CloudDouble({"compute-e1": "one RUNNING"})
    scheduler = OnKubernetes(cast(ControlPlaneClient, plane))
    elastic = ElasticReplacement(
        scheduler, lambda: cast(ElasticInstances, cloud), reporting=NO_REPORTS, on_event=events.append
    )
    with pytest.raises(ToolError, match=r"compute-e1 \(it is cordoned\)") as caught:
        elastic.replace(["compute-e1"], 60)
    assert "gpucluster kubectl -- uncordon compute-e1" in caught.value.hint
    assert (plane.drained, events) == ([], [])


def test_the_host_of_a_bad_elastic_node_is_reported_before_its_node_is_drained(events: list[Event]) -> None:
    """The autoscaler terminates an instance as soon as no job is on it."""
    slurm = DrainingDouble({"compute-e1": SlurmNode("drained", f"{FAILED_CHECKS} gpu_ecc: 3")})
    cloud = CloudDouble({"compute-e1": "one RUNNING"}, {})
    told: list[tuple[Any, Any, int]] = []

    def report(faults: Any, instances: Any, _physical: Any) -> None:
        told.append((dict(faults), dict(instances), len(slurm.drained)))

    scheduler = OnSlurm(cast(Draining, slurm), events.append)
    reporting = cast(HostReporting, SimpleNamespace(report=report))
    elastic = ElasticReplacement(
        scheduler, lambda: cast(ElasticInstances, cloud), reporting=reporting, on_event=events.append
    )
    fault = HostFault("gpu_ecc: 3")
    elastic.replace(["compute-e1"], 60, {"compute-e1": fault})
    assert told == [({"compute-e1": fault}, {"compute-e1": "ocid1.one"}, 0)]


def test_which_nodes_have_failed_checks() -> None:
    slurm = DrainingDouble(
        {
            "compute-1": SlurmNode("idle", "none"),
            "compute-2": SlurmNode("drained", f"{FAILED_CHECKS} gpu_ecc: 3"),
            "compute-3": SlurmNode("draining", f"{FOR_A_PERSON} gpu_ecc: 3"),
            "compute-4": SlurmNode("drained", f"{RETURNED} gpu_ecc: 3"),
            "compute-5": SlurmNode("idle", f"{FAILED_CHECKS} an old one"),
            "compute-6": SlurmNode("drained", "fan"),
            "compute-7": SlurmNode("drained", CHANGED),
        }
    )
    assert OnSlurm(cast(Draining, slurm), ignore).faulty().keys() == {"compute-2", "compute-3", "compute-4"}
    plane = ControlPlaneDouble(
        KubernetesNode("compute-1", "True", cordoned=True, reason=CHANGED),
        KubernetesNode("compute-2", "True", cordoned=False, taints=({"key": TAINT, "value": "gpu_ecc"},)),
        KubernetesNode("compute-3", "True", cordoned=False, taints=({"key": "other", "value": "x"},)),
    )
    assert OnKubernetes(cast(ControlPlaneClient, plane)).faulty() == {"compute-2": f"{FAILED_CHECKS} gpu_ecc"}
