"""What Terraform makes and takes away, and what must be so before it does."""

from __future__ import annotations

from typing import Any

from gpucluster import handover
from gpucluster.baking import Baking
from gpucluster.errors import DataGuardError, TerraformError
from gpucluster.runs import Run
from gpucluster.terraform import Terraform
from gpucluster.toolbox import Toolbox
from gpucluster.withdrawal import Withdrawal


class Provisioning:
    """The resources of one cluster in its cloud."""

    def __init__(self, tools: Toolbox, baking: Baking, withdrawal: Withdrawal) -> None:
        self._tools = tools
        self._baking = baking
        self._withdrawal = withdrawal

    def prepare(self, run: Run, *, to_build: bool = False, keep_variables: bool = False) -> Terraform:
        """Look before anything is created, make the cloud answer, and get Terraform ready.

        Args:
            to_build: instances will be launched.
            keep_variables: those of an earlier run stay, where there are some.

        Raises:
            GpuClusterError: see `errors`; nothing was created.
        """
        cloud, kept = self._tools.cloud, self._tools.kept
        with run.phase("prepare"):
            cloud.check(fresh=not kept.begun)
            plain = self._tools.terraform()
            cloud.start(to_build=to_build)
            if to_build and self._tools.spec.elastic_pools:
                self._tools.wheels()
                cloud.controller_access()
            kept.stay_in(cloud.access().compartment_id)
            plain.prepare()
            terraform = self._tools.terraform(cloud.terraform_env(plain.provider_address()))
            terraform.init()
            if not (keep_variables and terraform.has_variables):
                terraform.set_variables(self._variables(terraform))
        return terraform

    def build(self, terraform: Terraform, run: Run, *, delete_data: bool) -> int:
        """Make it so. Returns how many resources were changed.

        Raises:
            DataGuardError: the homes' file system would go, and nobody said that it may.
            TerraformError: what was made is in the state.
        """
        with run.phase("terraform"):
            changes = self._change(terraform, delete_data=delete_data)
            # What was built now may be another controller or another share, for which other images are right.
            if terraform.set_variables(self._variables(terraform)):
                changes += self._change(terraform, delete_data=delete_data)
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

    def _change(self, terraform: Terraform, *, delete_data: bool) -> int:
        plan = terraform.plan()
        lost = plan.lost("oci_file_storage_file_system")
        if lost and not delete_data:
            raise DataGuardError(
                f"this would delete the file system with the users' homes ({', '.join(lost)})",
                hint="Undo the change in cluster.yml, or say --delete-data",
            )
        self._withdrawal.make_way(plan)
        if plan.changes:
            terraform.apply(plan)
        else:
            plan.file.unlink(missing_ok=True)
        return len(plan.changes)

    def _variables(self, terraform: Terraform) -> dict[str, Any]:
        cloud = self._tools.cloud
        baked = self._baking.fitting(terraform.outputs())
        return handover.tfvars(
            self._tools.spec,
            tenancy_id=cloud.tenancy_id,
            compartment_id=cloud.access().compartment_id,
            ssh_authorized_keys=cloud.authorized_keys(),
            baked_images={pool: image.id for pool, image in baked.items()},
        )
