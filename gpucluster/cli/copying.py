"""`gpucluster cp`: files to a host and from it."""

from __future__ import annotations

import os
import sys

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command
from gpucluster.errors import InputError


@command(
    "cp",
    short_help="Copy files to a host, or from it.",
    epilog="""\b
Examples:
  gpucluster cp data.tar controller:/mnt/home/alice/   to the controller
  gpucluster cp compute-1:/var/log/slurm .             a folder of a node
  gpucluster cp a.py b.py login:                       to the login user's home""",
)
@click.argument("words", nargs=-1, required=True, metavar="SOURCE... TARGET", shell_complete=completion.copied)
def cp(context: Context, words: tuple[str, ...]) -> None:
    """Copy files and folders between this machine and a host, as its login user.

    A path on a host is HOST:PATH, where a relative path begins in the login user's home; `:PATH` is on the controller.
    Either all sources or the target is on one host. A path here that has a colon is written ./NAME.
    """
    if len(words) < 2:  # noqa: PLR2004 - a source and a target
        raise click.UsageError("Name at least one source, and the target.")
    with cluster_of(context) as (cluster, _reporter):
        from gpucluster import process
        from gpucluster.operations.copying import copying

        argv, copy = cluster.hosts.copy_argv(words), copying(words)
        if copy.to_host:
            _check_sources(copy.sources)
        status = process.call(argv)
        if status and cluster.hosts.has_new_key(copy.host):
            status = process.call(cluster.hosts.copy_argv(words))
    sys.exit(status)


def _check_sources(paths: tuple[str, ...]) -> None:
    """Whether they exist, before a connection is made."""
    for path in paths:
        if not os.path.lexists(path):
            raise InputError(
                "there is no such file or folder on this machine", where=path, hint="Name one that exists, or HOST:PATH"
            )
