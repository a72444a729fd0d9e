"""What follows from the shares of a cluster.yml: the number of mount targets and file systems, and what exists."""

from __future__ import annotations

from gpucluster.spec import Storage, export_path, loads
from tests.spec.rules.test_storage import with_shares
from tests.spec.spec_texts import LOCAL

_SYSTEM = "ocid1.filesystem.oc1.iad.aaaashared"


def _storage(shares: str) -> Storage:
    return loads(with_shares(shares)).storage


def test_without_the_key_there_are_no_further_shares() -> None:
    storage = loads(LOCAL).storage
    assert storage.shares == {}
    assert (storage.mount_targets, storage.created_file_systems, storage.existing_file_systems) == (1, 1, {})


def test_a_share_is_mounted_by_all_hosts_and_exported_by_the_mount_target_of_the_home_share() -> None:
    storage = _storage("data: {mount_path: /mnt/data}")
    share = storage.shares["data"]
    assert export_path("data", share) == "/data"
    assert all(map(share.is_mounted_by, ("controller", "login", "compute")))
    assert (storage.mount_targets, storage.created_file_systems) == (1, 2)


def test_what_exists_is_not_created() -> None:
    shares = f"one: {{mount_path: /mnt/one, file_system_id: {_SYSTEM}, mount_target: own}}\n"
    shares += "two: {mount_path: /mnt/two, server: 10.1.0.9, export_path: /exports/two}"
    storage = _storage(shares)
    assert storage.existing_file_systems == {"storage.shares.one.file_system_id": _SYSTEM}
    assert list(storage.exported_shares) == ["one"]
    assert (storage.mount_targets, storage.created_file_systems) == (2, 1)
    assert export_path("two", storage.shares["two"]) == "/exports/two"
