"""The commands for Terraform's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import PROVIDER, Context, cluster_of, command, command_group
from gpucluster.cli.output import say
from gpucluster.errors import OtherClusterError
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.cluster import Cluster
    from gpucluster.lifecycle.adoption import Recovered


@command_group("state")
def state() -> None:
    """Repair a lost state, or remove a lock that was left."""


@command("recover", parent=state)
@PROVIDER
def state_recover(context: Context, provider: str) -> None:
    """Adopt the cluster by its tags into a lost state.

    Terraform imports everything that the cloud has of this cluster. Nothing is created, changed or replaced.

    A folder that does not know the cluster must name its identity with --cluster-id. On a terminal it is shown, and
    asked for.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        if context.can_ask:
            try:
                cluster.state.require_own()
            except OtherClusterError as error:
                reporter.close()
                recovered = cluster.state.recover(_confirmed(cluster, error))
            else:
                recovered = cluster.state.recover()
        else:
            recovered = cluster.state.recover()
        reporter.result(recovered.to_dict(), _text(recovered))


@command("unlock", parent=state)
@click.argument("lock_id", metavar="ID")
def state_unlock(context: Context, lock_id: str) -> None:
    """Remove the lock that a run on another machine has left.

    A run that is refused because of it names the ID, and reports where the other run is and since when. Remove the lock
    only if that run was killed, or its machine is off.
    """
    with cluster_of(context) as (cluster, reporter):
        removed = cluster.state.unlock(lock_id)
        result = {"command": "state unlock", "id": lock_id, "run": removed}
        reporter.result(result, f"the lock is removed: {removed}")


def _confirmed(cluster: Cluster, error: OtherClusterError) -> str:
    """The identity of the cluster that an operator adopts knowingly.

    Raises:
        OtherClusterError: there is no single one, or the answer is not its identity.
    """
    if not error.cluster_id:
        raise error
    say(f"{error.what}\nIf it belongs to another operator, choose another `name` in {cluster.spec.file}.", err=True)
    shown = printable(error.cluster_id)  # a tag, which any user of the compartment may have written
    answer = click.prompt(
        f"To adopt this cluster, type its identity ({shown})", default="", show_default=False, err=True
    )
    if answer.strip() != error.cluster_id:
        raise error
    return error.cluster_id


def _text(recovered: Recovered) -> str:
    """What was adopted, and the next command."""
    if not recovered.adopted:
        lines = ["nothing to adopt: the state knows everything that the cloud has of this cluster"]
    else:
        lines = [f"adopted {count(len(recovered.adopted), 'resource')}:"]
        lines += [f"  {each['address']}  {each['id']}" for each in recovered.adopted]
    if recovered.created:
        lines += ["created, because the others need it:", *(f"  {address}" for address in recovered.created)]
    if recovered.left:
        lines.append("with the cluster's tag, and not adopted:")
        lines += [f"  {each['kind'].replace('_', ' ')} {each['name']}  {each['id']}" for each in recovered.left]
    return "\n".join([*lines, "Next: gpucluster plan, then gpucluster apply"])
