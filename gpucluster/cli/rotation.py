"""The command that changes the secrets of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import YES, Context, cluster_of, command
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.operations.rotation import RotatableSecret, RotatedSecret, Rotation


@command("rotate")
@click.argument("what", metavar="[WHAT]...", nargs=-1)
@YES
def rotate(context: Context, what: tuple[str, ...], yes: bool) -> None:
    """Change secrets of the cluster while jobs run.

    WHAT is `munge`, the key with which Slurm's hosts trust each other, `jwt`, the key of the REST API's tokens,
    `passwords`, those with which hosts read the directory, `host-keys`, the ssh host keys of permanent hosts, `ssh-ca`,
    the CA that certifies those of all hosts, `directory-ca`, the CA of the directory and of other servers of the
    controller, `controller-key`, with which the controller logs in to the other hosts, `container-keys`, those of MPI
    in containers, `join-key`, with which new elastic nodes are configured, `grafana`, the password of its
    administrator, `kubernetes`, the certificates of the control plane, or `all`. Without it, list what can be changed
    and when that was last done. Slurm stops for some seconds, the API server for up to a minute; jobs and pods run on.
    A host that is off gets the munge key, the CA of the directory and the keys of the controller and of containers
    when it boots. An interrupted rotation is continued by the same command.
    """
    with cluster_of(context) as (cluster, reporter):
        if not what:
            found = cluster.secrets.list()
            data = {"command": "rotate", "status": "success", "secrets": [each.to_dict() for each in found]}
            reporter.result(data, _table(found))
            return
        from gpucluster.cli.output import agree
        from gpucluster.cli.summaries import with_partial_result
        from gpucluster.operations.rotation import chosen

        names = chosen(what, cluster.spec)
        cluster.state.require_own()
        if context.can_ask and not yes:
            reporter.close()
            agree(f"{'. '.join(_STOPS[name] for name in names)}. Rotate {', '.join(names)}", "nothing was rotated")
        done = with_partial_result(lambda: cluster.secrets.rotate(what), _lines)
        reporter.result({"command": "rotate", "status": "success", **done.to_dict()}, _lines(done))


_STOPS = {
    "munge": "slurmctld stops for some seconds; jobs run on",
    "jwt": "slurmctld starts again, and no token of the REST API is valid any more",
    "passwords": "SSSD starts again on each host; jobs run on",
    "host-keys": "ssh of users reports another host key of login nodes, unless it has the cluster's CA",
    "ssh-ca": "images that were baked before believe the former CA: bake again",
    "directory-ca": "the directory starts again, and SSSD on each host; jobs run on",
    "controller-key": "images of earlier releases do not learn the next key: bake again",
    "container-keys": "MPI jobs in containers run on",
    "join-key": "new nodes are launched with the next key",
    "grafana": "the page of Grafana asks for another password at the next login",
    "kubernetes": "the API server stops for up to a minute; pods run on",
}


def _table(found: tuple[RotatableSecret, ...]) -> str:
    from gpucluster.cli.output import table

    if not found:
        return "Nothing can be rotated here"
    rows = [[each.name, each.changed or "-", each.expires or "-", _state(each)] for each in found]
    lines = [table(rows, ["SECRET", "CHANGED", "EXPIRES", "ROTATION"])]
    lines += [f"To complete it: gpucluster rotate {each.name}" for each in found if each.state != "complete"]
    return "\n".join(lines)


def _state(secret: RotatableSecret) -> str:
    if secret.state == "unconfirmed":
        return f"not confirmed by {', '.join(secret.unconfirmed)}"
    return {"complete": "complete", "prepared": "interrupted before the switch", "switching": "switching"}[secret.state]


def _lines(rotation: Rotation) -> str:
    return "\n".join(map(_line, rotation.secrets))


def _line(secret: RotatedSecret) -> str:
    if secret.name == "kubernetes":
        return "kubernetes: all certificates of the control plane are renewed"
    if secret.name == "grafana":
        return "grafana: changed; to see it, run: gpucluster dashboard --password"
    if secret.name == "jwt":
        return "jwt: changed; tokens that were made before are refused"
    lines = [
        f"{secret.name}: the hosts that had missed the last rotation have confirmed it"
        if not secret.new and not secret.unconfirmed
        else f"{secret.name}: changed on {count(secret.hosts, 'host')}",
        f"not confirmed: {', '.join(secret.unconfirmed)}" if secret.unconfirmed else "",
        f"off, {_WHEN[secret.name]}: {', '.join(secret.away)}" if secret.away else "",
    ]
    return "; ".join(filter(None, lines))


# When hosts that are off get it.
_WHEN = {
    "munge": "they get it at their boot",
    "passwords": "the one before is valid there until the same command or an apply reaches them",
    "host-keys": "they keep the keys that they have",
    "ssh-ca": "the next apply brings it to them",
    "directory-ca": "they learn the next one at their boot",
    "controller-key": "they learn the next one at their boot",
    "container-keys": "they get them at their boot",
    "join-key": "they accept the former one, which is deleted",
}
