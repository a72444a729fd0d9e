"""What a check gets to see: the facts of its host, of the controller, and of all hosts together.

What a host has not reported becomes a `Missing` with the reason, so that users read more than the name of a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent.checks.model import Measurements, Missing
from gpucluster.verdict.expectation import ClusterCheck, Expectation

Facts = Mapping[str, Mapping[str, Any]]

#: In the place of the facts of a host that could not be reached: why.
UNREACHABLE = "unreachable"
# Facts about the whole cluster, which the controller alone has.
_OF_THE_CLUSTER = ("sinfo", "srun", "switches", "container_steps", "accounting", "autoscaler", "monitoring",
    "kubernetes_nodes", "kubernetes_control_plane", "kubernetes_names", "kubernetes_homes", "kubernetes_hardware",
    "kubernetes_pods", "kubernetes_devices",
)  # fmt: skip
# Why a fact may be missing on a host that has answered.
_WHY = {
    "group_ids": "the host has not reported the groups that it knows",
    "accounting": "sacct was not asked",
    "autoscaler": "it was not asked",
    "cloud_services": "not tried",
    "container_steps": "none was tried",
    "firewall": "the host has not reported it",
    "home_fs": "its mounts were not read",
    "home_token_seen": "whether it has the controller's file was not read",
    "kubernetes_control_plane": "the control plane was not asked",
    "kubernetes_devices": "the API server was not asked",
    "kubernetes_hardware": "the API server was not asked",
    "kubernetes_homes": "the API server was not asked",
    "kubernetes_names": "the DNS service was not asked",
    "kubernetes_pods": "no pods were run",
    "kubernetes_nodes": "the API server was not asked",
    "local_disk": "nothing is known about its drives: its user data did not run, or is of an earlier version",
    "mesh": "not tried",
    "rest": "the REST API was not asked",
    "monitoring": "Prometheus was not asked",
    "rdma_addresses": "nothing is known about its interfaces: its user data did not run, or is of an earlier version",
    "rdma_place": "its metadata service was not asked",
    "sinfo": "sinfo gave no answer",
    "slurm_error": "not tried",
    "srun": "no job was tried",
    "ssh_groups": "the controller's ssh server does not report the users that it accepts",
    "switches": "Slurm does not report its switches",
    "agent_check": "the host was not asked",
    "versions": "its agent does not say what it runs; gpucluster apply brings one that does",
}


def measured(check: ClusterCheck, subject: str, expected: Expectation, facts: Facts) -> Measurements:
    """What a check needs for one subject. About a host it is what that host has reported, else what the controller
    has."""
    return {name: _look_up(name, subject, expected, facts) for name in check.needs}


def _look_up(name: str, subject: str, expected: Expectation, facts: Facts) -> Any:
    if name == "all_user_ids":
        return _all_user_ids(expected, facts)
    of_host = subject in expected.hosts and name not in _OF_THE_CLUSTER
    host = subject if of_host else expected.controller
    if host not in facts:
        return Missing("it has sent no facts" if host == subject else f"{host} has sent no facts")
    if UNREACHABLE in facts[host]:
        return Missing(f"{'' if host == subject else f'{host} is '}unreachable: {facts[host][UNREACHABLE]}")
    value = facts[host].get(name)
    if value is not None:
        return value
    error = facts[host].get(f"{name}_error")
    reason = _WHY.get(name, f"no measurement {name}")
    return Missing(f"{reason}: {error}" if error else reason)


def _all_user_ids(expected: Expectation, facts: Facts) -> Any:
    silent = [host for host in expected.hosts if facts.get(host, {}).get("user_ids") is None]
    if silent:
        return Missing(f"nothing is known of {', '.join(silent)}")
    return {host: facts[host]["user_ids"] for host in expected.hosts}
