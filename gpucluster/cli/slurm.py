"""The commands for Slurm's release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import PROVIDER, Context, cluster_of, command, command_group
from gpucluster.slurm.releases import BUILDABLE
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.operations.slurm_upgrade import SlurmUpgrade


@command_group("slurm")
def slurm() -> None:
    """Move a cluster to another release of Slurm."""


@command("upgrade", parent=slurm)
@PROVIDER
@click.option(
    "--to",
    "release",
    type=click.Choice(BUILDABLE),
    help="A release instead of that in the file: one of the steps on the way to it.",
)
@click.option("--plan", "only_plan", is_flag=True, help="Show the versions and the steps. Nothing is changed.")
def slurm_upgrade(context: Context, provider: str, release: str | None, only_plan: bool) -> None:
    """Upgrade Slurm on all hosts to the release in the file.

    First slurmdbd, then slurmctld, then slurmd; jobs run on. What Slurm has stored is copied on the controller before.
    An interrupted upgrade is continued by the same command.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        if not only_plan:
            cluster.state.require_own()
        plan = cluster.slurm.plan_upgrade(release)
        if only_plan:
            reporter.result({"command": "slurm upgrade", **plan.to_dict()}, _plan(plan))
            return
        upgrade = cluster.slurm.upgrade(release)
        lines = [f"slurm upgrade: Slurm {plan.version} is now {plan.release}, on {count(len(upgrade.changed), 'host')}"]
        if upgrade.slurm_copy:
            lines.append(f"What Slurm had stored before is on the controller, for root: {upgrade.slurm_copy}")
        if plan.release != cluster.spec.slurm.release:
            lines.append(f"Next, when these jobs have ended: gpucluster slurm upgrade, to {cluster.spec.slurm.release}")
        reporter.result({**upgrade.to_dict(), "from": plan.version, "to": plan.release}, "\n".join(lines))


def _plan(plan: SlurmUpgrade) -> str:
    versions: dict[str, list[str]] = {}
    for name, version in plan.nodes.items():
        versions.setdefault(version, []).append(name)
    lines = [f"controller: Slurm {plan.version}"]
    lines += [f"nodes with {version}: {', '.join(names)}" for version, names in sorted(versions.items())]
    lines += [f"{count(plan.running_jobs, 'job')} running; they go on", *(f"! {note}" for note in plan.warnings)]
    if not plan.steps:
        return "\n".join([*lines, f"The controller has {plan.release}; upgrade would bring other hosts to it"])
    if len(plan.steps) == 1:
        return "\n".join([*lines, f"One step: {plan.release}. Next: gpucluster slurm upgrade"])
    steps = [f"  gpucluster slurm upgrade --to {step}" for step in plan.steps]
    return "\n".join([*lines, "Steps, each when the jobs from before the last one have ended:", *steps])
