"""The commands for the API of Kubernetes: a kubeconfig, and kubectl on the controller."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, OwnOptions, cluster_of, command

_MOST_PORT = 65535


@command(
    "kubeconfig",
    epilog="""\b
Examples:
  gpucluster kubeconfig                       for you, as an operator of the cluster
  gpucluster kubeconfig --user ada ada.yaml   for a user, to be used on the cluster's hosts""",
)
@click.option(
    "--user",
    metavar="NAME",
    shell_complete=completion.users,
    help="A user of the cluster's directory. Default: you, as an operator.",
)
@click.argument("target", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--local-port", type=click.IntRange(1, _MOST_PORT), metavar="PORT",
    help="The file names this port of its own machine, which ssh forwards to the API. Default for operators: 16443.",
)  # fmt: skip
def kubeconfig(context: Context, user: str | None, target: Path | None, local_port: int | None) -> None:
    """Write FILE, with which kubectl reaches the cluster's API. Default: kubeconfig-CLUSTER.yaml, with --user
    kubeconfig-CLUSTER-NAME.yaml.

    Its certificate is valid for kubernetes.kubeconfig_hours; the same command renews it. The key is made on this
    machine. Only the file's owner may read it.

    The API listens in the private network. The file of an operator names a port of this machine, and the answer has the
    command that forwards it. The file of a user names the address that the cluster's hosts reach, unless --local-port
    is given.
    """
    with cluster_of(context) as (cluster, reporter):
        access = cluster.kubernetes.write_kubeconfig(user, target, local_port=local_port)
        text = f"{access.file} written: {access.user}, for {access.hours} h. Use it: export KUBECONFIG={access.file}"
        if access.forward:
            text += f"\nFirst forward the port, until Ctrl-C: {access.forward}"
        reporter.result({"command": "kubeconfig", **access.to_dict()}, text)


class _AllWords(OwnOptions):
    """Takes no option of ours after the first word of kubectl."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


@command(
    "kubectl",
    cls=_AllWords,
    options_metavar="[OPTIONS]",
    epilog="""\b
Examples:
  gpucluster kubectl -- get nodes
  gpucluster kubectl -- apply -f - < job.yaml""",
)
@click.argument("words", nargs=-1, required=True, metavar="[--] WORDS...", type=click.UNPROCESSED)
def kubectl(context: Context, words: tuple[str, ...]) -> None:
    """Run kubectl on the controller, as its operator.

    Files that it names are those of the controller; a file of this machine comes by standard input. The exit code is
    that of kubectl.
    """
    with cluster_of(context) as (cluster, _reporter):
        from gpucluster import process
        from gpucluster.ssh import SSH_FAILED

        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        status = process.call(cluster.kubernetes.kubectl_argv(words, terminal=terminal))
        if status == SSH_FAILED and cluster.hosts.has_new_key():
            status = process.call(cluster.kubernetes.kubectl_argv(words, terminal=terminal))
    sys.exit(status)
