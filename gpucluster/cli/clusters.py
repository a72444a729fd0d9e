"""The commands for a cluster as a whole, from its file to its removal."""

from __future__ import annotations

import sys
from typing import Literal

import click

from gpucluster.cli.base import (
    DEFAULT_FILES,
    DELETE_DATA,
    PROVIDER,
    SKIP_PREFLIGHT,
    Context,
    cluster_of,
    command,
    reporting,
)
from gpucluster.cli.summaries import next_steps, plan_text, status_text, summary
from gpucluster.errors import EXIT_CHANGES, EXIT_INPUT, InputError


@command("init")
@click.argument("path", type=click.Path(), default=DEFAULT_FILES[0])
@click.option("--name", default="demo", show_default=True, help="The cluster's name.")
@click.option("--cloud", type=click.Choice(["local", "oci"]), default="local", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(context: Context, path: str, name: str, cloud: Literal["local", "oci"], force: bool) -> None:
    """Write a cluster.yml from a template, with every setting explained."""
    with reporting(context) as reporter:
        from gpucluster.spec import loads, template

        text = template(name=name, provider=cloud)
        # The local template is enough to check the name. The other one needs key files, which may come later.
        loads(template(name=name, provider="local"), path)
        try:
            with open(path, "w" if force else "x") as stream:
                stream.write(text)
        except FileExistsError:
            raise InputError("the file exists already", where=path, hint="Pass --force to overwrite it") from None
        except OSError as error:
            raise InputError(f"can't write the file: {error.strerror}", where=path) from error
        reporter.result({"command": "init", "file": path}, f"{path} written. Next: gpucluster --file {path} validate")


@command("validate")
def validate(context: Context) -> None:
    """Check the cluster file and report every error at once, each with its line."""
    with reporting(context) as reporter:
        spec = context.spec()
        counts = {
            name: f"{pool.count} to {pool.max_count}" if pool.elastic else pool.count
            for name, pool in spec.pools.items()
        }
        pools = ", ".join(f"{name} ({counts[name]} x {pool.shape})" for name, pool in spec.pools.items())
        reporter.result(
            {"command": "validate", "file": str(context.file), "name": spec.name},
            f"{context.file} is valid: cluster {spec.name}, pools {pools}",
        )


@command("preflight")
@PROVIDER
def preflight(context: Context, provider: str) -> None:
    """Ask the cloud in advance whether it would accept the cluster file. Creates nothing."""
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.cli.output import findings

        report = cluster.preflight()
        verdict = "would fail" if report.errors else "no obstacle was found"
        line = f"preflight: {verdict}" + (f" ({report.summary})" if report.findings else "")
        reporter.result(report.to_dict(), "\n".join(filter(None, [findings(report.findings), line])))
    if report.errors:
        sys.exit(EXIT_INPUT)


@command("policies")
def policies(context: Context) -> None:
    """Print the IAM policies that the cluster and its operator need, for an administrator."""
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.handover import iam

        needed = cluster.policies()
        reporter.result({"command": "policies", **needed.to_dict()}, iam.text(needed))


@command("plan")
@PROVIDER
@click.option("--detailed-exitcode", is_flag=True, help=f"Exit with {EXIT_CHANGES} when there are changes.")
@SKIP_PREFLIGHT
def plan(context: Context, provider: str, detailed_exitcode: bool, skip_preflight: bool) -> None:
    """Show what apply would change: resources, nodes, and their configuration. Changes nothing."""
    with cluster_of(context, provider) as (cluster, reporter):
        planned = cluster.plan(preflight=not skip_preflight)
        reporter.result({"command": "plan", **planned.to_dict()}, plan_text(planned))
    if not planned.empty and detailed_exitcode:
        sys.exit(EXIT_CHANGES)


@command("apply")
@PROVIDER
@DELETE_DATA
@click.option(
    "--replace-nodes", is_flag=True, help="Allow recreating nodes that the file still asks for, or the controller."
)
@click.option(
    "--drain-timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long to wait for jobs on nodes that are removed. 0: requeue or cancel them. Default: an hour.",
)  # fmt: skip
@SKIP_PREFLIGHT
def apply(
    context: Context,
    provider: str,
    delete_data: bool,
    replace_nodes: bool,
    drain_timeout: float | None,
    skip_preflight: bool,
) -> None:
    """Create or update the cluster, then verify it."""
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.operations.drain import DRAIN_TIMEOUT

        result = cluster.apply(
            delete_data=delete_data,
            replace_nodes=replace_nodes,
            drain_timeout=DRAIN_TIMEOUT if drain_timeout is None else drain_timeout,
            preflight=not skip_preflight,
        )
        reporter.result(result.to_dict(), summary(result) + next_steps(cluster, result))


@command("verify")
@PROVIDER
def verify(context: Context, provider: str) -> None:
    """Run the checks that apply ends with."""
    with cluster_of(context, provider) as (cluster, reporter):
        result = cluster.verify()
        reporter.result(result.to_dict(), summary(result))


@command("destroy")
@PROVIDER
@DELETE_DATA
def destroy(context: Context, provider: str, delete_data: bool) -> None:
    """Remove everything that apply made."""
    with cluster_of(context, provider) as (cluster, reporter):
        result = cluster.destroy(delete_data=delete_data)
        reporter.result(result.to_dict(), summary(result))


@command("status")
def status(context: Context) -> None:
    """Ask the cloud and Slurm: what exists, what is pending, the last runs."""
    with cluster_of(context) as (cluster, reporter):
        current = cluster.status()
        reporter.result({"command": "status", **current}, status_text(current))


@command("output")
def output(context: Context) -> None:
    """Print Terraform's outputs as JSON, in a versioned format."""
    import json

    with cluster_of(context) as (cluster, reporter):
        outputs = dict(cluster.outputs())
        reporter.result({"command": "output", "outputs": outputs}, json.dumps(outputs, indent=2))


@command("inventory")
def inventory(context: Context) -> None:
    """Print the Ansible inventory as JSON."""
    import json

    with cluster_of(context) as (cluster, reporter):
        hosts = dict(cluster.inventory())
        reporter.result({"command": "inventory", "inventory": hosts}, json.dumps(hosts, indent=2))


class _SshCommand(click.Command):
    """Keeps `--` as the separator of a host's name and the remote command, even if the name is left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            separator = args.index("--")
            ctx.meta["remote"] = tuple(args[separator + 1 :])
            args = args[:separator]
        return super().parse_args(ctx, args)


@command("ssh", cls=_SshCommand, options_metavar="[OPTIONS]", short_help="Log in to a host, or run a command there.")
@click.argument("node", required=False)
def ssh(context: Context, node: str | None) -> None:
    """Log in to NODE (default: the controller), or run a command there: gpucluster ssh [NODE] [-- CMD...]."""
    remote = click.get_current_context().meta.get("remote", ())
    with cluster_of(context) as (cluster, _reporter):
        argv = cluster.ssh_argv(node, remote)
    from gpucluster import process

    sys.exit(process.call(argv))
