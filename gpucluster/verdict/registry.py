"""All checks of `verify`: those that the operator's side judges, and those that each host runs itself.

It feeds `verify`, the table of the documentation, and the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.measuring import checks as measuring
from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.model import Check, Profile
from gpucluster.verdict import hosts, kubernetes, kubernetes_pods, monitoring, reports, scheduler
from gpucluster.verdict.expectation import ClusterCheck

#: What the operator's side judges, in the order in which users read it.
CLUSTER_CHECKS: tuple[ClusterCheck, ...] = (
    *hosts.CHECKS,
    *scheduler.CHECKS,
    *kubernetes.CHECKS,
    *kubernetes_pods.CHECKS,
    *monitoring.CHECKS,
    *reports.CHECKS,
)
#: What each host judges itself.
HOST_CHECKS: tuple[Check[Any], ...] = registry.CHECKS
#: What is measured between nodes, at level full.
MEASURED_CHECKS: tuple[Check[Any], ...] = measuring.CHECKS
CHECKS: Mapping[str, Check[Any]] = {check.name: check for check in (*CLUSTER_CHECKS, *HOST_CHECKS, *MEASURED_CHECKS)}


def host_checks(profile: Profile) -> tuple[Check[Any], ...]:
    """What each host checks in this profile."""
    return registry.of_profile(profile)
