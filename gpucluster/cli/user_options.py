"""The options with a user's settings, and what is read for them: key files, passwords, standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from gpucluster.errors import InputError

_MAX_STDIN = 64 * 1024
_STDIN = "-"
_PIPE_HINT = "Such as: printf '%s\\n' \"$PASSWORD\" | ..."


def user_options(function: Callable[..., None]) -> Callable[..., None]:
    """The settings that `user add` and `user edit` share."""
    options = (
        click.option("--full-name", help="Full name."),
        click.option("--gid", type=int, help="Id of the primary group."),
        click.option("--group", help="Name of the primary group."),
        click.option("--groups", metavar="A,B", help="Further groups; `privilege` gives root's powers in containers."),
        click.option("--ssh-key", "ssh_key", multiple=True, metavar="FILE|-", help="File of public keys; repeatable."),
        click.option("--password-stdin", is_flag=True, help="Read a password from standard input."),
        click.option("--shell", help="Login shell."),
        click.option("--slurm-account", help="The account in Slurm that jobs are charged to."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def settings_of(
    *, interactive: bool, ssh_key: Sequence[str], password_stdin: bool, add_ssh_key: Sequence[str] = (), **plain: Any
) -> dict[str, Any]:
    """The settings that the options ask for; options that were not given are left out.

    Args:
        interactive: ask for a password if standard input is a terminal.

    Raises:
        InputError: a file or standard input does not hold what it should.
    """
    uses = [*ssh_key, *add_ssh_key].count(_STDIN) + password_stdin
    if uses > 1:
        raise InputError("standard input can hold one thing only", hint="Name a file for the ssh key")
    settings = {name: value for name, value in plain.items() if value is not None}
    for name in settings.keys() & {"groups", "add_groups", "remove_groups"}:
        settings[name] = [part.strip() for part in settings[name].split(",") if part.strip()]
    for name, sources in (("ssh_keys", ssh_key), ("add_ssh_keys", add_ssh_key)):
        if sources:
            settings[name] = [key for source in sources for key in _keys(source)]
    if password_stdin:
        settings["password"] = _password(interactive=interactive)
    return settings


def _keys(source: str) -> list[str]:
    """The public keys of a file, or of standard input."""
    from pathlib import Path

    from gpucluster.controller.rules import ssh_keys
    from gpucluster.spec import keys

    try:
        if source != _STDIN:
            return list(keys.read(Path(source)))
        lines = [line for line in _read_stdin().splitlines() if line.strip() and not line.lstrip().startswith("#")]
        return [ssh_keys.check(line) for line in lines or [""]]
    except ssh_keys.BadKey as bad:
        what = bad.message if source != _STDIN else f"the key on standard input is {bad.message}"
        raise InputError(what, hint=bad.hint) from bad


def _password(*, interactive: bool) -> str:
    if sys.stdin.isatty():
        if not interactive:
            raise InputError("there is no password on standard input: it is a terminal", hint=_PIPE_HINT)
        import getpass

        return getpass.getpass()
    password = _read_stdin().removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise InputError("a password is one line on standard input", hint=_PIPE_HINT)
    return password


def _read_stdin() -> str:
    raw = sys.stdin.buffer.read(_MAX_STDIN + 1)
    if len(raw) > _MAX_STDIN:
        raise InputError(f"standard input is too large: at most {_MAX_STDIN} bytes are read", hint="Send it in parts")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError("standard input is not UTF-8 text", hint="Save it as UTF-8") from error
