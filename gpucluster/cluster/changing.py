"""What `Cluster.plan` and `Cluster.apply` do with the parts of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpucluster.cluster.composition import Parts
from gpucluster.lifecycle import price_list
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.provision import Consent
from gpucluster.lifecycle.result import RunResult
from gpucluster.lifecycle.saved_plan import SavedPlan


def plan(parts: Parts, *, preflight: bool, refresh_prices: bool, out: Path | None) -> ClusterPlan:
    """What an apply would change; written to a file, if one is named."""
    with parts.identity.runs.run("plan", prepares=True) as run:
        if refresh_prices:
            price_list.refresh(parts.paths)
        planned = parts.phases.planning.plan(run, preflight=preflight)
        if out:
            SavedPlan(parts.spec.name, planned.world, planned.to_dict()).write(out)
    return planned


def apply(
    parts: Parts,
    consent: Consent,
    *,
    plan_file: Path | None,
    preflight: bool,
    accept_host_keys: bool,
    all_tasks: bool,
) -> RunResult:
    """Create or update the cluster, then verify it; with a plan, exactly what that states."""
    phases = parts.phases
    saved = SavedPlan.read(plan_file, parts.spec.name) if plan_file else None
    with parts.identity.runs.run("apply", prepares=True) as run:
        terraform = phases.provisioning.prepare(run, to_build=True, preflight=preflight)
        if saved:
            # Before anything changes the state.
            phases.planning.require(saved, run, terraform)
            consent = replace(consent, confirm=saved.require_planned)
        if consent.replace_nodes:
            phases.provisioning.end_rollouts(terraform)
        if accept_host_keys:
            phases.provisioning.forget_host_keys(terraform)
            parts.connections.hosts.forget_keys()
        built = phases.building.build(terraform, run, consent, all_tasks=all_tasks)
        verdict = phases.verification.run(built.deployment, run, built.facts)
        result = phases.building.result(run, built.deployment, built=built, verdict=verdict)
    return result
