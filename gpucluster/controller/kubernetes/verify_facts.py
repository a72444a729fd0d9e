"""What `verify` wants to know of a cluster with Kubernetes, as one object of JSON.

Nodes, control plane, names, homes, and what offers hardware to pods.
Each fact that can't be had is null, and `NAME_error` has the reason: what is not known is not a fault.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, TypeVar

from gpucluster.controller.kubernetes import dns, nodes
from gpucluster.controller.kubernetes.person_objects import HOME, USER_NAME
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from gpucluster.node_agent.rules.devices import GPU_DRIVER

#: A name that every cluster has, whatever its services are.
NAME, _NAMESPACE, _SERVICE = "kubernetes.default.svc.cluster.local", "default", "kubernetes"
_HARDWARE_NAMESPACE = "gpucluster-system"
#: The kind of Multus, without which it does not exist.
_ATTACHMENTS = "network-attachment-definitions.k8s.cni.cncf.io"
#: What DRA drivers list; from Kubernetes 1.34 on each API server has it.
_SLICES = "resourceslices.resource.k8s.io"
_DNS_NAMESPACE, _DNS_SERVICE = "kube-system", "kube-dns"
#: Seconds until the pods of DNS answer: what the scheduler could not place, it may look at again only after a minute.
NAMES_IN_S = 75.0
_SETS = ("labels", "allocatable", "capacity")
_POLL_S = 1.0

_T = TypeVar("_T")


def collect(kubectl: Kubectl, state: Callable[[], Any], *, is_node: bool = True) -> dict[str, Any]:
    """All facts.

    Args:
        state: returns what `kubernetes state` prints of the control plane.
        is_node: whether this host is a node, and so reaches the addresses of services.
    """
    # One question for both parts that want it. An answer that fails is not kept.
    kinds = functools.cache(lambda: _kinds(kubectl))
    parts: Mapping[str, Callable[[], Any]] = {
        "kubernetes_nodes": lambda: [_listed(each) for each in nodes.list_nodes(kubectl)],
        "kubernetes_control_plane": state,
        "kubernetes_hardware": lambda: hardware(kubectl, kinds),
        "kubernetes_devices": lambda: devices(kubectl, kinds),
        "kubernetes_names": lambda: names(kubectl, is_node=is_node),
        "kubernetes_homes": lambda: homes(kubectl),
    }
    facts: dict[str, Any] = {}
    for name, ask in parts.items():
        try:
            facts[name] = ask()
        except AgentError as error:
            facts |= {name: None, f"{name}_error": error.message}
        except OSError as error:
            facts |= {name: None, f"{name}_error": str(error)}
    return facts


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    """A node whose labels and resources are lists, `key=value`: one that is not there was not set, and not cut off."""
    return {**node, **{part: [f"{key}={value}" for key, value in node[part].items()] for part in _SETS}}


def hardware(kubectl: Kubectl, kinds: Callable[[], Collection[str]]) -> dict[str, Any]:
    """What offers the hardware of nodes to pods: {daemonsets: [{name, wanted, ready}], attachments: [name]}, both of
    gpucluster's own namespace; `wanted` and `ready` are numbers of nodes.

    Args:
        kinds: gives the names of all kinds that the API server has.
    """
    sets = [
        {
            "name": str(each["metadata"]["name"]),
            "wanted": int((each.get("status") or {}).get("desiredNumberScheduled", 0)),
            "ready": int((each.get("status") or {}).get("numberReady", 0)),
        }
        for each in kubectl.list("daemonsets", _HARDWARE_NAMESPACE)
    ]
    attachments = kubectl.list(_ATTACHMENTS, _HARDWARE_NAMESPACE) if _ATTACHMENTS in kinds() else []
    return {"daemonsets": sets, "attachments": sorted(str(each["metadata"]["name"]) for each in attachments)}


def _kinds(kubectl: Kubectl) -> frozenset[str]:
    return frozenset(kubectl.run("api-resources", "--no-headers", "--output=name", where="kinds").split())


def devices(kubectl: Kubectl, kinds: Callable[[], Collection[str]]) -> list[str]:
    """How many whole GPUs of each node NVIDIA's DRA driver has listed for claims, `NODE=NUMBER`, by the names that the
    API server has for nodes. `kinds`: as for `hardware`.
    """
    numbers = numbers_of_gpus(kubectl.list(_SLICES) if _SLICES in kinds() else [])
    return [f"{node}={number}" for node, number in sorted(numbers.items())]


def numbers_of_gpus(slices: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The number of whole GPUs by node, of ResourceSlices. Pure.

    A driver that lists the devices of a pool again writes slices of a higher generation, and removes the others later.
    """
    specs = [
        each["spec"] for each in slices if each["spec"].get("driver") == GPU_DRIVER and each["spec"].get("nodeName")
    ]
    newest: dict[tuple[str, str], int] = {}
    for spec in specs:
        pool = (str(spec["nodeName"]), str(spec["pool"]["name"]))
        newest[pool] = max(newest.get(pool, 0), int(spec["pool"]["generation"]))
    numbers: dict[str, int] = {}
    for spec in specs:
        node, pool = str(spec["nodeName"]), spec["pool"]
        if newest[node, str(pool["name"])] == int(pool["generation"]):
            kinds = [(each.get("attributes") or {}).get("type") or {} for each in spec.get("devices") or []]
            numbers[node] = numbers.get(node, 0) + sum(kind.get("string") == "gpu" for kind in kinds)
    return numbers


def _awaited(ask: Callable[[], _T], good: Callable[[_T], bool], seconds: float) -> _T:
    """The answer, asked for every second until it is good: a control plane that was just made needs some. Else the
    last.
    """
    until = time.monotonic() + seconds
    while True:
        value = ask()
        if good(value) or time.monotonic() > until:
            return value
        time.sleep(_POLL_S)


def names(kubectl: Kubectl, *, is_node: bool = True) -> dict[str, str]:
    """What the cluster's DNS answers this host: {server, wanted, answer, error}.

    A node asks as its pods do: at the address of the service, which kube-proxy leads to one of its pods. The controller
    of a cluster whose control plane is Oracle's is not a node: it asks one of these pods through the API server. On a
    control plane that was just made they start later.
    """
    server = _address(kubectl, _DNS_NAMESPACE, _DNS_SERVICE)
    expected = _address(kubectl, _NAMESPACE, _SERVICE)

    def asked() -> dict[str, str]:
        try:
            answer, error = dns.ask(server, NAME) if is_node else _ask_through_server(kubectl), ""
        except (Failed, OSError) as failure:
            answer, error = "", str(failure) or type(failure).__name__
        return {"server": server, "wanted": expected, "answer": answer, "error": error}

    return _awaited(asked, lambda result: not result["error"], NAMES_IN_S)


def _ask_through_server(kubectl: Kubectl) -> str:
    with kubectl.forwarded(f"service/{_DNS_SERVICE}", dns.PORT, _DNS_NAMESPACE) as port:
        return dns.ask_stream("127.0.0.1", NAME, port)


def _address(kubectl: Kubectl, namespace: str, service: str) -> str:
    return str((kubectl.get("service", service, namespace).get("spec") or {}).get("clusterIP", ""))


#: Seconds that a control plane may take to bind a claim that was just made: it looks every 15 s.
BINDS_IN_S = 30.0


def homes(kubectl: Kubectl) -> list[dict[str, str]]:
    """The claims of the homes of users, {user, namespace, phase}; the phase is `Bound` where pods can mount them."""
    return _awaited(
        lambda: _homes_now(kubectl), lambda claims: not any(each["phase"] == "Pending" for each in claims), BINDS_IN_S
    )


def _homes_now(kubectl: Kubectl) -> list[dict[str, str]]:
    """The claims now.

    Whose namespace it is, is in its annotation: some names of users can't be in the name of a namespace.
    """
    users = {
        str(each["metadata"]["name"]): str(each["metadata"].get("annotations", {}).get(USER_NAME, ""))
        for each in kubectl.list("namespaces")
    }
    return [
        {
            "user": users.get(str(each["metadata"].get("namespace", "")), ""),
            "namespace": str(each["metadata"].get("namespace", "")),
            "phase": str((each.get("status") or {}).get("phase", "")),
        }
        for each in kubectl.list("persistentvolumeclaims", fields=f"metadata.name={HOME}")
    ]
