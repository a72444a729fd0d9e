"""Kubernetes in the place of Slurm: what the autoscaler reads of nodes and pods, and what it changes.

The program kubectl is asked for everything, with a kubeconfig of the autoscaler's own. What `decide.pods` decides is
shown in Slurm's words; the actions of the plan are carried out here:

    PowerDown   the Node is deleted. Pods on it end, and what controls them makes others
    MarkDown    the taint `gpucluster.io/out-of-service:NoExecute`: its pods end, and no other comes
    Drain       the Node is cordoned
    Delay, Hold, Annotate   annotations on the pods of a gang, which `kubectl describe pod` shows

Annotations are also where a delay and a hold are stored: an operator who removes `gpucluster.io/hold` releases the
    gang.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.autoscaler.daemon.logs import DaemonLog
from gpucluster.autoscaler.decide import pods as placement
from gpucluster.autoscaler.decide.pods import (
    Member,
    NodeRequirement,
    NodeTemplate,
    Placed,
    Placement,
    Pod,
    Taint,
    Toleration,
)
from gpucluster.autoscaler.decide.types import (
    Action,
    Annotate,
    Delay,
    DrainNodes,
    Hold,
    Job,
    MarkDown,
    Node,
    PowerDown,
)
from gpucluster.controller.kubernetes.nodes import CORDONED_BY, US, WHY
from gpucluster.controller.kubernetes.nodes import REASON as DRAIN_REASON
from gpucluster.controller.rules import unhealthy
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.node_agent.rules.reasons import PREFIX, storable
from gpucluster.paths import write_private

#: Labels and annotations of gpucluster on pods and nodes.
GANG, GANG_SIZE = "gpucluster.io/gang", "gpucluster.io/gang-size"
HOLD, NOT_BEFORE = "gpucluster.io/hold", "gpucluster.io/not-before"
INSTANCE, OUT_OF_SERVICE = "gpucluster.io/instance-id", "gpucluster.io/out-of-service"
# Labels by which other controllers state which pods start together, in the order in which they are looked for.
_GANG_LABELS = (
    GANG,
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "kueue.x-k8s.io/pod-group-name",
)
# Where their number is stored: ours, and the annotation of a group of Kueue.
_GANG_SIZES = (GANG_SIZE, "kueue.x-k8s.io/pod-group-total-count")
# More labels with the name of what a pod belongs to: a job of gpucluster, a Job (the second from 1.27 on).
_NAME_LABELS = ("gpucluster.io/job", "job-name", "batch.kubernetes.io/job-name")
# Why the scheduler has not put a pod on a node: it found none; it may not look yet (from 1.26 on).
_UNSCHEDULABLE, _GATED = "Unschedulable", "SchedulingGated"
# Its message about claims that no node can bind (its plugin volumebinding, from 1.20 on): unbound ones of a class that
# waits for no pod, and `persistentvolumeclaim "NAME" not found`, `is being deleted`, `bound to non-existent ...`.
_UNBOUND = re.compile(r'unbound immediate PersistentVolumeClaims|persistentvolumeclaim "')
_USER_NAMESPACE = "user-"
# Pods of the control plane, such as those of DNS.
_SYSTEM = "kube-system"
_TIMEOUT = 30.0
# Seconds until a gang whose nodes came and did not help is tried again.
_STUCK_PAUSE, _LONGEST_STUCK_PAUSE = 600.0, 6 * 3600.0
_STUCK = f"{PREFIX} its nodes are in service, and the scheduler does not put its pods on them"
#: Why a node is cordoned that was idle for long enough.
IDLE = f"{PREFIX} it had no pods for a while"
_STATE = "placement.json"
_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
_QUANTITY = re.compile(r"(?P<number>[0-9.]+)(?P<unit>[numkKMGTPE]i?)?")
_WHOLE = re.compile(r"[0-9]{1,12}")
_UNITS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


log = DaemonLog("kubernetes")


class KubernetesUnavailable(ToolError):
    """The API server does not answer, answers something unknown, or refuses."""


class KubernetesClient:
    """One cluster of Kubernetes, as the reconcile loop sees Slurm. Each call raises KubernetesUnavailable on failure.

    Args:
        kubectl: the program with its kubeconfig, such as ("kubectl", "--kubeconfig", FILE).
        pools: what new nodes will be.
        state: the folder where the placement is stored.
        may_write: whether anything may be changed and stored now. Without that an observation only shows what would be.
        timeout: seconds for one command.
        clock: seconds of the epoch.
    """

    def __init__(
        self,
        kubectl: Sequence[str],
        pools: Sequence[NodeTemplate],
        *,
        state: Path,
        may_write: Callable[[], bool],
        timeout: float = _TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kubectl = tuple(kubectl)
        self._pools = tuple(pools)
        self._file = state / _STATE
        self._may_write = may_write
        self._timeout = timeout
        self._clock = clock
        self._placement = self._stored()
        self._jobs: dict[str, Job] = {}
        self._gangs: dict[str, tuple[str, ...]] = {}
        self._members: dict[str, Member] = {}
        self._annotations: dict[str, tuple[str, ...]] = {}

    # --- reading -----

    def nodes(self) -> dict[str, Node]:
        """The elastic nodes. Gives nodes to waiting pods, and begins to give up nodes that have been idle."""
        placed = self._observe()
        self._jobs = dict(placed.jobs)
        if not self._may_write():
            return dict(placed.nodes)
        # The placement is stored last: where one of these fails, the next pass decides and does the same again.
        for gang in placed.stuck:
            pause = min(_STUCK_PAUSE * 2.0 ** self._placement.stuck.get(gang, 0), _LONGEST_STUCK_PAUSE)
            self._annotate_gang(gang, _STUCK, **{NOT_BEFORE: str(math.ceil(self._clock() + pause))})
        for gang, why in placed.unfit.items():
            # Only words: a namespace that takes none, because of a webhook of the site, must not stop the others.
            try:
                self._annotate_gang(gang, f"{PREFIX} {why}")
            except KubernetesUnavailable as error:
                log.warning(f"pods could not be told why they wait: {error}", gang=gang)
        self._store(placed.placement)
        self._cordon_idle(placed)
        if placed.back:
            self._ask("delete", "nodes", "--ignore-not-found", "--wait=false", *placed.back)
        return dict(placed.nodes)

    def node_states(self, names: Iterable[str]) -> dict[str, Node]:
        """Some of the nodes, as they are now."""
        nodes = self._observe().nodes
        return {name: nodes[name] for name in sorted(set(names)) if name in nodes}

    def jobs(self) -> dict[str, Job]:
        """The gangs that have not ended, as `nodes` last saw them."""
        return dict(self._jobs)

    # --- writing -----

    def apply(self, action: Action) -> None:
        """Carry out an action. Each can be carried out twice."""
        match action:
            case PowerDown():
                self.power_down(action.nodes)
            case MarkDown():
                self.mark_down(action.nodes, action.why)
            case DrainNodes():
                self.drain(action.nodes, action.why)
            case Delay():
                self.delay(action.job, action.until - self._clock(), action.why)
            case Hold():
                self.hold(action.job, action.why)
            case Annotate():
                self.annotate(action.job, action.why)
            case _:
                raise TypeError(f"not an action of the scheduler's: {type(action).__name__}")

    def power_down(self, nodes: Sequence[str]) -> None:
        """Give nodes up, whatever runs on them."""
        if nodes:
            self._ask("delete", "nodes", "--ignore-not-found", "--wait=false", *nodes)
            self._store(self._placement.without_nodes(nodes, self._clock()))

    def mark_down(self, nodes: Sequence[str], why: str) -> None:
        """Take nodes out of service: their pods end, and no other comes. Those that do not exist get no pods."""
        self._store(self._placement.with_closed((node for node in nodes if node not in self._members), why))
        for node in nodes:
            if node not in self._members:
                continue
            self._annotate_node(node, why)
            self._tolerant("taint", "nodes", node, f"{OUT_OF_SERVICE}=true:NoExecute", "--overwrite")

    def drain(self, nodes: Sequence[str], why: str) -> None:
        """Let nodes take no new pods."""
        for node in nodes:
            self._annotate_node(node, why)
            self._tolerant("cordon", node)

    def delay(self, gang: str, seconds: float, why: str) -> None:
        """Give a gang no nodes for so many seconds."""
        self._annotate_gang(gang, why, **{NOT_BEFORE: str(math.ceil(self._clock() + max(0.0, seconds)))})
        self._store(self._placement.without_gang(gang))

    def hold(self, gang: str, why: str) -> None:
        """Give a gang no nodes until an operator removes the annotation."""
        self._annotate_gang(gang, why, **{HOLD: "true"})
        self._store(self._placement.without_gang(gang))

    def annotate(self, gang: str, why: str) -> None:
        """Write an explanation on the pods of a gang."""
        self._annotate_gang(gang, why)

    # --- parts -----

    def _observe(self) -> Placed:
        elastic = {name for pool in self._pools for name in pool.names}
        members = {
            item["metadata"]["name"]: _member(item)
            for item in self._items("nodes")
            if item["metadata"]["name"] in elastic
        }
        pods = [_pod(item) for item in self._items("pods", "--all-namespaces", f"--field-selector={_NOT_ENDED}")]
        gangs: dict[str, list[str]] = {}
        for pod in pods:
            if pod.leaving:
                continue
            gangs.setdefault(pod.gang, []).append(pod.id)
        self._gangs = {gang: tuple(ids) for gang, ids in gangs.items()}
        self._annotations = {gang: words for gang, words in self._annotations.items() if gang in gangs}
        self._members = members
        return placement.place(pods, members, self._pools, self._placement, self._clock())

    def _cordon_idle(self, placed: Placed) -> None:
        """Cordon nodes that are idle; the plan of a later pass gives up those that still are. Let the others back."""
        given_up = {name for name, member in self._members.items() if member.cordoned and member.reason == IDLE}
        self.drain([name for name in placed.idle if not self._members[name].cordoned], IDLE)
        for name in sorted(given_up - set(placed.idle) - set(placed.back)):
            self._tolerant("uncordon", name)
            self._tolerant("annotate", "node", name, f"{WHY}-", f"{CORDONED_BY}-")

    def _annotate_gang(self, gang: str, why: str, **others: str) -> None:
        words = (f"{WHY}={storable(why)}", *(f"{key}={value}" for key, value in others.items()))
        pods = self._gangs.get(gang, ())
        if self._annotations.get(gang) == (*words, *pods):
            return
        for pod in pods:
            namespace, _, name = pod.partition("/")
            self._tolerant("annotate", "pod", name, f"--namespace={namespace}", "--overwrite", *words)
        self._annotations[gang] = (*words, *pods)

    def _annotate_node(self, node: str, why: str) -> None:
        self._tolerant("annotate", "node", node, "--overwrite", f"{WHY}={storable(why)}", f"{CORDONED_BY}={US}")

    def _stored(self) -> Placement:
        try:
            raw = json.loads(self._file.read_text())
            ready, idle, released = (
                {str(key): float(at) for key, at in raw[name].items()}
                for name in ("ready_since", "idle_since", "released")
            )
            return Placement(
                given={str(gang): tuple(map(str, nodes)) for gang, nodes in raw["given"].items()},
                ready_since=ready,
                idle_since=idle,
                released=released,
                closed={str(name): str(why) for name, why in raw["closed"].items()},
                stuck={str(gang): int(often) for gang, often in raw["stuck"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # It is only a memory of decisions: they are made again.
            return Placement()

    def _store(self, new: Placement) -> None:
        if new != self._placement:
            write_private(self._file, json.dumps({each.name: dict(getattr(new, each.name)) for each in fields(new)}))
            self._placement = new

    def _items(self, kind: str, *options: str) -> list[Any]:
        output = self._ask("get", kind, *options, "--output=json")
        try:
            items = json.loads(output)["items"]
            if not isinstance(items, list):
                raise TypeError(items)
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(f"kubectl get {kind}", output) from error
        return items

    def _tolerant(self, *arguments: str) -> None:
        """Change what may be gone by now."""
        result = self._run(*arguments)
        if result.returncode != 0 and "NotFound" not in result.stderr:
            raise _refused(result)

    def _ask(self, *arguments: str) -> str:
        result = self._run(*arguments)
        if result.returncode != 0:
            raise _refused(result)
        return result.stdout

    def _run(self, *arguments: str) -> process.Completed:
        try:
            return process.run([*self._kubectl, *arguments], timeout=self._timeout, check=False)
        except (GpuClusterError, OSError) as error:
            what = error.what if isinstance(error, GpuClusterError) else str(error)
            raise KubernetesUnavailable(what, where=" ".join(arguments[:2]), hint=_HINT) from error


_HINT = "On the controller, run: sudo kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw /readyz?verbose"


# --- objects of Kubernetes -----


def _pod(item: Mapping[str, Any]) -> Pod:
    meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    ident = f"{meta['namespace']}/{meta['name']}"
    gang = next((labels[label] for label in _GANG_LABELS if labels.get(label)), "")
    owners = {owner.get("kind"): owner.get("name") for owner in meta.get("ownerReferences") or ()}
    names = {*owners.values(), *(labels.get(label) for label in (*_GANG_LABELS, *_NAME_LABELS))}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    waits_for = scheduled.get("reason") if scheduled.get("status") == "False" else None
    sizes = (where.get(key) for key in _GANG_SIZES for where in (notes, labels))
    return Pod(
        id=ident,
        gang=f"{meta['namespace']}/{gang}" if gang else ident,
        gang_size=_whole(next(filter(None, sizes), None), 1),
        node=spec.get("nodeName") or "",
        unschedulable=waits_for == _UNSCHEDULABLE,
        created_at=_time(meta.get("creationTimestamp")),
        needs=_needs(spec),
        priority=spec.get("priority") or 0,
        user=meta["namespace"].removeprefix(_USER_NAMESPACE),
        selector=spec.get("nodeSelector") or {},
        affinity=_required(spec),
        tolerations=tuple(_toleration(each) for each in spec.get("tolerations") or ()),
        daemon=bool(owners.keys() & {"DaemonSet", "Node"}),
        leaving=bool(meta.get("deletionTimestamp")),
        evictable=bool(owners),
        held=HOLD in notes,
        not_before=max(float(_whole(notes.get(NOT_BEFORE), 0)), _for_control_plane(meta)),
        gated=bool(spec.get("schedulingGates")) or waits_for == _GATED,
        unbound=waits_for == _UNSCHEDULABLE and bool(_UNBOUND.search(str(scheduled.get("message", "")))),
        called=frozenset(f"{meta['namespace']}/{name}" for name in names if name),
    )


def _for_control_plane(meta: Mapping[str, Any]) -> float:
    """Until when a pod waits for the host of the control plane, which comes into service after its pods were made."""
    return _time(meta.get("creationTimestamp")) + placement.SETTLE if meta["namespace"] == _SYSTEM else 0.0


def _member(item: Mapping[str, Any]) -> Member:
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    notes = meta.get("annotations") or {}
    ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}.get("Ready") == "True"
    cordoned = bool(spec.get("unschedulable"))
    down = any(taint.get("key") == OUT_OF_SERVICE for taint in spec.get("taints") or ())
    if cordoned or down:
        reason, user = notes.get(DRAIN_REASON) or notes.get(WHY, ""), notes.get(CORDONED_BY, "")
    else:
        reason, user = unhealthy.reason_of(item), ""
    addresses = {each.get("type"): each.get("address", "") for each in status.get("addresses") or ()}
    return Member(
        name=meta["name"],
        ready=ready,
        cordoned=cordoned or bool(reason),
        down=down,
        instance_id=(spec.get("providerID") or notes.get(INSTANCE, "")).removeprefix("oci://"),
        reason=reason,
        reason_user=user,
        address=addresses.get("InternalIP", ""),
        ours=notes.get(CORDONED_BY) == US or bool(reason and not cordoned and not down),
    )


def _needs(spec: Mapping[str, Any]) -> dict[str, float]:
    """What the scheduler counts for a pod: the sum of its containers, or the largest of its init containers."""
    total: dict[str, float] = {"pods": 1.0}
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for name, amount in _requests(container.get("resources")).items():
            total[name] = total.get(name, 0.0) + amount
    for container in spec.get("initContainers") or ():
        for name, amount in _requests(container.get("resources")).items():
            total[name] = max(total.get(name, 0.0), amount)
    total |= _requests(spec.get("resources"))  # of the whole pod, from 1.32 on
    for name, amount in _requests({"requests": spec.get("overhead")}).items():
        total[name] = total.get(name, 0.0) + amount
    return total


def _requests(resources: Mapping[str, Any] | None) -> dict[str, float]:
    amounts = {**((resources or {}).get("limits") or {}), **((resources or {}).get("requests") or {})}
    return {name: quantity(str(amount)) for name, amount in amounts.items()}


def quantity(text: str) -> float:
    """A quantity of Kubernetes as a number: "500m" is 0.5, "1Gi" is 1073741824.

    Raises:
        KubernetesUnavailable: it is none.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        try:
            return float(text)  # with an exponent
        except ValueError as error:
            raise _unreadable("a quantity", text) from error
    number, unit = match["number"], match["unit"]
    return float(number) * _UNITS.get(unit or "", 1.0)


def _required(spec: Mapping[str, Any]) -> tuple[tuple[NodeRequirement, ...], ...]:
    """The terms of the required node affinity. Fields, such as a node's name, are met by no node that will be new."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms: Any = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    return tuple(
        tuple(
            NodeRequirement(
                each["key"],
                each.get("operator", "") if kind == "matchExpressions" else "field",
                tuple(each.get("values") or ()),
            )
            for kind in ("matchExpressions", "matchFields")
            for each in term.get(kind) or ()
        )
        for term in terms
    )


def _toleration(raw: Mapping[str, Any]) -> Toleration:
    return Toleration(raw.get("key", ""), raw.get("value", ""), raw.get("operator") == "Exists", raw.get("effect", ""))


def taint(text: str) -> Taint:
    """A taint as kubectl writes it: key=value:effect."""
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    return Taint(key, value, effect)


def _whole(text: object, default: int) -> int:
    """A number that any user may have written; up to 12 digits."""
    return int(text) if isinstance(text, str) and _WHOLE.fullmatch(text) else default


def _time(text: object) -> float:
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0


def _unreadable(command: str, output: str) -> KubernetesUnavailable:
    return KubernetesUnavailable(f"the output of {command} can't be read: {output[:200]!r}", where=command, hint=_HINT)


def _refused(result: process.Completed) -> KubernetesUnavailable:
    message = (result.stderr.strip() or result.stdout.strip() or "without a message")[-500:]
    return KubernetesUnavailable(f"kubectl failed: {message}", where=" ".join(result.argv[-4:])[:200], hint=_HINT)
