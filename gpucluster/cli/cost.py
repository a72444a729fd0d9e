"""The command that reports what a cluster has cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, cluster_of, command
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.cost.report import By
    from gpucluster.lifecycle.cost import CostReport

_BY = ("account", "user", "pool", "job", "day")
_MOST_JOBS = 50


@command("cost", short_help="What the cluster has cost, by account, user, pool, job or day.")
@click.option("--by", type=click.Choice(_BY), default="account", show_default=True, help="What the rows are of.")
@click.option("--since", metavar="TIME", help="From this day or time on, such as 2026-11-01. Default: this month.")
@click.option("--until", metavar="TIME", help="Until this day or time. Default: now.")
@click.option("--json", "as_json", is_flag=True, help="The same as `gpucluster --output json cost`.")
def cost(context: Context, by: By, since: str | None, until: str | None, *, as_json: bool) -> None:
    """Report what the instances of the cluster have cost, and for whom.

    Money is seconds of instances times their price. A job has of each of its nodes the largest of its parts of
    processors, memory and GPUs. HELD is the part of JOBS in which GPUs had no process. UNUSED is what jobs on a node
    leave of it, IDLE what nodes without a job cost, SERVICES the controller and login nodes. Volumes, file systems and
    traffic are not in it.
    """
    if as_json:
        context.output = "json"
    with cluster_of(context) as (cluster, reporter):
        found = cluster.cost(by, since=since, until=until)
        reporter.result({"command": "cost", "status": "success", **found.to_dict()}, cost_text(found))


def cost_text(found: CostReport) -> str:
    """The rows as a table, their sum, and what is not in it."""
    from gpucluster.cli.output import table
    from gpucluster.cost.model import Use

    uses = (Use.UNUSED, Use.IDLE, Use.SERVICE)
    most = _MOST_JOBS if found.by == "job" else len(found.rows)
    rows = [
        [
            row.key,
            f"{row.money.get(Use.JOB, 0.0):.2f}",
            "?" if found.held_unknown else f"{row.held:.2f}",
            *(f"{row.money.get(use, 0.0):.2f}" for use in uses),
            f"{row.total:.2f}",
        ]
        for row in [*found.rows[:most], found.total]
    ]
    lines = [table(rows, [found.by.upper(), "JOBS", "HELD", "UNUSED", "IDLE", "SERVICES", "TOTAL"]), ""]
    if len(found.rows) > most:
        lines.append(f"{count(len(found.rows) - most, 'more job')}: with --json")
    lines += [
        f"! {shape} has no known price: {hours:.1f} hours of it are not counted. Set autoscaler.prices_file, or run: "
        "gpucluster plan --refresh-prices"
        for shape, hours in found.unpriced.items()
    ]
    if found.uncovered:
        names = ", ".join(list(found.uncovered)[:5]) + (" and others" if len(found.uncovered) > 5 else "")  # noqa: PLR2004
        hours = sum(found.uncovered.values())
        lines.append(f"! {hours:.1f} hours of jobs were before nodes were recorded, and are not counted: {names}")
    if found.held_unknown:
        lines.append(f"! which GPUs of jobs had no process is not known: {found.held_unknown}")
    if found.unsure_hours:
        lines.append(
            f"! the end of instances was not seen: {found.unsure_hours:.1f} hours too many are counted, at most"
        )
    return "\n".join([*lines, f"{found.currency}, {found.since} to {found.until}; prices: {found.source}"])
