"""Destroy and the users' files: the real Terraform, root and SDK, the stand-in provider. Hosts answer by a double."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpucluster.cloud.baked_images import BakedImages
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.file_systems import FileSystems
from gpucluster.cloud.tagged_resources import TaggedResources
from gpucluster.errors import DataGuardError
from gpucluster.events import Event
from gpucluster.lifecycle.adoption import Adoption
from gpucluster.lifecycle.data_guard import DataGuard, UserFiles
from gpucluster.lifecycle.teardown import Teardown
from gpucluster.oci.tags import FILES, UsersFiles
from gpucluster.paths import ClusterPaths
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState
from tests.terraform.test_scaling_root import CPU, Cluster

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud

pytestmark = pytest.mark.slow

NAME = "resize"
FILE_SYSTEMS = "/20171215/fileSystems"


@pytest.fixture
def cluster(
    tmp_path: Path, cloud: LocalCloud, terraform: str, terraform_environment: Mapping[str, str]
) -> Iterator[Cluster]:
    made = Cluster(tmp_path, cloud, terraform, terraform_environment)
    made.apply(made.plan(cpu=f"{CPU}, count: 1"))
    try:
        yield made
    finally:
        if made.terraform.addresses():
            made.destroy()


class Machine:
    """A machine that destroys a cluster: with its state, or with an empty folder."""

    def __init__(self, cluster: Cluster, folder: Path | None = None) -> None:
        self.events: list[Event] = []
        self._cluster = cluster
        self._paths = cluster.paths if folder is None else ClusterPaths(folder)
        self._paths.create()
        self.terraform: Any = cluster.terraform
        if folder is not None:
            empty = SimpleNamespace(ids=frozenset())
            self.terraform = SimpleNamespace(contents=lambda: empty, addresses=lambda: (), forget=lambda: None)

    def destroy(self, *answers: UserFiles | str, killed: bool = False) -> None:
        """Destroy, where hosts give these answers. With `killed`, the run ends before file systems are deleted."""
        looks, access = iter(answers), self._cluster.access
        nothing: Any = SimpleNamespace(close=lambda: None, forget=lambda: None, stop_if_empty=lambda: None)
        images = BakedImages(access, NAME, self.events.append)

        def retire_all() -> None:
            if killed:
                raise KeyboardInterrupt
            images.remove(images.all())

        def look(sources: Sequence[str], **_how: bool) -> UserFiles | str:
            self.sources = tuple(sources)
            return next(looks)

        def tagged() -> TaggedResources:
            return TaggedResources(access, NAME, self.events.append)

        elastic = ElasticInstances(access, NAME, self.events.append)
        Teardown(
            spec=self._cluster.spec,
            paths=self._paths,
            saved=SavedState(self._paths),
            cloud=nothing,
            guard=DataGuard(lambda: FileSystems(access, NAME), look),
            elastic_teardown=nothing,
            baking=cast(Any, SimpleNamespace(retire_all=retire_all)),
            terraform=lambda: cast(Terraform, self.terraform),
            elastic=lambda: elastic,
            adoption=Adoption(NAME, tagged, self.events.append),
            tagged=tagged,
            ssh_client=lambda: nothing,
            bastion=lambda: nothing,
            on_event=self.events.append,
        ).run(self.terraform, Run("destroy", self._paths, self.events.append), delete_data=False)


def _home(cloud: LocalCloud) -> dict[str, Any]:
    (found,) = cloud.standing(FILE_SYSTEMS, NAME)
    return found


def test_a_file_system_goes_last_and_only_after_a_look(cluster: Cluster, cloud: LocalCloud, tmp_path: Path) -> None:
    home = _home(cloud)
    assert home["freeformTags"][FILES] == UsersFiles.UNUSED
    FileSystems(cluster.access, NAME).note(home["id"], UsersFiles.IN_USE)
    # What is noted there is no difference for Terraform.
    assert cluster.terraform.plan().changes == ()

    # Another machine, without the folder: the state is empty there, and nothing answers.
    other, own = Machine(cluster, tmp_path / "other"), Machine(cluster)
    with pytest.raises(DataGuardError, match="can't be looked into"):
        other.destroy("no host is left")
    # A state that was copied: no marker, but a file under a running job.
    with pytest.raises(DataGuardError, match="1 of alice"):
        own.destroy(UserFiles({"alice": 1}))
    assert own.sources[0].endswith(":/mnt/home")
    # One that comes to be between two looks.
    with pytest.raises(DataGuardError, match="2 of alice"):
        own.destroy(UserFiles({}), UserFiles({"alice": 2}))
    assert len(cluster.standing()) == 1

    with pytest.raises(KeyboardInterrupt):
        own.destroy(UserFiles({}), UserFiles({}), killed=True)
    # Everything is gone but the file system, which is in the state still.
    assert _home(cloud)["freeformTags"][FILES] == UsersFiles.EMPTY
    assert set(cloud.remains()) == {FILE_SYSTEMS}
    assert cluster.terraform.contents().ids == {home["id"]}
    assert not [event for event in own.events if event.status == "warning"]

    own.destroy("no host is left")
    assert cloud.remains() == {}
    other.destroy()
    assert [event for event in other.events if "nothing was removed" in event.message]
