"""The file systems of a cluster with the real SDK: found by tag and by OCID, described, sealed. No containers.

Not proved here: that a host can't write through an export that is read-only. The local cloud records the access only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.file_storage import models

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.file_systems import FileSystems
from gpucluster.oci.tags import FILES, UsersFiles
from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow

OURS = {"gpucluster": "demo", "role": "storage"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("systems"))) as api:
        yield api


def _file_system(api: Api, name: str, **tags: str) -> str:
    details = models.CreateFileSystemDetails(
        compartment_id=api.tenancy, availability_domain=api.domain, display_name=name, freeform_tags=tags
    )
    return str(api.files.create_file_system(details).data.id)


def _export(api: Api, file_system: str) -> tuple[str, str]:
    """Export it. Returns the export's OCID and the mount target's address."""
    subnet = api.subnet(api.vcn())
    target = models.CreateMountTargetDetails(
        compartment_id=api.tenancy, availability_domain=api.domain, subnet_id=subnet.id
    )
    made = api.files.create_mount_target(target).data
    option = models.ClientOptions(source="10.77.0.0/16", access="READ_WRITE", identity_squash="NONE")
    details = models.CreateExportDetails(
        export_set_id=made.export_set_id, file_system_id=file_system, path="/mnt/home", export_options=[option]
    )
    export = api.files.create_export(details).data
    return export.id, api.network.get_private_ip(made.private_ip_ids[0]).data.ip_address


def _systems(api: Api, *keep: str, cluster: str = "demo") -> FileSystems:
    return FileSystems(CloudAccess(api.config, api.endpoint, api.tenancy), cluster, keep=frozenset(keep))


def _access(api: Api, export: str) -> Any:
    (option,) = api.files.get_export(export).data.export_options
    return option


def test_a_file_system_is_found_described_sealed_and_noted(api: Api) -> None:
    home = _file_system(api, "demo-home", **OURS)
    other = _file_system(api, "other-home", gpucluster="other")
    untagged = _file_system(api, "by-hand")
    systems = _systems(api)
    (found,) = systems.find()
    assert (found.id, found.name, found.sources, found.writable, found.files, found.snapshots) == (
        home, "demo-home", (), False, None, (),
    )  # fmt: skip

    export, address = _export(api, home)
    (found,) = systems.find()
    assert (found.sources, found.writable) == ((f"{address}:/mnt/home",), True)

    systems.seal(home)
    assert not systems.find()[0].writable
    assert (_access(api, export).source, _access(api, export).identity_squash) == ("10.77.0.0/16", "NONE")
    systems.unseal(home)
    assert _access(api, export).access == "READ_WRITE"

    systems.note(home, UsersFiles.EMPTY)
    assert systems.find()[0].files is UsersFiles.EMPTY
    assert api.files.get_file_system(home).data.freeform_tags == {**OURS, FILES: "empty"}
    for stranger in (other, untagged, "", "ocid1.filesystem.local..gone"):
        systems.note(stranger, UsersFiles.EMPTY)
    assert api.files.get_file_system(other).data.freeform_tags == {"gpucluster": "other"}

    # What the state knows is found without its tag; what cluster.yml names belongs to others, unless the state has it.
    assert {each.id for each in systems.find({untagged, "ocid1.filesystem.local..gone"})} == {home, untagged}
    assert _systems(api, home).find() == ()
    assert [each.id for each in _systems(api, home).find({home})] == [home]


def test_only_the_home_share_has_homes_whatever_a_further_share_is_called(api: Api) -> None:
    for name in ("rack-home", "rack-old-home", "rack-data"):
        _file_system(api, name, gpucluster="rack")
    found = _systems(api, cluster="rack").find()
    assert {each.name: each.has_homes for each in found} == {
        "rack-home": True, "rack-old-home": False, "rack-data": False,
    }  # fmt: skip


def test_its_snapshots_are_named_and_deleted_with_it(api: Api) -> None:
    home = _file_system(api, "snapped", gpucluster="snapped")
    folder = api.home / "filesystems" / home[-12:]
    (folder / "alice").mkdir()
    (folder / "alice" / "work").write_text("yes")
    taken = api.files.create_snapshot(models.CreateSnapshotDetails(file_system_id=home, name="monday")).data
    api.files.create_snapshot(models.CreateSnapshotDetails(file_system_id=home, name="friday"))
    systems = FileSystems(CloudAccess(api.config, api.endpoint, api.tenancy), "snapped")
    assert systems.find()[0].snapshots == ("friday", "monday")
    assert (folder / ".snapshot" / "monday" / "alice" / "work").read_text() == "yes"
    api.files.delete_snapshot(taken.id)
    assert systems.find()[0].snapshots == ("friday",)
    assert not (folder / ".snapshot" / "monday").exists()
    api.files.delete_file_system(home)
    assert systems.find() == systems.find({home}) == ()
