"""From one release of Kubernetes to another: which steps, in which order, and what forbids them.

Source of the rules: kubernetes.io, "Version Skew Policy" and "Upgrading kubeadm clusters". The API server moves by one
minor release at a time and is never older than a kubelet. A kubelet may be two minor releases older, three where the
API server is 1.28 or newer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

_VERSION = re.compile(r"v?1\.(\d{1,2})\.(\d{1,3})")
#: The first minor release whose API server takes kubelets that are three older.
_THREE_OLDER = 28


class KubernetesRelease(NamedTuple):
    """A release 1.MINOR.PATCH."""

    minor: int
    patch: int

    def __str__(self) -> str:
        return f"1.{self.minor}.{self.patch}"


def release_of(text: str) -> KubernetesRelease | None:
    """The release in "v1.34.2" or "1.34.2"; also with a suffix of a vendor, "v1.34.2-gke.1". None if it is none."""
    match = _VERSION.match(text.strip())
    return KubernetesRelease(int(match[1]), int(match[2])) if match else None


def oldest_kubelet(server: KubernetesRelease) -> int:
    """The minor release of the oldest kubelet that may talk to an API server."""
    return server.minor - (3 if server.minor >= _THREE_OLDER else 2)


def skew_fault(server: KubernetesRelease, kubelet: KubernetesRelease) -> str:
    """Why this kubelet may not talk to this API server; "" if it may."""
    if kubelet.minor > server.minor:
        return f"kubelet {kubelet} is newer than the API server {server}"
    if kubelet.minor < oldest_kubelet(server):
        return f"kubelet {kubelet} is older than 1.{oldest_kubelet(server)}, the oldest for an API server {server}"
    return ""


class UpgradeStep(NamedTuple):
    """One step of an upgrade.

    Attributes:
        host: the node that it upgrades; "" is the control plane.
        of: the release that it has before.
        to: the release that it has after.
    """

    host: str
    of: KubernetesRelease
    to: KubernetesRelease

    def __str__(self) -> str:
        return f"{self.host or 'control plane'}: {self.of} to {self.to}"


class UpgradeRefusal(NamedTuple):
    """Why there is no way, and what to do."""

    message: str
    hint: str


def minors_between(server: KubernetesRelease, target: KubernetesRelease) -> list[int]:
    """The minor releases that the control plane must go through before `target`."""
    return list(range(server.minor + 1, target.minor))


def plan(
    server: KubernetesRelease,
    kubelets: Mapping[str, KubernetesRelease],
    target: KubernetesRelease,
    first: Collection[str] = (),
) -> list[UpgradeStep] | UpgradeRefusal:
    """The steps that bring a cluster to a release of the same minor or the next one; those that are done are left out,
    so that an interrupted upgrade goes on.

    Args:
        server: the release of the control plane; it is where a downgrade is refused.
        kubelets: the release of each node's kubelet, by the node's name.
        target: the release at the end.
        first: the nodes of the control plane.

    Returns:
        The steps in their order: nodes that would be too old for the new control plane, the control plane, the other
        nodes by their names, those of the control plane first.
    """
    if (target.minor, target.patch) < (server.minor, server.patch):
        return UpgradeRefusal(
            f"the control plane is at {server}, and Kubernetes does not go back to {target}",
            f'Write kubernetes: {{release: "{server}"}} or a newer one; the earlier state is in a backup',
        )
    skipped = minors_between(server, target)
    if skipped:
        by_way = ", ".join(f"1.{minor}" for minor in skipped)
        return UpgradeRefusal(
            f"Kubernetes {server} can't become {target} in one step: by way of {by_way}",
            f"Run: gpucluster kubernetes upgrade --to 1.{skipped[0]}.N, with a release of 1.{skipped[0]}; then again",
        )
    newer = sorted(name for name, each in kubelets.items() if each.minor > target.minor)
    if newer:
        return UpgradeRefusal(
            f"kubelet of {newer[0]} is {kubelets[newer[0]]}, newer than {target}, and no kubelet may be",
            f"Replace the node: gpucluster replace {newer[0]}",
        )
    steps, now = [], dict(kubelets)
    names = sorted(now, key=lambda name: (name not in first, name))
    if target != server:
        # No kubelet may be left behind further than the new API server allows.
        for name in names:
            if now[name].minor < oldest_kubelet(target):
                steps.append(UpgradeStep(name, now[name], server))
                now[name] = server
        steps.append(UpgradeStep("", server, target))
    steps += [UpgradeStep(name, now[name], target) for name in names if now[name] != target]
    return steps


def faults(server: KubernetesRelease, kubelets: Mapping[str, KubernetesRelease]) -> Sequence[str]:
    """What is out of skew now, by node."""
    by_name = ((name, skew_fault(server, each)) for name, each in sorted(kubelets.items()))
    return [f"{name}: {fault}" for name, fault in by_name if fault]
