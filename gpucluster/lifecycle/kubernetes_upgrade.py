"""Take the steps of an upgrade of Kubernetes in the order of the plan, until one fails.

Nothing is recorded: the next run plans again from what runs then, and so goes on where this one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpucluster.errors import AnsibleError, ToolError
from gpucluster.events import Sink, warn
from gpucluster.kubernetes.upgrades import UpgradeStep
from gpucluster.node_agent.rules.reasons import UPGRADED
from gpucluster.operations.kubernetes import ControlPlaneClient, KubernetesNode
from gpucluster.operations.kubernetes_upgrade import KubernetesUpgrade
from gpucluster.workspace.run import Run

#: Runs one step on hosts: "prepare" with none (all of them), "control_plane" and "node" with the name of one.
Configure = Callable[[str, tuple[str, ...]], None]


class Upgrading:
    """Upgrades one cluster.

    Args:
        back_up: writes a backup of the control plane and returns its file; None where the cluster can have none.
    """

    def __init__(
        self, plane: ControlPlaneClient, configure: Configure, back_up: Callable[[], Path | None], on_event: Sink
    ) -> None:
        self._plane = plane
        self._configure = configure
        self._back_up = back_up
        self._on_event = on_event

    def upgrade(self, plan: KubernetesUpgrade, controller: str, run: Run, drain_timeout: float) -> Path | None:
        """Take these steps; returns the file of the backup, None if the control plane stays or has no backup.

        Args:
            controller: the name of the control plane's host.
            drain_timeout: seconds that each node may take to be drained; with 0 its pods are deleted.

        Raises:
            InputError: a node must have another release first. Nothing was changed.
            ToolError: the control plane or a node is not ready (nothing was changed), or a step failed. The next run
                goes on with it.
        """
        plan.check_one_release()
        nodes = self._check(plan)
        backup = None
        if plan.steps:
            with run.phase("release files"), _next_command(plan, "the new release on all hosts"):
                self._configure("prepare", ())
        if any(not step.host for step in plan.steps):
            with run.phase("backup"):
                backup = self._back_up()
        for step in plan.steps:
            with run.phase("nodes" if step.host else "control plane"), _next_command(plan, str(step)):
                if step.host:
                    self._node(step, nodes[step.host], drain_timeout)
                else:
                    self._configure("control_plane", (controller,))
        # Those that an interrupted run has left cordoned.
        for name, node in self._plane.nodes().items():
            if _is_ours(node):
                self._plane.uncordon(name)
        return backup

    def _check(self, plan: KubernetesUpgrade) -> dict[str, KubernetesNode]:
        state = self._plane.state()
        full = state.etcd is not None and state.etcd.full
        for problem in state.problems:
            if full or not state.ready:
                raise ToolError(f"the control plane is not healthy: {problem.message}", hint=problem.hint)
            warn(self._on_event, "kubernetes", problem.message)
        nodes = self._plane.nodes()
        silent = sorted(name for name, node in nodes.items() if node.ready != "True" and not _is_ours(node))
        if plan.steps and silent:
            raise ToolError(
                f"nothing was upgraded: not ready: {', '.join(silent)}",
                hint=f"Look why: gpucluster kubernetes status. Or replace it: gpucluster replace {silent[0]}",
            )
        return nodes

    def _node(self, step: UpgradeStep, node: KubernetesNode, drain_timeout: float) -> None:
        # Failed checks keep their reason, and the node stays out of service. Ours is another one than that of apply: an
        # apply between two runs of an upgrade resumes what applies have drained, and is refused after that.
        ours = not node.cordoned or _is_ours(node)
        self._plane.drain({step.host: UPGRADED if ours else node.reason or UPGRADED}, drain_timeout)
        self._configure("node", (step.host,))
        if ours:
            self._plane.uncordon(step.host)


def _is_ours(node: KubernetesNode) -> bool:
    """Whether an upgrade, or an apply that did not end, has cordoned the node."""
    return node.drained_by_us or (node.cordoned and node.reason == UPGRADED)


@contextmanager
def _next_command(plan: KubernetesUpgrade, step: str) -> Iterator[None]:
    """The error of a playbook states how the upgrade goes on: `apply` would refuse."""
    try:
        yield
    except AnsibleError as error:
        again = f"gpucluster kubernetes upgrade --to {plan.release}"
        hint = f"Fix the cause, then run: {again}. It goes on with this step"
        raise AnsibleError(f"the upgrade stopped at {step}: {error.what}", hint=hint) from error
