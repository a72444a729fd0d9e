"""The verdict as a whole: a sound cluster, what a cluster has, what was not measured, and how results are summed up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.verdict.samples import (
    CLUSTER,
    FULL,
    HEAD,
    KUBERNETES,
    MESH,
    NODES,
    facts,
    host,
    lines,
    scraped,
    verdict,
)


@pytest.mark.parametrize("cluster", [CLUSTER, MESH, KUBERNETES, FULL], ids=["slurm", "mesh", "kubernetes", "all"])
def test_a_sound_cluster_passes(cluster: Any) -> None:
    found = verdict(cluster, facts(cluster))
    assert found.passed, found.problems
    assert {result.status for result in found.results} == {"pass"}
    assert set(found.hosts.values()) == {"pass"}
    assert (found.status, list(found.hosts)) == ("pass", list(cluster.hosts))


def test_only_what_a_cluster_has_is_checked() -> None:
    assert list(lines(MESH, facts(MESH))) == [
        "host_answers", "users_resolve", "users_agree", "cloud_services", "firewall", "known_faults", "mesh"
    ]  # fmt: skip
    of_slurm = {"node_state", "a job runs in pool compute", "accounting"}
    assert set(lines(CLUSTER, facts())) == set(lines(MESH, facts(MESH))) - {"mesh"} | {"home_share"} | of_slurm
    of_kubernetes = {
        "kubernetes_node", "kubernetes_gpus", "kubernetes_control_plane", "kubernetes_certificates",
        "kubernetes_names", "kubernetes_homes", "kubernetes_rdma_resource", "kubernetes_hardware",
    }  # fmt: skip
    # Pods need no ssh between nodes, and Slurm is not asked.
    assert set(lines(KUBERNETES, facts(KUBERNETES))) == set(lines(CLUSTER, facts())) - of_slurm | of_kubernetes


def test_a_host_is_as_good_as_the_worst_check_of_it_alone() -> None:
    reported = facts(FULL)
    reported["compute-1"]["firewall"] = {"state": "failed", "words": "no nft"}
    reported["compute-2"].pop("cloud_services")
    found = verdict(FULL, reported)
    assert dict(found.hosts) == {HEAD: "pass", "demo-login-1": "pass", "compute-1": "fail", "compute-2": "unknown"}
    assert found.status == "fail"


def test_a_message_about_many_hosts_names_some_of_them() -> None:
    names = [f"n{number}" for number in range(1, 21)]
    cluster = dataclasses.replace(CLUSTER, hosts=[HEAD, *names], pools={"compute": []})
    reported = {HEAD: facts()[HEAD], **{name: {**host(name), "hostname": "x"} for name in names}}
    line = lines(cluster, reported)["host_answers"]
    assert line.message.startswith("n1: has the host name x; n2: ")
    assert line.message.endswith("n8: has the host name x; and 12 more")


def test_nothing_seen_is_not_a_pass() -> None:
    found = verdict(CLUSTER, {})
    assert not found.passed
    assert {result.status for result in found.results} == {"unknown"}


def target(health: str, node: str = "compute-1") -> dict[str, str]:
    return {"job": "own", "node": node, "instance": "10.0.1.2:9500", "health": health, "error": "refused"}


RULE = {"group": "g", "name": "GpuLost", "health": "err", "error": "many-to-many"}


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({}, "pass", "9 targets up"),
        ({"targets": [target("unknown")]}, "warn", "9 targets up, 1 not scraped yet: own of compute-1"),
        ({"targets": [target("unknown", "compute-e7")]}, "pass", "9 targets up"),
        ({"targets": [target("down")]}, "fail", "own of compute-1: refused"),
        ({"targets": [target("down", "compute-e7")]}, "pass", "9 targets up"),
        ({"targets": [target("down")] * 7}, "fail", "and 2 more targets"),
        ({"rules": [RULE]}, "fail", "rule GpuLost: many-to-many"),
        ({"rules_total": 0}, "fail", "Prometheus has no rules"),
        ({"prometheus": False, "why": "Prometheus does not answer"}, "fail", "Prometheus does not answer"),
    ],
)  # fmt: skip
def test_prometheus_must_reach_every_permanent_host(told: dict[str, Any], status: str, words: str) -> None:
    reported = facts(FULL)
    reported[HEAD]["monitoring"] = {**scraped(), **told}
    line = lines(FULL, reported)["monitoring"]
    assert line.status == status
    assert words in line.message
    assert "monitoring" not in lines(CLUSTER, facts())


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({"error": "gpucluster-agent is not installed"}, "fail", "gpucluster-agent is not installed"),
        ({}, "unknown", "it gives no reason"),
        (None, "unknown", "Prometheus was not asked"),
    ],
)
def test_what_was_not_measured_of_the_monitoring_is_unknown(told: Any, status: str, words: str) -> None:
    reported = facts(FULL)
    reported[HEAD]["monitoring"] = told
    line = lines(FULL, reported)["monitoring"]
    assert (line.status, line.message) == (status, words)


def test_hardware_that_is_not_there_is_excused_only_where_it_is_emulated() -> None:
    reported = facts(FULL)
    for node in NODES:
        reported[node]["local_disk"] |= {"mounted": False, "state": "absent", "words": "no drive"}
        reported[node]["rdma_addresses"] = {"state": "absent", "words": "none"}
    emulated = verdict(dataclasses.replace(FULL, hardware_emulated=True), reported)
    assert emulated.passed
    assert {result.check for result in emulated.results if result.status == "skip"} == {"own_drives", "rdma_addresses"}
    assert {result.check for result in verdict(FULL, reported).problems} == {"own_drives", "rdma_addresses"}
