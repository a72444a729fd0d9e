"""The commands that take a cluster's people and accounts away in a file, and bring them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, cluster_of, command

if TYPE_CHECKING:
    from gpucluster.operations.backup import Restored


@command("backup")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
def backup(context: Context, path: str | None) -> None:
    """Write the directory of people and Slurm's accounting into FILE.

    Without FILE it is NAME-TIME.tar.gz in this folder. The hashes of passwords are in it: only you may read it. A file
    that is there is never overwritten.
    """
    from datetime import datetime
    from pathlib import Path

    with cluster_of(context) as (cluster, shown):
        file = Path(path or f"{cluster.spec.name}-{datetime.now().astimezone():%Y%m%dT%H%M%S}.tar.gz")
        made = cluster.backup(file)
        shown.result({"command": "backup", **made.to_dict()}, f"{made.file} written: {_content(made.to_dict())}")


@command("restore")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Also the backup of another cluster, and while jobs run.")
def restore(context: Context, path: str, force: bool) -> None:
    """Replace the directory of people and Slurm's accounting by those of FILE.

    Everything is checked before anything is touched. Logins and Slurm stop for some seconds; jobs that wait stay.
    """
    from pathlib import Path

    with cluster_of(context) as (cluster, shown):
        done = cluster.restore(Path(path), force=force)
        shown.result(
            {"command": "restore", **done.to_dict()},
            "\n".join((f"{path} is restored: {_content(done.to_dict())}", *_consequences(done))),
        )


def _content(counts: dict[str, object]) -> str:
    jobs = counts["accounting_jobs"]
    accounted = "no accounting" if jobs is None else f"{jobs} jobs in the accounting"
    return f"{counts['people']} people, {counts['groups']} groups, {accounted}"


def _consequences(done: Restored) -> list[str]:
    from gpucluster.operations.accounts import printable

    lines = [f"What was there before is kept on the controller: {done.kept_aside}"]
    for names, then in (
        (done.returned, "can log in again: removed or disabled since the backup"),
        (done.dropped, "not in the directory any more: added since the backup"),
    ):
        if names:
            lines.append(f"{', '.join(map(printable, names))}: {then}")
    if done.ended_jobs:
        lines.append(f"{done.ended_jobs} jobs ran at the time of the backup, and are gone: they count as ended now")
    return lines + [f"not done yet: {printable(one)}" for one in done.unfinished]
