"""What `gpucluster status` reports. Every source is asked at the same time: the cloud by the cluster's tag, Terraform's
state, and Slurm, the autoscaler and the configuration record on the controller.

A source that does not answer hides nothing of the others. No source alone decides that a cluster is absent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpucluster.cloud.tagged_resources import TaggedResource, certainly_listed
from gpucluster.controller.kubernetes.certificates import WARN_WITHIN_DAYS
from gpucluster.handover import STANDBY_HOST, ServiceRecord, rollouts
from gpucluster.handover.adoption import missing, untracked
from gpucluster.oci.states import LifecycleState
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.inquiry import Inquiry, InquiryAnswer
from gpucluster.operations.kubernetes import ControlPlaneCertificate
from gpucluster.rollout.record import remarks
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.addresses import human_name
from gpucluster.terraform.state import StateContents
from gpucluster.workspace.run_log import Runs, RunStatus
from gpucluster.workspace.saved_state import SavedHost

# Seconds for all answers together. With the start of the program, the user waits five at most.
TIMEOUT = 4.0
# The part of it that is left for what happens after the controller's answer.
_MARGIN = 0.1
# The next command if the state is lost.
RECOVER = (
    "If another operator has built it, choose another `name`. If it is yours and `state:` in cluster.yml is right, the "
    "state was lost. Run: gpucluster state recover"
)
# The sources, in messages.
SOURCES = {
    "cloud": "the cloud", "state": "Terraform's state", "hosts": "the hosts' addresses", "slurm": "Slurm",
    "kubernetes": "Kubernetes", "certificates": "the control plane's certificates",
    "configuration": "the configuration record", "autoscaler": "the autoscaler",
    "maintenance": "the events of maintenance",
}  # fmt: skip
_FAILOVER = "gpucluster controller failover"
# Ends of a run after which nothing is left to do.
_COMPLETE = (None, RunStatus.SUCCESS, RunStatus.RUNNING)


class ClusterState(StrEnum):
    """What exists of a cluster.

    ABSENT: the cloud has nothing with its tag, and the state has nothing. PARTIAL: something is missing or pending, or
    a run is changing it now. UNKNOWN: who would know does not answer.
    """

    ABSENT = "absent"
    PARTIAL = "partial"
    PRESENT = "present"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """The status of a cluster.

    Args:
        resources: the number of resources of each kind in the cloud; None if the cloud does not answer.
        pending: what an interrupted run has left to do, in sentences.
        hosts: with `name`, `address`, and `instance`, the lifecycle state or None.
        slurm: a row for each node and partition, with `node`, `state`, `partition`.
        kubernetes: with `node`, `state`, `pool`, `version`.
        certificates: of a control plane on the controller: `first` and `ending`, those with fewer than 30 days left,
            each with `file`, `expires`, `days`, `authority`. None if it has none, or they are not known.
        service: of a controller with a standby: `in_service`, the instance that is the controller; `standby`, the
            other; `current`, whether that is up to date; `begun`, whether a failover has not ended. None without one.
        maintenance: what the health service knows of maintenance that the cloud announces, `events` and `remarks`;
            None where no service reads it, or nothing is known.
        autoscaler: its own status, None if no pool is elastic, with `error` if it does not answer.
        running: the run that holds the cluster on this machine, or None.
        last_run, last_change: of this machine, as the run log has them; None without any.
        sources: who was asked: `time` of the answer (UTC, ISO 8601), and `error`.
    """

    name: str
    state: ClusterState
    resources: Mapping[str, int] | None
    pending: Sequence[str]
    hosts: Sequence[Mapping[str, str | None]]
    slurm: Sequence[Mapping[str, str]]
    kubernetes: Sequence[Mapping[str, str]]
    certificates: Mapping[str, object] | None
    service: Mapping[str, object] | None
    maintenance: Mapping[str, object] | None
    autoscaler: Mapping[str, object] | None
    running: Mapping[str, object] | None
    last_run: Mapping[str, object] | None
    last_change: Mapping[str, object] | None
    sources: Mapping[str, Mapping[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dict(vars(self))


@dataclass(frozen=True)
class StatusSources:
    """Who is asked. Each may raise GpuClusterError.

    Args:
        resources: lists what has the cluster's tag in the cloud.
        contents: reads Terraform's state.
        hosts: the hosts that ssh can reach, the controller first; empty without a cluster.
        hosts_saved_at: when this machine saved them; None if it has not.
        kubernetes_nodes: what Kubernetes reports of its nodes.
        certificates: those of the control plane of Kubernetes.
        runs: what the run log of this machine has.
    """

    resources: Callable[[], Sequence[TaggedResource]]
    contents: Callable[[], StateContents]
    hosts: Callable[[], Sequence[SavedHost]]
    hosts_saved_at: Callable[[], float | None]
    controller: ControllerConnection
    kubernetes_nodes: Callable[[], list[dict[str, Any]]]
    certificates: Callable[[], Sequence[ControlPlaneCertificate]]
    record: ConfigurationRecord
    runs: Runs


def status(spec: ClusterSpec, sources: StatusSources, timeout: float = TIMEOUT) -> ClusterStatus:
    """Collect the status. Reads only; takes no lock; never raises because a source does not answer.

    Args:
        timeout: seconds for all answers together.
    """
    until, on_time = time.monotonic() + timeout, timeout * (1 - _MARGIN)
    resources, contents = Inquiry(sources.resources), Inquiry(sources.contents)
    hosts = Inquiry(sources.hosts)

    def on_controller(ask: Callable[[], Any], otherwise: Any) -> Inquiry[Any]:
        return Inquiry(lambda: ask() if hosts.result() else otherwise)

    controller = sources.controller
    slurm = on_controller(lambda: controller.slurm_nodes(timeout=on_time), []) if spec.slurm.enabled else None
    kubernetes = on_controller(sources.kubernetes_nodes, []) if spec.scheduler == "kubernetes" else None
    own_plane = spec.scheduler == "kubernetes" and spec.kubernetes.control_plane == "self"
    certificates = on_controller(sources.certificates, ()) if own_plane else None
    autoscaler = on_controller(lambda: controller.autoscaler_status(timeout=on_time), None)
    maintenance = (
        on_controller(lambda: controller.maintenance(timeout=on_time), None) if spec.maintenance.enabled else None
    )
    record = on_controller(lambda: sources.record.read(timeout=on_time), None)
    answers: dict[str, InquiryAnswer[Any]] = {
        "cloud": resources.answer(until),
        "state": contents.answer(until),
        "hosts": hosts.answer(until),
        "configuration": record.answer(until),
        **({"slurm": slurm.answer(until)} if slurm else {}),
        **({"kubernetes": kubernetes.answer(until)} if kubernetes else {}),
        **({"certificates": certificates.answer(until)} if certificates else {}),
        **({"autoscaler": autoscaler.answer(until)} if spec.elastic_pools else {}),
        **({"maintenance": maintenance.answer(until)} if maintenance else {}),
    }
    findings = StatusFindings(
        resources=answers["cloud"].value,
        contents=answers["state"].value,
        hosts=answers["hosts"].value or (),
        record=answers["configuration"].value,
        controller_answers=_has_hosts(answers) and not answers["configuration"].error,
        runs=sources.runs,
    )
    return ClusterStatus(
        name=spec.name,
        state=findings.state,
        resources=findings.counts,
        pending=list(findings.pending),
        hosts=findings.host_rows,
        slurm=(answers["slurm"].value or []) if slurm else [],
        kubernetes=(answers["kubernetes"].value or []) if kubernetes else [],
        certificates=_certificates(answers["certificates"].value or ()) if certificates else None,
        service=findings.service,
        maintenance=answers["maintenance"].value if maintenance else None,
        autoscaler=_autoscaler(answers),
        running=sources.runs.running,
        last_run=sources.runs.last,
        last_change=sources.runs.last_change,
        sources={
            name: {"time": _utc(_known_since(name, answer, sources)), "error": answer.error}
            for name, answer in answers.items()
        },
    )


@dataclass(frozen=True)
class StatusFindings:
    """What the sources have answered; None where one has not. Pure.

    Args:
        controller_answers: ssh reaches the controller.
    """

    resources: Sequence[TaggedResource] | None
    contents: StateContents | None
    hosts: Sequence[SavedHost]
    record: Mapping[str, Any] | None
    controller_answers: bool
    runs: Runs

    @property
    def state(self) -> ClusterState:
        """What exists of the cluster, as far as the sources tell."""
        in_state = bool(self.contents and self.contents.ids)
        if self.resources is not None and not self.resources and not in_state:
            return ClusterState.ABSENT
        if self.resources is None and not self.controller_answers:
            return ClusterState.UNKNOWN
        return ClusterState.PARTIAL if self.pending or self.runs.running else ClusterState.PRESENT

    @property
    def counts(self) -> dict[str, int] | None:
        """The number of resources of each kind in the cloud; None if the cloud does not answer."""
        if self.resources is None:
            return None
        return dict(Counter(resource.kind for resource in self.resources))

    @property
    def pending(self) -> tuple[str, ...]:
        """What an interrupted run has left to do, in sentences."""
        return tuple(
            filter(
                None,
                [
                    self._interrupted(),
                    self._not_in_state(),
                    self._not_in_cloud(),
                    self._unconfigured(),
                    *self._rollouts(),
                    self._failover(),
                ],
            )
        )

    def _rollouts(self) -> list[str]:
        outputs = self.contents.outputs if self.contents else {}
        return [f"{text}. gpucluster rollout goes on" for text in remarks(rollouts(outputs))]

    @property
    def service(self) -> dict[str, Any] | None:
        """Which of the two hosts that can be the controller is in service, as far as the state tells."""
        outputs = self.contents.outputs if self.contents else {}
        if not (outputs.get("cluster") or {}).get("standby"):
            return None
        record, name = ServiceRecord.parse(outputs), outputs["cluster"].get("name", "")
        return {
            "in_service": f"{name}-{record.host}",
            "standby": f"{name}-{record.other}",
            "current": record.current,
            "begun": record.begun,
        }

    def _failover(self) -> str:
        service = self.service
        if service is None:
            return ""
        if service["begun"]:
            return (
                f"a failover to {service['in_service']} has begun and not ended. gpucluster controller failover goes on"
            )
        states = {each.name: each.state for each in self._permanent()}
        if (state := states.get(service["in_service"])) in _STOPPED:
            return (
                f"{service['in_service']} is {state}: {service['standby']} may have gone on in its place. "
                "gpucluster apply follows it"
            )
        return (
            "" if service["current"] else "the standby is behind: it is not like the controller. Run: gpucluster apply"
        )

    def _controllers(self) -> dict[str, str]:
        """The names of what the two hosts that can be the controller are now, by OCID; empty without a standby."""
        outputs = self.contents.outputs if self.contents else {}
        hosts = [(outputs.get("cluster") or {}).get(each) for each in ("controller", "standby")]
        pair = [each for each in hosts if each]
        if len(pair) < len(hosts):
            return {}
        names = [str(each["name"]) for each in pair]
        turned = ServiceRecord.parse(outputs).host == STANDBY_HOST
        return dict(zip((str(each["id"]) for each in pair), reversed(names) if turned else names, strict=True))

    def _interrupted(self) -> str:
        run = self.runs.last_change
        if run is None or run.get("status") in _COMPLETE or (self.resources is not None and not self.resources):
            return ""
        if self.record and self.record.get("complete") and self.record.get("time", "") > run["started"]:
            return ""  # this run or another machine's has completed the configuration since
        phase = f" in the phase {run['phase']}" if run.get("phase") else ""
        return f"the last {run['command']}, started {run['started']}, was {_ENDS.get(run['status'], 'ended')}{phase}"

    def _not_in_state(self) -> str:
        if self.resources is None or self.contents is None:
            return ""
        left = untracked(self.resources, self.contents.ids)
        if not self.contents.ids and any(each.kind == "instance" for each in left) and not self.runs.running:
            return f"Terraform's state is empty, and the cloud has {_named(left)}. {RECOVER}"
        return f"in the cloud, but not in Terraform's state: {_named(left)}" if left else ""

    def _not_in_cloud(self) -> str:
        if self.resources is None or self.contents is None:
            return ""
        if self.contents.ids and not self.contents.outputs.get("cluster"):
            return "Terraform has not created everything yet"
        if self.contents.ids and not self.resources:
            return "in Terraform's state, but nothing of it is in the cloud"
        hosts, listed = _instances_of(self.contents.outputs), certainly_listed(self.resources)
        gone = [hosts[ocid] for ocid in set(hosts) - {each.id for each in self.resources}]
        entries = {each.address: each.id for each in self.contents.entries if each.id and not each.deposed}
        others = [
            human_name(address)
            for address, ocid in missing(self.resources, entries, listed).items()
            if ocid not in hosts
        ]
        names = [*sorted(gone), *sorted(others)]
        return f"in Terraform's state, but not in the cloud: {', '.join(names)}" if names else ""

    def _unconfigured(self) -> str:
        """What Ansible has not configured, as far as there is a record."""
        if self.record is None:
            return ""
        if not self.record.get("complete"):
            machine, began = self.record.get("machine"), self.record.get("time")
            return f"the hosts are not configured completely: {machine} began it {began}"
        # Of the two hosts that can be the controller, the one in service has configured the other.
        configured = {*(self.record.get("hosts") or {}).values(), *self._controllers()}
        new = [each.name for each in self._permanent() if each.id not in configured]
        return f"not configured yet: {', '.join(sorted(new))}" if new else ""

    def _permanent(self) -> list[TaggedResource]:
        return [each for each in self.resources or () if each.kind == "instance" and not each.elastic]

    @property
    def host_rows(self) -> list[dict[str, Any]]:
        """The hosts that ssh knows, and those that only the cloud knows; elastic nodes are left to Slurm."""
        names = self._controllers()
        instances = {names.get(each.id, each.name): each.state for each in self._permanent()}
        rows: list[dict[str, Any]] = [
            {"name": host.name, "address": host.address, "instance": instances.pop(host.name, None)}
            for host in self.hosts
        ]
        if self.resources is not None:  # what was deleted meanwhile is not a host
            rows = [row for row in rows if row["instance"] is not None]
        rows += [{"name": name, "address": "", "instance": state} for name, state in sorted(instances.items())]
        return rows


_STOPPED = frozenset({LifecycleState.STOPPING, LifecycleState.STOPPED})
_ENDS = {RunStatus.KILLED: "killed", RunStatus.INTERRUPTED: "interrupted", RunStatus.FAILED: "not successful"}


def _named(resources: Sequence[TaggedResource]) -> str:
    return ", ".join(f"{each.kind.replace('_', ' ')} {each.name}" for each in resources)


def _instances_of(outputs: Mapping[str, Any]) -> dict[str, str]:
    """The instances in Terraform's output `cluster`: name by OCID."""
    cluster = outputs.get("cluster") or {}
    listed = [
        cluster.get("controller"),
        cluster.get("standby"),
        *(cluster.get("login") or ()),
        *(one for pool in (cluster.get("pools") or {}).values() for one in pool["instances"]),
    ]
    return {each["id"]: each["name"] for each in listed if each}


def _known_since(source: str, answer: InquiryAnswer[Any], sources: StatusSources) -> float:
    """Hosts come from what this machine saved, unless they had to be found again."""
    return (sources.hosts_saved_at() if source == "hosts" else None) or answer.time


def _has_hosts(answers: Mapping[str, InquiryAnswer[Any]]) -> bool:
    return bool(answers["hosts"].value)


def _certificates(certificates: Sequence[ControlPlaneCertificate]) -> dict[str, Any] | None:
    listed = sorted((asdict(each) for each in certificates), key=lambda each: each["days"])
    if not listed:
        return None
    return {"first": listed[0], "ending": [each for each in listed if each["days"] < WARN_WITHIN_DAYS]}


def _autoscaler(answers: Mapping[str, InquiryAnswer[Any]]) -> Any:
    answer = answers.get("autoscaler")
    if answer is None:
        return None
    return {"error": answer.error} if answer.error else answer.value


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
