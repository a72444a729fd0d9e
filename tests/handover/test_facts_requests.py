"""What each host, and the controller, is asked for a verdict; and that those who answer know these names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.controller.facts import __main__ as cluster_facts
from gpucluster.node_agent.facts import __main__ as host_facts
from gpucluster.spec import load

GOLDEN = Path(__file__).parents[1] / "golden"
EVERYTHING = {"profile": "quick", "seconds": 40, "pools": None, "nodes": None, "with_elastic": True, "pods": []}
TOKEN = "0123456789abcdef"


def _collection(case: str, change: Any = None, **request: Any) -> handover.Collection:
    spec = load(GOLDEN / case / "cluster.yml")
    if change:
        spec = change(spec)
    outputs = handover.Outputs.parse(json.loads((GOLDEN / case / "outputs.json").read_text()))
    file = GOLDEN / case / "members.json"
    read: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    members: Any = {
        name: [SimpleNamespace(**node) for node in read.get(name, ())] or list(pool.instances)
        for name, pool in outputs.pools.items()
    }
    return handover.collection(spec, outputs, members, {**EVERYTHING, **request}, TOKEN)


def test_each_host_looks_for_the_token_and_runs_its_own_checks() -> None:
    asked = _collection("local_demo")
    controller, *nodes = asked.hosts
    assert controller == asked.controller
    assert len(nodes) >= 2
    for of_host in asked.hosts.values():
        token = {"path": "/mnt/home", "file": f"/mnt/home/.gpucluster-verify/{TOKEN}", "token": TOKEN}
        assert of_host["share"] == token
        assert of_host["checks"] == {"profile": "quick", "seconds": 40, "alone": False}
        assert of_host["users"]
        assert (of_host["mesh"], of_host["access"]) == (None, False)
    assert asked.cluster["host"] == asked.hosts[controller]
    assert asked.cluster["slurm"]["job"] == f"gpucluster-verify-{TOKEN[:8]}"
    assert asked.host_seconds < asked.cluster["seconds"]
    assert asked.host_seconds < asked.cluster_seconds


def test_only_nodes_that_were_asked_for_run_checks_and_jobs() -> None:
    everything = _collection("local_demo")
    (pool, *_more) = everything.cluster["slurm"]["pools"]
    chosen, *others = pool["nodes"]
    asked = _collection("local_demo", pools=[pool["name"]], nodes=[chosen], with_elastic=False, profile="full")
    assert {host for host, of_host in asked.hosts.items() if of_host["checks"]} == {chosen}
    assert (asked.hosts[chosen]["checks"]["alone"], asked.cluster["apart"]) == (True, True)
    assert everything.cluster["apart"] is False
    (tried,) = asked.cluster["slurm"]["pools"]
    assert (tried["nodes"], tried["elastic"]) == ([chosen], "")
    assert set(others) <= set(tried["exclude"])
    none = _collection("local_demo", profile=None)
    assert {of_host["checks"] for of_host in none.hosts.values()} == {None}


def test_elastic_nodes_are_not_launched_by_a_job_and_are_tried_by_container_steps() -> None:
    asked = _collection("oci_three_kinds")
    elastic = next(pool for pool in asked.cluster["slurm"]["pools"] if pool["elastic"])
    assert elastic["elastic"] == handover.elastic_prefix(elastic["name"])
    assert f"{elastic['elastic']}[1-32]" in elastic["exclude"]
    assert asked.cluster["autoscaler"] is True


def test_pools_wait_for_each_other_where_a_user_may_have_only_so_much() -> None:
    def limited(spec: Any) -> Any:
        limits = spec.slurm.user_limits.model_copy(update={"submitted_jobs": 3})
        return spec.model_copy(update={"slurm": spec.slurm.model_copy(update={"user_limits": limits})})

    assert _collection("local_demo").cluster["slurm"]["at_once"] == 16
    assert _collection("local_demo", limited).cluster["slurm"]["at_once"] == 1


def test_without_a_scheduler_each_node_logs_in_to_the_next_one() -> None:
    def alone(spec: Any) -> Any:
        changed = {"scheduler": "none", "slurm": spec.slurm.model_copy(update={"enabled": False})}
        return spec.model_copy(update=changed)

    asked = _collection("local_demo", alone)
    hops = {host: of_host["mesh"]["next"] for host, of_host in asked.hosts.items() if of_host["mesh"]}
    nodes = [host for host in asked.hosts if host != asked.controller]
    assert hops == dict(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
    assert asked.cluster["slurm"] is None


@pytest.mark.parametrize("case", sorted(file.parent.name for file in GOLDEN.glob("*/outputs.json")))
def test_prometheus_is_asked_on_its_host(case: str) -> None:
    asked = _collection(case)
    given = json.loads((GOLDEN / case / "inventory.json").read_text())["all"]["vars"]
    expected = given["monitoring_host"] if given["monitoring_enabled"] else ""
    assert asked.monitoring == expected
    assert [host for host, of_host in asked.hosts.items() if of_host["monitoring"]] == ([expected] if expected else [])
    login = {host for host, of_host in asked.hosts.items() if of_host["slurm"]}
    assert login <= {host for host in asked.hosts if "-login-" in host}
    assert json.dumps([asked.cluster, asked.hosts])


def test_those_who_answer_read_every_word_of_a_request() -> None:
    asked = _collection("oci_three_kinds")
    folders = [Path(str(each.__file__)).parent for each in (host_facts, cluster_facts)]
    host, cluster = ("".join(file.read_text() for file in folder.glob("*.py")) for folder in folders)

    def read(text: str) -> set[str]:
        return set(re.findall(r"""(?:\[|get\()"(\w+)"\]?""", text))

    assert set(asked.hosts[asked.controller]) <= read(host)
    assert set(asked.cluster) <= read(cluster)
    assert {*asked.cluster["slurm"], *asked.cluster["slurm"]["pools"][0]} <= read(cluster)
    assert f"/{cluster_facts.FOLDER}/" in asked.hosts[asked.controller]["share"]["file"]
