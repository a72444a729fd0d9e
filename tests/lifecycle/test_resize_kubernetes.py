"""Nodes that leave a cluster with Kubernetes, with a real API server. Terraform and the cloud are doubles."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import ToolError
from gpucluster.events import Event
from gpucluster.lifecycle.hosts import HostConnections
from gpucluster.lifecycle.resize import Resizing
from gpucluster.node_agent.rules.reasons import UPGRADED
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.kubernetes import ControlPlaneClient
from gpucluster.operations.schedulers import kubernetes_nodes
from gpucluster.spec import loads
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.terraform.runner import Terraform
from tests.controller.kubernetes.api_server import needs_api_server, running
from tests.controller.kubernetes.objects import node, pod
from tests.lifecycle.test_resize import instance, raw_outputs
from tests.operations.test_kubernetes import control_plane
from tests.spec.spec_texts import MINIMAL
from tests.waiting import PATIENCE_S

SPEC = MINIMAL.replace("shape: BM.GPU4.8, count: 1", "shape: VM.GPU.A10.1, count: 2") + "scheduler: kubernetes\n"
REPLACED = TerraformPlan(
    (ResourceChange(instance("compute", 2), "replace", "cannot_update", ("shape",)),), Path("plan.tfplan")
)
REMOVED = TerraformPlan((ResourceChange(instance("compute", 3), "delete"),), Path("plan.tfplan"))


def change(plane: ControlPlaneClient, plan: TerraformPlan, timeout: float) -> Resizing:
    """Prepare this change of a cluster that has three nodes and is to have two."""
    numbers = range(1, 4)
    members = [{"id": f"ocid1.{n}", "name": f"compute-{n}", "private_ip": f"10.0.0.{n}"} for n in numbers]
    raw = raw_outputs(kind="instances", cluster_network_id=None, instances=members)
    resizing = Resizing(
        spec=loads(SPEC, "cluster.yml"),
        cloud=cast(CloudProvider, None),
        elastic=lambda: cast(ElasticInstances, SimpleNamespace(instances=lambda: ())),
        controller=cast(ControllerConnection, SimpleNamespace(hosts=lambda: ("controller",))),
        nodes=plane,
        hosts=cast(HostConnections, None),
        record=cast(ConfigurationRecord, None),
        on_event=lambda _: None,
    )
    terraform: Any = SimpleNamespace(outputs=lambda: raw)
    resizing.drain_and_detach(cast(Terraform, terraform), plan, replace_nodes=True, drain_timeout=timeout)
    return resizing


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_nodes_are_drained_before_they_leave_and_forgotten_before_another_machine_has_their_name(
    tmp_path: Path,
) -> None:
    events: list[Event] = []
    with running(tmp_path) as server:
        plane = control_plane(server.kubeconfig, server.kubectl._argv[0], events)
        server.create(*(node(f"compute-{number}") for number in (1, 2, 3)), node("tiny-controller"))
        server.create(pod("training", "compute-3", "Job", restart="Never"))
        with pytest.raises(ToolError, match="default/training"):
            change(plane, REMOVED, 0.1)
        states = {each["node"]: each["state"] for each in kubernetes_nodes(plane)}
        assert states == {
            "compute-1": "Ready", "compute-2": "Ready", "compute-3": "Ready,SchedulingDisabled",
            "tiny-controller": "Ready",
        }  # fmt: skip
        # It is wanted again. A node that waits for its upgrade is not resumed by an apply, which is refused afterwards.
        plane.begin({"compute-1": UPGRADED})
        plane.resume(["compute-1", "compute-3"])
        assert {name for name, each in plane.nodes().items() if each.cordoned} == {"compute-1"}
        plane.uncordon("compute-1")
        change(plane, REMOVED, 0)
        assert set(plane.nodes()) == {"compute-1", "compute-2", "tiny-controller"}
        change(plane, REPLACED, PATIENCE_S)
        assert set(plane.nodes()) == {"compute-1", "tiny-controller"}
        server.create(node("compute-2"))
        assert not plane.nodes()["compute-2"].cordoned
