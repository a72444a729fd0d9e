"""The commands for who comes from another tool."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import DEFAULT_FILES, Context, command, command_group, reporting
from gpucluster.errors import EXIT_CHANGES, InputError

if TYPE_CHECKING:
    from pathlib import Path


@command_group("migrate")
def migrate() -> None:
    """Write cluster.yml from the settings of another tool."""


@command("orm", parent=migrate)
@click.argument("variables", metavar="VARIABLES", type=click.Path())
@click.argument("path", metavar="[FILE]", type=click.Path(), default=DEFAULT_FILES[0])
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="A key of cluster.yml and its value, in YAML, instead of what the variables say. Can be repeated.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--detailed-exitcode", is_flag=True, help=f"Exit with {EXIT_CHANGES} when something is left to decide.")
def migrate_orm(
    context: Context, variables: str, path: str, settings: tuple[str, ...], force: bool, detailed_exitcode: bool
) -> None:
    """Convert the variables of the marketplace's HPC stack.

    VARIABLES is what `oci resource-manager stack get` or `job get` prints, or a terraform.tfvars (also as JSON), of
    oci-hpc 2.6 to 3.1. FILE is the cluster file to write, cluster.yml.

    The file that it writes is valid. Each variable is accounted for. Secrets are neither written nor shown.
    """
    with reporting(context) as reporter:
        from pathlib import Path

        from gpucluster.cli.clusters import new_file, write_new
        from gpucluster.resource_manager import migration, report, variable_files

        file = new_file(Path(path), force=force, command="migrate orm VARIABLES")
        if file.exists() and not force:
            raise InputError("the file exists already", where=path, hint="Pass --force to overwrite it")
        values = variable_files.read(_content(Path(variables)), variables)
        done = migration.migrate(
            values,
            file=variables,
            target=path,
            folder=file.resolve().parent.name,
            settings=dict(map(_setting, settings)),
        )
        write_new(file, done.text, force=force)
        named = "" if path == DEFAULT_FILES[0] else f"--file {shlex.quote(path)} "
        lines = [
            f"{path} written, for the cluster {done.spec.name}",
            report.report(done),
            f"Next: gpucluster {named}preflight",
        ]
        reporter.result({"command": "migrate orm", "file": path, **done.to_dict()}, "\n".join(lines))
    if done.decisions and detailed_exitcode:
        sys.exit(EXIT_CHANGES)


def _setting(text: str) -> tuple[str, str]:
    """The key and the value of `--set`.

    Raises:
        InputError: there is no `=`, or nothing before it.
    """
    key, sign, value = text.partition("=")
    if not sign or not all(key.split(".")):
        raise InputError("not KEY=VALUE", where=f"--set {text}", hint="Such as: --set pools.compute.count=4")
    return key, value


def _content(file: Path) -> str:
    """The text of the file with the variables.

    Raises:
        InputError: it can't be read, or is too large to be one.
    """
    from gpucluster.resource_manager.variable_files import MAX_BYTES

    if not file.is_file():
        raise InputError("there is no such file", where=str(file), hint="Name the file with the stack's variables")
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"the file can't be read: {reason}", where=str(file)) from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB", where=str(file))
    return text
