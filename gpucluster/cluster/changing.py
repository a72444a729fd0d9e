"""What `Cluster.plan`, `apply`, `replace` and `rollout` do with the parts of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpucluster.cluster.composition import Parts
from gpucluster.lifecycle import price_list
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.provision import Consent
from gpucluster.lifecycle.replace import choose
from gpucluster.lifecycle.result import RunResult
from gpucluster.lifecycle.rollout import RolloutRequest
from gpucluster.lifecycle.saved_plan import SavedPlan
from gpucluster.operations.schedulers import require_slurm


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


def replace_nodes(parts: Parts, nodes: Sequence[str], drain_timeout: float, report: str) -> RunResult:
    """See `Cluster.replace`."""
    phases = parts.phases
    chosen = choose(parts.spec, nodes)
    with parts.identity.runs.run("replace", prepares=True) as run:
        terraform = phases.provisioning.prepare(run, to_build=True)
        faults = phases.repair.faults(nodes, report)
        if chosen.elastic:
            with run.phase("elastic nodes"):
                phases.elastic_replacement.replace(chosen.elastic, drain_timeout, faults)
        built = None
        if chosen.permanent:
            of_permanent = {name: fault for name, fault in faults.items() if name in chosen.permanent}
            consent = Consent(drain_timeout=drain_timeout, recreate=chosen.permanent, faults=of_permanent)
            built = phases.building.build(terraform, run, consent)
        check = partial(phases.verification.verdict, run=run)
        deployment = built.deployment if built else parts.connections.hosts.reach(run)
        verdict = phases.repair.prove(deployment, chosen.permanent, check)
        result = phases.building.result(run, deployment, built=built, verdict=verdict)
    return result


def roll_out(parts: Parts, request: RolloutRequest) -> RunResult:
    """See `Cluster.rollout`."""
    phases = parts.phases
    by_hand = "Change the image in cluster.yml, then run: gpucluster apply --replace-nodes"
    require_slurm(parts.spec, "rollout", kubernetes=by_hand, otherwise=by_hand)
    request.chosen(parts.spec)
    with parts.identity.runs.run("rollout", prepares=True) as run:
        terraform = phases.provisioning.prepare(run, to_build=True)
        built = phases.rollouts.roll(run, terraform, request)
        verdict = phases.verification.run(built.deployment, run)
        result = phases.building.result(run, built.deployment, built=built, verdict=verdict)
    return result
