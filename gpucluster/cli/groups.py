"""The commands for the groups in the cluster's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

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
        done = cluster.groups.add(name, gid=gid)
        what = "added" if done.changed else "exists already"
        reporter.result({"command": "group add", **done.to_dict()}, printable(f"{name} {what}: gid {done.group.gid}"))


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
        done = with_partial_result(lambda: cluster.groups.remove(name), _removed)
        reporter.result({"command": "group remove", **done.to_dict()}, _removed(done))


@command("add-member", parent=group)
@click.argument("name", metavar="GROUP")
@click.argument("member", metavar="USER")
def group_add_member(context: Context, name: str, member: str) -> None:
    """Add a user to a group."""
    with cluster_of(context) as (cluster, reporter):
        done = with_partial_result(lambda: cluster.groups.add_member(name, member), _members)
        reporter.result({"command": "group add-member", **done.to_dict()}, _members(done))


@command("remove-member", parent=group)
@click.argument("name", metavar="GROUP")
@click.argument("member", metavar="USER")
def group_remove_member(context: Context, name: str, member: str) -> None:
    """Remove a user from a group."""
    with cluster_of(context) as (cluster, reporter):
        done = with_partial_result(lambda: cluster.groups.remove_member(name, member), _members)
        reporter.result({"command": "group remove-member", **done.to_dict()}, _members(done))


def _members(done: GroupChange) -> str:
    what = "" if done.changed else "no change; "
    text = printable(f"{done.group.name}: {what}members {names(done.group.members)}")
    return "\n".join([text, *unconfirmed(done)])


def _removed(done: GroupRemoval) -> str:
    what = "removed" if done.changed else "was removed already"
    return "\n".join([printable(f"{done.name} {what}"), *unconfirmed(done)])
