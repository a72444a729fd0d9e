"""Drain nodes: no new pod starts there, services move to other nodes within their disruption budgets, and work that
runs to an end gets the time to do so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucluster.controller.kubernetes import nodes, pods
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl

#: Seconds between two looks, and between two attempts to evict the same pods.
_POLL_S = 2.0
#: The first release whose server takes evictions of policy/v1.
_EVICTION_V1 = 22
_MOST_SHOWN = 5


@dataclass
class Left:
    """What is still on the nodes.

    Args:
        waiting: pods that run to an end, or are being deleted, as `namespace/name`.
        refused: why each other one stays, and what to do about it.
    """

    waiting: list[str] = field(default_factory=list)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.refused)


class NodeDrain:
    """Drains nodes.

    Args:
        wait: waits some seconds; it may raise where the caller no longer waits.
        clock: seconds, for the limit of time.
    """

    def __init__(
        self, kubectl: Kubectl, wait: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kubectl = kubectl
        self._wait = wait
        self._clock = clock

    def drain(
        self, reasons: Mapping[str, str], seconds: float, on_left: Callable[[Left], None] = lambda _: None
    ) -> list[str]:
        """Drain these nodes; names that Kubernetes does not know are skipped. Returns those that were drained.

        Args:
            reasons: why, by the name of the host.
            seconds: to wait. With 0 there is no wait and no budget: work is deleted, too.
            on_left: is called when what is left has changed.

        Raises:
            Failed: there is still something after this time; the nodes take no new pods. Or no answer.
        """
        known = {each["name"]: each for each in nodes.list_nodes(self._kubectl)}
        names = sorted(name for name in reasons if name in known)
        for name in names:
            nodes.cordon(self._kubectl, name, reasons[name])
        if seconds <= 0:
            for name in names:
                self._delete_all(known[name]["registered"])
            return names
        end, last_report = self._clock() + seconds, ""
        # The kubelet of a node that is silent ends no pod: what was evicted counts as gone.
        silent = {known[name]["registered"] for name in names if known[name]["ready"] == "Unknown"}
        registered = [known[name]["registered"] for name in names]
        while True:
            left = self.evict(registered, silent)
            if not left:
                return names
            if repr(left) != last_report:
                last_report = repr(left)
                on_left(left)
            if self._clock() >= end:
                raise unfinished(names, left, seconds)
            self._wait(_POLL_S)

    def evict(self, names: list[str], silent: set[str]) -> Left:
        """Ask once for the eviction of every pod that may leave; returns what is still there.

        Args:
            names: of the nodes in the API. `silent`: those whose kubelet ends no pod.
        """
        left, budgets = Left(), None
        for name in names:
            for pod in self._pods(name):
                kind, title = pods.kind_of(pod), pods.name_of(pod)
                if kind in (pods.STAYS, pods.ENDED) or (pods.leaving(pod) and name in silent):
                    continue
                if kind == pods.WORK or pods.leaving(pod):
                    left.waiting.append(title)
                elif kind == pods.ALONE:
                    left.refused[title] = (
                        f"pod {title} has no controller: no other one would start elsewhere",
                        "Delete it when it is not needed: gpucluster ssh -- sudo kubectl --namespace "
                        f"{title.partition('/')[0]} delete pod {title.partition('/')[2]}",
                    )
                elif self._evicted(pod):
                    left.waiting.append(title)
                else:
                    if budgets is None:
                        budgets = self._kubectl.list("poddisruptionbudgets")
                    left.refused[title] = pods.refused(pod, budgets)
        return left

    def _evicted(self, pod: Mapping[str, Any]) -> bool:
        """Whether the pod goes now. False: a budget refuses it."""
        namespace, _, name = pods.name_of(pod).partition("/")
        version = "policy/v1" if self._kubectl.minor() >= _EVICTION_V1 else "policy/v1beta1"
        body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        try:
            self._kubectl.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body, f"pod {namespace}/{name}")
        except ApiFailed as error:
            if error.kind == faults.NOT_FOUND:
                return True
            if error.kind == faults.BUDGET or "more than one PodDisruptionBudget" in error.message:
                return False
            raise
        return True

    def _delete_all(self, name: str) -> None:
        for pod in self._pods(name):
            if pods.kind_of(pod) not in (pods.STAYS, pods.ENDED) and not pods.leaving(pod):
                namespace, _, short = pods.name_of(pod).partition("/")
                self._kubectl.delete("pod", short, namespace)

    def _pods(self, name: str) -> list[dict[str, Any]]:
        return self._kubectl.list("pods", fields=f"spec.nodeName={name}")


def unfinished(names: list[str], left: Left, seconds: float) -> Failed:
    """The error for nodes that are not empty after this time."""
    reasons = [message for message, _hint in left.refused.values()][:_MOST_SHOWN]
    hints = list(dict.fromkeys(hint for _message, hint in left.refused.values()))[:1]
    if left.waiting:
        shown = ", ".join(left.waiting[:_MOST_SHOWN])
        more = len(left.waiting) - _MOST_SHOWN
        reasons.append(f"still running: {shown}" + (f" and {more} more" if more > 0 else ""))
    what = f"{', '.join(names)} can't be drained: after {seconds:.0f} s there is still something. {'; '.join(reasons)}"
    again = (
        "The nodes take no new pods; run the same command again later. To delete the pods without regard to budgets "
        "and work, pass --drain-timeout 0"
    )
    return Failed(what, ". ".join([*hints, again]))
