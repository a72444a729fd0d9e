"""Pods of `verify`: one on each node, which report what they have and reach one another. They are gone afterwards.

A pod needs no image of its own. It takes that of kube-proxy, which each node has, with the node's /usr in it,
read-only: the program in it is the node's Python. It has no rights beyond those of an unprivileged user of the node.
"""

from __future__ import annotations

import contextlib
import json
import pkgutil
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, NamedTuple

from gpucluster.controller.kubernetes.job_objects import quantity
from gpucluster.node_agent.errors import AgentError, Refused
from gpucluster.node_agent.interpreter import PYTHON
from gpucluster.node_agent.kubernetes.kubectl import Kubectl, checked_name
from gpucluster.node_agent.rules.devices import GPU_RESOURCES, NETWORKS

NAMESPACE = "gpucluster-system"
LABEL = "gpucluster.io/verify"
_DEFINITIONS = "network-attachment-definitions.k8s.cni.cncf.io"
#: Seconds for pods to start, for one call in a pod, and for which a pod lives that is not removed.
STARTS_IN_S, CALL_S, LIVES_S = 60.0, 20.0, 180
_POLL_S = 1.0
#: So many pods are asked at the same time.
_AT_ONCE = 16
_NOBODY = 65534
#: Distributions differ in which of these are links into /usr.
_FROM_NODE = ("/usr", "/lib", "/lib64")
_START = (
    f'for python in {PYTHON} /usr/bin/python3 /usr/libexec/platform-python; do [ -x "$python" ] && break; done; '
    'exec "$python" -c "$PROBE" "$@"'
)
READY, NOT_JUDGED, FAILED = "ready", "not judged", "failed"

Call = Callable[[str, Sequence[str]], str]


class PodNode(NamedTuple):
    """A node that gets a pod.

    Args:
        name: ours; `node` is that of Kubernetes.
        rdma: what a pod needs for its RDMA devices: {annotations, spec, container, volumes}; empty without RDMA.
    """

    name: str
    node: str
    pool: str
    rdma: Mapping[str, Any]


def collect(
    kubectl: Kubectl, pools: object, call: Call | None = None, wait: Callable[[float], None] = time.sleep,
    starts_in_s: float = STARTS_IN_S,
) -> dict[str, Any]:  # fmt: skip
    """Run the pods, and return their results: {nodes, pairs}.

    Args:
        pools: pools, each as {pool, nodes, rdma}; `nodes` has the name in Kubernetes by our name.
        call: runs the probe in a pod with these arguments, and returns what it prints.
        starts_in_s: seconds for the pods to start.

    Raises:
        Refused: the pools are something else.
        Failed: the API server does not answer.
    """
    nodes = _nodes(pools)
    call = call or (lambda pod, words: _call(kubectl, pod, words))
    _remove_ended(kubectl)
    there: dict[str, list[dict[str, Any]]] = {}
    for pod in kubectl.list("pods"):
        there.setdefault(str(pod["spec"].get("nodeName", "")), []).append(pod)
    networks = {name for node in nodes for name in _networks(node.rdma)}
    missing = {name for name in networks if not _is_defined(kubectl, name)}
    about = {node.name: _before(node, there.get(node.node, []), missing) for node in nodes}
    going = [node for node in nodes if "state" not in about[node.name]]
    with _pods(kubectl, going, about) as names:
        _await(kubectl, going, names, about, wait, starts_in_s)
        ready = [node for node in going if about[node.name]["state"] == READY]
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            list(at_once.map(lambda node: _look(call, names[node.name], about[node.name]), ready))
            ready = [node for node in ready if about[node.name]["state"] == READY]
            rings = list(at_once.map(lambda pair: _reach(call, names, about, *pair), ring(ready)))
    return {
        "nodes": {name: {key: value for key, value in seen.items() if key != "image"} for name, seen in about.items()},
        "pairs": [result for results in rings for result in results],
    }


def _nodes(pools: object) -> list[PodNode]:
    if not isinstance(pools, list):
        raise Refused("the pools are not a list")
    nodes = []
    for pool in pools:
        if not isinstance(pool, dict) or not isinstance(pool.get("nodes"), dict):
            raise Refused("a pool has no nodes")
        rdma = pool.get("rdma") or {}
        nodes += [
            PodNode(checked_name(name), checked_name(node), str(pool.get("pool")), rdma)
            for name, node in pool["nodes"].items()
        ]
    return nodes


def ring(nodes: Sequence[PodNode]) -> list[tuple[PodNode, PodNode]]:
    """Each node with the next one, the last with the first; of fewer than two, nothing."""
    return list(zip(nodes, [*nodes[1:], nodes[0]])) if len(nodes) > 1 else []


def _before(node: PodNode, there: Sequence[Mapping[str, Any]], missing: Collection[str]) -> dict[str, Any]:
    """The image for the pod of a node, and which RDMA devices it can't have; `state` where it can't have a pod.

    Args:
        there: the pods of the node.
        missing: the networks that are not defined.
    """
    proxies = [pod for pod in there if (pod["metadata"].get("labels") or {}).get("k8s-app") == "kube-proxy"]
    if not proxies:
        return _unjudged("kube-proxy does not run there, whose image the pod would take")
    networks, resources = set(_networks(node.rdma)), set(_resources(node.rdma))
    taken = ""
    for pod in there:
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") and _takes(pod, networks, resources):
            taken = f"the pod {pod['metadata']['namespace']}/{pod['metadata']['name']} has the devices"
    image = str(proxies[0]["spec"]["containers"][0]["image"])
    return {"image": image, "rdma_missing": sorted(networks & set(missing)), "rdma_taken": taken}


def _networks(rdma: Mapping[str, Any]) -> list[str]:
    """The networks, `namespace/name`."""
    return [each for each in str((rdma.get("annotations") or {}).get(NETWORKS, "")).split(",") if each]


def _resources(rdma: Mapping[str, Any]) -> Mapping[str, Any]:
    """The amount of each resource."""
    return ((rdma.get("container") or {}).get("resources") or {}).get("limits") or {}


def _takes(pod: Mapping[str, Any], networks: set[str], resources: set[str]) -> bool:
    space = pod["metadata"].get("namespace", "")
    entries = str((pod["metadata"].get("annotations") or {}).get(NETWORKS, "")).split(",")
    named = {
        each if "/" in each else f"{space}/{each}" for each in (word.partition("@")[0].strip() for word in entries)
    }
    limits = [(each.get("resources") or {}).get("limits") or {} for each in pod["spec"]["containers"]]
    return bool(named & networks) or any(quantity(each.get(name, 0)) for each in limits for name in resources)


def _is_defined(kubectl: Kubectl, name: str) -> bool:
    space, _sign, short = name.partition("/")
    try:
        kubectl.get(_DEFINITIONS, short, space)
    except AgentError:
        return False
    return True


def _unjudged(why: str) -> dict[str, Any]:
    return {"state": NOT_JUDGED, "why": why}


# ---- pods


def manifest(name: str, node: PodNode, image: str, *, rdma: bool) -> dict[str, Any]:
    """The pod of a node.

    Args:
        rdma: whether it asks for the node's RDMA devices.
    """
    needs = node.rdma if rdma else {}
    volumes = [{"name": place.strip("/"), "hostPath": {"path": place}} for place in _FROM_NODE]
    mounts = [{"name": place.strip("/"), "mountPath": place, "readOnly": True} for place in _FROM_NODE]
    for volume in needs.get("volumes") or []:
        volumes.append(dict(volume))
    mounts += [{**each, "readOnly": True} for each in (needs.get("container") or {}).get("volumeMounts") or []]
    resources = (needs.get("container") or {}).get("resources") or {}
    requests = {"cpu": "10m", "memory": "32Mi", **(resources.get("requests") or {})}
    probe = _probe()
    container = {
        "name": "probe", "image": image, "imagePullPolicy": "Never",
        "command": ["/usr/bin/sh", "-c", _START, "probe", "serve"],
        "env": [{"name": "PROBE", "value": probe.replace("$(", "$$(")}],
        "resources": {"requests": requests, "limits": {"memory": "128Mi", **(resources.get("limits") or {})}},
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
    }  # fmt: skip
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.node]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {LABEL: "true"},
            "annotations": dict(needs.get("annotations") or {}),
        },
        "spec": {
            "affinity": {"nodeAffinity": affinity},
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in GPU_RESOURCES.values()
            ],
            "restartPolicy": "Never", "activeDeadlineSeconds": LIVES_S, "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False, "enableServiceLinks": False,
            "securityContext": {
                "runAsUser": _NOBODY, "runAsGroup": _NOBODY, "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container], "volumes": volumes,
        },
    }  # fmt: skip


def _probe() -> str:
    """The text of the program in the pod. Hosts have the agent as one archive, so it is not a file there."""
    text = pkgutil.get_data("gpucluster.controller.kubernetes", "pod_probe.py")
    if text is None:
        raise Refused("the agent is not whole", "Run: gpucluster apply")
    return text.decode()


@contextlib.contextmanager
def _pods(
    kubectl: Kubectl, nodes: Sequence[PodNode], about: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, str]]:
    """The names of the pods, by node; they are removed at the end, however it ends."""
    run = secrets.token_hex(3)
    names = {node.name: f"verify-{run}-{number}" for number, node in enumerate(nodes)}
    made = [
        manifest(names[node.name], node, about[node.name]["image"],
                 rdma=not about[node.name]["rdma_missing"] and not about[node.name]["rdma_taken"])
        for node in nodes
    ]  # fmt: skip
    for each in made:
        each["metadata"]["labels"][LABEL] = run
    try:
        if made:
            listed = {"apiVersion": "v1", "kind": "List", "items": made}
            kubectl.run("create", "--filename=-", text=json.dumps(listed), seconds=STARTS_IN_S, where="pods of verify")
        yield names
    finally:
        words = ("delete", "pods", f"--namespace={NAMESPACE}", f"--selector={LABEL}={run}", "--ignore-not-found")
        kubectl.run(*words, "--wait=false", "--grace-period=0", where="pods of verify")


def _remove_ended(kubectl: Kubectl) -> None:
    """Remove what a run has left that was killed: its pods have ended by themselves."""
    for pod in kubectl.list("pods", NAMESPACE, labels=LABEL):
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            kubectl.delete("pod", str(pod["metadata"]["name"]), NAMESPACE)


def _await(
    kubectl: Kubectl, nodes: Sequence[PodNode], names: Mapping[str, str], about: Mapping[str, dict[str, Any]],
    wait: Callable[[float], None], starts_in_s: float,
) -> None:  # fmt: skip
    until = time.monotonic() + starts_in_s
    while nodes:
        there = {str(pod["metadata"]["name"]): pod for pod in kubectl.list("pods", NAMESPACE, labels=LABEL)}
        for node in nodes:
            about[node.name].update(state_of(there.get(names[node.name]), {}))
        late = time.monotonic() > until
        if late or not any(about[node.name]["state"] == NOT_JUDGED for node in nodes):
            break
        wait(_POLL_S)
    late_pods = [node for node in nodes if about[node.name]["state"] == NOT_JUDGED]
    if not late_pods:
        return
    events: dict[str, str] = {}
    for event in kubectl.list("events", NAMESPACE, fields="type=Warning"):
        events[str((event.get("involvedObject") or {}).get("name"))] = str(event.get("message", ""))
    for node in late_pods:
        about[node.name].update(state_of(there.get(names[node.name]), events))


def state_of(pod: Mapping[str, Any] | None, events: Mapping[str, str]) -> dict[str, str]:
    """Whether a pod can be asked: {state, why}. One that no node takes now is not judged, and one that a node has taken
    and does not start has failed.

    Args:
        events: the last warning about each pod, once the time to start is over.
    """
    if pod is None:
        return _unjudged("the pod was deleted")
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase == "Running":
        return {"state": READY, "why": ""}
    wrong = _wrong(pod, phase, events)
    if wrong:
        return {"state": FAILED, "why": wrong}
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _unjudged(f"the node takes no pod now: {condition.get('message', '')}")
    return _unjudged("the pod did not start in time")


def _wrong(pod: Mapping[str, Any], phase: str, events: Mapping[str, str]) -> str:
    """Why a pod that a node has taken does not run; "" if it may still start."""
    status = pod.get("status") or {}
    if phase != "Pending":
        return f"the pod has ended: {status.get('message') or status.get('reason') or 'see the log of kubelet'}"
    for each in status.get("containerStatuses") or []:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"the pod does not start: {waiting['reason']}: {waiting.get('message')}"
    message = events.get(str(pod["metadata"]["name"]), "")
    return f"the pod does not start: {message}" if message and pod["spec"].get("nodeName") else ""


def _call(kubectl: Kubectl, pod: str, words: Sequence[str]) -> str:
    start = ["exec", f"--namespace={NAMESPACE}", pod, "--", "/usr/bin/sh", "-c", _START, "probe"]
    return kubectl.run(*start, *words, seconds=CALL_S, where=f"pod {pod}")


def _look(call: Call, pod: str, about: dict[str, Any]) -> None:
    try:
        about.update(json.loads(call(pod, ["look"])))
    except (AgentError, ValueError) as error:
        about.update(state=FAILED, why=f"the program in the pod does not answer: {error}")


def _reach(
    call: Call, names: Mapping[str, str], about: Mapping[str, Mapping[str, Any]], one: PodNode, other: PodNode
) -> list[dict[str, str]]:
    """What one pod reports of the connection to another: by the network of pods, and by more interfaces within a
    pool.
    """
    mine, theirs = about[one.name]["interfaces"], about[other.name]["interfaces"]
    shared = [name for name in sorted(mine) if name in theirs and (name == "eth0" or one.pool == other.pool)]
    calls = [[name, theirs[name], mine[name]] for name in shared]
    try:
        answers = json.loads(call(names[one.name], ["reach", json.dumps(calls)]))
    except (AgentError, ValueError) as error:
        answers = [[name, f"not tried: {error}"] for name in shared]
    return [
        {"from": one.name, "to": other.name, "interface": name, "address": theirs[name], "error": error}
        for name, error in answers
    ]
