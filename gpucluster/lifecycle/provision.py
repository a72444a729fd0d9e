"""Create and change the cloud's resources with Terraform, after the checks that must pass before that."""

from __future__ import annotations

import http
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from gpucluster import __version__, formats, handover
from gpucluster import preflight as preflights
from gpucluster.cloud.client import CloudAccess, home_region, refusals
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.power import InstancePower
from gpucluster.cloud.providers import CloudProvider
from gpucluster.cloud.service_move import ServiceMove
from gpucluster.cloud.tagged_resources import TaggedResources
from gpucluster.errors import (
    CloudError,
    DataGuardError,
    InputError,
    LockedError,
    OtherClusterError,
    TerraformError,
)
from gpucluster.events import Sink, warn
from gpucluster.handover import ServiceRecord, earlier_formats, iam, user_data
from gpucluster.handover.adoption import CONTROLLER, NETWORK, STANDBY, STATE_ATTACHMENT
from gpucluster.handover.shares import mount_targets
from gpucluster.lifecycle.adoption import Adoption, AdoptionSurvey, Recovered
from gpucluster.lifecycle.automatic_failover import require_followed
from gpucluster.lifecycle.backup_certificate import require_valid_certificate
from gpucluster.lifecycle.bake import Baking
from gpucluster.lifecycle.data_guard import DELETE_DATA_HINT
from gpucluster.lifecycle.disk_sizes import refuse_smaller
from gpucluster.lifecycle.distribution import Distributions
from gpucluster.lifecycle.downloads import Downloads
from gpucluster.lifecycle.elastic_teardown import ElasticTeardown
from gpucluster.lifecycle.host_reports import HostFault, HostReporting
from gpucluster.lifecycle.ownership import Ownership
from gpucluster.lifecycle.resize import Resizing, Scaling, is_controller, is_host, recreated_addresses
from gpucluster.operations.drain import DRAIN_TIMEOUT
from gpucluster.rollout.record import RolloutRecord
from gpucluster.spec import ClusterSpec, ControllerSpec, LoginSpec, PoolSpec
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace.login_keys import LoginKeys
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedRelease, SavedState


class TerraformFactory(Protocol):
    """Makes Terraform in the cluster's working copy."""

    def __call__(self, env: Mapping[str, str] | None = None) -> Terraform:
        """With the provider's environment; None is enough to read the state."""


@dataclass(frozen=True)
class Consent:
    """What a run may do that can't be undone.

    Args:
        delete_data: delete or replace file systems with users' files.
        replace_nodes: recreate nodes that cluster.yml still asks for, or the controller.
        drain_timeout: seconds to wait for jobs on nodes that are removed; with 0 they are requeued, or cancelled.
        recreate: permanent nodes to recreate, each under its name, although nothing has changed. Nothing else may
            change then.
        confirm: is called with the changes of a cluster that stands before the first of them is made, and raises an
            error to make none. It is not called for a first apply, nor where nothing changes.
        faults: of the hardware of nodes of `recreate`, by the node's name: their physical hosts are reported to Oracle.
        replace_controller: put another machine in the place of the controller. No other host may change then.
    """

    delete_data: bool = False
    replace_nodes: bool = False
    drain_timeout: float = DRAIN_TIMEOUT
    recreate: tuple[str, ...] = ()
    confirm: Callable[[Sequence[ResourceChange]], None] | None = None
    faults: Mapping[str, HostFault] = field(default_factory=dict)
    replace_controller: bool = False


_COMPARTMENT = "oci_identity_compartment.elastic[0]"
# How often a cluster that was just begun is looked at while others remove theirs.
_SURVEYS = 5
# What a controller alone brings into the state. A subscription to a marketplace image is not removed with it: the
# compartment has one for all clusters.
_WITH_CONTROLLER = ("module.controller", "terraform_data.image")


def network_compartment(spec: ClusterSpec, access: CloudAccess) -> str | None:
    """The compartment of the nodes' subnet, if elastic nodes are launched into an existing one; None: the cluster's.

    Raises:
        CloudError: the cloud refused, or can't be reached.
    """
    if not (spec.network.private_subnet_id and spec.elastic_pools):
        return None
    with refusals("reading the subnet of the nodes"):
        subnet = access.client("core", "VirtualNetworkClient").get_subnet(spec.network.private_subnet_id).data
    return str(subnet.compartment_id)


def _counted(changes: Iterable[ResourceChange]) -> Counter[str]:
    """How many changes there are of each action, without those of Terraform's own resources."""
    return Counter(change.action for change in changes if not change.internal)


def _write_rollouts(terraform: Terraform, rollouts: Mapping[str, RolloutRecord]) -> None:
    texts = {pool: record.to_json() for pool, record in rollouts.items()}
    terraform.set_output(handover.ROLLOUTS, texts, handover.ROLLOUTS_TYPE)


def lost_homes(plan: TerraformPlan) -> tuple[str, ...]:
    """The addresses of the file systems with users' files that a plan deletes or replaces."""
    return plan.lost("oci_file_storage_file_system")


def lost_state(plan: TerraformPlan) -> tuple[str, ...]:
    """The addresses of the volumes with a controller's state that a plan deletes or replaces."""
    return plan.lost("oci_core_volume")


def lost_controller(plan: TerraformPlan, outputs: Mapping[str, Any]) -> str:
    """What is lost with a controller that the state has, and that a plan creates again; "" if it stays.

    Args:
        outputs: Terraform's, of the last apply.
    """
    created = any(is_controller(change.address) and change.action == "create" for change in plan.changes)
    if not created or not outputs.get("cluster") or ServiceRecord.parse(outputs).host == handover.STANDBY_HOST:
        return ""
    return (
        "the controller does not exist any more and is created again. Only its disk had the user directory, the "
        "accounting, and the queue with the running jobs; users of cluster.yml are created again. If there is a "
        "backup, run `gpucluster restore FILE` after this apply, before users are added (docs/how-to/backup.md)"
    )


def _check_no_other_host(plan: TerraformPlan) -> None:
    """Replacing the controller makes no other change that cluster.yml asks for meanwhile.

    Raises:
        InputError: with the hosts that would change.
    """
    others = [
        change.address for change in plan.changes if is_host(change.address) and not is_controller(change.address)
    ]
    if others:
        raise InputError(
            f"cluster.yml asks for other changes as well, and nothing was replaced: {', '.join(others)}",
            hint="See them with `gpucluster plan`. Undo them in cluster.yml, run the same command again, and make them "
            "afterwards with `gpucluster apply`",
        )


def _check_service(plan: TerraformPlan, terraform: Terraform) -> None:
    """Refuse to remove or to recreate the standby while it is in service.

    Raises:
        InputError: with what to do before.
    """
    gone = [each for each in plan.changes if each.address == STANDBY and each.action in ("delete", "replace", "create")]
    if gone and ServiceRecord.parse(terraform.outputs()).host == handover.STANDBY_HOST:
        raise InputError(
            f"the standby is in service, and this would {gone[0].action} it: nothing was changed",
            hint="Let the other host go on before: gpucluster controller failover",
        )


class Provisioning:
    """The resources of one cluster in its cloud.

    Args:
        tagged: makes the client that finds resources by the cluster's tag.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        cloud: CloudProvider,
        saved: SavedState,
        terraform: TerraformFactory,
        downloads: Downloads,
        baking: Baking,
        elastic_teardown: ElasticTeardown,
        reporting: HostReporting,
        resizing: Resizing,
        tagged: Callable[[], TaggedResources],
        adoption: Adoption,
        login_keys: LoginKeys,
        ownership: Ownership,
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._cloud = cloud
        self._saved = saved
        self._terraform = terraform
        self._downloads = downloads
        self._baking = baking
        self._elastic_teardown = elastic_teardown
        self._reporting = reporting
        self._resizing = resizing
        self._tagged = tagged
        self._adoption = adoption
        self._existing_images: Mapping[str, str] = {}
        self._controller_address = ""
        self._login_keys = login_keys
        self._ownership = ownership
        self._distributions = Distributions(spec, cloud)
        self._on_event = on_event

    def prepare(
        self,
        run: Run,
        *,
        to_build: bool = False,
        keep_variables: bool = False,
        preflight: bool = False,
        recovering: bool = False,
        only_look: bool = False,
    ) -> Terraform:
        """Check this machine and the cloud, start the local cloud, and get Terraform ready.

        Args:
            to_build: instances will be launched.
            keep_variables: use the variables of an earlier run, if there are any.
            preflight: ask the cloud in advance whether it would accept the spec.
            recovering: the cluster's resources are adopted as they are.
            only_look: nothing will be changed.

        Raises:
            OtherClusterError: the cloud has a cluster of this name that is not known to be the one of this folder.
            LockedError: a run of another machine or folder holds the cluster.
            PreflightError: it would not.
            GpuClusterError: see `errors`; nothing was created.
        """
        cloud, saved = self._cloud, self._saved
        with run.phase("cloud"):
            cloud.check()
            if not keep_variables:  # a destroy launches nothing
                cloud.check_gpus()
                require_valid_certificate(self._spec)
            plain = self._terraform()
            built = bool(saved.compartment) or plain.state_is_damaged or bool(plain.addresses())
            cloud.start(to_build=False)
            if not recovering and not plain.restore_state() and not self._tagged().find():
                plain.set_damaged_state_aside()
            # A damaged state is refused below. Preflight explains better why a cloud refuses to list anything.
            sound = recovering or not plain.state_is_damaged
            with suppress(CloudError) if preflight else nullcontext():
                if sound:
                    self._ownership.require(strict=keep_variables or recovering, only_look=only_look)
            if not keep_variables:  # a destroy creates nothing: which addresses this machine uses does not matter
                cloud.check_network()
            if to_build:
                cloud.start(to_build=True)
        if preflight:
            # Before anything is written: a mistyped compartment must not be remembered as the cluster's.
            with run.phase("preflight"):
                preflights.check(self._spec, cloud, plain.outputs() if built else {}, self._on_event)
                self._ownership.require(only_look=only_look)
        with run.phase("prepare"):
            if to_build:
                self._check_downloads()
            self._check_compartment(plain)
            self._check_elastic_compartment(plain.outputs())
            plain.prepare()
            terraform = self._terraform(cloud.terraform_env(plain.provider_address()))
            terraform.init()
            if recovering or keep_variables:
                self._ownership.save()
            else:
                self._ownership.claim(save=to_build)
            stored = earlier_formats.variables(terraform.variables) if keep_variables else {}
            terraform.set_variables(stored or self._variables(terraform))
            if to_build:
                saved.release = SavedRelease(formats.CLUSTER_FORMAT, __version__)
        return terraform

    def _check_compartment(self, terraform: Terraform) -> None:
        """Refuse a compartment or a region in which the cluster was not built, or another local cloud. Terraform would
        find nothing of it there, and would create it a second time.

        Raises:
            InputError: with both compartments, or both regions.
        """
        compartment = self._cloud.access().compartment_id
        built_in, where = handover.Identity.parse(terraform.outputs()).compartment_id, str(terraform.backend)
        if not built_in and not terraform.backend.remote:
            built_in, where = self._saved.compartment, "this machine's folder of the cluster"
        if built_in and built_in != compartment:
            raise InputError(
                f"this cluster was built in another compartment: {built_in}, and not {compartment}",
                where=where,
                hint="Use the cluster file (or the local cloud) that it was built with, and run there: "
                "gpucluster destroy",
            )
        region = str((terraform.outputs().get("cluster") or {}).get("region") or "")
        if region and region != self._spec.cloud.region:
            raise InputError(
                f"this cluster was built in another region: {region}, and not {self._spec.cloud.region}",
                where=where,
                hint=f"Write `region: {region}` into cluster.yml. To move the cluster, destroy it first",
            )
        self._saved.compartment = compartment

    def _check_elastic_compartment(self, outputs: Mapping[str, Any]) -> None:
        """Refuse another compartment for elastic nodes while some run in the present one: no run would look for them
        there, and they would never end.

        Raises:
            InputError: with their names.
        """
        access, cluster = self._cloud.access(), outputs.get("cluster") or {}
        present = cluster.get("elastic_compartment_id") or cluster.get("compartment_id")
        try:
            with refusals("looking for the compartment of elastic nodes"):
                desired = access.elastic_compartment()
            if not present or present == desired:
                return
            left = ElasticInstances(
                access.with_elastic(present), self._spec.name, self._on_event, identity=self._ownership.id
            ).instances()
        except CloudError as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            text = f"the compartment in which elastic nodes were can't be read: {present}. End what still runs there"
            warn(self._on_event, "cluster", text)
            return
        if left:
            raise InputError(
                f"iam.elastic_compartment was changed while elastic nodes run in the present compartment {present}: "
                + ", ".join(instance.node for instance in left),
                hint="Undo the change. End them first: gpucluster ssh -- sudo scontrol update nodename=NODES "
                "state=power_down",
            )

    def survey(self, terraform: Terraform) -> AdoptionSurvey:
        """What the cloud has with the cluster's tags, compared with the state. Reads only."""
        return self._survey(terraform)

    def plan(self, terraform: Terraform) -> tuple[TerraformPlan, Scaling]:
        """What would be changed, and what that would do to the hosts."""
        survey = self._survey(terraform)
        with self._adoption.adopting(terraform, survey):
            plan = self._distributions.plan(terraform, with_values=True)
        refuse_smaller(plan)
        scaling = self._resizing.scaling(terraform, plan)
        return replace(plan, changes=(*plan.changes, *self._adoption.removals(survey))), scaling

    def apply(self, terraform: Terraform, run: Run, consent: Consent) -> Counter[str]:
        """Create and change the resources. Returns how many, by the action: create, update, replace, delete.

        Raises:
            DataGuardError: the homes' file system would be deleted, and that is not allowed.
            ReplacementError: nodes that cluster.yml still asks for would be recreated, and that is not allowed.
            TerraformError: what was made is in the state.
        """
        with run.phase("terraform"):
            began = not self._ownership.is_visible
            changes = self._begin(terraform) if began else Counter()
            if began:
                consent = replace(consent, confirm=None)
            survey = self._survey_of_new(terraform) if began else self._survey(terraform)
            self._resizing.drain(self._adoption.nodes_to_remove(survey), consent.drain_timeout)
            changes["delete"] += self._adoption.remove(survey)
            with self._adoption.adopting(terraform, survey):
                changes += self._change(terraform, consent)
            self._ownership.hold()
            self._drop_ended_rollouts(terraform)
            self._controller_address = ""
            # If the controller or the share is new, the baked images that fit are other ones than before; and a new
            # mount target may get more throughput from now on.
            if terraform.set_variables(self._variables(terraform)):
                consent = replace(consent, recreate=(), confirm=None, replace_controller=False)
                changes += self._change(terraform, consent)
        return changes

    def _begin(self, terraform: Terraform) -> Counter[str]:
        """Make what carries the lock of a run before anything else of a new cluster: its network, or in an existing one
        its controller. Returns the number of changes by action.

        Raises:
            OtherClusterError: another run has begun a cluster of this name earlier. What this one made is removed.
            LockedError: another run was faster. What this one made is removed.
            TerraformError: Terraform refused.
        """
        existing = self._spec.network.vcn_id is not None
        if existing and (self._ownership.has_hosts or any(is_host(address) for address in terraform.addresses())):
            # It is not a first apply: the controller of a cluster that stands is lost, or its state, too. The error
            # of the next step reports it.
            return Counter()
        first, alone = (CONTROLLER, _WITH_CONTROLLER) if existing else (NETWORK, (NETWORK,))
        # What Terraform refuses of the whole, it refuses before anything exists.
        terraform.plan().file.unlink(missing_ok=True)
        plan = terraform.plan(only=(first,))
        try:
            try:
                terraform.apply(plan)
            except TerraformError:
                # A subnet has one host of a name: OCI may have refused the second controller.
                self._ownership.require_first()
                raise
            self._ownership.hold()
        except (OtherClusterError, LockedError):
            # And nothing else: the state may have the file system that an earlier destroy has kept.
            terraform.apply(terraform.plan(destroy=True, only=alone))
            raise
        return _counted(plan.changes)

    def record(self, terraform: Terraform, **reports: Mapping[str, str]) -> None:
        """Write into the state what hosts have reported of themselves, if it has other values.

        Args:
            terraform: of this run, after its `apply`.
            reports: by the names of `handover.RECORDED`.

        Raises:
            TerraformError: Terraform refused.
        """
        outputs = terraform.outputs()
        known = handover.Identity.parse(outputs).recorded
        if {**known, **reports} == known:
            return
        for name in sorted({*reports} & {"certificates", "secrets"}):
            other = sorted(
                each for each in known[name] if reports[name].get(each, known[name][each]) != known[name][each]
            )
            if other:
                text = f"the controller has other {name} than at the last apply: {', '.join(other)}"
                warn(self._on_event, "cluster", text)
        terraform.set_output("identity", {**outputs["identity"], **reports})

    def correct_login_keys(self, terraform: Terraform, keys: Mapping[str, str]) -> None:
        """Write into the state which generated keys of users the directory has, where it has others.

        Args:
            terraform: of this run, after its `apply`.
            keys: public keys, by user.

        Raises:
            TerraformError: Terraform refused.
        """
        identity = terraform.outputs()["identity"]
        terraform.set_output("identity", {**identity, "login_keys": {**(identity.get("login_keys") or {}), **keys}})

    def forget_host_keys(self, terraform: Terraform) -> None:
        """Take the host keys, and the CA that certifies them, out of the state: the next contact with each host
        is a first one.

        Raises:
            TerraformError: Terraform refused.
        """
        identity = handover.Identity.parse(terraform.outputs())
        if identity.host_keys or identity.ssh_authority:
            others = {name: text for name, text in identity.certificates.items() if name != handover.SSH_AUTHORITY}
            self.record(terraform, host_keys={}, certificates=others)
            terraform.set_variables(self._variables(terraform))

    def note_host_keys(self, terraform: Terraform, keys: Mapping[str, str]) -> None:
        """Write into the state which other ssh host keys hosts have, and let the next plan follow it.

        Args:
            terraform: of this run, after its `prepare`.
            keys: as `type key`, by the instance's OCID.

        Raises:
            TerraformError: Terraform refused.
        """
        identity = handover.Identity.parse(terraform.outputs())
        self.record(terraform, host_keys={**identity.host_keys, **keys})
        terraform.set_variables(self._variables(terraform))

    def note_authority(self, terraform: Terraform, name: str, text: str) -> None:
        """Write into the state which CA the cluster has now, and let the next plan follow it.

        Args:
            terraform: of this run, after its `prepare`.
            name: of the CA, as in `handover.outputs`.
            text: its public key, or its certificate, as the file on the controller has it.

        Raises:
            TerraformError: Terraform refused.
        """
        outputs = terraform.outputs()
        certificates = {**handover.Identity.parse(outputs).certificates, name: text}
        terraform.set_output("identity", {**outputs["identity"], "certificates": certificates})
        terraform.set_variables(self._variables(terraform))

    def note_rollouts(self, terraform: Terraform, rollouts: Mapping[str, RolloutRecord]) -> None:
        """Write into the state how far images have rolled through pools, and let the next plan follow it.

        Args:
            terraform: of this run, after its `prepare`.
            rollouts: by pool; a pool that is left out has none.

        Raises:
            TerraformError: Terraform refused.
        """
        _write_rollouts(terraform, rollouts)
        terraform.set_variables(self._variables(terraform))

    def note_service(self, terraform: Terraform, record: ServiceRecord) -> None:
        """Write into the state which host is in service, and let the next plan follow it.

        Args:
            terraform: of this run, after its `prepare`.

        Raises:
            TerraformError: Terraform refused.
        """
        terraform.set_output(handover.SERVICE, record.to_dict(), handover.SERVICE_TYPE)
        if terraform.has_variables:
            terraform.set_variables({**terraform.variables, handover.SERVICE: record.to_dict()})

    @staticmethod
    def forget_attachment(terraform: Terraform) -> None:
        """Take the attachment of the controller's volume out of the state, because another one was made in its place.
        The next apply adopts that.

        Raises:
            TerraformError: Terraform refused.
        """
        if STATE_ATTACHMENT in terraform.addresses():
            terraform.remove_from_state([STATE_ATTACHMENT])

    def end_rollouts(self, terraform: Terraform) -> None:
        """Let every node have the image of its pool from the next plan on.

        Raises:
            TerraformError: Terraform refused.
        """
        if handover.rollouts(terraform.outputs()):
            self.note_rollouts(terraform, {})

    @staticmethod
    def _drop_ended_rollouts(terraform: Terraform) -> None:
        """A rollout that has ended before every node had the image is over as soon as cluster.yml asks for the images
        that the nodes have."""
        outputs = terraform.outputs()
        records = handover.rollouts(outputs)
        pools = handover.Outputs.parse(outputs).pools if records else {}
        left = {
            pool: record
            for pool, record in records.items()
            if pool in pools and not (record.ended and set(record.images.values()) <= {pools[pool].image_id})
        }
        if left != records:
            _write_rollouts(terraform, left)

    def forget_disks(self, terraform: Terraform, instances: Collection[str]) -> None:
        """Take the host keys of instances that get another boot volume out of the state.

        Args:
            instances: their OCIDs.
        """
        host_keys = handover.Identity.parse(terraform.outputs()).host_keys
        kept = {ocid: key for ocid, key in host_keys.items() if ocid not in instances}
        self.record(terraform, host_keys=kept)
        terraform.set_variables(self._variables(terraform))

    def recover(self, terraform: Terraform, run: Run) -> Recovered:
        """Put everything that the cloud has of the cluster into Terraform's state, and change nothing else.

        Raises:
            GpuClusterError: see `errors`.
        """
        with run.phase("terraform"):
            return self._adoption.recover(terraform, lambda images: self._set_images(terraform, images))

    def _survey(self, terraform: Terraform) -> AdoptionSurvey:
        if self._spec.controller.automatic_failover:
            move = ServiceMove(self._cloud.access(), self._spec.name, self._on_event, tags={})
            require_followed(terraform.outputs(), move.holder)
        survey = self._adoption.survey(terraform)
        self._set_images(terraform, survey.images)
        return survey

    def _survey_of_new(self, terraform: Terraform) -> AdoptionSurvey:
        """The first survey of a cluster that was just begun: others may have begun one of this name a moment later."""
        left = _SURVEYS
        while True:
            try:
                return self._survey(terraform)
            except OtherClusterError:
                left -= 1
                if not left or not self._ownership.await_removal_by_others():
                    raise

    def _set_images(self, terraform: Terraform, images: Mapping[str, str]) -> None:
        if images:
            self._existing_images = dict(images)
            terraform.set_variables(self._variables(terraform))

    def _check_downloads(self) -> None:
        """Fetch what the hosts will need: a file that can't be fetched must stop a run before anything is created."""
        self._downloads.release_files()
        if self._spec.asks_cloud:
            self._downloads.wheels()

    def _change(self, terraform: Terraform, consent: Consent) -> Counter[str]:
        recreated = recreated_addresses(self._spec, consent.recreate)
        if consent.replace_controller:
            recreated = (*recreated, CONTROLLER)
            self._keep_address(terraform)
        faulty = self._remember_faulty(terraform, consent.faults)
        plan = self._distributions.plan(terraform, recreated)
        if consent.replace_controller:
            _check_no_other_host(plan)
        _check_service(plan, terraform)
        refuse_smaller(plan)
        lost = lost_homes(plan)
        if lost and not consent.delete_data:
            raise DataGuardError(
                f"this would delete file systems with users' files ({', '.join(lost)})",
                hint=f"Undo the change in cluster.yml. {DELETE_DATA_HINT}",
            )
        if (state := lost_state(plan)) and not consent.delete_data:
            raise DataGuardError(
                f"this would delete the volume with the controller's state ({', '.join(state)})",
                hint="Undo the change in cluster.yml. To give the volume up, move the state back first: "
                "docs/how-to/controller.md",
            )
        if lost_controller(plan, terraform.outputs()) and self._keep_address(terraform):
            plan = self._distributions.plan(terraform, recreated)
        visible = [change for change in plan.changes if not change.internal]
        if visible and consent.confirm:
            consent.confirm(visible)
        plan = self._resizing.drain_and_detach(
            terraform,
            plan,
            replace_nodes=consent.replace_nodes,
            recreate=consent.recreate,
            drain_timeout=consent.drain_timeout,
            again=lambda: self._distributions.plan(terraform, recreated),
            emptied=lambda: self._report_faulty(terraform, consent.faults, faulty),
        )
        lost_with_it = "" if self._spec.controller.has_state_volume else lost_controller(plan, terraform.outputs())
        if lost_with_it:
            warn(self._on_event, "controller", lost_with_it)
        self._elastic_teardown.remove_obstacles(plan)
        plan = self._without_keys_of_new_disks(terraform, plan, recreated)
        if plan.changes or plan.changes_outputs:
            # Last: what comes before may ask it.
            self._stop_controller(terraform, plan)
            with self._resizing.restarts(terraform, plan):
                terraform.apply(plan)
            if any(is_controller(change.address) and change.action == "replace" for change in plan.changes):
                # It may have carried the lock.
                self._ownership.hold_again()
        else:
            plan.file.unlink(missing_ok=True)
        return _counted(plan.changes)

    def _remember_faulty(self, terraform: Terraform, faults: Mapping[str, HostFault]) -> dict[str, str]:
        """Write into the state which physical hosts are bad, before a plan is made: a plan does not survive a change of
        the state. Returns the OCIDs of the instances, by the nodes' names."""
        if not faults:
            return {}
        instances = self._resizing.instances(terraform, faults)
        identity = handover.Identity.parse(terraform.outputs())
        bad = self._reporting.remember(faults, instances, identity.physical_hosts)
        if bad:
            self.record(terraform, reported_hosts={**identity.reported_hosts, **bad})
            terraform.set_variables(self._variables(terraform))
        return instances

    def _report_faulty(
        self, terraform: Terraform, faults: Mapping[str, HostFault], instances: Mapping[str, str]
    ) -> None:
        if faults:
            identity = handover.Identity.parse(terraform.outputs())
            self._reporting.report(faults, instances, identity.physical_hosts)

    def _keep_address(self, terraform: Terraform) -> bool:
        """Let a new controller take the private address of the last one. Returns whether that is known."""
        outputs = terraform.outputs()
        if not outputs.get("cluster") or self._controller_address:
            return False
        self._controller_address = handover.Outputs.parse(outputs).controller.private_ip
        terraform.set_variables(self._variables(terraform))
        return bool(self._controller_address)

    def _stop_controller(self, terraform: Terraform, plan: TerraformPlan) -> None:
        """Stop a controller that is about to lose its volume: two hosts must never write to one.

        Raises:
            CloudError: it does not stop. Nothing was replaced.
        """
        goes = any(is_controller(change.address) and change.action in ("replace", "delete") for change in plan.changes)
        if not (goes and self._spec.controller.has_state_volume):
            return
        outputs = terraform.outputs()
        if outputs.get("cluster") and ServiceRecord.parse(outputs).host != handover.STANDBY_HOST:
            controller = handover.Outputs.parse(terraform.outputs()).controller
            InstancePower(self._cloud.access(), self._on_event).stop(controller.id, controller.name)

    def _without_keys_of_new_disks(
        self, terraform: Terraform, plan: TerraformPlan, recreated: Sequence[str] = ()
    ) -> TerraformPlan:
        """The plan to apply: it takes the host keys of hosts that get another boot volume out of the state."""
        host_keys = handover.Identity.parse(terraform.outputs()).host_keys
        lost = self._resizing.new_disks(terraform, plan) & host_keys.keys()
        if not lost:
            return plan
        kept = {ocid: key for ocid, key in host_keys.items() if ocid not in lost}
        recorded = {**terraform.variables["recorded"], "host_keys": kept}
        terraform.set_variables({**terraform.variables, "recorded": recorded})
        return self._distributions.plan(terraform, recreated)

    @cached_property
    def _home_region(self) -> str:
        return home_region(self._cloud.access())

    @cached_property
    def _network_compartment(self) -> str | None:
        return network_compartment(self._spec, self._cloud.access())

    def _variables(self, terraform: Terraform) -> dict[str, Any]:
        spec, cloud = self._spec, self._cloud
        access = cloud.access()
        baked = self._baking.fitting(terraform.outputs())
        # Terraform fills in the matching rule: it knows the controller that it makes.
        machines: dict[str, ControllerSpec | LoginSpec | PoolSpec] = {
            "controller": spec.controller,
            handover.LOGIN: spec.login,
            **spec.host_pools,
        }
        rights = iam.policies(
            spec,
            compartment_id=access.compartment_id,
            controller_id=None,
            network_compartment_id=self._network_compartment,
        )
        return handover.tfvars(
            spec,
            tenancy_id=cloud.tenancy_id,
            compartment_id=access.compartment_id,
            ssh_authorized_keys=cloud.authorized_keys(),
            baked_images={pool: image.id for pool, image in baked.items()},
            home_region=self._home_region if rights.created else spec.cloud.region,
            user_data={
                name: user_data.user_data(user_data.boot_settings(spec, machine)) for name, machine in machines.items()
            },
            iam=iam.tfvars(rights),
            node_iam=iam.node_tfvars(rights),
            existing_images=self._existing_images,
            login_keys=self._login_keys.generated(),
            recorded=handover.Identity.parse(terraform.outputs()).recorded,
            standing_compartment=self._standing_compartment(terraform),
            cluster_id=self._ownership.id,
            origin=self._ownership.origin,
            rollouts=handover.rollouts(terraform.outputs()),
            controller_address=self._controller_address,
            service=handover.ServiceRecord.parse(terraform.outputs()),
            release=__version__,
            mount_targets=mount_targets(terraform.addresses()),
        )

    def _standing_compartment(self, terraform: Terraform) -> str:
        """The OCID of the compartment of elastic nodes that exists and is in no state; empty if there is none.

        A destroy leaves it. To create it again would work, but the plan could not tell before the apply that what a
        recovered state has in it stays where it is.
        """
        if not self._spec.iam.creates_compartment or _COMPARTMENT in terraform.addresses():
            return ""
        with refusals("looking for the compartment of elastic nodes"):
            return self._cloud.access().elastic_compartment()
