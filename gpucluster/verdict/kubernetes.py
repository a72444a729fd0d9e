"""Checks of Kubernetes: its nodes, what they offer, the control plane, names, homes. By facts from the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucluster.controller.health.kubernetes import SILENT
from gpucluster.controller.kubernetes.certificates import WARN_WITHIN_DAYS
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Scope, Status
from gpucluster.node_agent.health.node_object import CONDITION
from gpucluster.node_agent.rules.devices import GPU_RESOURCES, RDMA_RESOURCE, is_of_nvidia_gpus
from gpucluster.text import count
from gpucluster.verdict.expectation import Expectation, KubernetesExpectation, cluster_check
from gpucluster.verdict.hosts import APPLY

_QUERY_SECONDS = 30.0
_GPU, _RDMA = GPU_RESOURCES["nvidia"], RDMA_RESOURCE
#: Fewer days than these are too few for an operator who is on holiday.
_FEW_DAYS = 14
_SHOWN = 5
_POOL = "gpucluster.io/pool"
_LOOK = "See: gpucluster ssh -- sudo kubectl --kubeconfig /etc/kubernetes/admin.conf describe node NODE"


# --- what checks are about -----


def _of_the_cluster(expected: Expectation) -> tuple[str, ...]:
    return ("",) if expected.kubernetes and expected.whole else ()


def _of_own_control_plane(expected: Expectation) -> tuple[str, ...]:
    """Oracle looks after the certificates of its control planes."""
    own = expected.kubernetes is not None and expected.kubernetes.control_plane == "self"
    return _of_the_cluster(expected) if own else ()


def _of_hardware(expected: Expectation) -> tuple[str, ...]:
    desired = expected.kubernetes
    return _of_the_cluster(expected) if desired and (desired.daemonsets or desired.attachments) else ()


def _managed_pools(expected: Expectation) -> Sequence[str]:
    return sorted(expected.kubernetes.managed) if expected.kubernetes and expected.whole else ()


def _nodes_with_gpus(expected: Expectation, *, claims: bool) -> list[str]:
    desired = expected.kubernetes
    return [node for node in expected.nodes if desired.gpus.get(node)] if desired and desired.claims is claims else []


def _nodes_with_functions(expected: Expectation) -> list[str]:
    desired = expected.kubernetes
    return [node for node in expected.nodes if desired.functions.get(node)] if desired else []


# --- judges -----


def _row(seen: Measurements, node: str) -> Mapping[str, Any] | None:
    return next((row for row in seen["kubernetes_nodes"] if row["name"] == node), None)


def _values(listed: Sequence[str]) -> dict[str, str]:
    """Of `key=value`."""
    return {key: value for key, _sign, value in (each.partition("=") for each in listed)}


@cluster_check(
    "nodes are ready in Kubernetes", "kubernetes_nodes", scope=Scope.NODE, timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: expected.nodes if expected.kubernetes else (),
    remedy=_LOOK,
)  # fmt: skip
def _kubernetes_node(seen: Measurements, expected: Expectation, node: str) -> CheckOutcome:
    """Ready, in service, of the release that is wanted, and with the labels and taints of its pool."""
    row = _row(seen, node)
    if row is None:
        return CheckOutcome(Status.FAIL, "is unknown to Kubernetes")
    desired = expected.kubernetes
    pool = expected.pool_of(node)
    failures = _failures(row, desired, pool)
    labels = desired.labels.get(pool, {}) if desired else {}
    labels_of_node = _values(row["labels"])
    failures += [
        f"has the label {key}={labels_of_node.get(key, '')}, not {value}"
        for key, value in labels.items()
        if labels_of_node.get(key) != value
    ]
    # Its last results do not count any more, and nothing drains it for new ones.
    warnings = [
        each["message"] for each in row["conditions"] if each["type"] == CONDITION and each.get("reason") == SILENT
    ]
    evidence = {"ready": row["ready"], "version": row["version"], "taints": list(row["taints"])}
    status = Status.FAIL if failures else Status.WARN if warnings else Status.PASS
    return CheckOutcome(status, "; ".join([*failures, *warnings]) or row["version"], evidence)


def _failures(row: Mapping[str, Any], desired: KubernetesExpectation | None, pool: str) -> list[str]:
    """What keeps pods away from a node, a release that is not the wanted one, and taints of its pool that it lacks."""
    failures = []
    if row["ready"] != "True":
        why = next((each["message"] for each in row["conditions"] if each["type"] == "Ready"), "")
        failures.append("its kubelet is silent" if row["ready"] == "Unknown" else f"is not ready: {why}")
    failures += [
        f"has {each['type']}: {each['message']}"
        for each in row["conditions"]
        if each["type"].endswith("Pressure") and each["status"] == "True"
    ]
    if row["cordoned"]:
        undo = f"gpucluster ssh -- sudo kubectl --kubeconfig /etc/kubernetes/admin.conf uncordon {row['registered']}"
        failures.append(f"is cordoned ({row['reason'] or 'by an administrator'}); when the reason is gone, run: {undo}")
    failures += [f"has the taint {each['key']}={each['value']}" for each in row["taints"] if _is_ours(each)]
    if desired and row["version"] != f"v{desired.release}":
        failures.append(f"has kubelet {row['version']}, not v{desired.release}")
    return failures + _missing_taints(row, desired, pool)


def _missing_taints(row: Mapping[str, Any], desired: KubernetesExpectation | None, pool: str) -> list[str]:
    """Without them pods that need no GPUs take the processors and the memory of nodes that have some."""
    taints = {(each["key"], each["value"], each["effect"]) for each in row["taints"]}
    return [
        f"has no taint {each['key']}={each['value']}:{each['effect']}"
        for each in (desired.taints.get(pool, ()) if desired else ())
        if (each["key"], each["value"], each["effect"]) not in taints
    ]


@cluster_check(
    "node pools of OKE have their nodes", "kubernetes_nodes", timeout_s=_QUERY_SECONDS, subjects=_managed_pools,
    remedy=f"See: oci ce node-pool list --compartment-id OCID --cluster-id OCID. {APPLY}",
)  # fmt: skip
def _kubernetes_managed_nodes(seen: Measurements, expected: Expectation, pool: str) -> CheckOutcome:
    """A pool that OKE manages has its nodes, and all of them are good. Their names are OKE's."""
    desired = expected.kubernetes
    number = desired.managed[pool] if desired else 0
    rows = [row for row in seen["kubernetes_nodes"] if _values(row["labels"]).get(_POOL) == pool]
    failures = [f"{row['name']}: {failure}" for row in rows for failure in _failures(row, desired, pool)]
    if len(rows) != number:
        failures.insert(0, f"has {count(len(rows), 'node')} in Kubernetes, not {number}")
    evidence = {"nodes": [row["name"] for row in rows]}
    good = f"{count(number, 'node')} of {desired.release if desired else ''}"
    return CheckOutcome(Status.FAIL if failures else Status.PASS, "; ".join(failures) or good, evidence)


def _is_ours(taint: Mapping[str, str]) -> bool:
    return taint["key"] == "gpucluster.io/unhealthy"


@cluster_check(
    "pods can have all GPUs", "kubernetes_nodes", scope=Scope.NODE, timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: _nodes_with_gpus(expected, claims=False),
    remedy=f"See the log of the device plugin's pod on the node, and: {_LOOK}",
)  # fmt: skip
def _kubernetes_gpus(seen: Measurements, expected: Expectation, node: str) -> CheckOutcome:
    """Pods can have as many GPUs as the shape has, or the instances into which the pool divides them, and no others."""
    desired = expected.kubernetes.gpus[node] if expected.kubernetes else {}
    row = _row(seen, node)
    if row is None:
        return CheckOutcome(Status.FAIL, "is unknown to Kubernetes")
    offered = {name: number for name, number in _values(row["allocatable"]).items() if is_of_nvidia_gpus(name)}
    if not offered and expected.hardware_emulated:
        return CheckOutcome(Status.SKIP, "the hardware is emulated: there is no GPU")
    lines = [
        f"{offered.get(name) or 0} of {count(number, 'GPU') if name == _GPU else f'{number} {name}'}"
        for name, number in desired.items()
    ]
    # kubelet goes on to list what its plugin has no more, with the number 0.
    lines += [f"{number} {name}, which its pool does not make" for name, number in offered.items()
              if name not in desired and number != "0"]  # fmt: skip
    right = all(offered.get(name) == str(number) for name, number in desired.items()) and len(lines) == len(desired)
    return CheckOutcome(Status.PASS if right else Status.FAIL, ", ".join(lines), offered)


@cluster_check(
    "pods can claim all GPUs", "kubernetes_nodes", "kubernetes_devices", scope=Scope.NODE, timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: _nodes_with_gpus(expected, claims=True),
    remedy="See: gpucluster kubectl -- get resourceslices, and the log of the DRA driver's pod on the node; to "
    "install it: gpucluster kubernetes values",
)  # fmt: skip
def _kubernetes_claims(seen: Measurements, expected: Expectation, node: str) -> CheckOutcome:
    """Pods can claim as many GPUs as the shape has, and no device plugin gives away the same ones."""
    desired = expected.kubernetes.gpus[node] if expected.kubernetes else {}
    row = _row(seen, node)
    if row is None:
        return CheckOutcome(Status.FAIL, "is unknown to Kubernetes")
    listed = int(_values(seen["kubernetes_devices"]).get(row["registered"], "0"))
    plugin = _values(row["allocatable"]).get(_GPU, "0")
    share = f"{listed} of {count(desired.get(_GPU, 0), 'GPU')}"
    if plugin != "0":
        return CheckOutcome(
            Status.FAIL, f"{share}, and a device plugin offers {plugin} {_GPU}: both give away the same GPUs"
        )
    return CheckOutcome(Status.PASS if {_GPU: listed} == dict(desired) else Status.FAIL, share, {"listed": listed})


@cluster_check(
    "pods can have all RDMA devices", "kubernetes_nodes", scope=Scope.NODE, timeout_s=_QUERY_SECONDS,
    subjects=_nodes_with_functions,
    remedy=f"See the pods of NVIDIA's network operator on the node, and: {_LOOK}",
)  # fmt: skip
def _kubernetes_rdma_resource(seen: Measurements, expected: Expectation, node: str) -> CheckOutcome:
    """Pods can have as many RDMA devices as the shape has."""
    number = expected.kubernetes.functions[node] if expected.kubernetes else 0
    return _offered(seen, expected, node, _RDMA, number, "RDMA device")


def _offered(
    seen: Measurements, expected: Expectation, node: str, resource: str, number: int, noun: str
) -> CheckOutcome:
    row = _row(seen, node)
    if row is None:
        return CheckOutcome(Status.FAIL, "is unknown to Kubernetes")
    offered = _values(row["allocatable"]).get(resource)
    if offered is None and expected.hardware_emulated:
        return CheckOutcome(Status.SKIP, f"the hardware is emulated: there is no {noun}")
    share = f"{offered or 0} of {count(number, noun)}"
    return CheckOutcome(Status.PASS if str(offered) == str(number) else Status.FAIL, share, {resource: offered})


@cluster_check(
    "what offers hardware to pods runs", "kubernetes_hardware", timeout_s=_QUERY_SECONDS, subjects=_of_hardware,
    remedy="See: gpucluster kubectl -- --namespace gpucluster-system get daemonsets,pods; "
    "objects that wait for an operator: docs/how-to/kubernetes.md",
)  # fmt: skip
def _kubernetes_hardware(seen: Measurements, expected: Expectation, _subject: str) -> CheckOutcome:
    """What offers hardware to pods runs on all its nodes, and all networks of RDMA interfaces are there."""
    hardware: Mapping[str, Any] = seen["kubernetes_hardware"]
    desired = expected.kubernetes
    sets = {str(each["name"]): each for each in hardware["daemonsets"]}
    failures = [f"there is no DaemonSet {name}" for name in (desired.daemonsets if desired else ()) if name not in sets]
    failures += [
        f"{name} is ready on {each['ready']} of {count(int(each['wanted']), 'node')}"
        for name, each in sorted(sets.items())
        if each["ready"] != each["wanted"]
    ]
    missing = [name for name in (desired.attachments if desired else ()) if name not in hardware["attachments"]]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        failures.append(f"missing: {count(len(missing), 'network')} of RDMA interfaces: {shown}")
    good = f"{count(len(sets), 'DaemonSet')}, {count(len(hardware['attachments']), 'network')} of RDMA interfaces"
    return CheckOutcome(Status.FAIL if failures else Status.PASS, "; ".join(failures) or good, hardware)


@cluster_check(
    "the control plane is healthy", "kubernetes_control_plane", timeout_s=_QUERY_SECONDS, subjects=_of_the_cluster,
    remedy="See: gpucluster kubernetes status; with control_plane oke: oci ce cluster get --cluster-id OCID",
)  # fmt: skip
def _kubernetes_control_plane(seen: Measurements, _expected: Expectation, _subject: str) -> CheckOutcome:
    state: Mapping[str, Any] = seen["kubernetes_control_plane"]
    problems = [f"{each['message']} ({each['hint']})" for each in state["problems"]]
    if any(each["serious"] for each in state["problems"]):
        return CheckOutcome(Status.FAIL, "; ".join(problems), state)
    if state["ready"] is not True:
        return CheckOutcome(Status.FAIL, "the API server is not ready", state)
    if problems:
        return CheckOutcome(Status.WARN, "; ".join(problems), state)
    return CheckOutcome(Status.PASS, "the API server is ready", state)


@cluster_check(
    "certificates of the control plane last", "kubernetes_control_plane", timeout_s=_QUERY_SECONDS,
    subjects=_of_own_control_plane,
    remedy="Run: gpucluster kubernetes certificates --renew",
)  # fmt: skip
def _kubernetes_certificates(seen: Measurements, _expected: Expectation, _subject: str) -> CheckOutcome:
    """Certificates that an operator has to think of: apply and a timer renew them long before."""
    certificates = seen["kubernetes_control_plane"]["certificates"]
    if not certificates:
        return CheckOutcome(Status.UNKNOWN, "no certificate was found")
    ending = sorted((each for each in certificates if each["days"] < WARN_WITHIN_DAYS), key=lambda each: each["days"])
    if ending:
        named = ", ".join(f"{each['file']} in {each['days']} days ({each['expires']})" for each in ending[:_SHOWN])
        status = Status.FAIL if ending[0]["days"] < _FEW_DAYS else Status.WARN
        return CheckOutcome(status, f"they end soon: {named}", {"ending": ending})
    first = min(certificates, key=lambda each: each["days"])
    return CheckOutcome(Status.PASS, f"the first ends in {first['days']} days ({first['expires']})")


@cluster_check(
    "the cluster's DNS answers", "kubernetes_names", timeout_s=_QUERY_SECONDS, subjects=_of_the_cluster,
    remedy=f"See the pods of kube-dns and kube-proxy in the namespace kube-system. {APPLY}",
)  # fmt: skip
def _kubernetes_names(seen: Measurements, _expected: Expectation, _subject: str) -> CheckOutcome:
    """The DNS service of the cluster knows the service of the API server."""
    lookup: Mapping[str, str] = seen["kubernetes_names"]
    if lookup["error"]:
        return CheckOutcome(Status.FAIL, f"{lookup['server']}: {lookup['error']}", lookup)
    if lookup["answer"] != lookup["wanted"]:
        return CheckOutcome(
            Status.FAIL, f"{lookup['server']} answers {lookup['answer']}, not {lookup['wanted']}", lookup
        )
    return CheckOutcome(Status.PASS, f"{lookup['server']} answers", lookup)


@cluster_check(
    "pods can mount homes", "kubernetes_homes", timeout_s=_QUERY_SECONDS,
    applies=lambda expected, _subject: "" if expected.people else "there are no users yet",
    subjects=lambda expected: _of_the_cluster(expected) if expected.home_mount_path else (),
    remedy=APPLY,
)  # fmt: skip
def _kubernetes_homes(seen: Measurements, expected: Expectation, _subject: str) -> CheckOutcome:
    claims = {str(each["user"]): str(each["phase"]) for each in seen["kubernetes_homes"] if each["user"]}
    if not claims:
        return CheckOutcome(Status.SKIP, "no user's namespace has a claim for a home")
    missing = [person for person in expected.people if person not in claims]
    failures = [f"there is no claim for the home of {', '.join(missing)}"] if missing else []
    failures += [f"the home of {name} is {phase or 'without a phase'}" for name, phase in claims.items()
                 if phase != "Bound" and name in expected.people]  # fmt: skip
    good = f"{count(len(expected.people), 'home')} can be mounted"
    return CheckOutcome(Status.FAIL if failures else Status.PASS, "; ".join(failures) or good, dict(claims))


CHECKS = (
    _kubernetes_node,
    _kubernetes_gpus,
    _kubernetes_claims,
    _kubernetes_rdma_resource,
    _kubernetes_hardware,
    _kubernetes_managed_nodes,
    _kubernetes_control_plane,
    _kubernetes_certificates,
    _kubernetes_names,
    _kubernetes_homes,
)
