"""`gpucluster cp`: files to a host and from it."""

from __future__ import annotations

import sys

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command


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

        status = process.call(cluster.hosts.copy_argv(words))
        if status and cluster.hosts.has_new_key(copying(words).host):
            status = process.call(cluster.hosts.copy_argv(words))
    sys.exit(status)
