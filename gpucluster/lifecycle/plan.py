"""What an apply would do: Terraform's changes, the hosts by name, and what Ansible would configure. Changes nothing.

Terraform compares with the cloud. What Ansible would do in the hosts is compared with the configuration record on the
controller and with the directory, because a run of all roles takes longer than a plan may. A file that a user has
edited on a host is not seen: apply writes it again, and `drift` names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpucluster import handover
from gpucluster.configuration import content
from gpucluster.errors import GpuClusterError, InputError
from gpucluster.events import Sink, warn
from gpucluster.handover import configuration_diff
from gpucluster.handover.configuration_diff import ConfigurationDifference
from gpucluster.lifecycle.configure import Configuration
from gpucluster.lifecycle.duration import Duration, Work, expected
from gpucluster.lifecycle.field_effects import FieldEffect, changed_fields, effects, last_fields
from gpucluster.lifecycle.hourly_price import HourlyPrice, hourly_price
from gpucluster.lifecycle.jobs_hit import JobHit, jobs_hit, leaving
from gpucluster.lifecycle.provision import Provisioning, lost_controller, lost_homes, lost_state
from gpucluster.lifecycle.resize import Scaling
from gpucluster.lifecycle.saved_plan import SavedPlan, World, digest_of_files
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import CONFIGURATION_RECORD, ControllerConnection
from gpucluster.operations.drain import Draining
from gpucluster.operations.inquiry import Inquiry, InquiryAnswer
from gpucluster.operations.users import DirectoryClient
from gpucluster.prices import PriceList
from gpucluster.rollout.record import remarks
from gpucluster.slurm.releases import DISTRIBUTION
from gpucluster.spec import ClusterSpec, updates
from gpucluster.terraform.plan import ResourceChange
from gpucluster.terraform.plan import TerraformPlan as TerraformPlan
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace.run import Run
from gpucluster.workspace.run_history import PastRun

# Seconds that the controller gets in addition to the time that Terraform needs. Without its answer a saved plan is
# refused and `drift` is not clean, so a busy controller gets long; one that can't be reached fails by itself before.
_LEFT_FOR_THE_CONTROLLER = 60.0
# Seconds that Slurm gets for its list of jobs, where nodes leave service.
_FOR_THE_JOBS = 10.0

# Keys of `kubernetes` that kubeadm has written into the cluster, and every pod and node has got.
_KEPT_BY_KUBERNETES = ("control_plane", "network", "pod_cidr", "service_cidr")


@dataclass(frozen=True)
class ClusterPlan:
    """What an apply would do. `empty` if it would change nothing.

    Args:
        changes: of resources, by Terraform.
        changes_outputs: output values in Terraform's state would change, as for outputs that a later release adds.
        hosts: the hosts that would be added, removed, replaced or rebooted, by name.
        configuration: what Ansible would configure.
        warnings: what apply would refuse without an option, and what is lost with a controller that is gone.
        fields: the keys of cluster.yml that differ from those of the last complete apply, with the effect of each; None
            if these are not known: there was none, or an earlier release made it.
        jobs: those on nodes that leave service: `apply` waits for them. Empty if no node does; None if they are not
            known.
        jobs_error: why they are not known; empty if they are.
        duration: how long an apply will take; None if it would change nothing.
        price: what the hosts cost an hour, before and after; None if apply would change nothing.
        world: what the plan was made of.
    """

    changes: tuple[ResourceChange, ...]
    changes_outputs: bool
    hosts: Scaling
    configuration: tuple[ConfigurationDifference, ...]
    warnings: tuple[str, ...] = ()
    fields: tuple[FieldEffect, ...] | None = None
    jobs: tuple[JobHit, ...] | None = ()
    jobs_error: str = ""
    duration: Duration | None = None
    price: HourlyPrice | None = None
    world: World = field(default_factory=World, compare=False)

    @property
    def empty(self) -> bool:
        """Whether apply would change nothing."""
        return not (self.changes or self.changes_outputs or self.hosts or self.configuration)

    def to_dict(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "fields": None if self.fields is None else [vars(field) for field in self.fields],
            "changes": [vars(change) for change in self.changes],
            "changes_outputs": self.changes_outputs,
            "nodes": {pool: vars(names) for pool, names in self.hosts.pools.items()},
            "controller": self.hosts.controller,
            "login": vars(self.hosts.login),
            "jobs": None if self.jobs is None else [vars(job) for job in self.jobs],
            "jobs_error": self.jobs_error,
            "duration": vars(self.duration) if self.duration else None,
            "price": vars(self.price) if self.price else None,
            "configuration": [{**vars(difference), "text": str(difference)} for difference in self.configuration],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class _OnController:
    """What the controller reports of the configuration: the record, and what the directory would change."""

    record: Mapping[str, Any] | None
    users: tuple[ConfigurationDifference, ...] = ()


class Planning:
    """Plans of one cluster.

    Args:
        draining: asks Slurm for its jobs.
        past_runs: reads the runs of this cluster on this machine.
        prices: reads the price list.
        version: of the package that runs.
        outputs: reads Terraform's outputs.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        provisioning: Provisioning,
        configuration: Configuration,
        record: ConfigurationRecord,
        directory: DirectoryClient,
        draining: Draining,
        past_runs: Callable[[], tuple[PastRun, ...]],
        prices: Callable[[], PriceList],
        version: str,
        outputs: Callable[[], Mapping[str, Any]],
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._provisioning = provisioning
        self._configuration = configuration
        self._record = record
        self._directory = directory
        self._draining = draining
        self._past_runs = past_runs
        self._prices = prices
        self._version = version
        self._outputs = outputs
        self._on_event = on_event

    def plan(self, run: Run, *, preflight: bool) -> ClusterPlan:
        """Find out what an apply would do. Each warning is announced, too.

        Args:
            preflight: ask the cloud in advance whether it would accept the spec.

        Raises:
            GpuClusterError: see `errors`; nothing was created.
        """
        terraform = self._provisioning.prepare(run, preflight=preflight, only_look=True)
        plan = self.of(run, terraform)
        for warning in plan.warnings:
            warn(self._on_event, "cluster", warning)
        return plan

    def require(self, saved: SavedPlan, run: Run, terraform: Terraform) -> None:
        """Refuse to go on if an apply would do something else than the saved plan states.

        Args:
            terraform: after its `prepare`.

        Raises:
            MovedError: with what has moved. Nothing was changed.
        """
        plan = self.of(run, terraform)
        saved.require(SavedPlan(self._spec.name, plan.world, plan.to_dict()))

    def of(self, run: Run, terraform: Terraform) -> ClusterPlan:
        """What an apply would do, by a Terraform that is prepared."""
        with run.phase("plan"):
            values = self._outputs()
            outputs = handover.Outputs.parse(values) if values.get("cluster") else None
            inquiry = Inquiry(self._ask_controller if outputs else lambda: _OnController(None))
            resources, hosts = self._provisioning.plan(terraform)
            resources.file.unlink(missing_ok=True)
            answer = inquiry.answer(time.monotonic() + _LEFT_FOR_THE_CONTROLLER)
            jobs, jobs_error = self._jobs(outputs, resources, hosts)
            plan = ClusterPlan(
                resources.changes,
                resources.changes_outputs,
                hosts,
                self._differences(outputs, hosts, answer),
                (
                    *filter(None, [lost_controller(resources, values)]),
                    *_refusals(resources, hosts),
                    *(f"{text}. `gpucluster rollout` goes on" for text in remarks(handover.rollouts(values))),
                    *_other_release(answer.value, self._spec),
                    *(f"apply would refuse this: {what}" for what in _changes_what_stays(answer.value, self._spec)),
                ),
                self._fields(resources, hosts, answer.value),
                jobs,
                jobs_error,
                world=self._world(terraform),
            )
        if not plan.empty:
            price = self._price(outputs, answer.value)
            plan = replace(plan, duration=self._duration(plan, outputs), price=price)
        return plan

    def _ask_controller(self) -> _OnController:
        record = self._record.read()
        complete = record is not None and record.get("complete")
        own_directory = self._spec.storage.home.enabled and self._spec.users.directory is None
        if not complete or not own_directory:
            return _OnController(record)  # without a complete apply, everything is configured in any case
        try:
            preview = self._directory.preview(self._configuration.people(record or {}))
        except InputError as error:
            return _OnController(
                record, (ConfigurationDifference("users", "configure", f"apply would be refused: {error.what}"),)
            )
        except GpuClusterError as error:
            return _OnController(
                record, (ConfigurationDifference("users", "configure", f"they are not known: {error.what}"),)
            )
        return _OnController(
            record,
            (
                *(ConfigurationDifference("users", "add", f"group {name}") for name in preview.groups),
                *(ConfigurationDifference("users", "add", name) for name in preview.added),
                *(ConfigurationDifference("users", "change", name) for name in preview.changed),
            ),
        )

    def _world(self, terraform: Terraform) -> World:
        return World(
            self._version,
            content.digest(),
            terraform.contents().version,
            updates.recorded(self._spec),
            digest_of_files(terraform.variables),
        )

    def _price(self, outputs: handover.Outputs | None, answer: _OnController | None) -> HourlyPrice:
        before = {} if outputs is None else last_fields(answer.record if answer else None)
        return hourly_price(before, updates.recorded(self._spec), self._prices(), self._spec.autoscaler.prices)

    def _duration(self, plan: ClusterPlan, outputs: handover.Outputs | None) -> Duration:
        work = Work.of(
            first=outputs is None,
            hosts=plan.hosts.touched + (outputs is None),
            resources=any(not change.internal for change in plan.changes),
            configuration=bool(plan.configuration),
        )
        return expected(work, self._past_runs(), cloud=self._spec.cloud.provider)

    def _jobs(
        self, outputs: handover.Outputs | None, resources: TerraformPlan, hosts: Scaling
    ) -> tuple[tuple[JobHit, ...] | None, str]:
        """The jobs on nodes that leave service, and why they are not known."""
        nodes = leaving(hosts, resources.changes, self._spec.elastic_pools)
        if outputs is None or not nodes or self._spec.scheduler == "none":
            return (), ""
        if self._spec.scheduler == "kubernetes":
            return None, "pods are not listed: see `gpucluster kubectl -- get pods --all-namespaces -o wide`"
        listed = Inquiry(lambda: self._draining.all_jobs(timeout=_FOR_THE_JOBS)).answer(
            time.monotonic() + _FOR_THE_JOBS
        )
        return (None, listed.error) if listed.value is None else (jobs_hit(listed.value, nodes), "")

    def _fields(
        self, resources: TerraformPlan, hosts: Scaling, answer: _OnController | None
    ) -> tuple[FieldEffect, ...] | None:
        changed = changed_fields(answer.record if answer else None, updates.recorded(self._spec))
        loses_data = bool(lost_homes(resources) or lost_state(resources))
        return None if changed is None else effects(changed, hosts, loses_data=loses_data)

    def _differences(
        self, outputs: handover.Outputs | None, hosts: Scaling, answer: InquiryAnswer[_OnController]
    ) -> tuple[ConfigurationDifference, ...]:
        if outputs is None:
            return (ConfigurationDifference("hosts", "configure", "all of them are configured once they exist"),)
        if answer.value is None:
            return (ConfigurationDifference("hosts", "configure", f"{configuration_diff.NOT_KNOWN} ({answer.error})"),)
        now = self._configuration.settings(outputs, hosts.staying)
        keys = (
            ConfigurationDifference("users", "configure", f"generate a key pair for {name}: this machine has none")
            for name in self._configuration.new_key_pairs()
        )
        # These are shown as nodes.
        named = {*hosts.names("removed", "replaced"), *hosts.login.removed, *hosts.login.replaced}
        differences = configuration_diff.differences(answer.value.record, now)
        return (
            *(each for each in differences if not (each.subject == "hosts" and each.what in named)),
            *keys,
            *answer.value.users,
        )


def refuse_what_stays(
    spec: ClusterSpec, controller: ControllerConnection, record: ConfigurationRecord
) -> Mapping[str, Any] | None:
    """Refuse to give a cluster another scheduler, or Kubernetes other networks: what is installed would go on beside
    the new one.

    A controller that does not answer is refused by what needs it.

    Returns:
        How the hosts were configured last; None if it is not known.

    Raises:
        InputError: the hosts were configured with something else. Nothing was changed.
        NewerReleaseError: a newer release has configured them, and its record can't be read.
    """
    try:
        recorded = record.read() if controller.hosts() else None
    except GpuClusterError:
        return None
    configuration_diff.require_known(recorded, f"{CONFIGURATION_RECORD} on the controller")
    for what in _changes_what_stays(_OnController(recorded), spec):
        hint = "Write what it has, or build another cluster; see docs/how-to/kubernetes.md for what they may share"
        raise InputError(what, where=str(spec.file), hint=hint)
    return recorded


def _changes_what_stays(answer: _OnController | None, spec: ClusterSpec) -> Iterator[str]:
    """That the hosts have another scheduler, or have begun to; or that a complete Kubernetes has other networks. One
    without a scheduler may get one."""
    record = (answer.record or {}) if answer else {}
    settings = record.get("settings") or {}
    before = settings.get("scheduler")
    if before not in (None, "none", spec.scheduler):
        yield f"this cluster's scheduler was {before} and would be {spec.scheduler}; a cluster keeps its scheduler"
    elif before == "kubernetes" and record.get("complete"):
        for key in _KEPT_BY_KUBERNETES:
            had, desired = settings.get(f"kubernetes_{key}"), getattr(spec.kubernetes, key)
            if had not in (None, desired):
                yield f"kubernetes.{key} was {had} and would be {desired}; a control plane keeps it"


def _other_release(answer: _OnController | None, spec: ClusterSpec) -> Iterator[str]:
    """That apply would refuse another release of Slurm or Kubernetes.

    An apply that did not end has recorded the release that it wanted, and nothing is known of the hosts.
    """
    record = (answer.record or {}) if answer else {}
    recorded = record.get("settings") if record.get("complete") else None
    if not recorded:
        return
    kubernetes = recorded.get("kubernetes_release") if recorded.get("scheduler") == "kubernetes" else None
    if kubernetes and spec.scheduler == "kubernetes" and kubernetes != spec.kubernetes.release:
        yield (
            f"apply would refuse this: kubernetes.release was {kubernetes} and is {spec.kubernetes.release} now; "
            "`gpucluster kubernetes upgrade` changes the release of a cluster"
        )
    if not spec.slurm.enabled:
        return
    before = recorded.get("slurm_release", DISTRIBUTION)
    if before != spec.slurm.release:
        yield (
            f"apply would refuse this: slurm.release was {before} and is {spec.slurm.release} now; "
            "`gpucluster slurm upgrade` changes the release of a cluster"
        )


def _refusals(plan: TerraformPlan, hosts: Scaling) -> tuple[str, ...]:
    """What apply would refuse without an option."""
    lost = lost_homes(plan)
    return (
        *(f"apply would refuse this without --replace-nodes: {replacement}" for replacement in hosts.replacements),
        *(
            [f"apply would refuse this without --delete-data: users' files would be lost ({', '.join(lost)})"]
            if lost
            else []
        ),
        *(
            f"apply would refuse this without --delete-data: the controller's state would be lost ({address})"
            for address in lost_state(plan)
        ),
    )
