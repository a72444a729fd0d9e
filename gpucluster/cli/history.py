"""The commands for the runs of this machine: which there were, and what they printed. They need no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, command, reporting
from gpucluster.cli.summaries import clock
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.paths import ClusterPaths
    from gpucluster.workspace.run_history import PastRun


@command("runs")
@click.option("--all", "everything", is_flag=True, help="Show all runs that the log has, not only the last 20.")
def runs(context: Context, everything: bool) -> None:
    """List the runs of this machine, the newest first."""
    with reporting(context) as reporter:
        from gpucluster.cli.output import table
        from gpucluster.workspace import run_history

        past_runs = run_history.past_runs(_paths(context))
        shown = past_runs if everything else past_runs[:20]
        rows = [[run.id, run.command, run.status, clock(run.started), _took(run)] for run in shown]
        text = table(rows, ["RUN", "COMMAND", "STATUS", "STARTED", "TOOK"]) if rows else "there are no runs yet"
        if len(shown) < len(past_runs):
            text += f"\n\n{count(len(past_runs) - len(shown), 'older run')}: gpucluster runs --all"
        reporter.result({"command": "runs", "runs": [run.to_dict() for run in past_runs]}, text)


@command("logs")
@click.argument("run", required=False)
def logs(context: Context, run: str | None) -> None:
    """Show how a run went, and where its logs are.

    The logs are the files with what Terraform and Ansible printed.
    RUN is a name that `gpucluster runs` shows, or its beginning. Default: the last run.
    """
    with reporting(context) as reporter:
        from gpucluster.workspace import run_history

        paths = _paths(context)
        record = run_history.find(paths, run)
        files = [str(file) for file in run_history.logs_of(paths, record)]
        reporter.result({"command": "logs", "run": record.to_dict(), "logs": files}, _text(record, files))


def _paths(context: Context) -> ClusterPaths:
    """The folder beside the cluster file. The file itself is not read: it may have errors by now."""
    from gpucluster.errors import InputError
    from gpucluster.paths import ClusterPaths

    file = context.file
    if not file.is_file():
        raise InputError("there is no such file", where=str(file), hint="Name the cluster file with --file")
    return ClusterPaths.of(file)


def _text(run: PastRun, files: list[str]) -> str:
    from gpucluster.cli.output import seconds

    lines = [
        f"run {run.id}: {run.command}, {run.status}" + (f" in the phase {run.phase}" if _stopped(run) else ""),
        f"  started {clock(run.started)} on {run.host or 'an unknown host'}, took {_took(run)}",
        *(f"  {name:<24}{seconds(took):>12}" for name, took in run.phases.items()),
    ]
    if run.error:
        lines += ["", *run.error.splitlines()]
    return "\n".join([*lines, "", "logs:", *(f"  {file}" for file in files)])


def _stopped(run: PastRun) -> bool:
    """Whether it did not come to its end."""
    return bool(run.phase) and run.status != "success"


def _took(run: PastRun) -> str:
    from gpucluster.cli.output import seconds

    return "-" if run.elapsed is None else seconds(run.elapsed)
