"""An image rolls through the permanent nodes of pools: the effects. `rollout.decide` has the decisions.

A node is drained, gets another boot volume in its place, is configured and checked, and takes jobs again. What happens
is written into Terraform's state before each effect, so that the next run goes on wherever this one was killed.
Terraform is told the image of each node (`node_images`), so that its plan agrees at any time: it changes no node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucluster import cancellation, handover
from gpucluster.cloud.boot_volumes import BootVolumes, NewVolume
from gpucluster.cloud.members import PoolMembers
from gpucluster.errors import AnsibleError, CloudError, InputError, ToolError
from gpucluster.events import Event, EventKind, Sink, info, warn
from gpucluster.handover import Outputs
from gpucluster.lifecycle.build import Building, Built
from gpucluster.lifecycle.hosts import BOOT_DEADLINE, Deployment, HostConnections
from gpucluster.lifecycle.provision import Consent, Provisioning
from gpucluster.lifecycle.verification import OF_NODES_IN_SERVICE, HostFacts, Verification, VerifyRequest
from gpucluster.node_agent.rules.reasons import ROLLED
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.drain import DRAIN_TIMEOUT, Draining
from gpucluster.rollout.decide import (
    Change,
    Drain,
    End,
    JobPolicy,
    Prove,
    Release,
    RolloutNode,
    RolloutPolicy,
    Step,
    TakeBack,
    Wait,
    decide,
)
from gpucluster.rollout.record import RolloutRecord, begin, with_answer, with_outcomes, with_request
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.runner import Terraform
from gpucluster.text import did_you_mean
from gpucluster.verdict.verdict import problems_of
from gpucluster.workspace.run import Run

_POLL = 2.0
_GO_ON = "gpucluster rollout"


@dataclass(frozen=True)
class RolloutRequest:
    """How images roll through pools.

    Args:
        pools: their names; none: all pools.
        replace_nodes: where the cloud refuses another boot volume, terminate the instance and launch another one.
        timeout: seconds to wait for a node that is free, each time.
        boot_timeout: seconds in which nodes must answer with the new image. With the old one they get `BOOT_DEADLINE`.
    """

    pools: Sequence[str] = ()
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)
    replace_nodes: bool = False
    timeout: float = DRAIN_TIMEOUT
    boot_timeout: float = BOOT_DEADLINE

    def chosen(self, spec: ClusterSpec) -> tuple[str, ...]:
        """The pools of permanent nodes that are meant.

        Raises:
            InputError: there is no such pool, its nodes are not ours, or no node of it could leave.
        """
        for name in self.pools:
            if name not in spec.host_pools:
                hint = did_you_mean(name, list(spec.host_pools)) or f"Pools: {', '.join(spec.host_pools) or 'none'}"
                raise InputError(f"there is no pool {name} whose nodes get their images here", hint=hint)
        pools = tuple(name for name in spec.host_pools if not self.pools or name in self.pools)
        for name in pools:
            self.policy.check(name, spec.pools[name].count)
        return pools


class Rollouts:
    """The rollouts of one cluster.

    Args:
        boot_volumes, pool_members: make the clients of the started cloud.
        record: states on the controller whether all hosts are configured.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        provisioning: Provisioning,
        building: Building,
        verification: Verification,
        draining: Draining,
        hosts: HostConnections,
        record: ConfigurationRecord,
        boot_volumes: Callable[[], BootVolumes],
        pool_members: Callable[[], PoolMembers],
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._provisioning = provisioning
        self._building = building
        self._verification = verification
        self._draining = draining
        self._hosts = hosts
        self._record = record
        self._boot_volumes = boot_volumes
        self._pool_members = pool_members
        self._on_event = on_event

    def roll(self, run: Run, terraform: Terraform, request: RolloutRequest) -> Built:
        """Make what apply makes, but give another image of a pool to its nodes one after the other.

        Args:
            terraform: of this run, after `prepare`.

        Raises:
            InputError: the new image has another distribution. Nothing was changed.
            ToolError: it was taken back, or nodes are left: with the reasons.
            GpuClusterError: see `errors`. The next run goes on.
        """
        pools = request.chosen(self._spec)
        with run.phase("images"):
            notes = _Notes(self._provisioning, terraform)
            self._hold(notes, Outputs.parse(terraform.outputs()), pools)
        # What a run that was killed has begun is ended first: a node of it may not answer, and would stop the build.
        begun = [pool for pool in pools if pool in notes.records and notes.records[pool].in_work]
        progress = _Progress(self._hosts.locate()) if begun else self._build(run, terraform, request)
        for pool in sorted(pools, key=lambda name: name not in begun):
            if pool in notes.records:
                progress = _PoolRollout(self, run, terraform, request, pool, notes, progress).roll()
        return progress.built or self._built(run, terraform, request)

    def _build(
        self, run: Run, terraform: Terraform, request: RolloutRequest, recreate: Sequence[str] = ()
    ) -> _Progress:
        built = self._built(run, terraform, request, recreate)
        return _Progress(built.deployment, built)

    def _built(self, run: Run, terraform: Terraform, request: RolloutRequest, recreate: Sequence[str] = ()) -> Built:
        consent = Consent(drain_timeout=request.timeout, recreate=tuple(recreate))
        return self._building.build(terraform, run, consent)

    def _hold(self, notes: _Notes, outputs: Outputs, pools: Iterable[str]) -> None:
        """Let Terraform leave each node the image that it has."""
        for pool in pools:
            if pool in outputs.pools:
                earlier = notes.records.get(pool)
                if earlier is None or earlier.ended:
                    target = earlier.target if earlier else ""
                    notes.records[pool] = begin(self._images(outputs, pool), target, earlier)
        notes.write()

    def _images(self, outputs: Outputs, pool: str) -> dict[str, str]:
        """The image of each present node of a pool, by the node's name."""
        output = outputs.pools[pool]
        members = output.instances
        if launched_together := output.launched_together_id:
            names = handover.permanent_names(pool, self._spec.pools[pool])
            members = self._pool_members().present(pool, launched_together, names)
        sources = self._boot_volumes().sources(member.id for member in members)
        return {member.name: sources[member.id].image for member in members if member.id in sources}


class _Notes:
    """The records of all rollouts of the cluster, as Terraform's state has them."""

    def __init__(self, provisioning: Provisioning, terraform: Terraform) -> None:
        self._provisioning = provisioning
        self._terraform = terraform
        self.records = handover.rollouts(terraform.outputs())

    def write(self) -> None:
        """Write them into the state."""
        self._provisioning.note_rollouts(self._terraform, self.records)


@dataclass(frozen=True)
class _Progress:
    """The hosts as they were last found, and what the last configuration of this run has reported; None before it."""

    deployment: Deployment
    built: Built | None = None


class _PoolRollout:
    """The rollout of one pool within one run."""

    def __init__(
        self,
        cluster: Rollouts,
        run: Run,
        terraform: Terraform,
        request: RolloutRequest,
        pool: str,
        notes: _Notes,
        progress: _Progress,
    ) -> None:
        self._of = cluster
        self._run = run
        self._terraform = terraform
        self._request = request
        self._pool = pool
        self._notes = notes
        self._progress = progress
        self._waiting_for = ""

    def roll(self) -> _Progress:
        self._begin()
        since = time.monotonic()
        while not isinstance(step := decide(self._record, self._request.policy, self._nodes()), End):
            if not isinstance(step, Wait):
                self._take(step)
                since = time.monotonic()
            elif time.monotonic() - since < self._request.timeout:
                self._announce_wait(step)
                cancellation.sleep(_POLL)
            else:
                raise self._no_node_free(step)
        return self._end(step)

    @property
    def _record(self) -> RolloutRecord:
        return self._notes.records[self._pool]

    def _note(self, record: RolloutRecord) -> None:
        self._notes.records[self._pool] = record
        self._notes.write()

    def _begin(self) -> None:
        """The target is known now: Terraform has selected it."""
        outputs = self._progress.deployment.outputs
        target, record = outputs.pools[self._pool].image_id, self._record
        if record.target != target:
            record = begin(self._of._images(outputs, self._pool), target, record)
            self._check_distribution(record)
            self._note(record)
        if record.rolled:
            self._say(record.text)

    def _check_distribution(self, record: RolloutRecord) -> None:
        volumes = self._of._boot_volumes()
        others = sorted(set(record.before.values()) - {record.target})
        if not others:
            return
        system = volumes.check_image(record.target)
        for image in others:
            try:
                before = volumes.check_image(image)
            except CloudError as error:
                text = f"{error.what}: nodes can't get it again if the new image is bad"
                warn(self._of._on_event, f"pool {self._pool}", text)
                continue
            if before != system:
                raise InputError(
                    f"pool {self._pool} has {before}, and the new image has {system}: a boot volume is replaced with "
                    "the same distribution only",
                    where=str(self._of._spec.file),
                    hint="No node was changed. Name an image of the same distribution, or add a second pool with this "
                    "image and remove the first one later",
                )

    def _nodes(self) -> dict[str, RolloutNode]:
        names = handover.permanent_names(self._pool, self._of._spec.pools[self._pool])
        known = self._of._draining.nodes()
        return {
            name: RolloutNode(
                serves=node.takes_jobs and node.answers,
                busy=node.busy,
                ours=node.drained_by_rollout,
                reserved=node.reserved,
                reason=node.reason if not node.takes_jobs else "" if node.answers else "its slurmd does not answer",
            )
            for name in names
            if (node := known.get(name)) is not None
        }

    def _take(self, step: Step) -> None:
        self._waiting_for = ""
        if isinstance(step, Drain):
            self._drain(step.nodes)
        elif isinstance(step, Release):
            self._of._draining.release(step.nodes)
        elif isinstance(step, TakeBack):
            text = f"too many nodes have failed, all get their old image again: {step.why}"
            warn(self._of._on_event, f"pool {self._pool}", text)
            self._note(replace(self._record, taking_back=step.why))
        elif isinstance(step, Change):
            with self._run.phase("images"):
                self._change(step.images)
        elif isinstance(step, Prove):
            self._prove(step.nodes)

    def _drain(self, nodes: Sequence[str]) -> None:
        if self._request.policy.jobs is JobPolicy.REQUEUE:
            self._empty(nodes)
        else:
            self._of._draining.begin(dict.fromkeys(nodes, ROLLED))

    def _empty(self, nodes: Iterable[str]) -> None:
        """Drain these nodes until no job is on them.

        Raises:
            ToolError: jobs still run there, or Slurm does not answer.
        """
        requeue = self._request.policy.jobs is JobPolicy.REQUEUE
        self._of._draining.drain(dict.fromkeys(nodes, ROLLED), 0 if requeue else self._request.timeout)
        if requeue:
            self._of._draining.nodes()  # without an answer of Slurm nothing was requeued, and that was only a warning

    # --- one batch -----

    def _change(self, images: Mapping[str, str]) -> None:
        """Give these nodes these images, and wait until they answer."""
        of = self._of
        self._check_images(set(images.values()))
        self._note(with_request(self._record, images))
        # They are drained and empty already, but for what a run that was killed has left.
        self._empty(images)
        ids = {host.name: host.instance_id for host in self._progress.deployment.hosts if host.name in images}
        of._record.reopen()
        of._provisioning.forget_disks(self._terraform, ids.values())
        ended: dict[str, NewVolume] = {}
        for image in sorted(set(images.values())):
            instances = {ids[name]: name for name in images if images[name] == image and name in ids}
            of._hosts.forget(rebooted=(), replaced=instances)
            volumes = of._boot_volumes().replace(instances, image)
            ended |= {instances[ocid]: volume for ocid, volume in volumes.items()}
            of._hosts.forget(rebooted=(), replaced=instances)
        refused = {name: volume.refused for name, volume in ended.items() if volume.refused}
        if refused:
            self._recreate(refused, images)
        self._judge({name: volume.failed for name, volume in ended.items() if volume.failed})
        present = [name for name in images if name in self._record.changing]
        # With its old image a host has booted before: it gets more time than an image that may be bad.
        back = any(image != self._record.target for image in images.values())
        patience = max(BOOT_DEADLINE, self._request.boot_timeout) if back else self._request.boot_timeout
        silent = of._hosts.come_back(self._progress.deployment, present, patience)
        self._note(with_answer(self._record, [name for name in present if name not in silent]))
        self._judge({name: f"it did not come back: {why}" for name, why in silent.items()}, silent=True)

    def _check_images(self, images: Collection[str]) -> None:
        """An image that has disappeared must not cost a node its disk."""
        for image in images:
            try:
                self._of._boot_volumes().check_image(image)
            except CloudError as error:
                self._let_in()
                back = image != self._record.target
                hint = (
                    f"The nodes stay as they are. Name an image for the pool in cluster.yml, and run: {_GO_ON}"
                    if back
                    else "The nodes that were drained for it take jobs again, and the others stay as they are. Name "
                    f"another image in cluster.yml, or the old one, and run: {_GO_ON}"
                )
                what = "can't be taken back" if back else "has stopped"
                raise ToolError(
                    f"the rollout of pool {self._pool} {what}: {error.what}. {self._record.text}",
                    where=error.where,
                    hint=hint,
                ) from error

    def _recreate(self, refused: Mapping[str, str], images: Mapping[str, str]) -> None:
        """Terminate and launch, where the cloud does not replace the boot volume in its place."""
        of, names = self._of, sorted(refused)
        why = "; ".join(f"{name}: {refused[name]}" for name in names)
        network = bool(self._progress.deployment.outputs.pools[self._pool].launched_together_id)
        elsewhere = [name for name in names if network and images[name] != self._record.target]
        if elsewhere or not self._request.replace_nodes:
            left = {name: image for name, image in self._record.changing.items() if name not in refused}
            self._note(replace(self._record, changing=left))
            self._let_in()
            hint = (
                "A cluster network launches the image that cluster.yml names: write the old one there, and run: "
                f"{_GO_ON} --replace-nodes"
                if elsewhere
                else f"To terminate these instances and launch others, run: {_GO_ON} --replace-nodes. The host of a "
                "terminated instance may go to another tenant"
            )
            raise ToolError(f"the cloud does not replace boot volumes in their places: {why}", hint=hint)
        warn(of._on_event, f"pool {self._pool}", f"terminated and launched instead: {why}")
        self._progress = of._build(self._run, self._terraform, self._request, names)

    def _prove(self, nodes: Sequence[str]) -> None:
        """Configure and check these nodes; who passes takes jobs again."""
        of = self._of
        try:
            self._progress = of._build(self._run, self._terraform, self._request)
        except AnsibleError as error:
            failed = {name: error.reasons[name] for name in nodes if name in error.reasons}
            if not failed or set(error.reasons) - set(nodes):
                raise
            self._judge(failed)
            return
        request = VerifyRequest(nodes=",".join(nodes), leave_out=OF_NODES_IN_SERVICE)
        verdict = of._verification.verdict(self._progress.deployment, self._run, request, self._facts)
        outcomes = problems_of(verdict, nodes)
        closed = of._draining.release([name for name in nodes if not outcomes[name]])
        if closed:
            of._draining.begin(dict.fromkeys(closed, ROLLED))
        self._judge({**outcomes, **{name: f"Slurm does not use it: {why}" for name, why in closed.items()}})
        self._say(self._record.text)

    @property
    def _facts(self) -> HostFacts | None:
        return self._progress.built.facts if self._progress.built else None

    def _judge(self, outcomes: Mapping[str, str], *, silent: bool = False) -> None:
        if not outcomes:
            return
        self._note(with_outcomes(self._record, outcomes, silent=silent))
        for name, why in outcomes.items():
            if why:
                warn(self._of._on_event, f"node {name}", f"it failed with its image: {why}")

    # --- waiting, and the end -----

    def _let_in(self) -> None:
        """Let those nodes take jobs again that were drained, and not changed."""
        mine = [name for name, node in self._nodes().items() if node.ours and name not in self._record.changing]
        kept = {*self._record.lost, *self._record.silent, *self._unreverted()}
        self._of._draining.release([name for name in mine if name not in kept])

    def _unreverted(self) -> set[str]:
        return set(self._record.failed) - set(self._record.reverted)

    def _announce_wait(self, step: Wait) -> None:
        jobs = self._of._draining.jobs(step.draining) if step.draining else ()
        text = step.why or "; ".join(map(str, jobs)) or f"jobs on {', '.join(step.draining)}"
        if text != self._waiting_for:
            self._waiting_for = text
            self._of._on_event(
                Event(EventKind.LOG, f"pool {self._pool}", "waiting", f"before nodes are changed: {text}")
            )

    def _no_node_free(self, step: Wait) -> ToolError:
        jobs = "; ".join(map(str, self._of._draining.jobs(step.draining))) if step.draining else ""
        self._let_in()
        return ToolError(
            f"no node of pool {self._pool} is free after {self._request.timeout:.0f} s: "
            f"{step.why or jobs or 'jobs are being cleaned up'}. {self._record.text}",
            hint="The nodes that were drained for it take jobs again. Run the same command later: it goes on. Or wait "
            "longer (--timeout), requeue the jobs (--jobs requeue), or allow more nodes to leave (--min-capacity)",
        )

    def _end(self, step: End) -> _Progress:
        record = self._record
        kept = {name: why for name, why in record.failed.items() if name not in record.silent}
        left = {**kept, **step.left, **record.lost, **record.silent}
        if not record.taking_back and not left:
            del self._notes.records[self._pool]
            self._notes.write()
            if record.rolled:
                self._say(f"all of its {len(record.rolled)} nodes have the new image")
            if self._of._spec.pools[self._pool].elastic and record.rolled:
                # New elastic nodes get the image from now on.
                return self._of._build(self._run, self._terraform, self._request)
            return self._progress
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(left.items()))
        self._let_in()
        back = record.taking_back and not record.silent
        ended = "it was taken back" if back else f"stopped, left are {', '.join(sorted(left))}"
        self._note(replace(record, ended=ended))
        raise _ended(self._pool, self._record, reasons)

    def _say(self, text: str) -> None:
        info(self._of._on_event, f"pool {self._pool}", f"rollout: {text}")


def _ended(pool: str, record: RolloutRecord, reasons: str) -> ToolError:
    """The error of a rollout after which not every node has the new image."""
    if record.silent:
        node = min(record.silent)
        hint = f"Replace it: gpucluster replace {node}. Then run: {_GO_ON}"
    elif record.taking_back:
        hint = (
            "The nodes have the image that they had before. Write it into cluster.yml, or another one, and run: "
            f"{_GO_ON}. Until then apply leaves them as they are"
        )
    else:
        hint = f"When the reasons are gone, run: {_GO_ON}. Until then apply leaves these nodes their image"
    taken_back = f": {record.taking_back}" if record.taking_back else ""
    return ToolError(f"the rollout of pool {pool}: {record.text}{taken_back}. {reasons}".rstrip(". "), hint=hint)
