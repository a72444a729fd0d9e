"""The objects of a job of a user: pure, from manifests to those of the user, and from what the API has to a state.

The states are those that jobs of Slurm have, so that both are waited for and judged in the same way. The first pod of a
job runs its script: its end is that of the job.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.rules.devices import CLASS_QUOTA

Manifest = dict[str, Any]

#: The label of all objects of a job: its name.
JOB = "gpucluster.io/job"
#: On the ConfigMap of a job: the kind of the object that makes its pods.
KIND = "gpucluster.io/job-kind"
#: The kinds that make pods, as kubectl knows them.
WORKLOADS: Mapping[str, str] = {
    "Job": "jobs.batch",
    "JobSet": "jobsets.jobset.x-k8s.io",
    "MPIJob": "mpijobs.kubeflow.org",
    "PyTorchJob": "pytorchjobs.kubeflow.org",
    "TrainJob": "trainjobs.trainer.kubeflow.org",
}
#: Also of a job whose pods claim GPUs, as kubectl knows it. A claim of a pod ends with the pod.
CLAIMS = "resourceclaimtemplates.resource.k8s.io"
#: What some of these need, as kubectl knows it: it is deleted after them.
NEEDED: Mapping[str, str] = {"TrainJob": "trainingruntimes.trainer.kubeflow.org"}
_BESIDE = frozenset({"ConfigMap", "Service", "TrainingRuntime", "ResourceClaimTemplate"})
_MOST_OBJECTS = 5000
_HOME = "home"
_NODES = "GPUCLUSTER_NODES"
#: Why a container waits that never starts by itself. After the first failure kubelet tries again, less and less often.
_NEVER = frozenset(
    {
        "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "InvalidImageName",
        "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
    }
)  # fmt: skip
#: Seconds for a pod that can't start; for one that is silent until its job reports it itself; and for one whose node
#: is.
_START_S, _SILENT_S, _LEAVING_S = 30.0, 180.0, 180.0
_OF_NODE = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
_QUOTA = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)")
_FACTORS = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(m|k|[MGTP]|[KMGTP]i)?")


class Owner(NamedTuple):
    """Whose the objects are, as the directory has it.

    Args:
        gids: all groups, the primary one first.
        home: where hosts have the home; pods have it there as well.
    """

    name: str
    namespace: str
    uid: int
    gids: tuple[int, ...]
    home: str


class WorkloadState(NamedTuple):
    """How a job is; see `controller.jobs.queue.SubmittedJob`."""

    state: str
    nodes: str
    reason: str
    exit_status: int | None = None
    patience: float = 0.0


def owned(manifests: object, name: str, owner: Owner) -> list[Manifest]:
    """The manifests of a job as those of a user: namespace, uid, groups and home are the user's, whatever they were.

    Raises:
        Refused: they are not the objects of a job of this name.
    """
    if not isinstance(manifests, list) or not 0 < len(manifests) <= _MOST_OBJECTS:
        raise Refused("the objects of the job are not a list")
    made = [_owned(each, name, owner) for each in manifests]
    kinds = sorted({each["kind"] for each in made if each["kind"] in WORKLOADS})
    if len(kinds) != 1:
        raise Refused("a job has objects of one kind that make its pods")
    for each in made:
        each["metadata"].setdefault("annotations", {})[KIND] = kinds[0]
    return made


def _owned(manifest: object, name: str, owner: Owner) -> Manifest:
    if not isinstance(manifest, dict) or manifest.get("kind") not in {*WORKLOADS, *_BESIDE}:
        raise Refused("not an object of a job")
    made = copy.deepcopy(manifest)
    about = made.get("metadata")
    if not isinstance(about, dict) or (about.get("labels") or {}).get(JOB) != name:
        raise Refused(f"an object does not belong to the job {name}")
    about["namespace"] = owner.namespace
    for pod in pod_specs(made):
        pod["securityContext"] = {
            "runAsUser": owner.uid, "runAsGroup": owner.gids[0], "runAsNonRoot": True,
            "supplementalGroups": list(owner.gids), "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", []):
                if mount.get("name") == _HOME:
                    mount["mountPath"] = owner.home
            for variable in container.get("env", []):
                if variable.get("name") == "HOME":
                    variable["value"] = owner.home
    return made


def pod_specs(value: object) -> Iterator[Manifest]:
    """The specs of all pods in a manifest."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value
        else:
            for each in value.values():
                yield from pod_specs(each)
    elif isinstance(value, list):
        for each in value:
            yield from pod_specs(each)


def first_name(pod_spec: Mapping[str, Any]) -> str:
    """The name that the first pod of the job has, or that its name begins with; "" where it has none."""
    for container in pod_spec.get("containers") or []:
        for variable in container.get("env") or []:
            if variable.get("name") == _NODES:
                return str(variable.get("value", "")).partition(" ")[0].partition(".")[0]
    return ""


def number_of_pods(pod_spec: Mapping[str, Any]) -> int:
    """How many pods the job has; 0 where it has none."""
    for container in pod_spec.get("containers") or []:
        for variable in container.get("env") or []:
            if variable.get("name") == _NODES:
                return len(str(variable.get("value", "")).split())
    return 0


def state_of(pods: Sequence[Manifest], workloads: Sequence[Manifest], events: Iterable[Manifest]) -> WorkloadState:
    """The state of a job.

    Args:
        pods: of the job.
        workloads: the objects that make them.
        events: about those, of pods that could not be made.
    """
    pods = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    nodes = ",".join(sorted({str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}))
    spec = next((pod_spec for each in [*pods, *workloads] for pod_spec in pod_specs(each)), {})
    first, expected = first_name(spec), number_of_pods(spec)
    scripts = [pod for pod in pods if first and _is(pod, first)]
    script = scripts[-1] if scripts else None
    if script is not None and _phase(script) in ("Succeeded", "Failed"):
        return _ended(script, nodes)
    if (state := _state_of_failure(workloads, first)) is not None:
        return state._replace(nodes=nodes)
    for pod in pods:
        reason, patience = _trouble(pod)
        if reason:
            return WorkloadState(
                "PENDING" if patience == _START_S or not patience else "RUNNING", nodes, reason, None, patience
            )
    if len(pods) < expected:
        messages = [str(event.get("message", "")) for event in events]
        reason = f"{len(pods)} of {expected} pods are there" + (f"; {refused(messages[-1])}" if messages else "")
        return WorkloadState("PENDING", nodes, reason)
    if all(_phase(pod) != "Pending" for pod in pods) and pods:
        return WorkloadState("RUNNING", nodes, "")
    return WorkloadState("PENDING", nodes, "its pods are being started" if pods else "it has no pods yet")


def _is(pod: Manifest, first: str) -> bool:
    name = str(pod["metadata"]["name"])
    return name == first or name.startswith(f"{first}-")


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _ended(pod: Manifest, nodes: str) -> WorkloadState:
    status = pod.get("status") or {}
    if status["phase"] == "Succeeded":
        return WorkloadState("COMPLETED", nodes, "", 0)
    ends = [
        (each.get("state") or {}).get("terminated") or {}
        for each in status.get("containerStatuses") or []
    ]  # fmt: skip
    end = ends[0] if ends else {}
    code, reason = end.get("exitCode"), str(status.get("reason", ""))
    why = str(status.get("message") or end.get("message") or "")
    if reason == "DeadlineExceeded":
        state = "TIMEOUT"
    elif end.get("reason") == "OOMKilled":
        state = "OUT_OF_MEMORY"
    else:
        state = "NODE_FAIL" if reason in _OF_NODE else "FAILED"
    return WorkloadState(state, nodes, why, code if isinstance(code, int) else None)


def _state_of_failure(workloads: Iterable[Manifest], first: str) -> WorkloadState | None:
    """What an object reports of the whole job. With a Job for each pod only that of the first counts."""
    for each in workloads:
        if each["kind"] == "Job" and each["metadata"]["name"] != first:
            continue
        for condition in (each.get("status") or {}).get("conditions") or []:
            if condition.get("status") == "True" and condition.get("type") == "Failed":
                late = condition.get("reason") == "DeadlineExceeded"
                return WorkloadState("TIMEOUT" if late else "FAILED", "", str(condition.get("message", "")))
    return None


def _trouble(pod: Manifest) -> tuple[str, float]:
    """Why a pod does not run, and for how many seconds that is waited for; "" if it does, or just starts."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    if pod["metadata"].get("deletionTimestamp") and _phase(pod) not in ("Succeeded", "Failed"):
        return (
            f"pod {name} is being deleted, and its node {pod['spec'].get('nodeName', '')} does not end it",
            _LEAVING_S,
        )
    if _phase(pod) == "Failed":
        return f"pod {name} has failed: {_ended(pod, '').reason or 'see its log'}", _SILENT_S
    for each in status.get("containerStatuses") or []:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _NEVER:
            text = f"pod {name}: {waiting['reason']}: {waiting.get('message') or each.get('image', '')}"
            return text, _START_S
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"pod {name}: {condition.get('reason', '')}: {condition.get('message', '')}", 0.0
    return "", 0.0


def refused(message: str) -> str:
    """Why the API refuses a pod, in words."""
    if match := _QUOTA.search(message):
        _name, request, used, most = (each.strip(",") for each in match.groups())
        return f"the quota of the user is used up: {request} is requested, {used} is used, {most} is the limit"
    if "violates PodSecurity" in message or "PodSecurityPolicy" in message or "ValidatingAdmissionPolicy" in message:
        return f"the policy of the user's namespace forbids it: {message}"
    return message


# ---- what fits


def quantity(text: object) -> float:
    """A quantity of Kubernetes as a number: "500m" is 0.5. Anything else counts as 0."""
    match = _QUANTITY.fullmatch(str(text))
    return float(match[1]) * _FACTORS[match[2] or ""] if match else 0.0


def too_much(
    pod_spec: Mapping[str, Any], pods: int, quotas: Iterable[Manifest], claimed: Mapping[str, float] | None = None
) -> str:
    """What a job asks for that is more than a quota ever gives; "" if it fits.

    Args:
        pod_spec: of one pod, with the requests that the namespace gives to those that have none.
        claimed: what each pod claims (`claims`).
    """
    requests = {"pods": float(pods), **{name: number * pods for name, number in (claimed or {}).items()}}
    for container in pod_spec.get("containers") or []:
        for name, value in ((container.get("resources") or {}).get("requests") or {}).items():
            requests[f"requests.{name}"] = requests.get(f"requests.{name}", 0.0) + quantity(value) * pods
    for quota in quotas:
        if (quota.get("spec") or {}).get("scopeSelector") or (quota.get("spec") or {}).get("scopes"):
            continue
        for name, most in ((quota.get("spec") or {}).get("hard") or {}).items():
            if requests.get(name, 0.0) > quantity(most):
                what = name.replace("requests.", "")
                return f"it asks for {what} {requests[name]:g} in all, and the quota of the user is {most}"
    return ""


def claims(manifests: Iterable[Manifest]) -> dict[str, float]:
    """How many devices each pod of a job claims, by the name that a quota has for their class."""
    devices: dict[str, float] = {}
    for each in manifests:
        if each["kind"] == "ResourceClaimTemplate":
            for request in each["spec"]["spec"]["devices"]["requests"]:
                exactly = request.get("exactly") or {}
                name = CLASS_QUOTA.format(exactly.get("deviceClassName"))
                devices[name] = devices.get(name, 0.0) + float(exactly.get("count", 1))
    return devices


def images_of(nodes: Iterable[Manifest]) -> list[set[str]]:
    """The names of the images that each node has. kubelet reports 50 of them."""
    return [
        {name for image in (node.get("status") or {}).get("images") or [] for name in image.get("names") or []}
        for node in nodes
    ]


def names_of(image: str) -> set[str]:
    """What an image may be called on a node: with the registry and the tag that are left out."""
    last = image.rpartition("/")[2]
    tagged = image if ":" in last or "@" in image else f"{image}:latest"
    registry = tagged.partition("/")[0]
    if "/" not in tagged:
        return {tagged, f"docker.io/library/{tagged}"}
    return (
        {tagged} if "." in registry or ":" in registry or registry == "localhost" else {tagged, f"docker.io/{tagged}"}
    )
