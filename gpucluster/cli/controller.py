"""The commands for the controller itself."""

from __future__ import annotations

from dataclasses import asdict

import click

from gpucluster.cli.base import PROVIDER, YES, Context, cluster_of, command, command_group
from gpucluster.cli.summaries import summary


@command_group("controller")
def controller() -> None:
    """Replace the controller, or let its standby go on."""


@command("replace", parent=controller)
@PROVIDER
@YES
def controller_replace(context: Context, provider: str, yes: bool) -> None:
    """Put another machine in the place of the controller.

    The volume with its state goes to the new one, under the same private address and with the same keys. Jobs on the
    nodes go on. It works as well when the old machine is gone.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.cli.output import agree

        cluster.state.require_own()
        cluster.controller.require_volume()
        if context.can_ask and not yes:
            reporter.close()
            agree(
                "The controller is stopped and terminated; what is on its boot disk will be lost. Replace it",
                "nothing was replaced",
            )
        result = cluster.controller.replace()
        reporter.result(result.to_dict(), summary(result))


@command("failover", parent=controller)
@PROVIDER
@YES
@click.option("--accept-behind", is_flag=True, help="Also to a standby that the last apply has not brought up to date.")
def controller_failover(context: Context, provider: str, yes: bool, accept_behind: bool) -> None:
    """Let the standby go on in the place of the controller.

    The controller is stopped in the cloud, and starts again as the standby: the same command is the way back. Jobs on
    the nodes go on.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.cli.output import agree

        cluster.state.require_own()
        cluster.controller.require_standby()
        if context.can_ask and not yes:
            reporter.close()
            agree("The controller is stopped, and the standby goes on in its place. Do it", "nothing was changed")
        result = cluster.controller.failover(accept_behind=accept_behind)
        text = f"the host {result.host} is in service; the cluster was without a controller for {result.seconds:.0f} s"
        reporter.result({"command": "controller failover", **asdict(result)}, text)
