"""A right cluster.yml: what load() makes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
import yaml

from gpucluster.errors import InputError, InputFinding
from gpucluster.spec import ClusterSpec, json_schema, load, loads, template, warnings
from tests.spec.spec_texts import KEY, LOCAL, MINIMAL, OCI, public_key

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "inventories" / "local" / "cluster.yml"


def oci(folder: Path, text: str = OCI) -> ClusterSpec:
    (folder / "operator.pub").write_text(public_key(comment="operator") + "\n")
    (folder / "cluster.yml").write_text(text)
    return load(folder / "cluster.yml")


def test_loads_a_whole_file() -> None:
    spec = loads(LOCAL, "somewhere/cluster.yml")
    alice, bob = spec.users.people
    assert (alice.ssh_keys, alice.generate_key, alice.full_name) == ((KEY,), False, "Alice Example")
    assert (bob.ssh_keys, bob.generate_key, bob.full_name, bob.uid) == ((), True, "bob", None)
    assert spec.source == Path.cwd() / "somewhere"
    assert spec.file == Path("somewhere/cluster.yml")
    assert list(spec.pools) == ["compute", "cpu"]
    assert (spec.pools["cpu"].count, spec.pools["cpu"].max_count, spec.pools["cpu"].elastic) == (0, 4, True)
    assert spec.slurm.extra_config == {"SchedulerParameters": "bf_interval=30"}


def test_operators_keys_may_be_text_beside_a_file_or_instead_of_one(tmp_path: Path) -> None:
    first, second = (
        public_key(comment="operator"),
        public_key("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 256, comment="two"),
    )
    both = oci(tmp_path, OCI.replace("operator.pub", f"operator.pub\n  public_keys: ['{second} ', {first}]"))
    assert both.ssh.authorized_keys == (first, second)
    alone = oci(tmp_path, OCI.replace("public_key_file: operator.pub", f"public_keys: [{second}]"))
    assert (alone.ssh.authorized_keys, alone.ssh.private_key_path) == ((second,), None)


def test_certificates_come_from_their_files_each_once(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        argv = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ]
        argv += ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(argv, check=True, capture_output=True, cwd=tmp_path)
        made.append((tmp_path / f"{name}.pem").read_text().strip())
    (tmp_path / "both.pem").write_text(f"# A comment.\n{made[0]}\n{made[1]}\n")
    file = tmp_path / "cluster.yml"
    file.write_text(f"{LOCAL}  trusted_ca_files: [one.pem, both.pem]\n")  # its last section is `software`
    assert load(file).software.trusted_certificates == tuple(made)

    (tmp_path / "broken.pem").write_text(made[0].replace("M", "N", 3))
    for name, words in (("one.key", "contains a private key"), ("broken.pem", "not a certificate in PEM")):
        file.write_text(f"{LOCAL}  trusted_ca_files: [{name}]\n")
        with pytest.raises(InputError) as caught:
            load(file)
        (finding,) = caught.value.findings
        assert (finding.path, words in finding.message) == ("software.trusted_ca_files[0]", True)


def test_keys_of_a_user_come_from_the_file_and_from_files(tmp_path: Path) -> None:
    first, second = public_key(comment="one"), public_key("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 256, comment="two")
    (tmp_path / "alice.pub").write_text(f"# hers\n\n{first}\n{second}\n{KEY}\n")
    text = OCI.replace(
        f"ssh_public_keys: [{KEY}]", f"ssh_public_keys: ['  {KEY} ']\n      ssh_public_key_files: [alice.pub]"
    )
    assert oci(tmp_path, text).users.people[0].ssh_keys == (KEY, first, second)


@pytest.mark.parametrize("provider", ["local", "oci"])
def test_the_template_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: Literal["local", "oci"]
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = template(name="mine", provider=provider)
    spec = loads(text)
    assert (spec.name, spec.cloud.provider) == ("mine", provider)
    _against_schema(text)


def test_the_demo_has_one_pool_and_one_user() -> None:
    spec = load(DEMO)
    assert spec.network.vcn_cidr == "10.77.0.0/16"
    assert [(pool.shape, pool.count) for pool in spec.pools.values()] == [("BM.GPU4.8", 2)]
    assert [(person.name, person.generate_key) for person in spec.users.people] == [("alice", True)]


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "inventories").glob("*/cluster.yml")), ids=lambda file: file.parent.name
)
def test_the_worked_examples_are_valid(file: Path) -> None:
    load(file)
    _against_schema(file.read_text())


def test_the_example_of_elastic_nodes_begins_empty() -> None:
    (pool,) = load(REPOSITORY / "inventories" / "elastic" / "cluster.yml").elastic_pools.values()
    assert (pool.count, pool.max_count, pool.shape, pool.idle_timeout) == (0, 4, "BM.GPU4.8", 600)


def _against_schema(text: str) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "cluster.yml", "there is no file"),
        (lambda folder: folder, "is a directory"),
        (lambda folder: folder / "no\0such", "can't be read"),
    ],
)
def test_a_file_that_can_not_be_read(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(make(tmp_path))
    assert caught.value.exit_code == 2


def test_findings_are_for_machines_too() -> None:
    with pytest.raises(InputError) as caught:
        loads(LOCAL.replace("count: 2", "count: two"), "a/cluster.yml")
    (finding,) = caught.value.findings
    assert isinstance(finding, InputFinding)
    assert json.loads(json.dumps(vars(finding))) == {
        "file": "a/cluster.yml",
        "line": 21,
        "column": 12,
        "path": "pools.compute.count",
        "message": 'must be a whole number; got "two"',
        "hint": "",
    }
    assert str(caught.value) == (
        'a/cluster.yml: 1 error\n  a/cluster.yml:21:12: pools.compute.count: must be a whole number; got "two"'
    )


WITHOUT_SLURM = MINIMAL + "slurm: {enabled: false}\n"


@pytest.mark.parametrize(
    ("more", "path", "words"),
    [
        ("containers: {runtimes: [enroot]}", "containers.runtimes[0]", "the scheduler is none"),
        ("users: {people: [{name: alice, generate_key: true}]}", "users.people[0]", "alice needs a uid"),
    ],
)
def test_what_a_cluster_without_a_scheduler_can_not_have(more: str, path: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(f"{WITHOUT_SLURM}{more}\n")
    (found,) = caught.value.findings
    assert found.path == path
    assert words in found.message


def test_without_a_scheduler_no_pool_is_elastic() -> None:
    with pytest.raises(InputError, match="elastic nodes need Slurm"):
        loads(WITHOUT_SLURM.replace("count: 1", "count: 1, max_count: 2"))


def test_a_mirror_is_a_url_or_a_directory_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    file = tmp_path / "cluster.yml"
    where = {
        text: loads(f"{MINIMAL}software: {{mirror: {text}}}\n", str(file)).software.mirror_location
        for text in ("mirror", "https://mirror.example/x")
    }
    assert where == {"mirror": str(tmp_path / "mirror"), "https://mirror.example/x": "https://mirror.example/x"}
    assert loads(MINIMAL).software.mirror_location is None


def test_login_nodes_need_the_home_share() -> None:
    text = MINIMAL + "slurm: {enabled: false}\nlogin: {count: 1}\n"
    with pytest.raises(InputError) as refused:
        loads(text)
    assert [finding.path for finding in refused.value.findings] == ["login.count"]
    assert loads(text + "storage: {home: {enabled: true}}\n").login.count == 1


def test_a_file_in_which_users_share_the_controller_gets_a_warning() -> None:
    two = "users: {people: [{name: ada, generate_key: true}, {name: bob, generate_key: true}]}\n"
    assert "2 users log in to the controller" in warnings(loads(MINIMAL + two))[0]
    assert not warnings(loads(MINIMAL + two + "login: {count: 1}\n"))
    assert not warnings(loads(MINIMAL + two.replace("{name: ada, generate_key: true}, ", "")))
    # Where there can't be any: without a directory of users.
    alone = two.replace("true}", "true, uid: 10001}", 1).replace("true}", "true, uid: 10002}", 1)
    assert not warnings(loads(MINIMAL + alone + "slurm: {enabled: false}\n"))
