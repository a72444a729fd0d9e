"""Objects of Kueue: what its API takes, and what follows from cluster.yml. Kueue itself runs in no test."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.handover.kubernetes import queue_objects
from gpucluster.kubernetes.manifests.queues import LEVELS, TOPOLOGY, QueuedPool, queues
from gpucluster.kubernetes.operator_apis import OperatorApi, api_version, due, operator_apis
from gpucluster.node_agent.rules.labels import PLACE
from gpucluster.spec import load
from tests.kubernetes.custom_resources import SCHEMAS
from tests.kubernetes.schemas import Invalid, validate, validate_all
from tests.spec.spec_texts import MINIMAL

RDMA = QueuedPool("gpu", 4, {"cpu": 128, "memory": 2**41, "nvidia.com/gpu": 8}, gpus=True, placed=True)
PLAIN = QueuedPool("cpu", 2, {"cpu": 8, "memory": 2**36}, gpus=False, placed=False)


def of_kind(kind: str, found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == kind}


def test_the_api_takes_them_and_each_pool_has_its_flavor_and_its_quota() -> None:
    found = queues([RDMA, PLAIN, PLAIN._replace(name="none", nodes=0)], ["user-alice", "user-bob"])
    validate_all(found)
    flavors, clusters = of_kind("ResourceFlavor", found), of_kind("ClusterQueue", found)
    assert set(flavors) == set(clusters) == {"gpu", "cpu"}
    assert flavors["gpu"]["nodeLabels"] == {"gpucluster.io/pool": "gpu"}
    assert flavors["cpu"] == {"nodeLabels": {"gpucluster.io/pool": "cpu"}}
    (group,) = clusters["gpu"]["resourceGroups"]
    (flavor,) = group["flavors"]
    quotas = {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
    assert quotas == {"cpu": "512", "memory": str(2**43), "nvidia.com/gpu": "32"}
    # A rule of the API: as many as are covered.
    assert sorted(group["coveredResources"]) == sorted(quotas)
    locals_ = [
        (each["metadata"]["namespace"], each["spec"]["clusterQueue"]) for each in found if "Local" in each["kind"]
    ]
    assert locals_ == [("user-alice", "gpu"), ("user-alice", "cpu"), ("user-bob", "gpu"), ("user-bob", "cpu")]


def test_the_topology_goes_from_far_to_near_and_ends_with_the_host() -> None:
    (topology,) = of_kind("Topology", queues([RDMA, PLAIN])).values()
    labels = [each["nodeLabel"] for each in topology["levels"]]
    # Nodes have these labels, and the host's name is a level of its own, the last by a rule of the API.
    assert labels[:-1] == [name for name in PLACE if not name.endswith("host_id")] == list(LEVELS.values())
    assert labels[-1] == "kubernetes.io/hostname"
    assert of_kind("ResourceFlavor", queues([RDMA]))["gpu"]["topologyName"] == TOPOLOGY
    assert not of_kind("Topology", queues([PLAIN])), "its nodes have no labels of a place"


def test_the_schema_refuses_what_the_api_refuses() -> None:
    (topology, *_others) = queues([RDMA])
    for levels in ([], [{"nodeLabel": "a b"}], [{"nodeLabel": "a"}, {"nodeLabel": "a"}]):
        with pytest.raises(Invalid):
            validate({**topology, "spec": {"levels": levels}})
    with pytest.raises(Invalid):
        validate({**topology, "apiVersion": "kueue.x-k8s.io/v1beta1"})


def test_a_queue_has_what_the_shape_of_the_pool_has(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(f"{MINIMAL}scheduler: kubernetes\nkubernetes: {{rdma: sr-iov}}\n")
    spec = load(tmp_path / "cluster.yml")
    found = queue_objects(spec, [], hardware_emulated=False)
    validate_all(found)
    name, pool = next((name, pool) for name, pool in spec.pools.items() if pool.uses_rdma)
    (flavor,) = of_kind("ClusterQueue", found)[name]["resourceGroups"][0]["flavors"]
    quotas = {each["name"]: int(each["nominalQuota"]) for each in flavor["resources"]}
    nodes = max(pool.count, pool.max_count)
    assert quotas["nvidia.com/gpu"] == nodes * pool.hardware.gpus
    assert quotas["nvidia.com/rdma-vf"] == nodes * len(pool.hardware.rdma_devices)
    assert quotas["cpu"] > 0
    assert quotas["memory"] > 0
    emulated = queue_objects(spec, [], hardware_emulated=True)
    assert not of_kind("Topology", emulated), "no host of the local cloud has a place"


def test_a_queue_counts_the_instances_of_divided_gpus(tmp_path: Path) -> None:
    pools = MINIMAL.replace(
        "shape: BM.GPU4.8, count: 1",
        'shape: BM.GPU.H100.8, count: 1, gpus: {mig: [{devices: [0, 1, 2], mig_devices: {"1g.10gb+me": 1}}]}',
    )
    (tmp_path / "cluster.yml").write_text(f"{pools}scheduler: kubernetes\n")
    found = queue_objects(load(tmp_path / "cluster.yml"), [], hardware_emulated=False)
    validate_all(found)
    (queue,) = of_kind("ClusterQueue", found).values()
    (group,) = queue["resourceGroups"]
    quotas = {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]}
    assert (quotas["nvidia.com/gpu"], quotas["nvidia.com/mig-1g.10gb.me"]) == ("5", "3")
    assert "nvidia.com/mig-1g.10gb.me" in group["coveredResources"]


def test_the_command_prints_what_kubectl_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.yml").write_text(f"{MINIMAL}scheduler: kubernetes\n")
    done = CliRunner().invoke(cli, ["kubernetes", "queues", "--namespace", "user-alice"])
    assert done.exit_code == 0, done.output
    found = list(yaml.safe_load_all(done.stdout))
    validate_all(found)
    assert [each["metadata"]["namespace"] for each in found if each["kind"] == "LocalQueue"] == ["user-alice"]
    said = CliRunner().invoke(cli, ["-o", "json", "kubernetes", "queues", "--namespace", "user-alice"])
    assert json.loads(said.stdout.splitlines()[-1])["data"]["objects"] == found
    for wrong in ("User", "a_b", "-a", "a.b", ""):
        assert CliRunner().invoke(cli, ["kubernetes", "queues", "--namespace", wrong]).exit_code == 2


# --- the table of operators' APIs -----


def test_each_kind_that_is_judged_is_in_the_table_with_the_same_version() -> None:
    groups = {each.api.partition("/")[0] for each in operator_apis().values()}
    judged = {(api, kind) for api, kind in SCHEMAS if api.partition("/")[0] in groups}
    assert judged == {(each.api, kind) for each in operator_apis().values() for kind in each.kinds}
    assert all(api_version(kind) == api for api, kind in judged)
    with pytest.raises(KeyError):
        api_version("Pod")


def test_no_definition_is_due_to_be_read_again() -> None:
    """It fails when one is: read the newest release's definition, and write down what you found."""
    assert due(operator_apis().values(), date.today()) == []


def test_what_is_due_is_named() -> None:
    api = OperatorApi(
        api="a.example/v1", kinds=("A",), project="a/b", since="1", checked="1.2", on=date(2026, 1, 1),
        again=date(2027, 1, 1),
    )  # fmt: skip
    assert due([api], date(2026, 12, 31)) == []
    (said,) = due([api], date(2027, 1, 1))
    assert said.startswith("a.example/v1 was judged by a/b 1.2 on 2026-01-01")
