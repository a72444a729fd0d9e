"""What may be formatted, who owns what, and what a moved directory is compared with: without mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.state_volume import accounts, device, layout, mounting
from gpucluster.node_agent.state_volume.accounts import Accounts
from gpucluster.node_agent.state_volume.device import Probe

AT = "/dev/oracleoci/oraclevdb"


def test_only_a_blank_device_is_formatted() -> None:
    assert device.needs_format(AT, Probe({}, zeros=True))
    assert device.needs_format(AT, Probe({"DEVNAME": AT}, zeros=True))
    assert not device.needs_format(AT, Probe({"TYPE": "ext4", "LABEL": device.LABEL}, zeros=False))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, "data of an unknown kind"),
        ({"TYPE": "xfs"}, "xfs"),
        ({"PTTYPE": "gpt"}, "gpt"),
        ({"TYPE": "ext4", "LABEL": "homes"}, "ext4 with the label 'homes'"),
        ({"TYPE": "crypto_LUKS", "LABEL": device.LABEL}, "crypto_LUKS"),
    ],
)
def test_what_holds_something_else_is_never_formatted(values: dict[str, str], found: str) -> None:
    with pytest.raises(Refused, match="is not formatted") as refused:
        device.needs_format(AT, Probe(values, zeros=False))
    assert f"{AT} holds {found}" in refused.value.message
    assert "wipefs" in refused.value.hint


def test_the_output_of_blkid_is_read() -> None:
    assert device.parse("DEVNAME=/dev/a\nLABEL=gpucluster-state\nTYPE=ext4\n")["LABEL"] == device.LABEL


def test_the_volume_of_another_cluster_is_refused() -> None:
    device.require_cluster({}, "demo", AT)
    device.require_cluster({"cluster": "demo"}, "demo", AT)
    with pytest.raises(Refused, match="cluster other, and this is demo"):
        device.require_cluster({"cluster": "other"}, "demo", AT)


PASSWD = """\
root:x:0:0:root:/root:/bin/bash
mysql:x:101:105:MySQL:/nonexistent:/bin/false
slurm:x:64030:64030::/nonexistent:/usr/sbin/nologin
debian:x:1000:1000::/home/debian:/bin/bash
"""
GROUP = "root:x:0:\nmysql:x:105:\nslurm:x:64030:\ndebian:x:1000:\n"


def test_accounts_of_packages_are_recorded_and_no_people() -> None:
    here = accounts.local(PASSWD, GROUP)
    assert here == Accounts(
        {"mysql": 101, "slurm": 64030}, {"mysql": 105, "slurm": 64030}, {"mysql": "mysql", "slurm": "slurm"}
    )
    assert Accounts.of(here.document()) == here
    assert Accounts.of({}) == Accounts()


def test_accounts_keep_their_numbers_where_these_are_free() -> None:
    recorded = Accounts({"mysql": 101, "openldap": 102}, {"mysql": 105, "openldap": 106})
    fresh = Accounts({"sshd": 102}, {"sshd": 105})
    groups, users = accounts.missing(recorded, fresh)
    assert (groups, users) == ({"mysql": 0, "openldap": 106}, {"mysql": 101, "openldap": 0})
    assert accounts.changed({"mysql": 101, "gone": 5}, {"mysql": 110}) == {101: 110}
    assert accounts.changed({"mysql": 101}, {"mysql": 101}) == {}


def test_services_are_held_back_until_the_volume_is_mounted() -> None:
    unit = layout.unit("/usr/local/bin/gpucluster-agent")
    for name in ("mariadb.service", "slapd.service", "slurmctld.service"):
        assert name in unit.partition("Before=")[2].splitlines()[0]
        assert name in unit.partition("RequiredBy=")[2]


def test_directories_have_names_and_places_of_their_own() -> None:
    places = list(layout.DIRECTORIES.values())
    assert len(set(places)) == len(places)
    assert not [one for one in places for other in places if other.startswith(f"{one}/")]


def test_a_copy_that_differs_is_found(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    for folder in (source, target):
        (folder / "in").mkdir(parents=True)
        (folder / "in" / "file").write_text("one")
        (folder / "link").symlink_to("in/file")
        os.chmod(folder / "in" / "file", 0o600)
    assert mounting.differences(source, target) == []
    (target / "in" / "file").write_text("two")
    assert mounting.differences(source, target) == [str(source / "in" / "file")]
    (target / "in" / "file").write_text("one")
    os.chmod(target / "in" / "file", 0o644)
    assert mounting.differences(source, target) == [str(source / "in" / "file")]
    (target / "link").unlink()
    assert str(source / "link") in mounting.differences(source, target)
