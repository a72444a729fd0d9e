"""Jobs from templates on a cluster: what they need is checked and brought, they are submitted, and judged at their end.

A job is a user's: `gpucluster-agent jobs` on the controller writes its files into the user's home and submits it with
the user's rights, to Slurm or to Kubernetes. It goes on when this process ends; who asks again, by its number or its
name, reads its state. Nothing here takes the cluster's lock.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from gpucluster import cancellation, process
from gpucluster.artifacts import catalogue, releases
from gpucluster.artifacts.cache import sha256_of
from gpucluster.controller.jobs.queue import QueuedJob as QueuedJob
from gpucluster.errors import InputError, Interrupted, ProcessError, ToolError
from gpucluster.errors import InputFinding as InputFinding
from gpucluster.events import Event, EventKind, Sink, info, warn
from gpucluster.handover.names import elastic_names, elastic_prefix, permanent_names
from gpucluster.jobs import choose, outputs, registry, render
from gpucluster.jobs.launchers import kubernetes
from gpucluster.jobs.model import EXIT_REQUIREMENT, LAST_LINES, Job, JobResult, Launcher, Need, Requirement, Template
from gpucluster.kubernetes.manifests.workloads import JOB_LABEL
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.operations.container_images import ContainerImages
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.job_choice import OTHER_POOL, PYXIS, check_divided, job_for, own_launchers
from gpucluster.operations.rpc import RemoteConversation
from gpucluster.operations.schedulers import require_slurm
from gpucluster.spec import ClusterSpec
from gpucluster.text import count, printable

_COMMAND = "sudo -n /usr/local/bin/gpucluster-agent jobs --scheduler={scheduler} serve"
_KUBERNETES = kubernetes.KUBERNETES.name
#: What the controller takes from the directory.
_OF_THE_USER = ("namespace", "home", "uid", "gid")
#: Below the home share.
DATASETS = PurePosixPath(".gpucluster/datasets")
#: Seconds for the controller's program to end when we go. It does not wait for jobs.
_END_S = 20.0
#: As long as a job takes.
_FOR_EVER_S = 1e9
_CHUNK = 2 << 20
#: Seconds between two looks at an output that is followed.
_FOLLOW_S = 1.0
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_NAME = "job"
#: How a job ended that has not completed: what that means for the workload.
_FAILED = frozenset({"DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"})
_COMPLETED = "COMPLETED"
#: Lines of a script that reports what is missing: one for each node.
_MOST_SAID = 3
_MOST_LINES = 40


@dataclass(frozen=True)
class Submitted:
    """A job that the scheduler has taken.

    Args:
        id: its number in Slurm, or the name of its objects in Kubernetes.
        folder: on the home share, with its files and its output.
        pool: whose nodes it gets.
        partition: of Slurm; "" without.
        at_start: requirements that the job checks itself when it starts, as text.
    """

    id: str
    template: str
    user: str
    folder: str
    pool: str
    partition: str
    nodes: int
    at_start: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**vars(self), "at_start": list(self.at_start)}


@dataclass(frozen=True)
class JobOutcome:
    """The state of a job.

    Args:
        state: in the words of Slurm.
        exit_status: of its script; None where the scheduler does not know it any more.
        result: the judge's, with a finding for a job that has not completed.
        output: what it has printed, without secrets; of a very large output beginning and end.
    """

    id: str
    template: str
    user: str
    state: str
    exit_status: int | None
    nodes: str
    folder: str
    result: JobResult
    output: str

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object, without the output."""
        own = {key: value for key, value in vars(self).items() if key not in ("result", "output")}
        return {**own, **self.result.to_dict(), "verdict": self.result.status.value}


@dataclass(frozen=True)
class JobStatus:
    """The state of a job that was submitted by gpucluster.

    Args:
        state: in the words of the scheduler; `reason`: why it waits.
        nodes: the nodes that it has.
        exit_status: of its script; None while it runs, and where the scheduler does not know it any more.
        submitted_at: UTC (ISO 8601).
        result: the judge's as a JSON object; None if it was not judged.
        told: lines with their times: what the watcher of the nodes has reported of the job, and done to it.
    """

    id: str
    state: str
    nodes: str
    reason: str
    ended: bool
    exit_status: int | None
    folder: str
    user: str
    template: str
    submitted_at: str
    result: Mapping[str, object] | None
    told: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**vars(self), "told": list(self.told)}


@dataclass(frozen=True)
class CancelledJob:
    """A job that was cancelled.

    Args:
        ended: it had ended before.
        state: before it was cancelled, in the words of the scheduler.
    """

    id: str
    user: str
    ended: bool
    state: str

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dict(vars(self))


@dataclass(frozen=True)
class Prepared:
    """Something that a job needs and that is on the cluster now.

    Args:
        kind: "data set" or "container image".
        changed: whether it was not there before.
    """

    kind: str
    name: str
    path: str
    changed: bool

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dict(vars(self))


@dataclass(frozen=True)
class JobRequest:
    """What the user wants to run: the options of the command line.

    Args:
        pool: whose nodes; "" for the first on which the template can run.
        launcher: "" for the template's first.
        user: whose job; "" for the first of users.people.
        settings: values of options as text.
        gpus: of each node; None for those of the pool's shape.
    """

    template: str
    nodes: int = 2
    pool: str = ""
    launcher: str = ""
    user: str = ""
    gpus: int | None = None
    settings: Mapping[str, str] | None = None


class Jobs:
    """Jobs of one cluster.

    Args:
        open_session: begins a conversation that lasts for a `with`; by default with the controller.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        controller: ControllerConnection,
        images: ContainerImages,
        on_event: Sink,
        open_session: Callable[[], AbstractContextManager[RemoteConversation]] | None = None,
    ) -> None:
        self._spec = spec
        self._controller = controller
        self._images = images
        self._on_event = on_event
        self._open = open_session or self._connect
        self._last_event: tuple[str, str, str] | None = None

    # --- submit -----

    def submit(self, request: JobRequest) -> Submitted:
        """Check what a job needs, and submit it.

        Raises:
            InputError: there is no such template, pool or user, or a requirement is not met; `findings` has each.
            Interrupted: it may have been submitted, and the message states how to see that.
            ToolError: Slurm does not take it, or the controller can't be reached.
        """
        pool, job = self._choose(request)
        user = self._user(request)
        self._controller.require_own()
        with self._open() as talk:
            at_start = self._check(talk, user, pool, job)
            try:
                made = talk.ask(
                    "submit",
                    user=user,
                    share=self._share,
                    template=job.template.name,
                    **(self._objects(pool, job) if self._on_kubernetes else self._script(pool, job)),
                )
            except KeyboardInterrupt:
                words = (
                    f"kubectl -- get jobs -A -l {JOB_LABEL}" if self._on_kubernetes else f"ssh -- squeue --user={user}"
                )
                raise Interrupted(
                    "interrupted while the job was submitted",
                    hint=f"See whether {job.launcher.scheduler.title} has it: gpucluster {words}",
                ) from None
        partition = str(job.values.get("partition", ""))
        return Submitted(
            str(made["id"]), job.template.name, user, str(made["folder"]), pool, partition, job.nodes, tuple(at_start)
        )

    @property
    def _on_kubernetes(self) -> bool:
        return self._spec.scheduler == _KUBERNETES

    def _script(self, pool: str, job: Job) -> dict[str, Any]:
        """What Slurm gets: files, the script among them, and options of sbatch."""
        rendered = render.render(job)
        return {
            "files": {name: vars(file) for name, file in rendered.files.items()},
            "script": rendered.script,
            "words": self._other_pools(pool),
            "record": {
                "job": job.to_dict(), "pool": pool, "output": rendered.output, "partition": job.text("partition"),
            },
        }  # fmt: skip

    def _objects(self, pool: str, job: Job) -> dict[str, Any]:
        """What Kubernetes gets: objects. Their name is the job's, so it is another one each time."""
        name = job.text("job_name") or f"{kubernetes.object_name(job)}-{secrets.token_hex(3)}"
        job = replace(job, values={**job.values, "job_name": name})
        rendered = render.render(job)
        return {
            "name": name,
            "files": {file: vars(text) for file, text in rendered.files.items()},
            "manifests": list(yaml.safe_load_all(rendered.files[rendered.script].text)),
            "record": {"job": job.to_dict(), "pool": pool, "output": rendered.output},
        }

    def _choose(self, request: JobRequest) -> tuple[str, Job]:
        """The pool and the job.

        Raises:
            InputError: it can't run on this cluster.
        """
        spec = self._spec
        template = registry.template(request.template)
        # Slurm needs a home share (spec/rules), where the files of jobs are.
        if spec.scheduler == "none":
            elsewhere = f"Make the files of a job for elsewhere: gpucluster job render {template.name}"
            require_slurm(spec, "job submit", kubernetes="", otherwise=elsewhere)
        known = registry.launchers()
        own = [name for name in template.launchers if known[name].scheduler.name == spec.scheduler]
        here = own_launchers(spec, template)
        launcher = registry.launcher(template, request.launcher or (here or own)[0])
        if launcher.name not in own:
            raise InputError(
                f"the launcher {launcher.name} is for {launcher.scheduler.title}, and this cluster has "
                f"{known[own[0]].scheduler.title}",
                hint=f"Take --launcher {' or '.join(own)}. Or make its files for elsewhere: gpucluster job render "
                f"{template.name} --launcher {launcher.name}",
            )
        user_settings = (
            [name for name in _OF_THE_USER if name in (request.settings or {})] if self._on_kubernetes else []
        )
        if user_settings:
            raise InputError(
                f"the controller takes {' and '.join(user_settings)} from the directory",
                hint="Name the user: --user NAME",
            )
        if self._on_kubernetes and not spec.storage.home.enabled:
            raise InputError(
                "jobs need the home share, where their pods exchange files",
                where=f"{spec.file}: storage.home",
                hint="Enable it, then run: gpucluster apply",
            )
        if launcher.name == PYXIS and launcher.name not in here:
            others = " or ".join(here)
            raise InputError(
                "the launcher pyxis needs Enroot and Pyxis, which this cluster does not have",
                where=str(spec.file),
                hint="Add enroot to containers.runtimes, then run: gpucluster apply"
                + (f". Or: --launcher {others}" if others else ""),
            )
        refused: InputError | None = None
        for name in [request.pool] if request.pool else spec.pools:
            try:
                return name, self._on(name, template, launcher, request)
            except InputError as error:
                refused = refused or error
        raise refused or InputError(
            "this cluster has no pools", where=str(spec.file), hint="Add one below `pools`, then run: gpucluster apply"
        )

    def _on(self, name: str, template: Template, launcher: Launcher, request: JobRequest) -> Job:
        """The job on nodes of a pool.

        Raises:
            InputError: it can't run there.
        """
        spec = self._spec
        settings = dict(request.settings or {})
        job = job_for(spec, template, launcher, settings, nodes=request.nodes, pool=name)
        unnamed = [option for option in template.data_sets if not job.text(option)]
        # Pods see no other part of the share than the home.
        if (
            unnamed
            and not self._on_kubernetes
            and any(each.need is Need.DATA and not each.name for each in render.requirements(job))
        ):
            settings |= {option: str(self._datasets / template.data_sets[option]) for option in unnamed}
            job = job_for(spec, template, launcher, settings, nodes=request.nodes, pool=name)
        if request.gpus is not None:
            job = replace(job, gpus=request.gpus)
            if why := choose.refusal(job):
                raise InputError(f"{template.name} can't run on the pool {name}: {why}", hint=OTHER_POOL)
        pool = spec.pools[name]
        check_divided(spec, name, job)
        most = pool.count + pool.elastic_count
        if request.nodes > most:
            raise InputError(
                f"the pool {name} has at most {count(most, 'node')}, and the job wants {request.nodes}",
                where=str(spec.file),
                hint="Name fewer with --nodes, another pool with --pool, or raise count or max_count of the pool",
            )
        return job

    def _user(self, request: JobRequest) -> str:
        if request.user:
            return request.user
        if not self._spec.users.people:
            hint = "Name one: --user NAME. The job runs as this user, in their home"
            raise InputError("there is no user under users.people", where=str(self._spec.file), hint=hint)
        return self._spec.users.people[0].name

    @property
    def _share(self) -> str:
        return str(self._spec.storage.home.mount_path)

    @property
    def _datasets(self) -> PurePosixPath:
        return PurePosixPath(self._share) / DATASETS

    def _other_pools(self, chosen: str) -> list[str]:
        """The option of sbatch that keeps a job from nodes of other pools in its partition."""
        pools = self._spec.pools
        others = [name for name, pool in pools.items() if name != chosen and pool.partition == pools[chosen].partition]
        nodes = [node for name in others for node in permanent_names(name, pools[name])]
        for name in others:
            number = elastic_names(pools[name])
            nodes += [f"{elastic_prefix(name)}[1-{number}]"] if number else []
        return [f"--exclude={','.join(nodes)}"] if nodes else []

    def _check(self, talk: RemoteConversation, user: str, pool: str, job: Job) -> list[str]:
        """What the job checks itself when it starts.

        Raises:
            InputError: something is missing; `findings` names each, and how to get it.
        """
        # The files of the job come with it.
        requirements = [each for each in render.requirements(job) if each.need is not Need.FILE_OF_JOB]
        place = (
            # The scheduler alone knows which devices are free to be claimed.
            {
                "pool": pool,
                "gpus": 0 if job.values["gpu_claims"] else job.gpus,
                "gpu_resource": kubernetes.gpu_resource(job),
            }
            if self._on_kubernetes
            else {"partition": job.text("partition")}
        )
        answer = talk.ask(
            "check",
            user=user,
            share=self._share,
            nodes=job.nodes,
            **place,
            requirements=[requirement.to_dict() for requirement in requirements],
        )
        if answer["nodes"]:
            see = "kubectl -- get nodes" if self._on_kubernetes else "ssh -- sinfo"
            raise InputError(printable(str(answer["nodes"])), hint=f"See: gpucluster {see}")
        missing, at_start = [], []
        for requirement, state in zip(requirements, answer["requirements"], strict=True):
            text = f"{requirement.need.value} {printable(requirement.name)}".strip()
            message = printable(str(state["message"]))
            if state["state"] == "not met":
                missing.append(InputFinding(text, 0, 0, "", message, self._how(job.template, requirement)))
            elif state["state"] != "met":
                at_start.append(f"{text} {message}")
        if missing:
            raise InputError(
                f"{job.template.name} was not submitted: "
                f"{count(len(missing), 'requirement is', 'requirements are')} not met",
                findings=missing,
            )
        for line in at_start:
            info(self._on_event, _NAME, line)
        if answer["delayed"]:
            warn(self._on_event, _NAME, printable(str(answer["delayed"])))
        return at_start

    def _how(self, template: Template, requirement: Requirement) -> str:
        """How to get what is missing."""
        name = self._dataset_of(requirement)
        if not name:
            return requirement.get
        own = name in template.data_sets.values()
        return f"Run: gpucluster job prepare {template.name if own else f'{name} --from FILE'}"

    def _dataset_of(self, requirement: Requirement) -> str:
        """The name of the data set of ours that is needed; "" if it is none of ours."""
        place = PurePosixPath(requirement.name)
        if requirement.need is not Need.DATA or self._datasets not in place.parents:
            return ""
        return place.relative_to(self._datasets).parts[0]

    # --- wait, output, cancel -----

    def wait(self, job: str, *, timeout: float | None = None) -> JobOutcome:
        """Wait for the end of a job that was submitted here, judge it, and keep the result beside it.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            InputError: there is no such job, or it was not submitted here.
            Interrupted: the job goes on.
            ToolError: it has not ended in time, or the connection was lost; the job goes on.
        """
        self._require_scheduler("job wait")
        again = f"Look again: gpucluster job wait {job}"
        try:
            with self._open() as talk:
                seen = talk.ask("wait", self._progress, id=job, seconds=_FOR_EVER_S if timeout is None else timeout)
                if not seen["ended"]:
                    reason = f" ({printable(seen['reason'])})" if seen["reason"] else ""
                    state = printable(seen["state"])
                    raise ToolError(f"job {job} has not ended within {timeout:g} s: {state}{reason}", hint=again)
                return self._outcome(talk, job)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; job {job} goes on", hint=again) from None
        except ProcessError as error:
            raise ToolError(f"the connection was lost; job {job} goes on: {error.what}", hint=again) from None

    def status(self, job: str) -> JobStatus:
        """The state of a job that was submitted here, and its result if it was judged. Waits for nothing.

        Raises:
            InputError: there is no such job, or it was not submitted here.
        """
        self._require_scheduler("job status")
        with self._open() as talk:
            answer = talk.ask("output", id=job)
        seen, record = answer["job"], answer["record"]
        keys = ("id", "state", "nodes", "reason", "ended", "exit_status", "folder")
        return JobStatus(
            **{key: seen[key] for key in keys},
            user=answer["user"],
            template=str(record.get("template", "")),
            submitted_at=str(record.get("submitted_at", "")),
            result=answer["result"] or None,
            told=tuple(answer.get("told") or ()),  # an agent of an earlier release does not send it
        )

    def list(self) -> tuple[QueuedJob, ...]:
        """The jobs that wait or run, of all users. On Kubernetes: those that were submitted here, the newest 50.

        Raises:
            ToolError: the scheduler does not answer.
        """
        self._require_scheduler("job list")
        with self._open() as talk:
            answer = talk.ask("list")
        return tuple(QueuedJob(*(str(each.get(name, "")) for name in QueuedJob._fields)) for each in answer["jobs"])

    def output(self, job: str, *, follow: bool = False) -> Iterator[str]:
        """What a job has printed, in parts, without secrets. Of a job of Slurm that was not submitted here, it is the
        file of sbatch's --output, while slurmctld knows the job.

        Args:
            follow: go on until the job has ended.

        Raises:
            InputError: there is no such job, or the controller does not see what it prints.
        """
        self._require_scheduler("job logs")
        offset = 0
        with self._open() as talk:
            while True:
                answer = talk.ask("read", id=job, offset=offset)
                if answer["text"]:
                    yield str(answer["text"])
                elif answer["ended"] or not follow:
                    return
                else:
                    cancellation.sleep(_FOLLOW_S)
                offset = int(answer["offset"])

    def cancel(self, job: str) -> CancelledJob:
        """Cancel a job that was submitted here. A job of Slurm that has ended stays as it is; in Kubernetes its objects
        are deleted. What it has written stays.

        Raises:
            InputError: there is no such job, or it was not submitted here.
        """
        self._require_scheduler("job cancel")
        self._controller.require_own()
        with self._open() as talk:
            answer = talk.ask("cancel", id=job)
        return CancelledJob(**{key: answer[key] for key in ("id", "user", "ended", "state")})

    def _require_scheduler(self, command: str) -> None:
        if not self._on_kubernetes:
            require_slurm(self._spec, command, kubernetes="")

    def _progress(self, report: Any) -> None:
        state, reason, nodes = (printable(str(report.get(key, ""))) for key in ("state", "reason", "nodes"))
        more = reason if state in ("PENDING", "") else nodes
        event = (f"job {report.get('id')}", state or "waiting", more)
        if event != self._last_event:
            self._last_event = event
            self._on_event(Event(EventKind.RESOURCE, *event))

    def _outcome(self, talk: RemoteConversation, number: str) -> JobOutcome:
        """The outcome of a job that has ended; it is kept beside the job."""
        answer = talk.ask("output", id=number)
        seen, record, output = answer["job"], answer["record"], str(answer["output"])
        try:
            # The user can have written anything there, numbers without end included.
            job = choose.from_dict(record.get("job", {}))
        except (InputError, ArithmeticError) as error:
            raise ToolError(
                f"job {number} can't be judged: {error}",
                hint=f"Its output is in {printable(str(seen['folder']))}",
            ) from None
        result = judged(job, output, str(seen["state"]), seen["exit_status"])
        outcome = JobOutcome(
            number, job.template.name, str(answer["user"]), str(seen["state"]), seen["exit_status"],
            str(seen["nodes"]), str(seen["folder"]), result, output,
        )  # fmt: skip
        try:
            talk.ask("result", id=number, result={"version": 1, **outcome.to_dict()})
        except ToolError as error:  # the home may be full
            warn(self._on_event, _NAME, f"the result is not kept: {error.what}")
        return outcome

    # --- prepare -----

    def prepare(self, request: JobRequest, *, source: Path | None = None, force: bool = False) -> tuple[Prepared, ...]:
        """Bring what a job needs and can be brought: data sets to the home share, container images to their store.

        Args:
            request: `template` may also be a data set of the catalogue; with `source` one of any name.
            source: a file on this machine that has the data set.
            force: replace another data set of this name.

        Raises:
            InputError: there is no such template or data set, or a file has another checksum.
            EnvironmentFault: a file can't be downloaded.
            ToolError: the share is full, or the controller can't be reached.
        """
        own = source is not None and request.template not in registry.template_names()
        if own or request.template in catalogue.datasets():
            return (self._bring(request.template, source, force),)
        if self._on_kubernetes:
            raise InputError(
                "pods see the home of their user alone, and nodes bring their images themselves",
                hint="Copy the data to the home, and name it: gpucluster job submit NAME --set data=PATH",
            )
        _pool, job = self._choose(request)
        preparations = []
        for requirement in render.requirements(job):
            name = self._dataset_of(requirement)
            if name:
                preparations.append(self._bring(name, source, force))
            elif requirement.need is Need.IMAGE and "#" in requirement.name:
                image = self._images.import_uri(requirement.name, pool=request.pool or None, user=request.user or None)
                preparations.append(Prepared("container image", image.image.name, image.image.path, image.changed))
        if source is not None and not any(each.kind == "data set" for each in preparations):
            place = PurePosixPath(self._share) / DATASETS
            hint = (
                f"Bring it by its own name (gpucluster job prepare cifar10 --from FILE), or name a path below {place}"
            )
            raise InputError(f"{job.template.name} needs no data set with these options", hint=hint)
        return tuple(preparations)

    def _bring(self, name: str, source: Path | None, force: bool) -> Prepared:
        """A data set on the home share."""
        self._controller.require_own()
        if source is None:
            file, artifact = releases.dataset(self._spec, name, self._on_event)
            checksum, origin = artifact.sha256 or sha256_of(file), artifact.url
        else:
            if not source.is_file():
                raise InputError("there is no such file", where=str(source), hint="Name another one with --from")
            pinned = catalogue.dataset(name, checksums={}) if name in catalogue.datasets() else None
            file, checksum, origin = source, sha256_of(source), source.name
            if pinned and pinned.sha256 != checksum and not force:
                raise InputError(
                    f"this is not {name}: its checksum is {checksum}, and that of {pinned.file} is {pinned.sha256}",
                    where=str(source),
                    hint="To take it nevertheless, add --force",
                )
        description = {
            "name": name, "file": file.name, "sha256": checksum, "size": file.stat().st_size,
            "unpack": file.name.endswith(_ARCHIVES), "source": origin, "force": force,
        }  # fmt: skip
        with self._open() as talk:
            state = talk.ask("dataset.begin", share=self._share, dataset=description)
            if not state["present"]:
                self._send(talk, name, file, int(state["have"]))
                talk.ask("dataset.publish")
        return Prepared("data set", name, str(state["path"]), changed=not state["present"])

    def _send(self, talk: RemoteConversation, name: str, file: Path, have: int) -> None:
        size, last_tenth = os.path.getsize(file), -1
        with file.open("rb") as stream:
            stream.seek(have)
            while data := stream.read(_CHUNK):
                have = int(talk.ask("dataset.add", offset=have, data=base64.b64encode(data).decode())["have"])
                if have * 10 // max(size, 1) != last_tenth:
                    last_tenth = have * 10 // max(size, 1)
                    text = f"{have / 1e6:.0f} of {size / 1e6:.0f} MB"
                    self._on_event(Event(EventKind.RESOURCE, f"data set {name}", "working", text))

    @contextmanager
    def _connect(self) -> Iterator[RemoteConversation]:
        argv = self._controller.ssh_argv(None, [_COMMAND.format(scheduler=self._spec.scheduler)])
        with process.ProcessConversation(argv, end_s=_END_S) as talk:
            yield RemoteConversation(talk)


def judged(job: Job, output: str, state: str, exit_status: int | None) -> JobResult:
    """The result in the output of a job, and how the job ended."""
    if state == _COMPLETED:
        return outputs.judged(job, output)
    result = job.template.judge(output, job)
    name = job.template.name
    if exit_status == EXIT_REQUIREMENT:
        # The script writes one line for each node, which begins with its name.
        messages = [line for line in output.splitlines() if line.startswith(f"{name}: ")][-_MOST_SAID:]
        text = "; ".join(map(printable, dict.fromkeys(messages))) or printable(_last_words(output))
        finding = Finding("job", name, Status.FAIL, f"a requirement is not met: {text}")
        return JobResult((finding,), result.values, result.units, result.steps)
    status = Status.FAIL if state in _FAILED else Status.UNKNOWN
    text = f"the job ended as {printable(state)}" + (f" with status {exit_status}" if exit_status else "")
    cause, last = outputs.cause(output), _last_words(output)
    text += f"; its output reports: {printable(cause)}" if cause else ""
    text += f"; its last line is: {printable(last)[:200]}" if last else "; it has printed nothing"
    lines = [printable(line)[:200] for line in output.splitlines()[-_MOST_LINES:]]
    finding = Finding("job", name, status, text, {LAST_LINES: lines} if lines else {})
    return JobResult((finding, *result.findings), result.values, result.units, result.steps)


def _last_words(output: str) -> str:
    """The last line with a word in it that is not Slurm's: at the end it writes which of its processes it stops."""
    lines = [line for line in output.splitlines() if any(map(str.isalnum, line))]
    own = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    return (own or lines or [""])[-1]
