"""The control plane of a cluster with Kubernetes, as its controller's program answers for it: nodes, and their drain.

Kubernetes stores the reason with which we cordon a node, in an annotation. A later run uncordons nodes that have it,
and leaves nodes alone that an administrator has cordoned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, field
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from gpucluster import process
from gpucluster.errors import GpuClusterError, InputError, ToolError
from gpucluster.events import Event, EventKind, Sink, warn
from gpucluster.node_agent.rules.reasons import drained_by_apply
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.rpc import RemoteConversation
from gpucluster.spec import ClusterSpec
from gpucluster.text import printable
from gpucluster.waiting import wait_until

COMMAND = "sudo -n /usr/local/bin/gpucluster-agent kubernetes serve"
#: Seconds for the controller's program to end when we go.
_END_S = 20.0
_POLL_S = 2.0
# Seconds that kubelet gets on a machine that has just been configured.
_READY_WITHIN_S = 120.0

_T = TypeVar("_T")


@checked(frozen=True)
class NodeCondition:
    """A condition of a node, in the words of Kubernetes."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@checked(frozen=True)
class KubernetesNode:
    """A node as the API server reports it.

    Args:
        name: of its host, as it is in the inventory; of a node that OKE has made: its address.
        registered: what the API calls it.
        ready: "True", "False", or "Unknown" where its kubelet is silent.
        cordoned: it takes no new pods.
        reason: why gpucluster has cordoned it; "" where an administrator has.
        version: of its kubelet, "v1.34.2".
    """

    name: str
    ready: str
    cordoned: bool
    registered: str = ""
    reason: str = ""
    version: str = ""
    runtime: str = ""
    address: str = ""
    created: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    taints: tuple[dict[str, str], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    capacity: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] = field(default_factory=dict)

    @property
    def of_control_plane(self) -> bool:
        """Whether it is the host of the control plane."""
        return any(f"node-role.kubernetes.io/{role}" in self.labels for role in ("control-plane", "master"))

    @property
    def drained_by_us(self) -> bool:
        """Whether an earlier run has taken it out of service."""
        return self.cordoned and drained_by_apply(self.reason)


@checked(frozen=True)
class ControlPlaneProblem:
    """What is wrong with a control plane, and what to do. One that is not `serious` hinders nothing else."""

    message: str
    hint: str
    serious: bool = True


@checked(frozen=True)
class EtcdSpace:
    """What etcd stores, in bytes: the size of its file, and what is used of it; `full`: it refuses every change."""

    size: int
    used: int
    full: bool


@checked(frozen=True)
class ControlPlaneCertificate:
    """A certificate of the control plane: `expires` is UTC (ISO 8601), `days` are left; an `authority` signs others."""

    file: str
    expires: str
    days: int
    authority: bool


@checked(frozen=True)
class ControlPlaneState:
    """The state of a control plane.

    Args:
        ready: the API server reports that it is.
        etcd: None where etcd gives no answer.
    """

    ready: bool
    problems: tuple[ControlPlaneProblem, ...]
    etcd: EtcdSpace | None
    certificates: tuple[ControlPlaneCertificate, ...]

    @property
    def has_failed(self) -> bool:
        """Whether anything is more than a warning."""
        return any(each.serious for each in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def require_kubernetes(spec: ClusterSpec) -> None:
    """A control plane may be ours or Oracle's.

    Raises:
        InputError: the cluster has none.
    """
    if spec.scheduler != "kubernetes":
        raise InputError(
            "this cluster has no control plane of Kubernetes",
            where=f"{spec.file}: scheduler: {spec.scheduler}",
            hint="See what it has: gpucluster status",
        )


#: What a command does for a control plane of ours -> what does it where Oracle runs the control plane.
_INSTEAD = {
    "upgrade": "Change kubernetes.release there, then run: gpucluster apply. OKE replaces the control plane, and then "
    "the nodes of its node pools",
    "certificates": "OKE renews the certificates of the control plane itself. Nothing is to be done",
    "etcd": "OKE stores and compacts etcd itself. Nothing is to be done",
    "": "See the nodes: gpucluster kubectl -- get nodes; the control plane: oci ce cluster get --cluster-id OCID "
    "(gpucluster output has oke.id)",
}


#: More than a certificate of kubeadm is ever valid, so that all of them are due.
ALL_DAYS = 10_000.0


def require_own_control_plane(spec: ClusterSpec, what: str = "") -> None:
    """Only a control plane that kubeadm has made on the controller is ours to look after.

    Args:
        what: what shall be done with it, a key of `_INSTEAD`: the hint states what does it with OKE.

    Raises:
        InputError: the cluster has none, or Oracle runs it.
    """
    require_kubernetes(spec)
    if spec.kubernetes.control_plane == "oke":
        raise InputError(
            "Oracle runs the control plane",
            where=f"{spec.file}: kubernetes.control_plane: oke",
            hint=_INSTEAD[what],
        )


class ControlPlaneClient:
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
        """The result of one operation of `controller/kubernetes`.

        Raises:
            InputError: it is refused.
            ToolError: it failed: the message states what and where, and the hint what to do.
        """
        with self._open() as talk:
            return talk.ask(operation, on_progress, **arguments)

    def _call(self, kind: type[_T], operation: str, **arguments: Any) -> _T:
        try:
            return TypeAdapter(kind).validate_python(self.ask(operation, **arguments))
        except ValidationError:
            raise ToolError(
                "the controller's answer can't be read",
                hint="Its program may be of another version than this one. Run: gpucluster apply",
            ) from None

    def state(self) -> ControlPlaneState:
        """The state of the control plane, also where the API server is dead: `problems` states why.

        Raises:
            ToolError: the controller can't be reached, or has no control plane.
        """
        return self._call(ControlPlaneState, "state")

    def certificates(self) -> tuple[ControlPlaneCertificate, ...]:
        """The certificates of the control plane.

        Raises:
            ToolError: the controller can't be reached, or has no control plane.
        """
        return self._call(tuple[ControlPlaneCertificate, ...], "certificates")

    def renew(self, within_days: float) -> tuple[str, ...]:
        """Renew all certificates if one has fewer days left; the API server stops for up to a minute. Returns the
        files of those that had; empty if nothing was done.

        Raises:
            ToolError: they could not be renewed, or the API server does not answer afterwards.
        """
        return self._call(tuple[str, ...], "certificates.renew", within_days=within_days)

    def compact(self) -> tuple[EtcdSpace, EtcdSpace]:
        """Give the space of old versions back that etcd has stored, and end the alarm of a full one. Returns what it
        stored before and after.

        Raises:
            ToolError: a step failed; all of them can be done again.
        """
        space = self._call(dict[str, EtcdSpace], "etcd.compact")
        return space["before"], space["after"]

    def version(self) -> str:
        """The release of the API server: "v1.34.2"."""
        return self._call(str, "version")

    def nodes(self) -> dict[str, KubernetesNode]:
        """The nodes by name.

        Raises:
            ToolError: the controller or the API server gives no answer.
        """
        return {each.name: each for each in self._call(list[KubernetesNode], "nodes")}

    def begin(self, reasons: Mapping[str, str]) -> None:
        """Cordon these nodes, and do not wait. Names that Kubernetes does not know are skipped."""
        if reasons:
            self.ask("cordon", reasons=dict(reasons))

    def drain(self, reasons: Mapping[str, str], timeout: float) -> None:
        """Drain these nodes: services move within their disruption budgets, work gets the time to end. Names that
        Kubernetes does not know are skipped.

        Args:
            reasons: why, by the node's name: one of `node_agent.rules.reasons`.
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

    def uncordon(self, name: str) -> None:
        """Uncordon a node that gpucluster has cordoned; a cordon of an administrator stays.

        Raises:
            ToolError: no answer.
        """
        if self.ask("uncordon", node=name):
            self._on_event(Event(EventKind.RESOURCE, f"node {printable(name)}", "resumed"))

    def remove(self, names: Collection[str]) -> None:
        """Delete nodes whose machines are gone for ever; names that Kubernetes does not know are skipped.

        Raises:
            ToolError: no answer.
        """
        for name in names:
            self.ask("remove", node=name)

    def await_answers(self, names: Collection[str]) -> None:
        """Wait until kubelet reports these nodes as ready, which have booted. If it does not in time, the checks report
        so."""

        def all_ready() -> bool:
            try:
                nodes = self.nodes()
            except GpuClusterError:
                return False  # it is asked again
            return all(nodes[name].ready == "True" for name in names if name in nodes)

        wait_until(all_ready, _READY_WITHIN_S, _POLL_S)

    @contextmanager
    def _connect(self) -> Iterator[RemoteConversation]:
        argv = self._controller.ssh_argv(None, [COMMAND])
        with process.ProcessConversation(argv, end_s=_END_S) as talk:
            yield RemoteConversation(talk)
