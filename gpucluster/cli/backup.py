"""The commands that back up a cluster's users and accounting to a file, and restore them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpucluster.cli.base import Context, cluster_of, command
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.operations.backup import Restored


@command("backup")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
@click.option("--list", "listed", is_flag=True, help="List the encrypted backups that the controller has made.")
@click.option("--fetch", metavar="NAME", help="Bring one of those to FILE, encrypted as it is; `latest`: the newest.")
def backup(context: Context, path: str | None, listed: bool, fetch: str | None) -> None:
    """Write users, accounting and the control plane to FILE.

    That is the directory of users, Slurm's accounting, and etcd and the CAs of Kubernetes. Default for FILE:
    NAME-TIME.tar.gz in this folder. It holds the hashes of passwords, and keys: only you may read it. An existing file
    is never overwritten.
    """
    from datetime import datetime
    from pathlib import Path

    if listed and (fetch is not None or path is not None):
        raise click.UsageError("--list has no --fetch and no FILE")
    with cluster_of(context) as (cluster, reporter):
        if listed:
            found = [each.to_dict() for each in cluster.backup.scheduled()]
            reporter.result({"command": "backup", "backups": found}, _table(found))
            return
        if fetch is not None:
            brought = cluster.backup.fetch(fetch, Path(path) if path else None).to_dict()
            text = f"{brought['file']} written: {printable(brought['name'])}, encrypted"
            reporter.result({"command": "backup", **brought}, text)
            return
        file = Path(path or f"{cluster.spec.name}-{datetime.now().astimezone():%Y%m%dT%H%M%S}.tar.gz")
        made = cluster.backup.create(file)
        reporter.result({"command": "backup", **made.to_dict()}, f"{made.file} written: {_content(made.to_dict())}")


@command("restore")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--key", metavar="FILE", type=click.Path(dir_okay=False), help="The private key for an encrypted backup.")
@click.option("--force", is_flag=True, help="Allow the backup of another cluster, and a restore while jobs run.")
def restore(context: Context, path: str, key: str | None, force: bool) -> None:
    """Restore users, accounting and the control plane from FILE.

    Everything is checked before anything is changed. Logins and Slurm stop for some seconds, the API server of
    Kubernetes for about a minute; waiting jobs and running pods stay.
    """
    from pathlib import Path

    with cluster_of(context) as (cluster, reporter):
        result = cluster.backup.restore(Path(path), key=Path(key) if key else None, force=force)
        reporter.result(
            {"command": "restore", **result.to_dict()},
            "\n".join((f"{path} is restored: {_content(result.to_dict())}", *_consequences(result))),
        )


def _table(found: list[dict[str, Any]]) -> str:
    if not found:
        return "The controller has made no backup yet"
    width = max(len(str(each["bytes"])) for each in found)
    return "\n".join(f"{each['time']}  {each['bytes']:>{width}} bytes  {each['name']}" for each in found)


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
