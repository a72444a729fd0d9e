"""Remove everything that `apply` made, and never the users' files without consent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from gpucluster.cloud.bastion import Bastion
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.providers import CloudProvider
from gpucluster.cloud.tagged_resources import TaggedResource, TaggedResources
from gpucluster.errors import DataGuardError, TerraformError
from gpucluster.events import Sink, info
from gpucluster.lifecycle.adoption import Adoption
from gpucluster.lifecycle.bake import Baking
from gpucluster.lifecycle.data_guard import DataGuard, require_state_released
from gpucluster.lifecycle.elastic_teardown import ElasticTeardown
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SshClient
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace import run_history
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState

# Files in the workspace that belong to the deployment. The run log stays.
_FILES = ("provider", "terraform.rc")
# A file system in Terraform's addresses, as an OCID, and among the tagged resources.
_FILE_SYSTEM, _FILE_SYSTEM_OCID, _FILE_SYSTEM_KIND = "oci_file_storage_file_system.", "ocid1.filesystem.", "file_system"


def destroy_resources(terraform: Terraform, elastic: Callable[[], ElasticInstances], only: Sequence[str] = ()) -> None:
    """Let Terraform remove what it made. An autoscaler that could not be stopped may have launched a node meanwhile,
    which keeps its network from being deleted. The controller does not exist any more then, so it launches no others.

    Args:
        only: the addresses to remove; empty for all.

    Raises:
        TerraformError: what is left is in the state.
    """
    try:
        terraform.apply(terraform.plan(destroy=True, only=only))
    except TerraformError:
        if not elastic().remove():
            raise
        terraform.apply(terraform.plan(destroy=True, only=only))


def _require_released(left: Sequence[TaggedResource], released: AbstractSet[str]) -> None:
    """Refuse to delete a file system that the guard has not released.

    Raises:
        DataGuardError: with its OCID.
    """
    for each in left:
        if each.id not in released:
            raise DataGuardError(
                f"the file system {each.name} was not checked for users' files",
                where=each.id,
                hint="Run: gpucluster destroy",
            )


class Teardown:
    """Removes one cluster from its cloud and from this machine.

    Args:
        terraform: makes a Terraform that can read the state.
        elastic, tagged, ssh_client, bastion: make the clients of the started cloud.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        paths: ClusterPaths,
        saved: SavedState,
        cloud: CloudProvider,
        guard: DataGuard,
        elastic_teardown: ElasticTeardown,
        baking: Baking,
        terraform: Callable[[], Terraform],
        elastic: Callable[[], ElasticInstances],
        adoption: Adoption,
        tagged: Callable[[], TaggedResources],
        ssh_client: Callable[[], SshClient],
        bastion: Callable[[], Bastion],
        on_event: Sink,
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
        self._on_event = on_event

    def run(self, terraform: Terraform, run: Run, *, delete_data: bool) -> int:
        """Remove the cluster. May be killed at any point and run again. Returns how many resources were removed.

        The file systems go last: as long as one is not deleted, a host or its own tag tells what is in it.

        Args:
            terraform: ready to change resources.
            delete_data: do not look for users' files first.

        Raises:
            DataGuardError: there are users' files, or no host can tell.
            GpuClusterError: see `errors`.
        """
        require_state_released(self._tagged().volumes(), delete_data=delete_data)
        in_state = frozenset(ocid for ocid in terraform.contents().ids if ocid.startswith(_FILE_SYSTEM_OCID))
        released = self._guard.release(in_state, run, delete_data=delete_data)
        if self._spec.elastic_pools or self._elastic().instances():
            self._elastic_teardown.remove_all(run)
        addresses = terraform.addresses()
        file_systems = [address for address in addresses if _FILE_SYSTEM in address]
        others = [address for address in addresses if address not in file_systems]
        if others:
            with run.phase("terraform"):
                self._adoption.remove_untracked(terraform)
                destroy_resources(terraform, self._elastic, others if file_systems else ())
        with run.phase("clean up"):
            tagged = self._tagged()
            # What an earlier run made and could not write into Terraform's state before it was killed.
            left = tagged.find()
            self._adoption.require_own(left)
            tagged.remove([each for each in left if each.kind != _FILE_SYSTEM_KIND])
            self._baking.retire_all()
            if file_systems:
                terraform.apply(terraform.plan(destroy=True))
            left_systems = [each for each in left if each.kind == _FILE_SYSTEM_KIND and each.id not in in_state]
            _require_released(left_systems, released)
            tagged.remove(left_systems)
            self._forget()
        removed = {*addresses, *(each.id for each in left if each.id not in in_state)}
        if not removed:
            text = f"nothing of the cluster {self._spec.name} was found, and so nothing was removed"
            info(self._on_event, "cluster", text)
        return len(removed)

    def _forget(self) -> None:
        """Delete what this machine stores of the cluster: keys, connections, working copies. The run log stays, with
        what Ansible printed."""
        self._ssh_client().close()
        self._bastion().forget()
        run_history.save_ansible_logs(self._paths)
        for folder in (self._paths.ssh, self._paths.ansible):
            shutil.rmtree(folder, ignore_errors=True)
        self._saved.forget()
        self._terraform().forget()
        for name in _FILES:
            (self._paths.root / name).unlink(missing_ok=True)
        self._cloud.stop_if_empty()
