"""Which Kubernetes a cluster runs, and by which steps it becomes another release. Reads only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.errors import InputError, ToolError
from gpucluster.handover.names import is_elastic_name
from gpucluster.kubernetes import upgrades
from gpucluster.kubernetes.upgrades import UpgradeStep
from gpucluster.operations.kubernetes import ControlPlaneClient
from gpucluster.spec import ClusterSpec
from gpucluster.spec.sections.kubernetes import RELEASE_PATTERN


@dataclass(frozen=True)
class KubernetesUpgrade:
    """What an upgrade would do.

    Args:
        version: that of the API server, "1.34.2".
        nodes: the release of each kubelet, by the node's name.
        release: the wanted one.
        steps: one after the other; empty if everything is at `release`.
    """

    version: str
    nodes: Mapping[str, str]
    release: str
    steps: tuple[UpgradeStep, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object; a step is a text such as "control plane: 1.33.1 to 1.34.2"."""
        steps = [str(step) for step in self.steps]
        return {"version": self.version, "nodes": dict(self.nodes), "release": self.release, "steps": steps}

    def check_one_release(self) -> None:
        """Only one release at a time has its files on the controller.

        Raises:
            InputError: a node must have another release first.
        """
        for step in self.steps:
            if str(step.to) != self.release:
                raise InputError(
                    f"{step.host} has {step.of}, which a control plane at {self.release} would not take any more",
                    hint=f"Run: gpucluster kubernetes upgrade --to {step.to}; then this command again",
                )


def plan(spec: ClusterSpec, plane: ControlPlaneClient, release: str | None = None) -> KubernetesUpgrade:
    """The way from what the cluster runs to a release.

    Args:
        release: the wanted one; None: that of cluster.yml.

    Raises:
        InputError: there is no such way; or it is not a release.
        ToolError: the API server gives no answer.
    """
    where = f"{spec.file}: kubernetes.release" if release is None else "--to"
    text = spec.kubernetes.release if release is None else release
    target = upgrades.release_of(text) if re.match(RELEASE_PATTERN, text) else None
    if target is None:
        raise InputError(f"not a release of Kubernetes: {release!r}", where=where, hint="Such as 1.34.2")
    version = plane.version()
    server = upgrades.release_of(version)
    if server is None:
        raise ToolError(f"the API server reports the version {version!r}: not a release", hint="See: kubectl version")
    nodes = plane.nodes()
    found_by_name = {name: upgrades.release_of(node.version) for name, node in nodes.items()}
    kubelets = {name: each for name, each in found_by_name.items() if each is not None}
    first = [name for name, node in nodes.items() if node.of_control_plane]
    result = upgrades.plan(server, kubelets, target, first)
    if isinstance(result, upgrades.UpgradeRefusal):
        raise InputError(result.message, where=where, hint=result.hint)
    # Elastic nodes are in no inventory. They keep their release until they go, and new ones get that of cluster.yml.
    steps = tuple(step for step in result if not step.host or not is_elastic_name(spec, step.host))
    return KubernetesUpgrade(str(server), {name: str(each) for name, each in kubelets.items()}, str(target), steps)
