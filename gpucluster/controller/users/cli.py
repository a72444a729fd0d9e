"""The command line: `cluster user ...` and `cluster group ...`."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.controller.users import csv_file, requests, tables
from gpucluster.controller.users.service import UserService
from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import AgentError, Refused

_COMMAS = "names, separated by commas"


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = argparse.ArgumentParser(prog="cluster", description="The users of this cluster.")
    kinds = top.add_subparsers(dest="kind", required=True, metavar="COMMAND")
    _user_commands(kinds.add_parser("user", help="users, their keys and homes"))
    _group_commands(kinds.add_parser("group", help="groups and their members"))
    kinds.add_parser("request", help="for programs: one JSON object on standard input, one on standard output")
    return top


def _command(verbs: Any, name: str, text: str, *, named: bool = True, aliases: Sequence[str] = ()) -> Any:
    command = verbs.add_parser(name, help=text, description=text, aliases=list(aliases))
    command.set_defaults(verb=name)
    if named:
        command.add_argument("name", metavar="NAME")
    command.add_argument("--output", choices=("text", "json"), default="text", help="default: %(default)s")
    return command


def _user_commands(user: argparse.ArgumentParser) -> None:
    verbs = user.add_subparsers(dest="verb", required=True, metavar="VERB")
    add = _command(verbs, "add", "create a user; on a terminal, asks for what is not given")
    add.add_argument("--uid", type=int, help="default: the next unused one")
    _user_options(add)
    add.add_argument("--groups", metavar="A,B", help=f"{_COMMAS}, apart from the primary one")
    add.add_argument(
        "--ssh-key",
        dest="ssh_keys",
        action="append",
        metavar="FILE",
        help="file with public keys; - reads standard input",
    )
    edit = _command(verbs, "edit", "change a user")
    _user_options(edit)
    edit.add_argument("--groups", metavar="A,B", help=f"all groups apart from the primary one: {_COMMAS}")
    edit.add_argument("--add-groups", metavar="A,B", help=_COMMAS)
    edit.add_argument("--remove-groups", metavar="A,B", help=_COMMAS)
    edit.add_argument(
        "--ssh-key",
        dest="ssh_keys",
        action="append",
        metavar="FILE",
        help="file with public keys that replace all others",
    )
    edit.add_argument(
        "--add-ssh-key", dest="add_ssh_keys", action="append", metavar="FILE", help="file with public keys to add"
    )
    edit.add_argument("--password", dest="ask_password", action="store_true", help="ask for a new password")
    _command(verbs, "list", "all users", named=False)
    _command(verbs, "show", "one user")
    _command(verbs, "disable", "disable a user; ends jobs and processes, keeps all files")
    _command(verbs, "enable", "let a user log in again")
    remove = _command(verbs, "remove", "remove a user; the uid is not used again for another user", aliases=["delete"])
    homes = remove.add_mutually_exclusive_group()
    homes.add_argument("--keep-home", dest="home", action="store_const", const="keep", help="this is the default")
    homes.add_argument(
        "--archive-home", dest="home", action="store_const", const="archive", help="and delete it afterwards"
    )
    many = _command(verbs, "import", "create or change many users", named=False)
    many.add_argument("file", metavar="FILE", help="CSV with a header line, or JSON; - reads standard input")


def _user_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--full-name")
    primary = command.add_mutually_exclusive_group()
    primary.add_argument("--gid", type=int, help="number of the primary group")
    primary.add_argument("--group", metavar="GROUP", help="the primary group")
    command.add_argument("--password-stdin", action="store_true", help="read a password; on a terminal, ask for it")
    command.add_argument("--shell", metavar="FILE")
    command.add_argument("--slurm-account", metavar="ACCOUNT", help="an existing account in Slurm")


def _group_commands(group: argparse.ArgumentParser) -> None:
    verbs = group.add_subparsers(dest="verb", required=True, metavar="VERB")
    add = _command(verbs, "add", "create a group", aliases=["create"])
    add.add_argument("--gid", type=int, help="default: the next unused one")
    _command(verbs, "list", "all groups", named=False)
    _command(verbs, "remove", "remove a group", aliases=["delete"])
    for verb, text in (("add-member", "add a user to a group"), ("remove-member", "remove a user from a group")):
        command = _command(verbs, verb, text, named=False)
        command.add_argument("group", metavar="GROUP")
        command.add_argument("user", metavar="USER")


def request(options: argparse.Namespace, terminal: InputTerminal) -> tuple[str, dict[str, Any]]:
    """Operation and arguments of a command line.

    Raises:
        Refused: a named file can't be read, or the two passwords differ.
    """
    _check_input(options)
    arguments = {
        key: value
        for key, value in vars(options).items()
        if value is not None and key not in ("kind", "verb", "output", "password_stdin", "ask_password", "file")
    }
    for key in ("groups", "add_groups", "remove_groups"):
        if key in arguments:
            arguments[key] = [name for name in arguments[key].split(",") if name]
    for key in ("ssh_keys", "add_ssh_keys"):
        if key in arguments:
            arguments[key] = [line for file in arguments[key] for line in _key_lines(terminal.read(file))]
    operation = f"{options.kind}.{options.verb.replace('-', '_')}"
    if operation == "user.import":
        arguments["users"] = _users(options.file, terminal.read(options.file))
    if operation in ("user.add", "user.edit"):
        _complete(options, arguments, terminal)
    return operation, arguments


def _check_input(options: argparse.Namespace) -> None:
    """Raises Refused where standard input is named twice."""
    files = [*(getattr(options, "ssh_keys", None) or ()), *(getattr(options, "add_ssh_keys", None) or ())]
    if files.count("-") + getattr(options, "password_stdin", False) > 1:
        raise Refused("standard input can be read for one option only", "Name a file for the ssh key")


def _complete(options: argparse.Namespace, arguments: dict[str, Any], terminal: InputTerminal) -> None:
    """Terminal for what was not typed, if there is a terminal."""
    new = options.verb == "add"
    if options.password_stdin and not terminal.attached:
        arguments["password"] = terminal.read("-").rstrip("\r\n")
    elif options.password_stdin or (new and terminal.attached) or (not new and options.ask_password):
        password = terminal.secret("Password: ")
        if terminal.secret("Repeat for confirmation: ") != password:
            raise Refused("the passwords differ", "Nothing was changed; try again")
        # With the option a password is required: an empty password is passed on, and refused by the check of passwords.
        if password or options.password_stdin:
            arguments["password"] = password
    if new and terminal.attached and "full_name" not in arguments and not options.password_stdin:
        full_name = terminal.line("Full Name: ").strip()
        if full_name:
            arguments["full_name"] = full_name


def _key_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _users(name: str, text: str) -> Any:
    if csv_file.is_csv(name, text):
        return csv_file.users(text)
    try:
        content = bounded.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the file is not JSON: {error}", 'Write [{"name": ..., "full_name": ...}, ...]') from error
    return content["users"] if isinstance(content, dict) and set(content) == {"users"} else content


class InputTerminal:
    """The user at the terminal."""

    @property
    def attached(self) -> bool:
        """Whether there is one."""
        return sys.stdin.isatty()

    def read(self, name: str) -> str:
        """A file, or standard input for `-`.

        Raises:
            Refused: it can't be read.
        """
        try:
            return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise Refused(f"{name} can't be read: {reason}", "Name an existing file") from error

    def secret(self, prompt: str) -> str:
        """An answer that the terminal does not show."""
        return getpass.getpass(prompt)

    def line(self, prompt: str) -> str:
        """An answer."""
        return input(prompt)


def run(make: Callable[[], UserService], options: argparse.Namespace, terminal: InputTerminal) -> int:
    """Run a command and print the result; returns the exit status."""
    as_json = options.output == "json"
    try:
        operation, arguments = request(options, terminal)
        result = requests.carry_out(make(), operation, arguments)
    except AgentError as error:
        if as_json:
            sys.stdout.write(json.dumps(requests.failure(error), indent=2) + "\n")
        else:
            if error.partial_result:
                sys.stdout.write(tables.text(operation, error.partial_result))
            sys.stderr.write(f"cluster: {tables.plain(error.message)}\n")
            sys.stderr.write(f"  {tables.plain(error.hint)}\n" if error.hint else "")
        return error.status
    sys.stdout.write(json.dumps(result, indent=2) + "\n" if as_json else tables.text(operation, result))
    return 1 if _failures(result) else 0


def _failures(result: Mapping[str, Any]) -> bool:
    return any(isinstance(user, dict) and user.get("status") == "failed" for user in result.get("users", ()))
