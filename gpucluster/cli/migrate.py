"""The commands from and to another tool: the HPC stack of the marketplace, and Resource Manager."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import DEFAULT_FILES, Context, command, command_group, reporting
from gpucluster.errors import EXIT_CHANGES, InputError

if TYPE_CHECKING:
    from pathlib import Path


STACK_FILE = "gpucluster-stack.zip"


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


@command_group("export")
def export() -> None:
    """Write files for another tool."""


@command("orm", parent=export)
@click.argument("path", metavar="[FILE]", type=click.Path(), default=STACK_FILE)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export_orm(context: Context, path: str, force: bool) -> None:
    """Write a form for the console: a stack of Resource Manager.

    FILE is a zip, gpucluster-stack.zip. The console shows a form for it; an apply writes cluster.yml into the outputs.
    The stack creates nothing.
    """
    with reporting(context) as reporter:
        from pathlib import Path

        from gpucluster.cli.clusters import new_file, write_new
        from gpucluster.resource_manager import form, stack_files

        write_new(
            new_file(Path(path), force=force, command="export orm", default=STACK_FILE),
            stack_files.archive(),
            force=force,
        )
        fields = [field.name for field in form.fields()]
        text = f"{path} written, a form with {len(fields)} fields. Next: create a stack from it in Resource Manager"
        reporter.result({"command": "export orm", "file": path, "fields": fields}, text)


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
