"""Rules of `storage.shares`."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import ClusterSpec, loads
from tests.spec.spec_texts import LOCAL

_SYSTEM = "ocid1.filesystem.oc1.iad.aaaashared"
_HOME = "storage:\n  home:\n"


def with_shares(shares: str, text: str = LOCAL, *, home: str = "") -> str:
    """A file with these shares, one a line: `data: {...}`; `home`: more lines of the home share."""
    lines = "".join(f"    {line}\n" for line in shares.splitlines())
    assert _HOME in text
    return text.replace(_HOME, f"storage:\n  shares:\n{lines}  home:\n{home}", 1)


def _refused(shares: str, text: str = LOCAL, *, home: str = "") -> str:
    with pytest.raises(InputError) as error:
        loads(with_shares(shares, text, home=home))
    return str(error.value)


def _spec(shares: str, *, home: str = "") -> ClusterSpec:
    return loads(with_shares(shares, home=home))


def test_hosts_are_groups_of_the_cluster() -> None:
    share = _spec("data: {mount_path: /mnt/data, hosts: [compute]}").storage.shares["data"]
    assert share.is_mounted_by("compute")
    assert not share.is_mounted_by("controller")
    refused = _refused("data: {mount_path: /mnt/data, hosts: [gpu]}")
    assert 'there is no pool "gpu"' in refused
    assert "controller, login, compute" in refused
    assert "names no hosts" in _refused("data: {mount_path: /mnt/data, hosts: []}")


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ("data: {mount_path: /mnt/home/data}", "and the home share /mnt/home would hide each other"),
        ("data: {mount_path: /mnt/localdisk}", "and the local disk /mnt/localdisk would hide each other"),
        ("a: {mount_path: /mnt/a}\nb: {mount_path: /mnt/a/b}", "and the share a /mnt/a would hide each other"),
        ("data: {mount_path: /etc/data}", "/etc/data belongs to the system"),
        ("data: {mount_path: /mnt/../data}", "must not contain . or .."),
        ("home: {mount_path: /mnt/data}", "is the name of the home share"),
        ("data: {mount_path: /mnt/data, read_only: true}", "no host could write into the file system"),
        (f"data: {{mount_path: /mnt/data, server: 10.1.0.9, file_system_id: {_SYSTEM}}}", "conflicts with file_system"),
        ("data: {mount_path: /mnt/data, throughput_gbps: 20}", "the mount target of the home share exports it"),
        ("data: {mount_path: /mnt/data, server: 10.1.0.9, throughput_gbps: 20}", "is on a server of its own"),
        ("data: {mount_path: /mnt/data, mount_target: own, throughput_gbps: 10}", "throughput_gbps: must be"),
        ("data: {mount_path: /mnt/data, server: nfs.example.com}", "must be an IPv4 address"),
        ("data: {mount_path: /mnt/data, server: 127.0.0.1}", "other machines can't reach 127.0.0.1"),
        ("data: {mount_path: /mnt/data, export_path: /mnt/home/data}", "the export path of the home share, /mnt/home"),
        ("mnt: {mount_path: /mnt/data}", "/mnt conflicts with the export path of the home share"),
        ("a: {mount_path: /mnt/a, export_path: /x}\nb: {mount_path: /mnt/b, export_path: /x/b}", "of the share a, /x"),
    ],
)
def test_what_is_refused(shares: str, reason: str) -> None:
    assert reason in _refused(shares)


def test_the_export_of_a_server_that_exists_may_be_any() -> None:
    shares = "a: {mount_path: /mnt/a, server: 10.1.0.9, export_path: /mnt/home}"
    assert _spec(shares).storage.shares["a"].server == "10.1.0.9"


def test_without_the_home_share_they_are_refused() -> None:
    assert "need the home share" in _refused("data: {mount_path: /mnt/data}", home="    enabled: false\n")


def test_kubernetes_has_no_volume_for_them() -> None:
    text = f"{LOCAL}scheduler: kubernetes\n"
    assert "no further ones" in _refused("data: {mount_path: /mnt/data}", text)


def test_where_a_server_has_the_homes_a_share_has_its_own_mount_target() -> None:
    home = "    server: 10.1.0.9\n"
    assert "Write `mount_target: own`" in _refused("data: {mount_path: /mnt/data}", home=home)
    storage = _spec("data: {mount_path: /mnt/data, mount_target: own}", home=home).storage
    assert (storage.mount_targets, storage.created_file_systems) == (1, 1)


def test_a_mount_target_of_its_own_needs_addresses() -> None:
    small = LOCAL.replace("private_subnet_cidr: 10.77.1.0/24", "private_subnet_cidr: 10.77.1.0/28", 1)
    assert "6 for 2 mount targets" in _refused("data: {mount_path: /mnt/data, mount_target: own}", small)


def test_throughput_is_that_of_a_mount_target() -> None:
    storage = _spec(
        "data: {mount_path: /mnt/data, mount_target: own, throughput_gbps: 80}", home="    throughput_gbps: 20\n"
    ).storage
    assert (storage.home.throughput_gbps, storage.shares["data"].throughput_gbps) == (20, 80)
    home = "    server: 10.1.0.9\n    throughput_gbps: 20\n"
    assert "has no mount target to be for" in _refused("data: {mount_path: /mnt/data, mount_target: own}", home=home)
