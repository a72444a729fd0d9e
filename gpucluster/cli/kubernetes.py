"""The commands for a control plane of Kubernetes on the cluster's controller."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from gpucluster import shapes
from gpucluster.cli.base import PROVIDER, YES, Context, cluster_of, command, command_group, reporting
from gpucluster.errors import EXIT_FAILED, InputError
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.operations.kubernetes import ControlPlaneCertificate, ControlPlaneState, EtcdSpace
    from gpucluster.operations.kubernetes_upgrade import KubernetesUpgrade
    from gpucluster.spec import ClusterSpec

_MIB = 1 << 20
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@command_group("kubernetes")
def kubernetes() -> None:
    """Look after a control plane on the controller."""


@command("status", parent=kubernetes)
def kubernetes_status(context: Context) -> None:
    """Show the state of the control plane, and each problem.

    It also answers while the API server is dead. The exit code is 1 if there is a problem, and 0 if there are only
    warnings.
    """
    with cluster_of(context) as (cluster, reporter):
        state = cluster.kubernetes.state()
        ended = "failed" if state.has_failed else "success"
        reporter.result({"command": "kubernetes status", "status": ended, **state.to_dict()}, "\n".join(_state(state)))
        if state.has_failed:
            sys.exit(EXIT_FAILED)


@command("certificates", parent=kubernetes)
@click.option(
    "--renew", is_flag=True, help="Renew all of them now. The API server stops for up to a minute; pods run on."
)
def kubernetes_certificates(context: Context, renew: bool) -> None:
    """Show until when certificates are valid, or renew them.

    `gpucluster apply` and a timer on the controller renew them when less than 90 days are left.
    """
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.operations.kubernetes import ALL_DAYS

        renewed = cluster.kubernetes.renew_certificates(ALL_DAYS) if renew else ()
        certificates = cluster.kubernetes.certificates()
        lines = [
            *([f"{count(len(renewed), 'certificate')} renewed"] if renew else []),
            *map(_certificate, certificates),
        ]
        result = {"certificates": [{**vars(each)} for each in certificates], "renewed": list(renewed)}
        reporter.result({"command": "kubernetes certificates", **result}, "\n".join(lines))


@command("compact", parent=kubernetes)
def kubernetes_compact(context: Context) -> None:
    """Give back the space of old versions in etcd.

    It also ends the alarm of an etcd that is full and refuses every change. Nothing that is in use is lost; etcd stops
    for some seconds.
    """
    with cluster_of(context) as (cluster, reporter):
        before, after = cluster.kubernetes.compact_etcd()
        words = f"etcd: {_space(before)} before, {_space(after)} now"
        reporter.result({"command": "kubernetes compact", "before": vars(before), "after": vars(after)}, words)


@command("upgrade", parent=kubernetes)
@PROVIDER
@click.option("--to", "release", metavar="VERSION", help="A release instead of that in the file, such as 1.34.2.")
@click.option("--plan", "only_plan", is_flag=True, help="Show the releases and the steps. Nothing is changed.")
@click.option(
    "--drain-timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long to wait for the pods of each node. 0: delete them, whatever their budgets. Default: an hour.",
)  # fmt: skip
@YES
def kubernetes_upgrade(
    context: Context, provider: str, release: str | None, only_plan: bool, drain_timeout: float | None, yes: bool
) -> None:
    """Upgrade Kubernetes on all hosts to the release in the file.

    First the control plane, after a backup on this machine; then node by node: drained, upgraded, and back in service.
    It goes on by one minor release at a time. An interrupted upgrade is continued by the same command.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.operations.drain import DRAIN_TIMEOUT

        if not only_plan:
            cluster.state.require_own()
        plan = cluster.kubernetes.plan_upgrade(release)
        if only_plan:
            reporter.result({"command": "kubernetes upgrade", **plan.to_dict()}, "\n".join(_plan(plan)))
            return
        plan.check_one_release()
        if plan.steps and context.can_ask and not yes:
            reporter.close()
            _confirm_upgrade(plan)
        upgrade = cluster.kubernetes.upgrade(
            release, drain_timeout=DRAIN_TIMEOUT if drain_timeout is None else drain_timeout
        )
        lines = [f"kubernetes upgrade: everything is at {plan.release}, after {count(len(plan.steps), 'step')}"]
        if upgrade.backup:
            lines.append(f"The control plane of before is in {upgrade.backup}, with its keys: keep it to yourself")
        if plan.release != cluster.spec.kubernetes.release:
            lines.append(f"{cluster.spec.file} still has {cluster.spec.kubernetes.release}, and apply needs that one.")
            lines.append("Next: gpucluster kubernetes upgrade; or write this one there")
        reporter.result({**upgrade.to_dict(), "from": plan.version, "to": plan.release}, "\n".join(lines))


def _confirm_upgrade(plan: KubernetesUpgrade) -> None:
    """Show the steps, and ask whether to take them.

    Raises:
        InputError: they are not taken.
    """
    from gpucluster.cli.output import agree, say

    say("\n".join(_plan(plan)), err=True)
    agree("Each node is drained once, and the API server starts again. Upgrade", "nothing was upgraded")


def _state(state: ControlPlaneState) -> list[str]:
    lines = ["the API server is ready" if state.ready else "the API server is not ready"]
    if state.etcd:
        lines.append(f"etcd: {_space(state.etcd)}")
    soonest = min(state.certificates, key=lambda each: each.days, default=None)
    if soonest:
        lines.append(f"the certificate that ends first: {_certificate(soonest)}")
    for each in state.problems:
        lines += [f"{'problem' if each.serious else 'warning'}: {printable(each.message)}", f"  {printable(each.hint)}"]
    return lines if state.problems else [*lines, "no problem"]


def _space(space: EtcdSpace) -> str:
    return f"{space.size // _MIB} MiB, {space.used // _MIB} MiB of it used" + (", full" if space.full else "")


def _certificate(each: ControlPlaneCertificate) -> str:
    left = f"{count(each.days, 'day')} left" if each.days >= 0 else "expired"
    return f"{printable(each.file)}: until {printable(each.expires)}, {left}" + (", CA" if each.authority else "")


def _plan(plan: KubernetesUpgrade) -> list[str]:
    lines = [f"control plane: {plan.version}", *(f"{name}: {each}" for name, each in plan.nodes.items())]
    if not plan.steps:
        return [*lines, f"Everything is at {plan.release}"]
    return [*lines, f"Steps to {plan.release}:", *(f"  {step}" for step in plan.steps)]


@command("images", parent=kubernetes)
def kubernetes_images(context: Context) -> None:
    """Print the shell script that makes the archive of images.

    Run it in the folder of the mirror, which has this release's kubeadm, on a machine with Podman that reaches the
    registries. Hosts reach none: they get the archive from the mirror.
    """
    with reporting(context) as reporter:
        from gpucluster.handover.kubernetes import system_images
        from gpucluster.kubernetes.images import archive_script

        spec = _with_kubernetes(context)
        release, calico = spec.kubernetes.release, spec.kubernetes.has_calico
        own = spec.kubernetes.control_plane == "self"
        images = system_images(spec, hardware_emulated=spec.cloud.traits.hardware_emulated)
        machines = sorted({shapes.get(machine.shape).architecture for machine in spec.machines})
        scripts = {each: archive_script(images, release, each, calico=calico, control_plane=own) for each in machines}
        text = "\n".join(f"# The hosts that are {each}\n{script}" for each, script in scripts.items())
        result = {"command": "kubernetes images", "release": release, "images": images, "scripts": scripts}
        reporter.result(result, text, verbatim=True)


@command("values", parent=kubernetes)
def kubernetes_values(context: Context) -> None:
    """Print the values of the charts of operators.

    And what installs them: NVIDIA's GPU operator with `kubernetes.gpus: operator`, its DRA driver with `dra-driver`,
    its network operator with `kubernetes.rdma: sr-iov`. Objects that need an operator wait for it, and the next
    `gpucluster apply` makes them.
    """
    with reporting(context) as reporter:
        from gpucluster.handover.kubernetes import operator_charts
        from gpucluster.kubernetes.manifests import to_yaml

        charts = operator_charts(_with_kubernetes(context))
        lines = []
        for chart in charts:
            lines += [f"# {chart.name}.yaml, for: {chart.command}", to_yaml([chart.values])]
        result = {
            "command": "kubernetes values",
            "charts": [{"name": each.name, "install": each.command, "values": each.values} for each in charts],
        }
        text = "\n".join(lines) or "no operator is needed: device plugins and hosts offer everything"
        reporter.result(result, text, verbatim=True)


@command("queues", parent=kubernetes)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="A namespace that gets a LocalQueue for each pool, such as user-alice; may be repeated.",
)
def kubernetes_queues(context: Context, namespaces: tuple[str, ...]) -> None:
    """Print objects of Kueue for the pools of the cluster.

    A Topology for pools with RDMA, a ResourceFlavor and a ClusterQueue for each pool. Nothing is applied: change them
    to your rules, then `gpucluster kubectl -- apply --filename=FILE`. gpucluster does not install Kueue.
    """
    with reporting(context) as reporter:
        from gpucluster.handover.kubernetes import queue_objects
        from gpucluster.kubernetes.manifests import to_yaml

        for name in namespaces:
            if not _NAMESPACE.fullmatch(name):
                raise InputError(f"--namespace {name!r} is not the name of a namespace", hint="Such as user-alice")
        spec = _with_kubernetes(context)
        objects = queue_objects(spec, namespaces, hardware_emulated=spec.cloud.traits.hardware_emulated)
        text = to_yaml(objects).rstrip() or "no pool has nodes"
        reporter.result({"command": "kubernetes queues", "objects": objects}, text, verbatim=True)


def _with_kubernetes(context: Context) -> ClusterSpec:
    spec = context.spec()
    if spec.scheduler != "kubernetes":
        hint = "Write `scheduler: kubernetes` in another cluster file"
        raise InputError(f"the scheduler of this cluster is {spec.scheduler}", where=str(spec.file), hint=hint)
    return spec
