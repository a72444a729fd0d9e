"""What `Cluster.plan` and `Cluster.apply` do with the parts of a cluster."""

from __future__ import annotations

from gpucluster.cluster.composition import Parts
from gpucluster.lifecycle import price_list
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.provision import Consent
from gpucluster.lifecycle.result import RunResult


def plan(parts: Parts, *, preflight: bool, refresh_prices: bool) -> ClusterPlan:
    """What an apply would change."""
    with parts.identity.runs.run("plan", prepares=True) as run:
        if refresh_prices:
            price_list.refresh(parts.paths)
        planned = parts.phases.planning.plan(run, preflight=preflight)
    return planned


def apply(parts: Parts, consent: Consent, *, preflight: bool, accept_host_keys: bool, all_tasks: bool) -> RunResult:
    """Create or update the cluster, then verify it."""
    phases = parts.phases
    with parts.identity.runs.run("apply", prepares=True) as run:
        terraform = phases.provisioning.prepare(run, to_build=True, preflight=preflight)
        if consent.replace_nodes:
            phases.provisioning.end_rollouts(terraform)
        if accept_host_keys:
            phases.provisioning.forget_host_keys(terraform)
            parts.connections.hosts.forget_keys()
        built = phases.building.build(terraform, run, consent, all_tasks=all_tasks)
        verdict = phases.verification.run(built.deployment, run, built.facts)
        result = phases.building.result(run, built.deployment, built=built, verdict=verdict)
    return result
