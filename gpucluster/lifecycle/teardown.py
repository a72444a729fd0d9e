"""Remove everything that `apply` made, and never the users' files without consent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from gpucluster.cloud.bastion import Bastion
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.providers import CloudProvider
from gpucluster.cloud.tagged_resources import TaggedResources
from gpucluster.configuration.runner import PlaybookResult
from gpucluster.errors import DataGuardError, GpuClusterError, TerraformError
from gpucluster.lifecycle.adoption import Adoption
from gpucluster.lifecycle.bake import Baking
from gpucluster.lifecycle.elastic_teardown import ElasticTeardown
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SshClient
from gpucluster.terraform.runner import Terraform
from gpucluster.text import count
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState

# Files in the workspace that belong to the deployment. The run log stays.
_FILES = ("provider", "terraform.rc")


class DataGuard:
    """Protects users' files in the share.

    Args:
        collect: runs a playbook that only reads, on the hosts that were configured last.
    """

    def __init__(self, spec: ClusterSpec, saved: SavedState, collect: Callable[[str, Run], PlaybookResult]) -> None:
        self._spec = spec
        self._saved = saved
        self._collect = collect

    def require_no_files(self, run: Run) -> None:
        """Refuse if users' files are in the share, or if that can't be checked.

        Raises:
            DataGuardError: with the number of files of each owner.
        """
        with run.phase("check for users' files"):
            if not self._saved.home_in_use:
                return
            self._check(run)
            # From here on the homes may be deleted: a destroy that was killed must not need the controller again.
            self._saved.home_in_use = False

    def deletes_homes(self, addresses: Sequence[str]) -> bool:
        """Whether the removal of these resources deletes the homes' file system. An existing one
        that cluster.yml names is never deleted.

        Args:
            addresses: of all resources in Terraform's state.
        """
        home = self._spec.storage.home
        existing = home.file_system_id or home.server or not home.enabled
        return not existing or any("oci_file_storage_file_system." in address for address in addresses)

    def _check(self, run: Run) -> None:
        hint = "Copy what is needed, then pass --delete-data to delete the share with all files in it"
        try:
            collected = self._collect("data.yml", run)
        except GpuClusterError as error:
            raise DataGuardError(f"can't find out whether users' files are in the share: {error}", hint=hint) from error
        counts: dict[str, int] = {}
        for facts in collected.facts.values():
            counts |= facts.get("gpucluster_home_files") or {}
        owners = {owner: int(number) for owner, number in counts.items() if int(number)}
        if owners:
            share = self._spec.storage.home.export_path
            each = ", ".join(f"{number} of {owner}" for owner, number in sorted(owners.items()))
            files = count(sum(owners.values()), "file")
            raise DataGuardError(f"the share {share} holds {files} of users: {each}", hint=hint)


def destroy_resources(terraform: Terraform, elastic: Callable[[], ElasticInstances]) -> None:
    """Let Terraform remove what it made. An autoscaler that could not be stopped may have launched a node meanwhile,
    which keeps its network from being deleted. The controller does not exist any more then, so it launches no others.

    Raises:
        TerraformError: what is left is in the state.
    """
    try:
        terraform.apply(terraform.plan(destroy=True))
    except TerraformError:
        if not elastic().remove():
            raise
        terraform.apply(terraform.plan(destroy=True))


class Teardown:
    """Removes one cluster from its cloud and from this machine.

    Args:
        terraform: makes a Terraform that can read the state.
        elastic, tagged, ssh_client, bastion: make the clients of the started cloud.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        paths: ClusterPaths,
        saved: SavedState,
        cloud: CloudProvider,
        guard: DataGuard,
        elastic_teardown: ElasticTeardown,
        baking: Baking,
        *,
        terraform: Callable[[], Terraform],
        elastic: Callable[[], ElasticInstances],
        adoption: Adoption,
        tagged: Callable[[], TaggedResources],
        ssh_client: Callable[[], SshClient],
        bastion: Callable[[], Bastion],
    ) -> None:
        self._spec = spec
        self._paths = paths
        self._saved = saved
        self._cloud = cloud
        self._guard = guard
        self._elastic_teardown = elastic_teardown
        self._baking = baking
        self._terraform = terraform
        self._elastic = elastic
        self._adoption = adoption
        self._tagged = tagged
        self._ssh_client = ssh_client
        self._bastion = bastion

    def run(self, terraform: Terraform, run: Run, *, delete_data: bool) -> int:
        """Remove the cluster. May be killed at any point and run again. Returns how many resources Terraform removed.

        Args:
            terraform: ready to change resources.
            delete_data: do not check for users' files first.

        Raises:
            DataGuardError: there are users' files, or that can't be checked.
            GpuClusterError: see `errors`.
        """
        addresses = terraform.addresses()
        if addresses and not delete_data and self._guard.deletes_homes(addresses):
            self._guard.require_no_files(run)
        if self._spec.elastic_pools or self._elastic().instances():
            self._elastic_teardown.remove_all(run)
        if addresses:
            with run.phase("terraform"):
                self._adoption.remove_untracked(terraform)
                destroy_resources(terraform, self._elastic)
        with run.phase("clean up"):
            self._remove_tagged_resources()
            self._baking.retire_all()
            self._forget()
        return len(addresses)

    def _remove_tagged_resources(self) -> None:
        """Remove what is left with the cluster's tag: Terraform's state did not know it."""
        tagged = self._tagged()
        tagged.remove(tagged.find())

    def _forget(self) -> None:
        """Delete what this machine stores of the cluster: keys, connections, working copies. The run log stays."""
        self._ssh_client().close()
        self._bastion().forget()
        for folder in (self._paths.ssh, self._paths.ansible):
            shutil.rmtree(folder, ignore_errors=True)
        self._saved.forget()
        self._terraform().forget()
        for name in _FILES:
            (self._paths.root / name).unlink(missing_ok=True)
        self._cloud.stop_if_empty()
