"""Clusters that are as they should be, with the facts that their hosts report."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gpucluster.node_agent.checks.model import Finding, HostReport, Profile, Status
from gpucluster.verdict.expectation import Expectation, KubernetesExpectation, Level
from gpucluster.verdict.registry import host_checks
from gpucluster.verdict.verdict import CheckSummary, Verdict, judge

Facts = dict[str, dict[str, Any]]

HEAD = "demo-controller"
NODES = ("compute-1", "compute-2")

#: With Slurm and a shared home, as most are.
CLUSTER = Expectation(
    controller=HEAD,
    hosts=[HEAD, *NODES],
    pools={"compute": list(NODES)},
    people={"alice": 9999},
    home_mount_path="/mnt/home",
    accounting=True,
)
#: Without Slurm: users go from node to node by ssh.
MESH = dataclasses.replace(CLUSTER, home_mount_path=None, scheduler="none", accounting=False)
#: With everything that a cluster with Slurm can have.
FULL = dataclasses.replace(
    CLUSTER,
    hosts=[HEAD, "demo-login-1", *NODES],
    login=["demo-login-1"],
    operators="privilege",
    directory_groups=("hpc",),
    containers=True,
    autoscaler=True,
    monitoring=True,
    slurm_version="26.05.5",
    rest=True,
    local_drives=dict.fromkeys(NODES, 4),
    rdma_addressed=NODES,
    rdma_places=NODES,
    profile=Profile.QUICK,
)
#: Of nodes with GPUs.
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
_KUBERNETES = KubernetesExpectation(
    "1.34.2",
    {"compute": {"gpucluster.io/pool": "compute"}},
    {"compute": [TAINT]},
    {node: {"nvidia.com/gpu": 8} for node in NODES},
    rdma=dict.fromkeys(NODES, ("mlx5_0", "mlx5_1")),
    functions=dict.fromkeys(NODES, 16),
    daemonsets=("nvidia-device-plugin",),
    attachments=("rdma-0", "rdma-1"),
)
#: With Kubernetes.
KUBERNETES = dataclasses.replace(
    CLUSTER,
    scheduler="kubernetes",
    accounting=False,
    kubernetes=_KUBERNETES,
)
#: With a control plane of Oracle and a pool that it manages.
ENGINE = dataclasses.replace(
    KUBERNETES,
    kubernetes=dataclasses.replace(_KUBERNETES, managed={"service": 2}, control_plane="oke"),
)
#: With NVIDIA's DRA driver instead of a device plugin.
CLAIMS = dataclasses.replace(KUBERNETES, kubernetes=dataclasses.replace(_KUBERNETES, claims=True, daemonsets=()))
BEGAN = 1_800_000_000.0


def host(name: str) -> dict[str, Any]:
    return {
        "hostname": name,
        "home_fs": {"source": "10.0.1.2:/mnt/home", "fstype": "nfs", "mounted": True},
        "home_token_seen": True,
        "user_ids": {"alice": "10001:9999"},
        "user_groups": {"alice": ["people"]},
        "group_ids": {"hpc": "4000"},
        "cloud_services": {"nobody": [], "root": ["metadata"]},
        "firewall": {"state": "open", "words": "to 10.0.0.0/16"},
        "rdma_place": {"known": True, "island": "", "network_block": "n", "local_block": "r"},
        "versions": {"system": "debian-12", "installed": [{"product": "runc", "version": "1.5.1", "package": ""}]},
    }


def scraped() -> dict[str, Any]:
    """What `gpucluster-agent monitor status --problems` reports where all is well."""
    return {"prometheus": True, "why": "", "up": 9, "targets": [], "rules_total": 70, "rules": []}


def of_slurm() -> dict[str, Any]:
    return {
        "sinfo": [{"node": node, "state": "idle", "partition": "compute", "reason": ""} for node in NODES],
        "srun": [{"partition": "compute", "ran": True, "nodes": list(NODES), "user": "alice", "error": ""}],
        "jobs_waiting": [],
        "accounting": True,
        "slurm_version": "26.05.5",
        "rest": {"status": 401, "ends": 1_900_000_000},
        "switches": [{"switch": "rdma-compute_lb-r", "nodes": "compute-[1-2]"}],
    }


def of_kubernetes(expected: KubernetesExpectation) -> dict[str, Any]:
    """What `gpucluster-agent kubernetes facts` reports where all is well."""
    managed = {f"10.0.1.{number}": pool for pool, size in expected.managed.items() for number in range(9, 9 + size)}
    nodes = [
        {
            "name": name, "registered": name, "ready": "True", "version": "v1.34.2",
            "cordoned": False, "reason": "", "taints": [TAINT],
            "conditions": [{"type": "Ready", "status": "True", "message": "kubelet is ready"}],
            "labels": [f"gpucluster.io/pool={managed.get(name, 'compute')}"],
            "allocatable": [*([] if expected.claims else ["nvidia.com/gpu=8"]), "nvidia.com/rdma-vf=16"],
        }
        for name in (*NODES, *managed)
    ]  # fmt: skip
    certificates = [
        {"file": "apiserver.crt", "days": 200, "expires": "2027-06-11T00:00:00Z"},
        {"file": "front-proxy-client.crt", "days": 364, "expires": "2027-11-22T00:00:00Z"},
    ]
    return {
        "kubernetes_nodes": nodes,
        "kubernetes_control_plane": {"ready": True, "problems": [], "certificates": certificates},
        "kubernetes_hardware": {
            "daemonsets": [{"name": "nvidia-device-plugin", "wanted": 2, "ready": 2}],
            "attachments": ["rdma-0", "rdma-1"],
        },
        "kubernetes_devices": [f"{name}=8" for name in NODES] if expected.claims else [],
        "kubernetes_names": {"server": "10.96.0.10", "wanted": "10.96.0.1", "answer": "10.96.0.1", "error": ""},
        "kubernetes_homes": [{"user": "alice", "namespace": "user-alice", "phase": "Bound"}],
        "kubernetes_pods": pods_of_verify(),
    }


def pods_of_verify() -> dict[str, Any]:
    """What `gpucluster-agent kubernetes pods` reports where all is well."""
    devices = {"rdma": ["mlx5_0", "mlx5_1"], "verbs": ["uverbs0", "uverbs1"], "rdma_missing": [], "rdma_taken": ""}
    address = {name: f"10.244.{number}.2" for number, name in enumerate(NODES)}
    nodes = {name: {"state": "ready", "why": "", "interfaces": {"eth0": address[name]}, **devices} for name in NODES}
    pairs = [
        {"from": one, "to": other, "interface": "eth0", "address": address[other], "error": ""}
        for one, other in zip(NODES, reversed(NODES), strict=True)
    ]
    return {"nodes": nodes, "pairs": pairs}


def report(name: str, profile: Profile = Profile.QUICK) -> HostReport:
    """What a host finds itself when all is well."""
    findings = [Finding(check.name, name, Status.PASS, "as it should be") for check in host_checks(profile)]
    return HostReport(name, profile, BEGAN + 0.1, 0.4, "b00t", tuple(findings))


def agent_check(output: str, **changed: Any) -> dict[str, Any]:
    """What the probe reports of a run of the agent's checks that wrote this."""
    return {
        "output": output, "error": "", "exit_status": 0, "began": BEGAN, "ended": BEGAN + 0.6, "took": 0.6, **changed
    }  # fmt: skip


def facts(expected: Expectation = CLUSTER) -> Facts:
    """What the hosts of that cluster report when all is well."""
    reported = {name: host(name) for name in expected.hosts}
    if expected.scheduler == "slurm":
        reported[HEAD] |= of_slurm()
    ring = zip(NODES, reversed(NODES), strict=True) if expected.scheduler == "none" else ()
    for node, following in ring:
        reported[node]["mesh"] = {"next": following, "reached": following, "error": ""}
    reported[HEAD] |= of_kubernetes(expected.kubernetes) if expected.kubernetes else {}
    if expected.login:
        reported[HEAD]["ssh_groups"] = ["root", "debian", "privilege"]
        reported["demo-login-1"]["slurm_error"] = ""
    if expected.containers:
        reported[HEAD]["container_steps"] = [{"pool": "compute", "seen": list(NODES), "missed": {}}]
    if expected.autoscaler:
        reported[HEAD]["autoscaler"] = {"healthy": True, "problems": [], "paused": "", "pools": {"compute": {}}}
    if expected.monitoring:
        reported[HEAD]["monitoring"] = scraped()
    for node in expected.local_drives:
        reported[node]["local_disk"] = {
            "path": "/mnt/localdisk", "mounted": True, "fstype": "xfs", "drives": 4, "state": "mounted", "words": ""
        }  # fmt: skip
    for name in expected.hosts if expected.profile else ():
        reported[name]["agent_check"] = agent_check(json.dumps(report(name).to_dict()))
    for node in expected.rdma_addressed:
        reported[node]["rdma_addresses"] = {"state": "addressed", "words": "16 of 16"}
    return reported


def verdict(expected: Expectation, reported: Facts) -> Verdict:
    return judge(expected, reported, Level.QUICK)


def lines(expected: Expectation, reported: Facts) -> dict[str, CheckSummary]:
    """The lines for users, by the name of their check; that of a pool's by its title."""
    found = verdict(expected, reported).lines()
    return {line.name if line.scope == "pool" else line.check: line for line in found}
