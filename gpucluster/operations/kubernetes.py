"""The control plane of a cluster with Kubernetes, as its controller's program answers for it: nodes, and their drain.

Kubernetes stores the reason with which we cordon a node, in an annotation. A later run uncordons nodes that have it,
and leaves nodes alone that an administrator has cordoned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from gpucluster import process
from gpucluster.agent.rules.reasons import drained_by_apply
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.events import Event, EventKind, Sink, warn
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.rpc import RemoteConversation
from gpucluster.text import printable
from gpucluster.waiting import wait_until

COMMAND = "sudo -n /usr/local/bin/gpucluster-agent kubernetes serve"
#: Seconds for the controller's program to end when we go.
_END_S = 20.0
_POLL_S = 2.0
# Seconds that kubelet gets on a machine that has just been configured.
_READY_WITHIN_S = 120.0


@checked(frozen=True)
class Condition:
    """A condition of a node, in the words of Kubernetes."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@checked(frozen=True)
class KubernetesNode:
    """A node as the API server reports it.

    Args:
        ready: "True", "False", or "Unknown" where its kubelet is silent.
        cordoned: it takes no new pods.
        reason: why gpucluster has cordoned it; "" where an administrator has.
        version: of its kubelet, "v1.34.2".
    """

    name: str
    ready: str
    cordoned: bool
    reason: str = ""
    version: str = ""
    runtime: str = ""
    address: str = ""
    created: str = ""
    conditions: tuple[Condition, ...] = ()
    taints: tuple[dict[str, str], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    capacity: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] = field(default_factory=dict)

    @property
    def drained_by_us(self) -> bool:
        """Whether an earlier run has taken it out of service."""
        return self.cordoned and drained_by_apply(self.reason)


class ControlPlane:
    """Requests to the controller of a cluster with Kubernetes.

    Args:
        open_session: a conversation with the controller's program; tests have one without ssh.
    """

    def __init__(
        self,
        controller: ControllerConnection,
        on_event: Sink,
        open_session: Callable[[], AbstractContextManager[RemoteConversation]] | None = None,
    ) -> None:
        self._controller = controller
        self._on_event = on_event
        self._open = open_session or self._connect

    def ask(self, operation: str, on_progress: Callable[[Any], None] = lambda _: None, **arguments: Any) -> Any:
        """The result of one operation of `agent/kubernetes`.

        Raises:
            InputError: it is refused.
            ToolError: it failed: the message says what and where, and the hint what to do.
        """
        with self._open() as talk:
            return talk.ask(operation, on_progress, **arguments)

    def nodes(self) -> dict[str, KubernetesNode]:
        """The nodes by name.

        Raises:
            ToolError: the controller or the API server gives no answer.
        """
        try:
            found = TypeAdapter(list[KubernetesNode]).validate_python(self.ask("nodes"))
        except ValidationError:
            raise ToolError(
                "the controller's answer can't be read",
                hint="Its program may be of another version than this one. Run: gpucluster apply",
            ) from None
        return {each.name: each for each in found}

    def begin(self, reasons: Mapping[str, str]) -> None:
        """Cordon these nodes, and do not wait. Names that Kubernetes does not know are skipped."""
        if reasons:
            self.ask("cordon", reasons=dict(reasons))

    def drain(self, reasons: Mapping[str, str], timeout: float) -> None:
        """Drain these nodes: services move within their disruption budgets, work gets the time to end. Names that
        Kubernetes does not know are skipped.

        Args:
            reasons: why, by the node's name: one of `agent.rules.reasons`.
            timeout: seconds to wait. With 0 there is no wait: pods are deleted, work and budgets included; and if
                Kubernetes does not answer, that is only a warning.

        Raises:
            ToolError: pods are still there (the text names them, and the budget that keeps them), or no answer.
        """
        if not reasons:
            return
        try:
            drained = self.ask("drain", self._waiting, reasons=dict(reasons), seconds=timeout)
        except GpuClusterError as error:
            if timeout > 0:
                raise
            warn(self._on_event, "kubernetes", f"nodes are removed or changed without draining them: {error.what}")
            return
        for name in drained:
            self._on_event(Event(EventKind.RESOURCE, f"node {printable(str(name))}", "drained"))

    def _waiting(self, progress: Any) -> None:
        words = [printable(str(each)) for each in progress.get("refused", [])]
        waiting = [printable(str(each)) for each in progress.get("waiting", [])]
        if waiting:
            words.append(f"pods that are not done: {', '.join(waiting)}")
        self._on_event(Event(EventKind.LOG, "kubernetes", "waiting", f"before nodes are changed: {'; '.join(words)}"))

    def resume(self, names: Collection[str]) -> None:
        """Uncordon the nodes among these that an earlier run drained. If Kubernetes does not answer, none is."""
        with suppress(GpuClusterError):
            nodes = self.nodes()
            for name in names:
                if name in nodes and nodes[name].drained_by_us and self.ask("uncordon", node=name):
                    text = "it is in cluster.yml again"
                    self._on_event(Event(EventKind.RESOURCE, f"node {name}", "resumed", text))

    def remove(self, names: Collection[str]) -> None:
        """Delete nodes whose machines are gone for ever; names that Kubernetes does not know are skipped.

        Raises:
            ToolError: no answer.
        """
        for name in names:
            self.ask("remove", node=name)

    def await_answers(self, names: Collection[str]) -> None:
        """Wait until kubelet reports these nodes as ready, which have booted. If it does not in time, the checks say
        so."""

        def all_ready() -> bool:
            nodes = self.nodes()
            return all(nodes[name].ready == "True" for name in names if name in nodes)

        with suppress(GpuClusterError):
            wait_until(all_ready, _READY_WITHIN_S, _POLL_S)

    @contextmanager
    def _connect(self) -> Iterator[RemoteConversation]:
        argv = self._controller.ssh_argv(None, [COMMAND])
        with process.Conversation(argv, end_s=_END_S) as talk:
            yield RemoteConversation(talk)
