"""The commands for the runs of this machine: which there were, and what they printed. They need no cluster, except for
the journals of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command, reporting
from gpucluster.cli.summaries import clock
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.cli.output import ResultReporter
    from gpucluster.cluster import Cluster
    from gpucluster.operations.host_logs import KeptLines, LogFilter
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


@command("logs", without=("-f",))
@click.argument("name", metavar="[RUN|HOST|JOB]", required=False, shell_complete=completion.runs_and_hosts)
@click.option("--since", default="", metavar="TIME", help="Lines from then on, such as '2026-11-29 01:00' or -2h.")
@click.option("--until", default="", metavar="TIME", help="Lines until then.")
@click.option("--grep", default="", metavar="REGEX", help="Lines that match; small letters match both cases.")
@click.option("--lines", type=int, default=1000, show_default=True, help="The last lines of each host.")
@click.option("-f", "--follow", is_flag=True, help="Show new lines of a host as they are written.")
@click.option("--kept", is_flag=True, help="Read what the controller has kept; without HOST, list the hosts.")
def logs(
    context: Context, name: str | None, since: str, until: str, grep: str, lines: int, follow: bool, kept: bool
) -> None:
    """Show how a run went, or the journal of a host or of a job.

    RUN is a name that `gpucluster runs` shows, or its beginning with the whole day. Default: the last run. Its phases
    are shown, and where the files are with what Terraform and Ansible printed.

    HOST is a host's name, or `controller`. JOB is the number of a job of Slurm: the lines of its hosts in its time, and
    those of slurmctld about it. Times are in UTC.

    With logs.keep_days in cluster.yml, the controller keeps the journals of all hosts: the lines of a host that is gone
    or does not answer are shown from there.
    """
    from gpucluster.operations.host_logs import LogFilter, is_job, is_run

    chosen = LogFilter(since, until, grep, lines)
    if kept and (follow or (name is not None and (is_run(name) or is_job(name)))):
        raise click.UsageError("--kept is for the journal of a HOST, without --follow")
    if kept and name is None:
        _list_kept(context)
    elif name is None or is_run(name):
        if chosen != LogFilter() or follow:
            raise click.UsageError("the options are for the journal of a HOST or a JOB")
        _show_run(context, name)
    elif is_job(name):
        if follow:
            raise click.UsageError("--follow is for the journal of a HOST")
        _show_job(context, name, chosen)
    else:
        _show_host(context, name, chosen, follow=follow, kept=kept)


def _show_run(context: Context, name: str | None) -> None:
    with reporting(context) as reporter:
        from gpucluster.workspace import run_history

        paths = _paths(context)
        record = run_history.find(paths, name)
        files = [str(file) for file in run_history.logs_of(paths, record)]
        reporter.result({"command": "logs", "run": record.to_dict(), "logs": files}, _text(record, files))


def _show_job(context: Context, job: str, chosen: LogFilter) -> None:
    with cluster_of(context) as (cluster, reporter):
        answer = cluster.hosts.journal_of_job(job, chosen)
        notes = [f"! {host}: {printable(why)}" for host, why in answer.silent.items()]
        notes += [f"* {host}: {_copied(collected)}" for host, collected in answer.kept.items()]
        text = "\n".join([*map(printable, answer.lines), *notes]) or f"no line about job {job}"
        reporter.result({"command": "logs", **answer.to_dict()}, text, verbatim=True)


def _show_host(context: Context, host: str, chosen: LogFilter, *, follow: bool, kept: bool) -> None:
    with cluster_of(context) as (cluster, reporter):
        if follow:
            from gpucluster.cli.output import say

            cluster.hosts.follow_journal(host, lambda line: say(_shown(context, host, line)), chosen)
            return
        if kept:
            copy = cluster.hosts.kept_journal(host, chosen)
            _show_kept(reporter, copy, f"* {_copied(copy.collected)}")
            return
        from gpucluster.errors import InputError, ToolError

        try:
            lines = cluster.hosts.journal(host, chosen)
        except (InputError, ToolError) as error:  # it does not answer, or the cluster has no such host any more
            found = _kept_of(cluster, host, chosen)
            if found is None:
                raise
            _show_kept(reporter, found, f"* {error.what}: {_copied(found.collected)}")
            return
        text = "\n".join(map(printable, lines)) or f"no such line in the journal of {host}"
        reporter.result({"command": "logs", "host": host, "lines": list(lines)}, text, verbatim=True)


def _kept_of(cluster: Cluster, host: str, chosen: LogFilter) -> KeptLines | None:
    """What the controller has kept of a host; None if that is nothing, or not known."""
    from gpucluster.errors import ToolError

    try:
        return cluster.hosts.kept_journal(host, chosen) if cluster.spec.logs.keep_days else None
    except ToolError:
        return None


def _show_kept(reporter: ResultReporter, copy: KeptLines, note: str) -> None:
    text = "\n".join([*map(printable, copy.lines), note])
    reporter.result({"command": "logs", **copy.to_dict()}, text, verbatim=True)


def _list_kept(context: Context) -> None:
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.cli.output import table

        hosts = cluster.hosts.kept_journals()
        rows = [[host, _at(collected)] for host, collected in hosts.items()]
        text = table(rows, ["HOST", "LINES UNTIL"]) if rows else "no lines are kept yet: the first come in five minutes"
        reporter.result({"command": "logs", "kept": hosts}, text)


def _copied(collected: float) -> str:
    return f"lines that the controller has kept until {_at(collected)}"


def _at(seconds: float) -> str:
    from datetime import UTC, datetime

    return clock(datetime.fromtimestamp(seconds, UTC).isoformat())


def _shown(context: Context, host: str, line: str) -> str:
    line = line.rstrip("\n")
    if context.output != "json":
        return printable(line)
    import json

    return json.dumps({"kind": "line", "host": host, "line": line})


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
