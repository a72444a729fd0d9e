"""The section `users.directory`, and what the hosts get of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from gpucluster import handover
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.errors import InputError
from gpucluster.handover.inventory import inventory
from gpucluster.operations.rotation import secrets_of
from gpucluster.operations.users import require_directory
from gpucluster.spec import ClusterSpec, load
from tests.ansible.other_directory import certificates
from tests.spec.spec_texts import LOCAL

DIRECTORY = """\
users:
  directory:
    kind: ldap
    servers: [ldaps://a.example, ldaps://b.example:1636]
    base: dc=example,dc=com
    bind_dn: cn=reader,dc=example,dc=com
    bind_password_file: directory.password
    ca_certificate: ca.pem
    user_groups: [hpc]
    admin_groups: [HPC Admins]
"""
PASSWORD = "hunter2"


@cache
def ca() -> str:
    return certificates().ca


def text() -> str:
    """The local demo with a directory that exists, in the place of its users."""
    head, _, rest = LOCAL.partition("users:\n")
    after = rest.partition("slurm:\n")[2]
    return f"{head}scheduler: slurm\n{DIRECTORY}slurm:\n{after}"


def written(folder: Path) -> None:
    """Write the files that it names."""
    (folder / "directory.password").write_text(f"{PASSWORD}\n")
    (folder / "directory.password").chmod(0o600)
    (folder / "ca.pem").write_text(f"Example CA\n{ca()}\n")


def spec(folder: Path, more: str = "") -> ClusterSpec:
    written(folder)
    (folder / "cluster.yml").write_text(text().replace("    user_groups", f"{more}    user_groups", 1))
    return load(folder / "cluster.yml")


def test_a_directory_has_the_content_of_its_files(tmp_path: Path) -> None:
    directory = spec(tmp_path).users.directory
    assert directory is not None
    assert directory.bind_password_path == tmp_path / "directory.password"
    assert directory.ca_pem == ca()
    assert (directory.first_id, directory.last_id, directory.shell) == (2000, 600178687, None)
    assert PASSWORD not in directory.model_dump_json()


def test_each_kind_has_its_attribute_with_keys(tmp_path: Path) -> None:
    found = {}
    for kind in ("ldap", "ad", "ipa"):
        written(tmp_path)
        (tmp_path / "cluster.yml").write_text(text().replace("kind: ldap", f"kind: {kind}"))
        directory = load(tmp_path / "cluster.yml").users.directory
        assert directory is not None
        found[kind] = directory.key_attribute
    assert found == {"ldap": "sshPublicKey", "ad": "altSecurityIdentities", "ipa": "ipaSshPubKey"}
    own = spec(tmp_path, "    ssh_key_attribute: x-keys\n").users.directory
    assert own is not None
    assert own.key_attribute == "x-keys"


def test_hosts_get_the_directory_and_not_its_password(tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "golden" / "local_demo"
    outputs = handover.Outputs.parse(json.loads((golden / "outputs.json").read_text()))
    given = inventory(
        spec(tmp_path),
        outputs,
        {},
        autoscaling=None,
        person_keys={},
        operator_keys=(),
        hardware_emulated=True,
        software=ReleaseSet(None, ()),
    )
    found = given["all"]["vars"]["users_directory"]
    assert (found["schema"], found["user_groups"], found["ca"]) == ("rfc2307", ["hpc"], ca())
    assert PASSWORD not in json.dumps(given)
    assert handover.directory_groups(spec(tmp_path)) == ("hpc", "hpc admins")


def test_commands_that_need_the_clusters_own_directory_name_the_other_one(tmp_path: Path) -> None:
    there = spec(tmp_path)
    with pytest.raises(InputError, match=r"in a directory that exists, ldaps://a\.example") as caught:
        require_directory(there, "")
    assert "existing-directory.md" in caught.value.hint
    assert "passwords" not in secrets_of(there)
