"""The commands for the controller itself."""

from __future__ import annotations

from gpucluster.cli.base import PROVIDER, YES, Context, cluster_of, command, command_group
from gpucluster.cli.summaries import summary


@command_group("controller")
def controller() -> None:
    """Replace the controller; its state is on a volume."""


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
