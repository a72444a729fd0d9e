"""`cluster.kubernetes`: the control plane of Kubernetes, its release, and access to its API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpucluster.cluster.composition import Parts, with_spec
from gpucluster.events import warn
from gpucluster.lifecycle.kubernetes_upgrade import Upgrading
from gpucluster.lifecycle.result import RunResult
from gpucluster.operations import kubeconfig, kubernetes_upgrade
from gpucluster.operations.backup import Backups
from gpucluster.operations.drain import DRAIN_TIMEOUT
from gpucluster.operations.kubeconfig import Kubeconfigs, WrittenKubeconfig
from gpucluster.operations.kubernetes import (
    ControlPlaneCertificate,
    ControlPlaneClient,
    ControlPlaneState,
    EtcdSpace,
    KubernetesNode,
    require_kubernetes,
    require_own_control_plane,
)
from gpucluster.operations.kubernetes_upgrade import KubernetesUpgrade
from gpucluster.paths import make_private


class KubernetesOperations:
    """Operates Kubernetes on one cluster.

    Every method raises InputError for a cluster without Kubernetes. Those of the control plane (`state`,
    `certificates`, `renew_certificates`, `compact_etcd`, `plan_upgrade`, `upgrade`) also raise it where Oracle runs it.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def state(self) -> ControlPlaneState:
        """The state of the control plane, also where the API server is dead: `problems` states why. Reads only.

        Raises:
            ToolError: the controller can't be reached, or has no control plane.
        """
        return self._control_plane().state()

    def nodes(self) -> dict[str, KubernetesNode]:
        """The nodes by name, as the API server reports them. Reads only.

        Raises:
            ToolError: the controller or the API server gives no answer.
        """
        require_kubernetes(self._parts.spec)
        return self._parts.connections.control_plane.nodes()

    def certificates(self) -> tuple[ControlPlaneCertificate, ...]:
        """The certificates of the control plane. Reads only.

        Raises:
            ToolError: the controller can't be reached, or has no control plane.
        """
        return self._control_plane().certificates()

    def renew_certificates(self, within_days: float) -> tuple[str, ...]:
        """Renew all certificates of the control plane if one has fewer days left; the API server stops for up to a
        minute. Returns the files of those that had; empty if nothing was done.

        Raises:
            ToolError: they could not be renewed, or the API server does not answer afterwards.
        """
        plane = self._control_plane("certificates")
        with self._parts.identity.runs.run("kubernetes certificates"):
            return plane.renew(within_days)

    def compact_etcd(self) -> tuple[EtcdSpace, EtcdSpace]:
        """Free the space of old versions that etcd has stored, and end the alarm of a full one. Returns what it stored
        before and after.

        Raises:
            ToolError: a step failed; all of them can be done again.
        """
        plane = self._control_plane("etcd")
        with self._parts.identity.runs.run("kubernetes compact"):
            return plane.compact()

    def plan_upgrade(self, release: str | None = None) -> KubernetesUpgrade:
        """Which Kubernetes the hosts have, and the steps to a release. Reads only.

        Args:
            release: the target; None: the release in cluster.yml.

        Raises:
            InputError: there is no way to it, or the cluster has no control plane of its own.
            ToolError: the controller or the API server gives no answer.
        """
        return kubernetes_upgrade.plan(self._parts.spec, self._control_plane("upgrade"), release)

    def upgrade(self, release: str | None = None, *, drain_timeout: float = DRAIN_TIMEOUT) -> RunResult:
        """Move Kubernetes on all hosts to a release: the control plane, then node by node, each of them drained. Then
        configure the hosts for it, and verify.

        A backup is written before the control plane changes. May be killed at any point and run again.

        Args:
            release: the target; None: the release in cluster.yml.
            drain_timeout: seconds that each node may take to be drained; with 0 its pods are deleted.

        Raises:
            InputError: there is no way to it, or the cluster has no control plane of its own.
            GpuClusterError: see `errors`; the next run continues from there.
        """
        parts = self._parts
        plane = self._control_plane("upgrade")
        if release not in (None, parts.spec.kubernetes.release):
            self.plan_upgrade(release)
            section = parts.spec.kubernetes.model_copy(update={"release": release})
            other = with_spec(parts, parts.spec.model_copy(update={"kubernetes": section}))
            return KubernetesOperations(other).upgrade(drain_timeout=drain_timeout)
        phases = parts.phases
        with parts.identity.runs.run("kubernetes upgrade") as run:
            with run.phase("cloud"):
                parts.cloud.start(to_build=False)
            plan = self.plan_upgrade()
            deployment = parts.connections.hosts.reach(run)

            def configure(step: str, names: tuple[str, ...]) -> None:
                phases.configuration.upgrade_kubernetes(deployment, run, step, names)

            upgrading = Upgrading(plane, configure, lambda: self._back_up(plan, run.id), parts.on_event)
            backup = upgrading.upgrade(plan, deployment.controller.name, run, drain_timeout)
            built, verdict = phases.building.upgrade(deployment, run)
            result = phases.building.result(run, deployment, built=built, verdict=verdict)
            result = replace(result, backup=str(backup) if backup else None)
        return result

    def write_kubeconfig(
        self, user: str | None = None, file: Path | None = None, *, local_port: int | None = None
    ) -> WrittenKubeconfig:
        """Write a file with which kubectl reaches the API server, or renew the one that is there.

        Args:
            user: a user of the directory; None for an operator.
            file: None: `kubeconfig-CLUSTER.yaml`, or `kubeconfig-CLUSTER-USER.yaml`.
            local_port: the port of a machine outside of the cluster from which ssh forwards to the API server. None:
                16443 for an operator, and for a user the address that the cluster's hosts reach.

        Raises:
            InputError: there is no such user, they are disabled, or another file is there.
            ToolError: the controller gives no answer.
            EnvironmentFault: the file can't be written.
        """
        parts = self._parts
        require_kubernetes(parts.spec)
        connections = parts.connections
        return Kubeconfigs(parts.spec, connections.controller, connections.control_plane).write(user, file, local_port)

    def kubectl_argv(self, words: Sequence[str], *, terminal: bool = False) -> list[str]:
        """The command line that runs kubectl on the controller, as an operator of the cluster.

        Args:
            terminal: whether it gets a terminal.

        Raises:
            ToolError: nothing was applied yet.
        """
        require_kubernetes(self._parts.spec)
        return kubeconfig.kubectl_argv(self._parts.connections.controller, words, terminal=terminal)

    def _control_plane(self, what: str = "") -> ControlPlaneClient:
        require_own_control_plane(self._parts.spec, what)
        return self._parts.connections.control_plane

    def _back_up(self, plan: KubernetesUpgrade, run_id: str) -> Path | None:
        parts = self._parts
        if not parts.spec.storage.home.enabled:
            warn(parts.on_event, "kubernetes", "no backup: gpucluster backup needs a directory of users")
            return None
        file = parts.paths.backups / f"kubernetes-{plan.version}-{run_id}.tar.gz"
        make_private(file.parent)
        return Backups(parts.spec, parts.connections.controller).create(file).file
