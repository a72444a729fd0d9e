"""The lock in the tag of the network, with the API of a local cloud and its etags."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.cloud.clusters import Sighting
from gpucluster.cloud.lock_tag import LockTag
from gpucluster.errors import CloudError, LockedError
from gpucluster.oci import tags
from gpucluster.oci.run_lock import Holder
from tests.lifecycle.test_run_lock import ID, Folder, _tags
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow


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


def test_of_many_that_want_the_cluster_at_once_one_gets_it(cloud: Api, vcn: str, tmp_path: Path) -> None:
    many = 6
    folders = [Folder(tmp_path / str(number)) for number in range(many)]
    # All have read that no run holds it before the first one writes.
    barrier = threading.Barrier(many)
    read = LockTag._get
    got: list[str] = []
    refused: list[str] = []
    done = threading.Event()

    def together(self: LockTag) -> Any:
        found = read(self)
        if threading.current_thread() not in passed:
            passed.add(threading.current_thread())
            barrier.wait()
        return found

    def hold(folder: Folder) -> None:
        lock = folder.cluster()._parts.identity.run_lock
        lock.begin("apply")
        try:
            lock.take([Sighting("demo", "vcn", vcn, "demo")])
        except LockedError as error:
            refused.append(str(error))
        else:
            got.append(str(folder.file))
            done.wait()
            lock.end()

    passed: set[threading.Thread] = set()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LockTag, "_get", together)
        patched.setattr("gpucluster.lifecycle.run_lock._RELEASE_TIMEOUT", PATIENCE_S)
        threads = [threading.Thread(target=hold, args=(folder,), daemon=True) for folder in folders]
        for thread in threads:
            thread.start()
        wait_for("all have an answer", lambda: len(got) + len(refused) == many)
        assert len(got) == 1, got
        assert tags.LOCK in _tags(cloud, vcn)
        done.set()
        for thread in threads:
            thread.join()
    assert tags.LOCK not in _tags(cloud, vcn)


def test_the_lock_leaves_what_others_change_meanwhile(cloud: Api, vcn: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "here")
    tag = LockTag(folder.cluster()._parts.cloud.access(), "vcn", vcn)
    tries = []

    def change(present: Holder | None) -> Holder:
        tries.append(present)
        if len(tries) == 1:
            mine = {**_tags(cloud, vcn), "team": "b"}
            cloud.network.update_vcn(vcn, oci.core.models.UpdateVcnDetails(freeform_tags=mine))
        return Holder("1", "2", "apply", "x")

    tag.change(change)
    assert len(tries) == 2
    assert _tags(cloud, vcn)["team"] == "b"
    tag.change(lambda _present: None)

    def never(_present: Holder | None) -> Holder:
        mine = {**_tags(cloud, vcn), "team": str(len(tries))}
        tries.append(None)
        cloud.network.update_vcn(vcn, oci.core.models.UpdateVcnDetails(freeform_tags=mine))
        return Holder("1", "2", "apply", "x")

    with pytest.raises(CloudError, match="412"):
        tag.change(never)


def test_in_an_existing_network_the_controller_reports_it() -> None:
    access: Any = None
    controller = Sighting("demo", "instance", "i", "demo-controller", "RUNNING", controller=True)
    node = Sighting("demo", "instance", "a", "cpu-1", "RUNNING")
    gone = Sighting("demo", "vcn", "old", "demo", "TERMINATING")
    assert LockTag.of(access, [node, gone]) is None
    assert LockTag.of(access, [node, gone, controller]) == LockTag(access, "instance", "i")
    vcn = Sighting("demo", "vcn", "v", "demo", "AVAILABLE")
    assert LockTag.of(access, [controller, vcn]) == LockTag(access, "vcn", "v")
