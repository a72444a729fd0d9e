"""The commands that back up a cluster's users and accounting to a file, and restore them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, cluster_of, command
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.operations.backup import Restored


@command("backup")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
def backup(context: Context, path: str | None) -> None:
    """Write users, accounting and the control plane to FILE.

    That is the directory of users, Slurm's accounting, and etcd and the CAs of Kubernetes. Default for FILE:
    NAME-TIME.tar.gz in this folder. It holds the hashes of passwords, and keys: only you may read it. An existing file
    is never overwritten.
    """
    from datetime import datetime
    from pathlib import Path

    with cluster_of(context) as (cluster, reporter):
        file = Path(path or f"{cluster.spec.name}-{datetime.now().astimezone():%Y%m%dT%H%M%S}.tar.gz")
        made = cluster.backup.create(file)
        reporter.result({"command": "backup", **made.to_dict()}, f"{made.file} written: {_content(made.to_dict())}")


@command("restore")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Allow the backup of another cluster, and a restore while jobs run.")
def restore(context: Context, path: str, force: bool) -> None:
    """Restore users, accounting and the control plane from FILE.

    Everything is checked before anything is changed. Logins and Slurm stop for some seconds, the API server of
    Kubernetes for about a minute; waiting jobs and running pods stay.
    """
    from pathlib import Path

    with cluster_of(context) as (cluster, reporter):
        result = cluster.backup.restore(Path(path), force=force)
        reporter.result(
            {"command": "restore", **result.to_dict()},
            "\n".join((f"{path} is restored: {_content(result.to_dict())}", *_consequences(result))),
        )


def _content(counts: dict[str, object]) -> str:
    jobs = counts["accounting_jobs"]
    accounted = f"{count(jobs, 'job')} in the accounting" if isinstance(jobs, int) else "no accounting"
    objects = counts.get("kubernetes_objects")
    if isinstance(objects, int):
        accounted = f"{count(objects, 'object')} of Kubernetes"
    people, groups = (int(str(counts[key])) for key in ("people", "groups"))
    return f"{count(people, 'user')}, {count(groups, 'group')}, {accounted}"


def _consequences(result: Restored) -> list[str]:
    lines = [f"The data from before the restore is on the controller: {result.kept_aside}"]
    for names, consequence in (
        (result.returned, "can log in again: removed or disabled since the backup"),
        (result.dropped, "not in the directory any more: added since the backup"),
    ):
        if names:
            lines.append(f"{', '.join(map(printable, names))}: {consequence}")
    if result.ended_jobs:
        jobs = count(result.ended_jobs, "job")
        lines.append(
            f"{jobs} ran at the time of the backup, and Slurm does not know them any more: they count as ended now"
        )
    if result.kubernetes_objects is not None:
        lines.append("Next: gpucluster apply, which joins nodes again that have another CA")
    return lines + [f"not done yet: {printable(work)}" for work in result.unfinished]
