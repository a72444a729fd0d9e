"""The role's topology: what hosts report, what is written of it, and where the real Slurm places jobs then."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from gpucluster import shapes
from gpucluster.node_agent.rules import rdma_place
from tests.ansible import render as role
from tests.ansible.loading import load
from tests.ansible.slurm_render import ADDRESS, CONTROLLER, SHARED_MACHINE, in_container, pool, render

facts_module = load("module_utils/gpucluster_host_facts.py")

GPU, CPU = shapes.get("BM.GPU4.8"), shapes.get("VM.Standard.E5.Flex")
#: By name the blocks alternate, so that Slurm without a topology would take nodes of both.
ALPHA = {f"alpha-{number}": {"networkBlockId": "n", "rackId": "ab"[number % 2]} for number in range(1, 9)}
BETA = [f"beta-{number}" for number in range(1, 3)]
NODES = [*ALPHA, *BETA, "plain-1"]
PARTITION = "all"
POOLS = [
    pool(GPU, list(ALPHA), name="alpha", partition=PARTITION),
    pool(GPU, BETA, name="beta", partition=PARTITION),
    pool(CPU, ["plain-1"], name="plain"),
]


def block(node: str) -> str:
    return ALPHA[node]["rackId"]


# --- facts -----


class Metadata(BaseHTTPRequestHandler):
    """A double of the metadata service."""

    answer: ClassVar[tuple[int, str]] = (200, "{}")

    def do_GET(self) -> None:
        status, text = self.answer if self.headers.get("Authorization") == "Bearer Oracle" else (401, "")
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Metadata]]:
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setattr(facts_module, "METADATA", server.server_address)
    yield Metadata
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("status", "document", "found"),
    [
        (200, {"id": "x", "rackId": "r", "networkBlockId": "n"}, {"rackId": "r", "networkBlockId": "n"}),
        (200, {"rdmaTopologyData": {"customerLocalBlock": "l"}}, {"rdmaTopologyData": {"customerLocalBlock": "l"}}),
        (200, {"rdmaTopologyData": None}, {}),
        (200, [], {}),
        (404, {"rackId": "r"}, {}),
    ],
)
def test_a_host_is_asked_for_its_place(
    metadata: type[Metadata], status: int, document: Any, found: Mapping[str, Any]
) -> None:
    metadata.answer = status, json.dumps(document)
    assert facts_module.rdma_host() == found
    metadata.answer = 200, "no json"
    assert facts_module.rdma_host() == {}


def test_it_asks_for_what_the_rules_read() -> None:
    assert facts_module.PLACE == rdma_place.MEMBERS


# --- files -----


def unit(inventory: Mapping[str, Any], host: str, version: str) -> str:
    facts = role.host_facts(slurm=version)
    known = role.variables(inventory, role="slurm", host=host, facts=facts) | {"group_names": ["pool_compute"]}
    return role.render("slurm", "slurmd.service", known)


@pytest.mark.parametrize(
    ("host", "version", "rdma", "takes"),
    [
        ("compute-e1", "26.05.5", True, True),
        ("compute-e1", "25.11.7", True, True),
        ("compute-e1", "24.11.5", True, False),
        ("compute-e1", "26.05.5", False, False),
        ("compute-1", "26.05.5", True, False),
    ],
)
def test_a_node_that_joins_takes_its_place(host: str, version: str, rdma: bool, takes: bool) -> None:
    pools = [role.ELASTIC["slurm_pools"][0] | {"rdma": rdma}, *role.ELASTIC["slurm_pools"][1:]]
    text = unit(role.ELASTIC | {"slurm_pools": pools}, host, version)
    assert ("ExecStartPost=-/usr/local/bin/gpucluster-agent slurm-place compute" in text.splitlines()) is takes


def test_elastic_nodes_have_a_line_that_keeps_them_in_the_tree_where_slurm_loses_them() -> None:
    power = {"resume_timeout": 120, "suspend_timeout": 5, "max_powered_nodes": 4}
    pools = [pool(GPU, [], name="alpha", elastic_nodes="alpha-e[1-2]")]

    def files(version: str) -> dict[str, str]:
        return render(pools, emulated=True, power=power, version=version)

    def line(version: str) -> str:
        return next(line for line in files(version)["slurm.conf"].splitlines() if line.startswith("NodeName=alpha-e"))

    assert line("25.11.2").endswith(" State=CLOUD Topology=default:rdma-alpha_unplaced")
    assert line("25.11.7").endswith(" State=CLOUD")
    assert "TopologyPlugin=topology/tree" in files("25.11.7")["slurm.conf"]
    assert "TopologyPlugin" not in files("24.11.5")["slurm.conf"]


# --- the real one -----


@pytest.fixture(scope="module")
def slurm() -> dict[str, Any]:
    """What the real Slurm did."""
    files = render(
        POOLS,
        emulated=True,
        extra_config=SHARED_MACHINE,
        directories={"spool": "/var/lib/slurm/slurmd/%n"},
        checks=False,
        hosts=ALPHA,
    )
    hosts = {CONTROLLER: ADDRESS} | {name: f"192.0.2.{number}" for number, name in enumerate(NODES, start=2)}
    return in_container(
        {
            "controller": ADDRESS,
            "hosts": hosts,
            "nodes": NODES,
            "devices": [],
            "emulated_files": [f"/var/lib/gpucluster/emulated-gpus/gpu{number}" for number in range(8)],
            "files": files,
            "placements": [["--nodes=3"], ["--nodes=4"], ["--nodes=2"]],
            # One node is free in alpha, and none in beta.
            "never": ["--nodes=2"],
        }
    )


@pytest.mark.slurm
@pytest.mark.containers
def test_a_job_that_fits_into_a_local_block_gets_one(slurm: dict[str, Any]) -> None:
    first, second, _third = slurm["jobs"]
    assert len({block(node) for node in first}) == 1
    assert len({block(node) for node in second}) == 1
    assert block(first[0]) != block(second[0])
    assert "SwitchName=rdma-alpha_lb-a Level=0" in slurm["topology"]


@pytest.mark.slurm
@pytest.mark.containers
def test_no_job_spans_two_pools(slurm: dict[str, Any]) -> None:
    assert sorted(slurm["jobs"][2]) == BETA
    assert slurm["never"] == []
