"""What the autoscaler is told of the nodes that it launches."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from gpucluster.autoscaler.policy import Policy
from gpucluster.cloud.providers import ControllerAccess
from gpucluster.handover.autoscaling import Autoscaling, autoscaler_policy
from gpucluster.handover.kubernetes import pool_variables
from gpucluster.handover.outputs import Outputs
from gpucluster.prices import PriceList
from gpucluster.spec import loads
from tests.handover.test_kubernetes import GOLDEN, KUBERNETES, NETWORK
from tests.spec.spec_texts import MINIMAL


def test_the_autoscaler_knows_what_a_new_node_will_be() -> None:
    outputs = Outputs.parse(json.loads(GOLDEN.read_text()))
    pool = replace(outputs.pools["compute"], compute_cluster_id=NETWORK, availability_domain="Uocm:PHX-AD-1")
    spec = loads(KUBERNETES.replace("count: 1", "count: 0, max_count: 2, idle_timeout: 60"))
    access = ControllerAccess(authentication={"method": "instance_principal"})
    raw = autoscaler_policy(
        spec, replace(outputs, pools={"compute": pool}), Autoscaling(access, frozenset({"compute"}))
    )
    policy = Policy.parse(raw)
    read = policy.pools["compute"]
    assert (policy.scheduler, read.partition, read.baked) == ("kubernetes", "compute", False)
    node = read.node
    assert node is not None
    # A permanent node of the pool differs in one label.
    permanent = pool_variables(spec, "compute", spec.pools["compute"], replace(outputs, pools={"compute": pool}),
                               hardware_emulated=False)  # fmt: skip
    assert node.labels == permanent["kubernetes_node_labels"] | {"gpucluster.io/elastic": "true"}
    assert [dict(taint) for taint in node.taints] == permanent["kubernetes_node_taints"]
    shape = spec.pools["compute"].hardware
    assert node.capacity["nvidia.com/gpu"] == shape.gpus
    assert 0 < node.capacity["memory"] < (shape.memory_mib or 0) * 2**20
    assert (node.architecture, node.idle_seconds) == ("amd64", 60.0)


BUDGET = "slurm: {accounts: {science: {monthly_budget: 1000}, vision: {parent: science}}}\n"


def test_budgets_have_the_prices_and_the_permanent_hosts_of_the_apply() -> None:
    outputs = Outputs.parse(json.loads(GOLDEN.read_text()))
    autoscaling = Autoscaling(
        ControllerAccess(authentication={"method": "instance_principal"}),
        prices=PriceList("2026-11-01", {"B92740": 3.0}),
    )
    pool = replace(outputs.pools["compute"], compute_cluster_id=None)
    outputs = replace(outputs, pools={"compute": pool})
    hosts: list[dict[str, Any]] = [
        {"id": "c", "name": "c", "pool": "controller"},
        {"id": "n", "name": "n", "pool": "compute", "machine": {}},
    ]

    def policy(text: str) -> Policy:
        spec = loads(MINIMAL.replace("count: 1", "count: 0, max_count: 2") + text)
        return Policy.parse(autoscaler_policy(spec, outputs, autoscaling, hosts=hosts))

    budgets = policy(BUDGET).budgets
    assert budgets is not None
    assert (budgets.amounts, budgets.parents) == ({"science": 1000.0}, {"science": "root", "vision": "science"})
    assert (budgets.prices, budgets.currency, budgets.timezone) == ({"compute": 24.0}, "USD", "UTC")
    assert [host["name"] for host in budgets.hosts] == ["n"]
    cheaper = MINIMAL.replace("provider: local", "provider: local, price_factor: 0.5").replace(
        "count: 1", "max_count: 2"
    )
    half = Policy.parse(autoscaler_policy(loads(cheaper + BUDGET), outputs, autoscaling)).budgets
    assert half is not None
    assert half.prices == {"compute": 12.0}
    assert policy("").budgets is None
