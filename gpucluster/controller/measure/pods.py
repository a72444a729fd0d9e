"""Measurements on Kubernetes: a pod on one node with all of its GPUs, as an unprivileged user of the node.

Only NCCL within a node is measured so. Between nodes its ranks need MPI, and RDMA devices that mostly only privileged
pods may open: that is the job `nccl_tests` of a user. Pods are in the namespace of gpucluster, so that no quota of a
user refuses them. Their log is their output.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.kubernetes import nodes
from gpucluster.controller.kubernetes.job_objects import quantity
from gpucluster.controller.kubernetes.pod_checks import NAMESPACE, state_of
from gpucluster.controller.measure.launch import NCCL_SCRIPT, PREFIX
from gpucluster.controller.measure.request import NCCL, Request
from gpucluster.controller.measure.result import ENDED, LOST, MOST_OUTPUT, NOT_STARTED, TOO_LONG, startable
from gpucluster.controller.rules.unhealthy import TAINT
from gpucluster.node_agent.errors import AgentError, Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl, checked_name
from gpucluster.node_agent.rules import scrubbing
from gpucluster.node_agent.rules.devices import GPU_RESOURCES

LABEL = "gpucluster.io/measure"
GPUS = tuple(GPU_RESOURCES.values())
IDLE = "idle"
#: So many pods at the same time; further ones wait.
_MOST_PODS = 64
_TICK = 1.0
_LOG_S = 120.0
_NOBODY = 65534
_DEADLINE = "DeadlineExceeded"
_OVER = ("Succeeded", "Failed")


class _Running(NamedTuple):
    request: Request
    pod: str
    submitted: float


def manifest(request: Request, pod: str, node: str, session: str) -> dict[str, Any]:
    """The pod of a measurement. Pure.

    Args:
        pod: its name.
        node: the name of the node in Kubernetes.
        session: the value of its label.

    Raises:
        Refused: it can't be measured by one pod.
    """
    if request.kind != NCCL or len(request.nodes) != 1 or not request.image:
        raise Refused("with Kubernetes only NCCL on one node is measured, and by an image")
    devices = {request.resource: str(request.gpus)}
    settings = {"HOME": "/tmp", **request.settings}  # noqa: S108 - of the container
    container = {
        "name": "measure", "image": request.image, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", NCCL_SCRIPT.replace("$(", "$$("), "measure", request.program, *request.arguments],
        "env": [{"name": name, "value": value.replace("$(", "$$(")} for name, value in sorted(settings.items())],
        "resources": {"requests": devices, "limits": dict(devices)},
        # What GPUs exchange by the memory of the host; a container has 64 MB by default.
        "volumeMounts": [{"name": "memory", "mountPath": "/dev/shm"}],  # noqa: S108 - of the container
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod, "namespace": NAMESPACE, "labels": {LABEL: session}},
        "spec": {
            "affinity": {"nodeAffinity": affinity},
            "tolerations": [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in GPUS],
            "restartPolicy": "Never", "activeDeadlineSeconds": request.minutes * 60, "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False, "enableServiceLinks": False,
            "securityContext": {
                "runAsUser": _NOBODY, "runAsGroup": _NOBODY, "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
        },
    }  # fmt: skip


def states(node_objects: Collection[Mapping[str, Any]], pods: Collection[Mapping[str, Any]]) -> dict[str, str]:
    """By host, `idle` where all GPUs of its node are free, else why it is not measured. Pure.

    Args:
        node_objects: the nodes of the API. `pods`: all pods.
    """
    in_use = {
        str(pod["spec"].get("nodeName", "")): "used by the pod {namespace}/{name}".format_map(pod["metadata"])
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _OVER and _has_gpus(pod)
    }

    def state(node: Mapping[str, Any]) -> str:
        description = nodes.described(node)
        if description["ready"] != "True":
            return "not ready"
        if description["cordoned"]:
            return "cordoned"
        if any(taint["key"] == TAINT for taint in description["taints"]):
            return "unhealthy"
        return in_use.get(str(node["metadata"]["name"]), IDLE)

    return {host: state(node) for host, node in nodes.by_host(node_objects).items()}


def _has_gpus(pod: Mapping[str, Any]) -> bool:
    limits = [(each.get("resources") or {}).get("limits") or {} for each in pod["spec"]["containers"]]
    return any(quantity(each.get(name, 0)) for each in limits for name in GPUS)


class Pods:
    """Runs the pods of one session.

    Args:
        session: makes their names unique.
        start_s: seconds after which a pod that waits is given up; a node may have to pull the image first.
    """

    def __init__(self, kubectl: Kubectl, session: str, start_s: float, talk: RequestChannel) -> None:
        self._kubectl, self._session, self._start_s, self._talk = kubectl, session, start_s, talk
        self._count = 0

    def nodes(self) -> list[str]:
        """The nodes: lines `name|state|`.

        Raises:
            Failed: the API server does not answer.
        """
        state_by_host = states(self._kubectl.list("nodes"), self._kubectl.list("pods"))
        return [f"{host}|{state}|" for host, state in sorted(state_by_host.items())]

    def run(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """Run them to their end; the answers are in the order in which they ended.

        Raises:
            Refused: one of them can't be measured by a pod.
            Failed: the API server does not answer.
            Disconnected: the caller no longer waits for the answer; the pods are removed.
        """
        waiting, running, answers = list(requests), list[_Running](), list[dict[str, Any]]()
        try:
            while waiting or running:
                for request in startable(waiting, [each.request for each in running], _MOST_PODS):
                    waiting.remove(request)
                    running.append(self._start(request))
                self._talk.wait(_TICK)
                there = {str(pod["metadata"]["name"]): pod for pod in self._listed()}
                for each in list(running):
                    answer = self._answer(each, there.get(each.pod))
                    if answer is not None:
                        running.remove(each)
                        self._kubectl.delete("pod", each.pod, NAMESPACE, "--grace-period=0")
                        answers.append(answer)
                        self._talk.say(progress={key: answer[key] for key in ("id", "outcome", "seconds")})
        except BaseException:
            with contextlib.suppress(AgentError, Disconnected):
                remove(self._kubectl, f"{LABEL}={self._session}")
            raise
        return answers

    def _listed(self) -> list[dict[str, Any]]:
        return self._kubectl.list("pods", NAMESPACE, labels=f"{LABEL}={self._session}")

    def _start(self, request: Request) -> _Running:
        self._count += 1
        name = f"{PREFIX}{self._session}-{self._count}"
        node = str(nodes.find(self._kubectl, checked_name(request.nodes[0]))["metadata"]["name"])
        made = manifest(request, name, node, self._session)
        self._kubectl.run("create", "--filename=-", text=json.dumps(made), where=f"pod {name}")
        return _Running(request, name, time.monotonic())

    def _answer(self, running: _Running, pod: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The answer; None while it goes on."""
        waited = time.monotonic() - running.submitted
        phase = ((pod or {}).get("status") or {}).get("phase", "Pending")
        status, output = 0, ""
        if pod is None:
            outcome, why = LOST, "its pod was deleted"
        elif phase in _OVER:
            outcome, why, status = _end(pod, running.request)
            try:
                output = self._log(running.pod) if outcome == ENDED else ""
            except AgentError as error:  # its node may be gone: that is not the fault of the others
                outcome, why = LOST, f"its output can't be read: {error.message}"
        elif phase == "Pending" and waited > self._start_s:
            outcome, why = NOT_STARTED, f"it did not start within {self._start_s:g} s: {state_of(pod, {})['why']}"
        else:
            return None
        return {
            "id": running.request.id, "outcome": outcome, "why": why, "status": status,
            "seconds": round(waited, 1), "output": scrubbing.scrubbed_text(output),
        }  # fmt: skip

    def _log(self, pod: str) -> str:
        words = ("logs", f"--namespace={NAMESPACE}", pod, f"--limit-bytes={MOST_OUTPUT}")
        return self._kubectl.run(*words, seconds=_LOG_S, where=f"pod {pod}")


def _end(pod: Mapping[str, Any], request: Request) -> tuple[str, str, int]:
    """How a pod ended: outcome, why, exit status."""
    status = pod["status"]
    ends = [(each.get("state") or {}).get("terminated") for each in status.get("containerStatuses") or []]
    code = (ends[0] or {}).get("exitCode") if ends else None
    if status.get("reason") == _DEADLINE:
        return TOO_LONG, f"it did not end within {request.minutes} minutes", 0
    if isinstance(code, int) and not status.get("reason"):
        return ENDED, "", code
    return LOST, f"its pod was ended: {status.get('message') or status.get('reason') or 'see the log of kubelet'}", 0


def remove(kubectl: Kubectl, selector: str = LABEL) -> list[str]:
    """Remove the pods of measurements; returns their names.

    Args:
        selector: of labels; by default all of them.

    Raises:
        Failed: the API server does not answer.
    """
    names = [str(pod["metadata"]["name"]) for pod in kubectl.list("pods", NAMESPACE, labels=selector)]
    if names:
        words = ("delete", "pods", f"--namespace={NAMESPACE}", f"--selector={selector}", "--ignore-not-found")
        kubectl.run(*words, "--wait=false", "--grace-period=0", where="pods of a measurement")
    return names
