"""The commands for the users in the cluster's directory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command, command_group
from gpucluster.cli.output import table
from gpucluster.cli.summaries import names, unconfirmed, with_partial_result
from gpucluster.cli.user_options import settings_of, user_options
from gpucluster.errors import EXIT_FAILED, InputError, ToolError, with_hint
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.operations.directory_records import ImportReport, Removal, User, UserChange


@command_group("user")
def user() -> None:
    """Manage the users in the cluster's directory."""


@command("add", parent=user)
@click.argument("name")
@click.option("--uid", type=int, help="User id. Default: the next free one.")
@user_options
def user_add(context: Context, name: str, **options: Any) -> None:
    """Add a user: directory entry, home, keys, Slurm."""
    with cluster_of(context) as (cluster, reporter):
        change = cluster.users.add(name, **settings_of(interactive=context.interactive, **options))
        added = change.user
        what = "added" if change.changed else "exists already"
        text = printable(f"{added.name} {what}: uid {added.uid}, group {added.group}, home {added.home}")
        if not added.ssh_keys:
            text += "\nThe user has no ssh key yet and can't log in. "
            text += f"Next: gpucluster user edit {printable(added.name)} --ssh-key FILE"
        addresses = cluster.hosts.login_addresses()
        through = ", through a session of the bastion" if cluster.spec.network.access == "bastion" else ""
        ways = " or ".join(f"ssh {printable(added.name)}@{address}" for address in addresses)
        text += f"\nLogin: {ways}{through}" if added.ssh_keys else ""
        reporter.result({"command": "user add", **change.to_dict(), "login": list(addresses)}, text)


@command("list", parent=user)
def user_list(context: Context) -> None:
    """List all users."""
    with cluster_of(context) as (cluster, reporter):
        users = cluster.users.list()
        rows = [
            [
                printable(cell)
                for cell in (each.name, str(each.uid), each.group, names(each.groups), _state(each), each.full_name)
            ]
            for each in users
        ]
        header = ["NAME", "UID", "GROUP", "GROUPS", "STATE", "FULL NAME"]
        text = table(rows, header) if rows else "there are no users"
        reporter.result({"command": "user list", "users": [each.to_dict() for each in users]}, text)


@command("show", parent=user)
@click.argument("name", shell_complete=completion.users)
def user_show(context: Context, name: str) -> None:
    """Show all settings of a user."""
    with cluster_of(context) as (cluster, reporter):
        user = cluster.users.show(name)
        rows = {
            "name": user.name,
            "full name": user.full_name,
            "state": _state(user),
            "uid": str(user.uid),
            "group": f"{user.group} ({user.gid})",
            "groups": names(user.groups),
            "home": user.home,
            "shell": user.shell,
            "account": user.slurm_account or "-",
        }
        lines = [f"{key:<10}{printable(value)}" for key, value in rows.items()]
        lines += [f"{'ssh key':<10}{printable(key)}" for key in user.ssh_keys]
        reporter.result({"command": "user show", "user": user.to_dict()}, "\n".join(lines), verbatim=True)


@command("edit", parent=user)
@click.argument("name", shell_complete=completion.users)
@user_options
@click.option("--add-groups", metavar="A,B", help="Groups to add to the present ones.")
@click.option("--remove-groups", metavar="A,B", help="Groups to leave.")
@click.option("--add-ssh-key", multiple=True, metavar="FILE|-", help="File of keys to add to the present ones.")
def user_edit(context: Context, name: str, **options: Any) -> None:
    """Change the given settings of a user.

    --groups and --ssh-key replace the present ones.
    """
    with cluster_of(context) as (cluster, reporter):
        settings = settings_of(interactive=context.interactive, **options)
        if not settings:
            raise InputError("nothing to change was given", hint="See: gpucluster user edit --help")
        change = with_partial_result(lambda: cluster.users.edit(name, **settings), lambda change: _edited(change, name))
        reporter.result({"command": "user edit", **change.to_dict()}, _edited(change, name))


@command("key", parent=user)
@click.argument("name", shell_complete=completion.users)
@click.option("--replace", is_flag=True, help="Generate a new key pair on this machine. The old one ends now.")
def user_key(context: Context, name: str, replace: bool) -> None:
    """Show where the private key of a user with generate_key is."""
    with cluster_of(context) as (cluster, reporter):
        keys = cluster.generated_keys
        key = keys.replace(name) if replace else keys.show(name)
        text = f"{printable(name)} logs in {key.login}" + (f"\n{printable(key.public)}" if key.public else "")
        result = {"command": "user key", "replaced": replace, **key.to_dict()}
        text = f"{printable(name)} has a new key\n{text}" if replace else text
        reporter.result(result, text, verbatim=True)


@command("disable", parent=user)
@click.argument("name", shell_complete=completion.users)
def user_disable(context: Context, name: str) -> None:
    """Refuse a user's logins, and end their jobs and processes. All data stays."""
    with cluster_of(context) as (cluster, reporter):
        change = with_partial_result(lambda: cluster.users.disable(name), lambda change: _disabled(change, name))
        reporter.result({"command": "user disable", **change.to_dict()}, _disabled(change, name))


@command("enable", parent=user)
@click.argument("name", shell_complete=completion.users)
def user_enable(context: Context, name: str) -> None:
    """Allow a user's logins again."""
    with cluster_of(context) as (cluster, reporter):
        change = with_partial_result(lambda: cluster.users.enable(name), lambda change: _enabled(change, name))
        reporter.result({"command": "user enable", **change.to_dict()}, _enabled(change, name))


@command("remove", parent=user)
@click.argument("name", shell_complete=completion.users)
@click.option("--keep-home", "home", flag_value="keep", default="keep", help="Leave the home as it is. The default.")
@click.option("--archive-home", "home", flag_value="archive", help="Make one file of the home.")
def user_remove(context: Context, name: str, home: Literal["keep", "archive"]) -> None:
    """Remove a user: entry, keys, Slurm, jobs, processes. Files stay."""
    with cluster_of(context) as (cluster, reporter):
        removal = with_partial_result(lambda: cluster.users.remove(name, home=home), _removed)
        reporter.result({"command": "user remove", **removal.to_dict()}, _removed(removal))


@command("import", parent=user)
@click.argument("people", metavar="PEOPLE", type=click.Path(dir_okay=False))
def user_import(context: Context, people: str) -> None:
    """Add or change all users of a YAML or CSV file; can be repeated."""
    from pathlib import Path

    with cluster_of(context) as (cluster, reporter):
        report = with_partial_result(lambda: cluster.users.import_file(Path(people)), _imported)
        text = _imported(report)
        result = {"command": "user import", **report.to_dict()}
        if report.failed:
            what = f"{len(report.failed)} of {count(len(report.users), 'user')} failed"
            error = ToolError(what, where=people, hint="Correct them, then import the file again")
            text += f"\n{with_hint(error.what, error.hint)}"
            result |= {"status": "failed", **error.to_dict()}
        reporter.result(result, text)
    if report.failed:
        sys.exit(EXIT_FAILED)


# --- text -----


def _state(user: User) -> str:
    return ("enabled" if user.enabled else "disabled") + (", privileged" if user.privileged else "")


def _edited(change: UserChange, name: str) -> str:
    return _changed(change, name, "changed", "has these settings already")


def _disabled(change: UserChange, name: str) -> str:
    return _changed(change, name, "is disabled", "was disabled already")


def _enabled(change: UserChange, name: str) -> str:
    return _changed(change, name, "is enabled", "was enabled already")


def _changed(change: UserChange, name: str, if_changed: str, if_unchanged: str) -> str:
    text = f"{printable(name)} {if_changed if change.changed else if_unchanged}"
    if change.ended.jobs or change.ended.processes:
        text += f"; ended: jobs {change.ended.jobs}, processes {change.ended.processes}"
    return "\n".join([text, *unconfirmed(change), *_warnings(change.warnings)])


def _imported(report: ImportReport) -> str:
    rows = [[printable(cell) for cell in (each.name, each.status, each.message or "")] for each in report.users]
    return "\n".join([*([table(rows, ["NAME", "STATUS", "WHY"])] if rows else []), *unconfirmed(report)])


def _removed(removal: Removal) -> str:
    removed = removal.removed
    lines = [
        f"{printable(removal.name)} removed: directory entry {_yes(removed.entry)}, "
        f"association {_yes(removed.association)}, ssh keys {removed.keys}, jobs {removed.jobs}, "
        f"processes {removed.processes}"
    ]
    lines += [f"kept: {printable(path)}" for path in removal.kept]
    lines += [f"the home is archived: {printable(removal.archive)}"] if removal.archive else []
    return "\n".join([*lines, *unconfirmed(removal), *_warnings(removal.warnings)])


def _yes(removed: bool) -> str:
    return "yes" if removed else "there was none"


def _warnings(warnings: Sequence[str]) -> list[str]:
    return [f"! {printable(warning)}" for warning in warnings]
