"""The lock of a cluster for all machines: with the API of a local cloud that launches no containers, and its etags."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import oci
import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cloud.clusters import Sighting
from gpucluster.cloud.lock_tag import LockTag
from gpucluster.cluster import Cluster
from gpucluster.errors import CloudError, LockedError
from gpucluster.oci import tags
from gpucluster.spec import load
from tests.localcloud.api_harness import Api, running
from tests.spec.spec_texts import LOCAL

pytestmark = pytest.mark.slow

ID = "0123456789abcdef"
# A run of another process, which reports when it holds the cluster and then does nothing more.
HOLDER = """
import signal, sys
from gpucluster.cluster import Cluster
from gpucluster.spec import load
cluster = Cluster(load(sys.argv[1]), cluster_id=sys.argv[2])
with cluster._parts.identity.runs.run("kubernetes upgrade"):
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("home") / "cloud") as api:
        yield api


@pytest.fixture
def vcn(cloud: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a cluster has in the cloud: a network."""
    monkeypatch.setenv("GPUCLUSTER_HOME", str(cloud.home))
    details = oci.core.models.CreateVcnDetails(
        cidr_blocks=["10.161.0.0/16"],
        compartment_id=cloud.tenancy,
        freeform_tags={"gpucluster": "demo", "gpucluster-id": ID, "team": "a"},
    )
    made = cloud.network.create_vcn(details).data
    yield made.id
    cloud.network.delete_vcn(made.id)


def _tags(cloud: Api, vcn: str) -> dict[str, str]:
    return dict(cloud.network.get_vcn(vcn).data.freeform_tags)


class Folder:
    """A folder whose cluster it is, on this machine."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.file = path / "cluster.yml"
        self.file.write_text(LOCAL)

    def cluster(self) -> Cluster:
        return Cluster(load(self.file), cluster_id=ID)

    def change(self) -> None:
        with self.cluster()._parts.identity.runs.run("restore"):
            pass

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--file", str(self.file), "--cluster-id", ID])


def test_a_lock_of_a_killed_run_is_explained_taken_over_by_its_folder_and_removed_by_others(
    cloud: Api, vcn: str, tmp_path: Path
) -> None:
    first, second = Folder(tmp_path / "first"), Folder(tmp_path / "second")
    before = _tags(cloud, vcn)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(first.file), ID], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert _tags(cloud, vcn).keys() - before.keys() == {tags.LOCK}
        with pytest.raises(LockedError) as refused:
            second.change()
        assert refused.value.exit_code == 4
        for fact in ("kubernetes-upgrade", f":{first.file.parent}", "UTC (", "ago)", "gpucluster state unlock "):
            assert fact in str(refused.value)
        # What shows what would be changed is refused, too; what reads is not.
        plan = second.run("plan")
        assert (plan.exit_code, "another run holds the cluster" in plan.output) == (4, True), plan.output
        assert second.run("list").exit_code == 0
        os.kill(child.pid, signal.SIGKILL)
    held = _tags(cloud, vcn)
    lock_id = held[tags.LOCK].split()[0]
    # Its folder has no state of the cluster: the next command has to name the cluster as this one did.
    with pytest.raises(LockedError, match=f"gpucluster state unlock {lock_id} --cluster-id {ID}"):
        second.change()
    wrong = second.run("state", "unlock", "0000")
    assert (wrong.exit_code, f"gpucluster state unlock {lock_id}" in wrong.output) == (2, True), wrong.output
    assert _tags(cloud, vcn) == held
    # A refused run is not a failed one: the cluster is as it was.
    assert "refused" in second.run("runs").output
    # The folder of the killed run knows the lock as its own.
    first.change()
    assert _tags(cloud, vcn) == before
    cloud.network.update_vcn(vcn, oci.core.models.UpdateVcnDetails(freeform_tags=held))
    removed = second.run("state", "unlock", lock_id)
    assert (removed.exit_code, str(first.file.parent) in removed.output) == (0, True), removed.output
    assert _tags(cloud, vcn) == before
    assert second.run("state", "unlock", lock_id).exit_code == 2
    second.change()


@pytest.mark.parametrize(
    "text", ["\N{RIGHT-TO-LEFT OVERRIDE}evil \x1b[2J 99999 apply", "x 2999-01-01T00:00:00+00:00 apply me"]
)
def test_what_others_have_written_into_the_tag_is_a_lock_and_can_be_removed(
    text: str, cloud: Api, vcn: str, tmp_path: Path
) -> None:
    here = Folder(tmp_path / "here")
    other = {**_tags(cloud, vcn), tags.LOCK: text}
    cloud.network.update_vcn(vcn, oci.core.models.UpdateVcnDetails(freeform_tags=other))
    with pytest.raises(LockedError) as refused:
        here.change()
    assert str(refused.value).isprintable()
    assert here.run("state", "unlock", text.split()[0]).exit_code == 0
    here.change()


def test_a_remote_state_has_a_lock_of_its_own_and_this_one_is_respected(cloud: Api, vcn: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "here")
    lock = folder.cluster()._parts.identity.run_lock
    lock._remote = True
    found = [Sighting("demo", "vcn", vcn, "demo")]
    lock.begin("apply")
    lock.take(found)
    assert tags.LOCK not in _tags(cloud, vcn)
    other = {**_tags(cloud, vcn), tags.LOCK: "x now apply y"}
    cloud.network.update_vcn(vcn, oci.core.models.UpdateVcnDetails(freeform_tags=other))
    with pytest.raises(LockedError):
        lock.take(found)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CloudError("the answer was lost")])
def test_a_stop_or_a_lost_answer_while_the_lock_is_taken_leaves_none(
    error: BaseException, cloud: Api, vcn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = LockTag._update

    def interrupted(self: LockTag, wanted: tags.Tags, etag: str) -> None:
        update(self, wanted, etag)
        monkeypatch.setattr(LockTag, "_update", update)
        raise error

    lock = Folder(tmp_path / "here").cluster()._parts.identity.run_lock
    lock.begin("apply")
    monkeypatch.setattr(LockTag, "_update", interrupted)
    with pytest.raises(type(error)):
        lock.take([Sighting("demo", "vcn", vcn, "demo")])
    assert tags.LOCK in _tags(cloud, vcn)
    lock.end()
    assert tags.LOCK not in _tags(cloud, vcn)
