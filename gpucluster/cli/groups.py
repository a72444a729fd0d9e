"""The commands for the groups in the cluster's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command, command_group
from gpucluster.cli.output import table
from gpucluster.cli.summaries import names, unconfirmed, with_partial_result
from gpucluster.text import printable

if TYPE_CHECKING:
    from gpucluster.operations.directory_records import GroupChange, GroupRemoval


@command_group("group")
def group() -> None:
    """Manage the groups in the cluster's directory."""


@command("add", parent=group)
@click.argument("name")
@click.option("--gid", type=int, help="Group id. Default: the next free one.")
def group_add(context: Context, name: str, gid: int | None) -> None:
    """Add a group."""
    with cluster_of(context) as (cluster, reporter):
        change = cluster.groups.add(name, gid=gid)
        what = "added" if change.changed else "exists already"
        reporter.result(
            {"command": "group add", **change.to_dict()}, printable(f"{name} {what}: gid {change.group.gid}")
        )


@command("list", parent=group)
def group_list(context: Context) -> None:
    """List all groups and their members."""
    with cluster_of(context) as (cluster, reporter):
        groups = cluster.groups.list()
        rows = [[printable(cell) for cell in (each.name, str(each.gid), names(each.members))] for each in groups]
        text = table(rows, ["NAME", "GID", "MEMBERS"]) if rows else "there are no groups"
        reporter.result({"command": "group list", "groups": [each.to_dict() for each in groups]}, text)


@command("remove", parent=group)
@click.argument("name")
def group_remove(context: Context, name: str) -> None:
    """Remove a group. Files keep its gid."""
    with cluster_of(context) as (cluster, reporter):
        removal = with_partial_result(lambda: cluster.groups.remove(name), _removed)
        reporter.result({"command": "group remove", **removal.to_dict()}, _removed(removal))


@command("add-member", parent=group)
@click.argument("name", metavar="GROUP")
@click.argument("member", metavar="USER", shell_complete=completion.users)
def group_add_member(context: Context, name: str, member: str) -> None:
    """Add a user to a group."""
    with cluster_of(context) as (cluster, reporter):
        change = with_partial_result(lambda: cluster.groups.add_member(name, member), _members)
        reporter.result({"command": "group add-member", **change.to_dict()}, _members(change))


@command("remove-member", parent=group)
@click.argument("name", metavar="GROUP")
@click.argument("member", metavar="USER", shell_complete=completion.users)
def group_remove_member(context: Context, name: str, member: str) -> None:
    """Remove a user from a group."""
    with cluster_of(context) as (cluster, reporter):
        change = with_partial_result(lambda: cluster.groups.remove_member(name, member), _members)
        reporter.result({"command": "group remove-member", **change.to_dict()}, _members(change))


def _members(change: GroupChange) -> str:
    what = "" if change.changed else "no change; "
    text = printable(f"{change.group.name}: {what}members {names(change.group.members)}")
    return "\n".join([text, *unconfirmed(change)])


def _removed(removal: GroupRemoval) -> str:
    what = "removed" if removal.changed else "was removed already"
    return "\n".join([printable(f"{removal.name} {what}"), *unconfirmed(removal)])
