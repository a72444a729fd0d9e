"""Rules of `users.directory`: each fault is reported once, at its place."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.errors import InputError, InputFinding
from gpucluster.spec import load
from tests.spec.sections.test_directory import text, written

# id: (what stands in the text, what stands there instead, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "no TLS": ("[ldaps://a.example", "[ldap://a.example", "users.directory.servers[0]", "must be the URL of a server with TLS"),
    "a path in a URL": ("ldaps://a.example,", "ldaps://a.example/x,", "users.directory.servers[0]", "must be the URL of a server"),
    "no servers": ("[ldaps://a.example, ldaps://b.example:1636]", "[]", "users.directory.servers", "at least 1"),
    "no base": ("base: dc=example,dc=com", "base: example.com", "users.directory.base", "must be the name (DN) of an entry"),
    "another kind": ("kind: ldap", "kind: nis", "users.directory.kind", "must be ldap or ad or ipa"),
    "a domain before a group": ("user_groups: [hpc]", "user_groups: ['EX\\hpc']", "users.directory.user_groups[0]", "Without the domain"),
    "no group": ("user_groups: [hpc]", "user_groups: []", "users.directory.user_groups", "at least 1"),
    "a group of the system": ("user_groups: [hpc]", "user_groups: [hpc, sudo]", "users.directory.user_groups[1]", "the group sudo belongs to the system"),
    "a group twice": ("user_groups: [hpc]", "user_groups: [HPC Admins]", "users.directory.admin_groups[0]", "HPC Admins occurs twice"),
    "ids of nothing": ("kind: ldap", "kind: ldap\n    id_mapping: true", "users.directory.id_mapping", "`kind: ldap` has no SIDs"),
    "a schema of another kind": ("kind: ldap", "kind: ad\n    ldap_schema: rfc2307bis", "users.directory.ldap_schema", "has no effect with `kind: ad`"),
    "ids in the wrong order": ("kind: ldap", "kind: ldap\n    first_id: 5000\n    last_id: 4000", "users.directory.last_id", "4000 is below first_id"),
    "ids of containers": ("kind: ldap", "kind: ldap\n    last_id: 1000000000", "users.directory.last_id", "at most 600178687"),
    "no password": ("directory.password", "nowhere", "users.directory.bind_password_file", "there is no file"),
    "no certificate": ("ca.pem", "nowhere.pem", "users.directory.ca_certificate", "there is no file"),
    "a volume for the state": ("controller:\n", "controller:\n  state_volume_gb: 50\n", "controller.state_volume_gb", "needs the cluster's own directory"),
}  # fmt: skip


def finding(folder: Path, changed: str) -> InputFinding:
    (folder / "cluster.yml").write_text(changed)
    with pytest.raises(InputError) as caught:
        load(folder / "cluster.yml")
    (found,) = caught.value.findings
    return found


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str], tmp_path: Path) -> None:
    old, new, path, words = row
    written(tmp_path)
    assert old in text()
    found = finding(tmp_path, text().replace(old, new, 1))
    assert found.path == path
    assert words in f"{found.message}. {found.hint}"


def test_other_schedulers_have_no_users_of_it(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "cluster.yml").write_text(text().replace("scheduler: slurm", "scheduler: none", 1))
    with pytest.raises(InputError) as caught:
        load(tmp_path / "cluster.yml")
    assert "needs `scheduler: slurm`" in {one.path: one.message for one in caught.value.findings}["users.directory"]


def test_users_are_in_one_place(tmp_path: Path) -> None:
    written(tmp_path)
    users = (
        "  people: [{name: dora, ssh_public_keys: ['"
        + "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB1VxbV0BLLcDFhEcXBQTJKdYDO8MbWOXJTwJvOH3eO8"
        + "']}]\n"
    )
    found = finding(tmp_path, text().replace("users:\n", f"users:\n{users}", 1))
    assert (found.path, found.message) == ("users.people", "the users of this cluster are in users.directory")


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("secret\n", 0o644, "others than you can read"),
        ("", 0o600, "must have one line"),
        ("hunter2\nhunter2\n", 0o600, "must have one line"),
        ("hunter2 \n", 0o600, "has a blank at an end"),
        ("hunt\ter2\n", 0o600, "a control character"),
    ],
)
def test_a_password_that_sssd_would_not_read_is_refused(content: str, mode: int, words: str, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "directory.password").write_text(content)
    (tmp_path / "directory.password").chmod(mode)
    found = finding(tmp_path, text())
    assert (found.path, words in found.message) == ("users.directory.bind_password_file", True)
    assert "hunter2" not in f"{found.message} {found.hint}"
