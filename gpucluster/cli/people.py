"""The commands about the people in the cluster's directory, and their groups."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from gpucluster.cli.base import Context, cli, cluster_of, command
from gpucluster.errors import EXIT_FAILED, InputError, PartlyDone

if TYPE_CHECKING:
    from gpucluster.accounts import GroupChange, Removal, User, UserChange
    from gpucluster.report import Reporter

_MAX_STDIN = 64 * 1024
_STDIN = "-"


@cli.group("user")
def user() -> None:
    """People in the cluster's directory."""


@cli.group("group")
def group() -> None:
    """Groups in the cluster's directory."""


# --- options in -----


def _person(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say what a person is."""
    options = (
        click.option("--full-name", help="Full name."),
        click.option("--gid", type=int, help="Id of the primary group."),
        click.option("--group", help="Primary group, by its name."),
        click.option("--groups", metavar="A,B", help="Further groups; `privilege` is asked for here."),
        click.option("--ssh-key", "ssh_key", multiple=True, metavar="FILE|-", help="File of public keys; repeatable."),
        click.option("--password-stdin", is_flag=True, help="Read a password from standard input."),
        click.option("--shell", help="Login shell."),
        click.option("--slurm-account", help="The account in Slurm that jobs are put down to."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _wish(
    *, ssh_key: Sequence[str], password_stdin: bool, add_ssh_key: Sequence[str] = (), **plain: Any
) -> dict[str, Any]:
    """What the options ask for; what was not said is left out."""
    uses = [*ssh_key, *add_ssh_key].count(_STDIN) + password_stdin
    if uses > 1:
        raise InputError("standard input can hold one thing only", hint="Name a file for the ssh key")
    wish = {name: value for name, value in plain.items() if value is not None}
    for name in wish.keys() & {"groups", "add_groups", "remove_groups"}:
        wish[name] = [part.strip() for part in wish[name].split(",") if part.strip()]
    for name, sources in (("ssh_keys", ssh_key), ("add_ssh_keys", add_ssh_key)):
        if sources:
            wish[name] = [key for source in sources for key in _keys(source)]
    if password_stdin:
        wish["password"] = _password()
    return wish


def _keys(source: str) -> list[str]:
    """The public keys of a file, or of standard input."""
    from pathlib import Path

    from gpucluster.agent.rules import ssh_keys
    from gpucluster.spec import keys

    try:
        if source != _STDIN:
            return list(keys.read(Path(source)))
        lines = [line for line in _read_stdin().splitlines() if line.strip() and not line.lstrip().startswith("#")]
        return [ssh_keys.check(line) for line in lines or [""]]
    except ssh_keys.BadKey as bad:
        what = bad.message if source != _STDIN else f"the key on standard input is {bad.message}"
        raise InputError(what, hint=bad.hint) from bad


def _password() -> str:
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass()
    password = _read_stdin().removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise InputError("a password is one line on standard input", hint="Such as: printf '%s\\n' \"$PASSWORD\" | ...")
    return password


def _read_stdin() -> str:
    raw = sys.stdin.buffer.read(_MAX_STDIN + 1)
    if len(raw) > _MAX_STDIN:
        raise InputError(f"standard input is too large: at most {_MAX_STDIN} bytes are read")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError("standard input is not UTF-8 text") from error


# --- user -----


@command("add", parent=user)
@click.argument("name")
@click.option("--uid", type=int, help="User id. Default: the next that is free.")
@_person
def user_add(context: Context, name: str, **options: Any) -> None:
    """Let somebody in: directory entry, home, keys, Slurm."""
    with cluster_of(context) as (cluster, shown):
        done = cluster.users.add(name, **_wish(**options))
        made = done.user
        what = "added" if done.changed else "is there already"
        text = _plain(f"{made.name} {what}: uid {made.uid}, group {made.group}, home {made.home}")
        if not made.ssh_keys:
            text += "\nThere is no ssh key yet, and so no way in. "
            text += f"Next: gpucluster user edit {_plain(made.name)} --ssh-key FILE"
        shown.result({"command": "user add", **done.to_dict()}, text)


@command("list", parent=user)
def user_list(context: Context) -> None:
    """List everybody."""
    with cluster_of(context) as (cluster, shown):
        users = cluster.users.list()
        rows = [
            [
                _plain(cell)
                for cell in (one.name, str(one.uid), one.group, _words(one.groups), _state(one), one.full_name)
            ]
            for one in users
        ]
        text = _table(rows, ["NAME", "UID", "GROUP", "GROUPS", "STATE", "FULL NAME"], "there is nobody")
        shown.result({"command": "user list", "users": [one.to_dict() for one in users]}, text)


@command("show", parent=user)
@click.argument("name")
def user_show(context: Context, name: str) -> None:
    """Show everything about somebody."""
    with cluster_of(context) as (cluster, shown):
        found = cluster.users.show(name)
        rows = {
            "name": found.name,
            "full name": found.full_name,
            "state": _state(found),
            "uid": str(found.uid),
            "group": f"{found.group} ({found.gid})",
            "groups": _words(found.groups),
            "home": found.home,
            "shell": found.shell,
            "account": found.slurm_account or "-",
        }
        lines = [f"{key:<10}{_plain(value)}" for key, value in rows.items()]
        lines += [f"{'ssh key':<10}{_plain(key)}" for key in found.ssh_keys]
        shown.result({"command": "user show", "user": found.to_dict()}, "\n".join(lines))


@command("edit", parent=user)
@click.argument("name")
@_person
@click.option("--add-groups", metavar="A,B", help="Groups beside those there are.")
@click.option("--remove-groups", metavar="A,B", help="Groups to leave.")
@click.option("--add-ssh-key", multiple=True, metavar="FILE|-", help="File of keys beside those there are.")
def user_edit(context: Context, name: str, **options: Any) -> None:
    """Change what is named; --groups and --ssh-key replace what there is."""
    with cluster_of(context) as (cluster, shown):
        edit = _wish(**options)
        if not edit:
            raise InputError("nothing to change was named", hint="See: gpucluster user edit --help")
        done = cluster.users.edit(name, **edit)
        shown.result(
            {"command": "user edit", **done.to_dict()}, _changed(done, name, "changed", "is like that already")
        )


@command("disable", parent=user)
@click.argument("name")
def user_disable(context: Context, name: str) -> None:
    """Keep somebody out, and end what they run; everything stays."""
    with cluster_of(context) as (cluster, shown):
        _switch(shown, "user disable", name, cluster.users.disable, *_DISABLED)


@command("enable", parent=user)
@click.argument("name")
def user_enable(context: Context, name: str) -> None:
    """Let somebody in again."""
    with cluster_of(context) as (cluster, shown):
        _switch(shown, "user enable", name, cluster.users.enable, *_ENABLED)


@command("remove", parent=user)
@click.argument("name")
@click.option("--keep-home", "home", flag_value="keep", default="keep", help="Leave the home as it is. The default.")
@click.option("--archive-home", "home", flag_value="archive", help="Make one file of the home.")
def user_remove(context: Context, name: str, home: Literal["keep", "archive"]) -> None:
    """Remove somebody: entry, keys, Slurm, jobs, processes. Files stay."""
    with cluster_of(context) as (cluster, shown), _telling(_removed):
        done = cluster.users.remove(name, home=home)
        shown.result({"command": "user remove", **done.to_dict()}, _removed(done))


@command("import", parent=user)
@click.argument("people", metavar="PEOPLE", type=click.Path(dir_okay=False))
def user_import(context: Context, people: str) -> None:
    """Add or change everybody of a file, YAML or CSV; can be repeated."""
    from pathlib import Path

    with cluster_of(context) as (cluster, shown):
        report = cluster.users.import_file(Path(people))
        rows = [[one.name, one.status, one.message or ""] for one in report.users]
        status = "failed" if report.failed else "success"
        text = _table(rows, ["NAME", "STATUS", "WHY"], "")
        if report.failed:
            text += f"\n{len(report.failed)} of {len(report.users)} failed. Correct them, and import the file again"
        shown.result({"command": "user import", "status": status, **report.to_dict()}, text)
    if report.failed:
        sys.exit(EXIT_FAILED)


# --- group -----


@command("add", parent=group)
@click.argument("name")
@click.option("--gid", type=int, help="Its id. Default: the next that is free.")
def group_add(context: Context, name: str, gid: int | None) -> None:
    """Make a group."""
    with cluster_of(context) as (cluster, shown):
        done = cluster.groups.add(name, gid=gid)
        what = "added" if done.changed else "is there already"
        shown.result({"command": "group add", **done.to_dict()}, _plain(f"{name} {what}: gid {done.group.gid}"))


@command("list", parent=group)
def group_list(context: Context) -> None:
    """List every group and its members."""
    with cluster_of(context) as (cluster, shown):
        groups = cluster.groups.list()
        rows = [[one.name, str(one.gid), _words(one.members)] for one in groups]
        text = _table(rows, ["NAME", "GID", "MEMBERS"], "there are no groups")
        shown.result({"command": "group list", "groups": [one.to_dict() for one in groups]}, text)


@command("remove", parent=group)
@click.argument("name")
def group_remove(context: Context, name: str) -> None:
    """Remove a group; files of it keep its number."""
    with cluster_of(context) as (cluster, shown):
        cluster.groups.remove(name)
        shown.result({"command": "group remove", "name": name}, f"{_plain(name)} removed")


@command("add-member", parent=group)
@click.argument("name", metavar="GROUP")
@click.argument("member", metavar="USER")
def group_add_member(context: Context, name: str, member: str) -> None:
    """Take somebody into a group."""
    with cluster_of(context) as (cluster, shown):
        done = cluster.groups.add_member(name, member)
        shown.result({"command": "group add-member", **done.to_dict()}, _membership(done))


@command("remove-member", parent=group)
@click.argument("name", metavar="GROUP")
@click.argument("member", metavar="USER")
def group_remove_member(context: Context, name: str, member: str) -> None:
    """Take somebody out of a group."""
    with cluster_of(context) as (cluster, shown):
        done = cluster.groups.remove_member(name, member)
        shown.result({"command": "group remove-member", **done.to_dict()}, _membership(done))


# --- words for people -----

_DISABLED = ("is disabled", "was disabled already")
_ENABLED = ("is enabled", "was enabled already")


def _switch(
    shown: Reporter, command_name: str, name: str, change: Callable[[str], UserChange], now: str, already: str
) -> None:
    """Let somebody in or keep them out, and say what came of it."""

    def told(done: UserChange) -> str:
        return _changed(done, name, now, already)

    with _telling(told):
        done = change(name)
        shown.result({"command": command_name, **done.to_dict()}, told(done))


@contextlib.contextmanager
def _telling(words: Callable[[Any], str]) -> Iterator[None]:
    """What was done in spite of an error is told under it."""
    try:
        yield
    except PartlyDone as error:
        error.told = words(error.done)
        raise


def _plain(text: str) -> str:
    """Without what could move a terminal's cursor."""
    from gpucluster.accounts import printable

    return printable(text)


def _table(rows: Sequence[Sequence[str]], header: Sequence[str], empty: str) -> str:
    from gpucluster.report import table

    return table([[_plain(cell) for cell in row] for row in rows], header) if rows else empty


def _words(names: Sequence[str]) -> str:
    return ",".join(names) or "-"


def _state(one: User) -> str:
    return ("enabled" if one.enabled else "disabled") + (", privileged" if one.privileged else "")


def _changed(done: UserChange, name: str, now: str, already: str) -> str:
    text = f"{_plain(name)} {now if done.changed else already}"
    if done.ended.jobs or done.ended.processes:
        text += f"; ended: jobs {done.ended.jobs}, processes {done.ended.processes}"
    return "\n".join([text, *_unseen(done.ended.unreachable), *_look_at(done.warnings)])


def _removed(done: Removal) -> str:
    gone = done.removed
    lines = [
        f"{_plain(done.name)} removed: directory entry {_yes(gone.entry)}, association {_yes(gone.association)}, "
        f"ssh keys {gone.keys}, jobs {gone.jobs}, processes {gone.processes}"
    ]
    lines += [f"kept: {_plain(path)}" for path in done.kept]
    lines += [f"the home is packed: {_plain(done.archive)}"] if done.archive else []
    return "\n".join([*lines, *_unseen(done.unreachable), *_look_at(done.warnings)])


def _yes(gone: bool) -> str:
    return "yes" if gone else "there was none"


def _unseen(hosts: Sequence[str]) -> list[str]:
    """What nobody could look at."""
    who = ", ".join(map(_plain, hosts))
    text = f"! no answer from {who}: processes may still run there; do the same again when they answer"
    return [text] if hosts else []


def _look_at(warnings: Sequence[str]) -> list[str]:
    return [f"! {_plain(warning)}" for warning in warnings]


def _membership(done: GroupChange) -> str:
    what = "" if done.changed else "no change; "
    return _plain(f"{done.group.name}: {what}members {_words(done.group.members)}")
