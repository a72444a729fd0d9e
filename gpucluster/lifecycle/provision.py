"""What Terraform makes and takes away, and what must be so before it does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpucluster import handover
from gpucluster.cloud.client import Access, home_region, refusals
from gpucluster.errors import DataGuardError, TerraformError
from gpucluster.handover import iam, user_data
from gpucluster.lifecycle.bake import Baking
from gpucluster.lifecycle.elastic_teardown import Withdrawal
from gpucluster.lifecycle.resize import Replacement, Scaling
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.operations.drain import DRAIN_TIMEOUT
from gpucluster.preflight import check as look_ahead
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.runner import Plan, Terraform
from gpucluster.workspace.run import Run


@dataclass(frozen=True)
class Consent:
    """What a run may do that can't be undone.

    Args:
        delete_data: delete or replace the file system with the users' homes.
        replace_nodes: make nodes anew that are still wished for, or the controller.
        drain_timeout: seconds that jobs on nodes that go are given to end; with 0 they are requeued, or ended.
    """

    delete_data: bool = False
    replace_nodes: bool = False
    drain_timeout: float = DRAIN_TIMEOUT


def network_compartment(spec: ClusterSpec, access: Access) -> str | None:
    """The compartment of the nodes' subnet where elastic nodes are launched into an existing one; None: the cluster's.

    Raises:
        CloudError: the cloud refused, or can't be reached.
    """
    if not (spec.network.private_subnet_id and spec.elastic_pools):
        return None
    with refusals("reading the subnet of the nodes"):
        found = access.client("core", "VirtualNetworkClient").get_subnet(spec.network.private_subnet_id)
    return str(found.data.compartment_id)


class Provisioning:
    """The resources of one cluster in its cloud."""

    def __init__(self, tools: Toolbox, baking: Baking, withdrawal: Withdrawal, scaling: Scaling) -> None:
        self._tools = tools
        self._baking = baking
        self._withdrawal = withdrawal
        self._scaling = scaling

    def prepare(
        self, run: Run, *, to_build: bool = False, keep_variables: bool = False, preflight: bool = False
    ) -> Terraform:
        """Look before anything is created, make the cloud answer, and get Terraform ready.

        Args:
            to_build: instances will be launched.
            keep_variables: those of an earlier run stay, where there are some.
            preflight: ask the cloud first whether it would do what is wished for.

        Raises:
            PreflightError: it would not.
            GpuClusterError: see `errors`; nothing was created.
        """
        cloud, kept = self._tools.cloud, self._tools.kept
        with run.phase("cloud"):
            cloud.check(fresh=not kept.begun)
            plain = self._tools.terraform()
            cloud.start(to_build=to_build)
        if preflight:
            # Before anything is written down: a mistyped compartment must not be remembered as the cluster's.
            with run.phase("preflight"):
                outputs = plain.outputs() if kept.begun else {}
                look_ahead(self._tools.spec, cloud, outputs, self._tools.on_event)
        with run.phase("prepare"):
            if to_build:
                self._tools.software()
            if to_build and self._tools.spec.elastic_pools:
                self._tools.wheels()
                cloud.controller_access(None)
            kept.stay_in(cloud.access().compartment_id)
            plain.prepare()
            terraform = self._tools.terraform(cloud.terraform_env(plain.provider_address()))
            terraform.init()
            if not (keep_variables and terraform.has_variables):
                terraform.set_variables(self._variables(terraform))
        return terraform

    def plan(self, terraform: Terraform) -> tuple[Plan, tuple[Replacement, ...]]:
        """What would be changed, and which of it would make nodes anew that are still wished for."""
        plan = terraform.plan()
        return plan, self._scaling.replacements(terraform, plan)

    def build(self, terraform: Terraform, run: Run, consent: Consent) -> int:
        """Make it so. Returns how many resources were changed.

        Raises:
            DataGuardError: the homes' file system would go, and nobody said that it may.
            ReplacementError: nodes that are still wished for would be made anew, and nobody said that they may.
            TerraformError: what was made is in the state.
        """
        with run.phase("terraform"):
            changes = self._change(terraform, consent)
            # What was built now may be another controller or another share, for which other images are right.
            if terraform.set_variables(self._variables(terraform)):
                changes += self._change(terraform, consent)
        return changes

    def tear_down(self, terraform: Terraform, run: Run) -> None:
        """Let Terraform remove what it made. An autoscaler that could not be stopped may have launched a node since,
        which holds its network fast; with the controller gone it launches no more.

        Raises:
            TerraformError: what is left is in the state.
        """
        with run.phase("terraform"):
            try:
                terraform.apply(terraform.plan(destroy=True))
            except TerraformError:
                if not self._tools.elastic().remove():
                    raise
                terraform.apply(terraform.plan(destroy=True))

    def _change(self, terraform: Terraform, consent: Consent) -> int:
        plan = terraform.plan()
        lost = plan.lost("oci_file_storage_file_system")
        if lost and not consent.delete_data:
            raise DataGuardError(
                f"this would delete the file system with the users' homes ({', '.join(lost)})",
                hint="Undo the change in cluster.yml, or say --delete-data",
            )
        plan = self._scaling.make_way(
            terraform, plan, replace_nodes=consent.replace_nodes, drain_timeout=consent.drain_timeout
        )
        self._withdrawal.make_way(plan)
        if plan.changes or plan.changes_outputs:
            terraform.apply(plan)
        else:
            plan.file.unlink(missing_ok=True)
        return len(plan.changes)

    @cached_property
    def _home_region(self) -> str:
        return home_region(self._tools.cloud.access())

    @cached_property
    def _network_compartment(self) -> str | None:
        return network_compartment(self._tools.spec, self._tools.cloud.access())

    def _variables(self, terraform: Terraform) -> dict[str, Any]:
        spec, cloud = self._tools.spec, self._tools.cloud
        access = cloud.access()
        baked = self._baking.fitting(terraform.outputs())
        # The matching rule is Terraform's to fill in: it knows the controller that it makes.
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
                pool or "controller": user_data.user_data(user_data.boot_settings(spec, pool))
                for pool in (None, *spec.pools)
            },
            iam=iam.tfvars(rights),
        )
