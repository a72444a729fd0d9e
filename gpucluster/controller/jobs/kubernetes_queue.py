"""Kubernetes as a queue of jobs of users (`queue.Queue`).

Objects are created in the name of the user, so that rights, quota and policies of the user's namespace count. Uid,
groups, home and namespace are those of the directory, and never those of the request.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.controller.jobs import folder, requirements
from gpucluster.controller.jobs.queue import Checked, QueuedJob, SubmittedJob
from gpucluster.controller.kubernetes import job_objects, person_objects
from gpucluster.controller.kubernetes.job_objects import CLAIMS, JOB, KIND, NEEDED, WORKLOADS, Manifest, Owner
from gpucluster.node_agent.accounts import Account, account_of
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from gpucluster.node_agent.rules.devices import GPU_RESOURCES

#: Of a namespace ("" for any) and a job.
_NAME = r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?"
_ID = re.compile(rf"(?:([a-z0-9][a-z0-9-]{{0,62}})/)?({_NAME})")
_OURS = "=".join(person_objects.MANAGED_BY)
_POOL = "gpucluster.io/pool"
_SEE_NODES = "See: gpucluster kubectl -- get nodes"
_NO_KIND = re.compile(r"no matches for kind|doesn't have a resource type|could not find the requested resource")
#: Of Kubernetes itself: they are not images for jobs.
_SYSTEM = ("registry.k8s.io/", "k8s.gcr.io/", "docker.io/calico/", "quay.io/calico/", "quay.io/tigera/")
_MOST_SHOWN = 10
#: Jobs in a list: each needs three questions to the API server.
_MOST_LISTED = 50
#: Seconds for all objects of a job.
_CREATE_S = 120.0


class KubernetesQueue:
    """The jobs in the namespaces of users."""

    title = "Kubernetes"
    #: Objects that are gone were deleted.
    late_s = 0.0

    def __init__(self, kubectl: Kubectl | None = None) -> None:
        self._kubectl = kubectl or Kubectl()

    def checked_id(self, job_id: object) -> str:
        """The name of a job, `NAME` or `NAMESPACE/NAME`."""
        if not isinstance(job_id, str) or not _ID.fullmatch(job_id):
            raise Refused(f"not the name of a job: {str(job_id)[:80]!r}", _see())
        return job_id

    # ---- before

    def check(self, owner: Account, _share: Path, request: Mapping[str, Any]) -> Checked:
        """What is missing for a job on nodes of a pool: nodes, GPUs, images, data in the home."""
        self._owner(owner)
        pool, node_count, gpus = str(request.get("pool")), int(request.get("nodes", 1)), int(request.get("gpus", 0))
        resource = str(request.get("gpu_resource") or GPU_RESOURCES["nvidia"])
        nodes = self._kubectl.list("nodes", labels=f"{_POOL}={pool}")
        refused, delayed = _room(pool, nodes, node_count, gpus, resource)
        needs = request.get("requirements", [])
        states = requirements.check(owner, Path(owner.home), needs)
        return Checked(refused, delayed, [_requirement(each, nodes, owner) for each in states])

    def _owner(self, account: Account) -> Owner:
        """The user's namespace, with what the directory has of them.

        Raises:
            Refused: there is none.
        """
        for each in self._kubectl.list("namespaces", labels=person_objects.USER_LABEL):
            notes = each["metadata"].get("annotations") or {}
            if notes.get(person_objects.UID) == str(account.uid) and notes.get(person_objects.GIDS):
                gids = tuple(int(gid) for gid in notes[person_objects.GIDS].split(","))
                return Owner(account.name, str(each["metadata"]["name"]), account.uid, gids, account.home)
        raise Refused(f"{account.name} has no namespace in Kubernetes", "Run: gpucluster apply")

    # ---- submit

    def submit(
        self, owner: Account, template: str, record: Mapping[str, Any], request: Mapping[str, Any]
    ) -> tuple[str, Path]:
        """Create the objects of a job in the name of its user."""
        name = str(request.get("name"))
        if not re.fullmatch(_NAME, name):
            raise Refused(f"this can't be the name of a job: {name[:80]!r}")
        person = self._owner(owner)
        objects = job_objects.owned(request.get("manifests"), name, person)
        if self._config_maps(name, person.namespace):
            raise Refused(
                f"{owner.name} has a job {name}",
                f"Take another name (--set job_name=NAME), or: gpucluster job cancel {name}",
            )
        self._rehearse(person, objects)
        files = folder.checked_files(request.get("files"))
        home = Path(owner.home)
        place = folder.as_owner(owner, lambda: folder.make(home, template, files, record, name))
        try:
            self._create(person, {"apiVersion": "v1", "kind": "List", "items": objects})
        except AgentError:
            with contextlib.suppress(Failed):
                self._delete(name, person.namespace, objects[0]["metadata"]["annotations"][KIND])
            with contextlib.suppress(Failed):
                folder.as_owner(owner, lambda: folder.remove(place))
            raise
        return name, place

    def _rehearse(self, person: Owner, objects: Sequence[Manifest]) -> None:
        """Ask the API server whether it takes a pod of the job: the controller that makes them later reports no reason.

        Raises:
            Refused: it would not, or all of them are more than the quota gives.
        """
        spec = next(pod for each in objects for pod in job_objects.pod_specs(each))
        name = str(objects[0]["metadata"]["name"])
        pod = {
            "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": f"{name}-rehearsal", "namespace": person.namespace},
        }  # fmt: skip
        quotas = self._kubectl.list("resourcequotas", person.namespace)
        try:
            made = json.loads(self._create(person, pod, "--dry-run=server", "--output=json"))
        except Refused as error:
            # What is in use now is free later.
            if "quota of the user is used up" not in error.message:
                raise
            made = pod
        pods = max(job_objects.number_of_pods(spec), 1)
        if why := job_objects.too_much(made["spec"], pods, quotas, job_objects.claims(objects)):
            raise Refused(
                f"the job can never start: {why}", "Take fewer --nodes or --gpus, or raise kubernetes.user_quota"
            )

    def _identity(self, person: Owner) -> str:
        """The name of the user for the API server: where Oracle runs the control plane, their service account."""
        try:
            self._kubectl.get("serviceaccount", person.namespace, person_objects.ACCOUNTS_NAMESPACE)
        except ApiFailed as error:
            if error.kind != faults.NOT_FOUND:
                raise
            return person.name
        return f"system:serviceaccount:{person_objects.ACCOUNTS_NAMESPACE}:{person.namespace}"

    def _create(self, person: Owner, manifest: Manifest, *words: str) -> str:
        as_person = [f"--as={self._identity(person)}", f"--namespace={person.namespace}"]
        try:
            return self._kubectl.run(
                "create", "--filename=-", *as_person, *(words or ["--output=name"]),
                text=json.dumps(manifest), seconds=_CREATE_S,
            )  # fmt: skip
        except ApiFailed as error:
            if error.kind == faults.FORBIDDEN:
                raise Refused(
                    f"Kubernetes refuses the job: {job_objects.refused(error.message)}", _who(person)
                ) from None
            if _NO_KIND.search(error.message):
                raise Refused(
                    f"this cluster has not what the launcher needs: {error.message}",
                    "Take the launcher that needs nothing: --launcher kubernetes-job",
                ) from None
            raise

    # ---- afterwards

    def look(self, job: str) -> SubmittedJob | None:
        """A job: its name, or NAMESPACE/NAME."""
        match = _ID.fullmatch(job)
        assert match is not None
        maps = self._config_maps(match[2], match[1] or "")
        if not maps:
            return None
        if len(maps) > 1:
            names = ", ".join(f"{each['metadata']['namespace']}/{match[2]}" for each in maps)
            raise Refused(f"several users have a job {match[2]}", f"Name one of them: {names}")
        about = maps[0]["metadata"]
        namespace = str(about["namespace"])
        notes = self._kubectl.get("namespace", namespace)["metadata"].get("annotations") or {}
        uid = int(notes[person_objects.UID])
        kind = WORKLOADS.get((about.get("annotations") or {}).get(KIND, ""), WORKLOADS["Job"])
        items = self._kubectl.list(f"pods,{kind}", namespace, labels=f"{JOB}={match[2]}")
        pods = [each for each in items if each["kind"] == "Pod"]
        workloads = [each for each in items if each["kind"] != "Pod"]
        state = job_objects.state_of(pods, workloads, self._events(namespace, workloads))
        place = Path(account_of(uid).home) / folder.BASE / match[2]
        return SubmittedJob(
            job, uid, state.state, state.nodes, state.reason, str(place), state.exit_status, state.patience
        )

    def jobs(self) -> list[QueuedJob]:
        """The newest jobs that were submitted here and have not ended."""
        maps = self._kubectl.list("configmaps", "", labels=_OURS)
        newest = sorted(maps, key=lambda each: str(each["metadata"].get("creationTimestamp")))[-_MOST_LISTED:]
        found = []
        for about in (each["metadata"] for each in newest):
            name = str((about.get("labels") or {}).get(JOB, ""))
            job = f"{about['namespace']}/{name}"
            if name != about["name"] or not _ID.fullmatch(job):
                continue  # it is not the map of a job
            # Each needs questions of its own; it may end, and its namespace go, between them.
            with contextlib.suppress(AgentError):
                seen = self.look(job)
                if seen is not None and not seen.ended:
                    user = account_of(seen.uid).name
                    found.append(QueuedJob(name, user, seen.state, seen.nodes, seen.reason, "", name))
        return found

    def _events(self, namespace: str, workloads: Sequence[Manifest]) -> list[Manifest]:
        """Why pods could not be made, the last at the end."""
        names = {each["metadata"]["name"] for each in workloads}
        events = [
            each
            for each in self._kubectl.list("events", namespace, fields="reason=FailedCreate")
            if (each.get("involvedObject") or {}).get("name") in names
        ]
        return sorted(events, key=lambda each: str(each.get("lastTimestamp") or ""))

    def _config_maps(self, name: str, namespace: str = "") -> list[Manifest]:
        """That of the job, in each namespace of a user that has one."""
        config_maps = self._kubectl.list("configmaps", namespace, labels=f"{_OURS},{JOB}={name}")
        if not config_maps:
            return []
        people = {
            each["metadata"]["name"] for each in self._kubectl.list("namespaces", labels=person_objects.USER_LABEL)
        }
        return [
            each for each in config_maps if each["metadata"]["namespace"] in people and each["metadata"]["name"] == name
        ]

    def cancel(self, seen: SubmittedJob) -> None:
        """Delete the objects of a job, its pods with them. What it has written stays."""
        match = _ID.fullmatch(seen.id)
        assert match is not None
        for each in self._config_maps(match[2], match[1] or ""):
            about = each["metadata"]
            self._delete(match[2], str(about["namespace"]), str((about.get("annotations") or {}).get(KIND, "")))

    def _delete(self, name: str, namespace: str, kind: str) -> None:
        # What makes pods comes first; the ConfigMap, by which the job is found, comes last.
        needed = [NEEDED[kind]] if kind in NEEDED else []
        for each in (WORKLOADS.get(kind, WORKLOADS["Job"]), *needed, CLAIMS, "services", "configmaps"):
            try:
                self._kubectl.run(
                    "delete", each, f"--namespace={namespace}", f"--selector={_OURS},{JOB}={name}",
                    "--ignore-not-found", "--wait=false", where=f"{each} of {name}",
                )  # fmt: skip
            except ApiFailed as error:
                # An operator that is not there has no objects.
                if not _NO_KIND.search(error.message):
                    raise

    def printed(self, seen: SubmittedJob) -> Path | None:
        """Not known: pods of jobs that come from elsewhere print to the kubelet."""
        del seen
        return None

    def unknown(self, job: str) -> Refused:
        """The error for a job that Kubernetes does not know."""
        return Refused(
            f"Kubernetes does not know a job {job}: it was cancelled, or its objects were deleted. "
            f"What it has printed stays in {folder.BASE} in the home of its user",
            _see(),
        )

    def foreign(self, seen: SubmittedJob, owner: Account) -> Refused:
        """The error for a job that was not submitted from here."""
        return Refused(
            f"job {seen.id} of {owner.name} is {seen.state}; it was not submitted by `gpucluster job submit`", _see()
        )


def _see() -> str:
    return f"See: gpucluster kubectl -- get configmaps --all-namespaces --selector={JOB}"


def _who(person: Owner) -> str:
    return (
        f"See the quota: gpucluster kubectl -- describe resourcequota --namespace={person.namespace}; "
        f"and the rights: gpucluster user show {person.name}"
    )


def _room(pool: str, nodes: Sequence[Manifest], node_count: int, gpus: int, resource: str) -> tuple[str, str]:
    """Why a pool has not enough nodes, and what only delays the job."""
    if len(nodes) < node_count:
        return f"the pool {pool} has {len(nodes)} nodes in Kubernetes, and the job wants {node_count}. {_SEE_NODES}", ""
    offers = [
        each for each in nodes
        if job_objects.quantity(((each.get("status") or {}).get("allocatable") or {}).get(resource, 0)) >= gpus
    ]  # fmt: skip
    if len(offers) < node_count:
        return (
            f"{len(offers)} nodes of the pool {pool} offer {gpus} of {resource}, and the job wants {node_count}. "
            f"{_SEE_NODES}",
            "",
        )
    usable = [each for each in offers if not (each.get("spec") or {}).get("unschedulable") and _ready(each)]
    if len(usable) < node_count:
        return (
            "",
            f"only {len(usable)} of {len(nodes)} nodes of the pool {pool} take pods now; "
            f"the job waits for {node_count}",
        )
    return "", ""


def _ready(node: Manifest) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _requirement(requirement: Mapping[str, str], nodes: Sequence[Manifest], owner: Account) -> dict[str, str]:
    """A requirement, where pods have images of their nodes, and of all files the home alone."""
    made = dict(requirement)
    if requirement["need"] == requirements.IMAGE:
        here = job_objects.images_of(nodes)
        have = sum(bool(job_objects.names_of(requirement["name"]) & names) for names in here)
        if not requirement["name"]:
            known = sorted(
                {name for names in here for name in names if "@" not in name and not name.startswith(_SYSTEM)}
            )
            more = f"; the nodes have {', '.join(known[:_MOST_SHOWN])}" if known else ""
            return {**made, "state": requirements.NOT_MET, "message": f"is not named{more}"}
        if have == len(here):
            return {**made, "state": requirements.MET, "message": ""}
        text = f"is not on {len(here) - have} of {len(here)} nodes: they pull it when the job starts"
        return {**made, "state": requirements.AT_START, "message": text}
    place = Path(requirement["name"])
    home = Path(owner.home)
    outside = place.is_absolute() and home != place and home not in place.parents
    if requirement["need"] in (requirements.DATA, requirements.PLACE) and outside:
        text = f"is outside of the home, which is all that pods see: {home}"
        return {**made, "state": requirements.NOT_MET, "message": text}
    return made
