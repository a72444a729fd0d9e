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
from gpucluster.spec import ClusterSpec, json_schema, load, loads, overlapping_routes, template, warnings
from tests.spec.spec_texts import KEY, LOCAL, MINIMAL, OCI, public_key

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "inventories" / "local" / "cluster.yml"


def oci(folder: Path, text: str = OCI) -> ClusterSpec:
    (folder / "operator.pub").write_text(public_key(comment="operator") + "\n")
    (folder / "cluster.yml").write_text(text)
    return load(folder / "cluster.yml")


def test_defaults_are_filled_in() -> None:
    spec = loads(MINIMAL)
    assert (spec.cloud.region, spec.cloud.availability_domain, spec.cloud.compartment_id) == ("local-1", None, None)
    controller = spec.controller
    assert (controller.shape, controller.ocpus, controller.memory_gb) == ("VM.Standard.E5.Flex", 4, 32)
    assert controller.boot_volume_gb == 256
    assert controller.image.model_dump(exclude_defaults=True) == {
        "operating_system": "Debian",
        "version": "13",
        "login_user": "debian",
    }
    pool = spec.pools["compute"]
    assert (pool.count, pool.max_count, pool.idle_timeout, pool.default) == (1, 1, 600, True)
    assert (spec.storage.home.mount_path, spec.storage.home.export_path) == ("/mnt/home", "/mnt/home")
    assert (spec.users.group, spec.users.gid, spec.users.first_uid, spec.users.people) == ("people", 9999, 10001, ())
    assert (spec.slurm.cluster_name, spec.slurm.accounting, spec.slurm.default_partition) == ("tiny", True, "compute")
    assert (spec.slurm.extra_config, spec.software.timezone) == ({}, "UTC")
    assert (spec.ssh.public_key, spec.ssh.private_key_path) == (None, None)


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


def test_the_model_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        loads(MINIMAL).name = "other"


def test_file_names_count_from_the_file(tmp_path: Path) -> None:
    spec = oci(tmp_path)
    assert spec.source == tmp_path
    assert spec.ssh.public_key == public_key(comment="operator")
    assert spec.ssh.private_key_path == tmp_path / "operator"


def test_operators_keys_may_be_text_beside_a_file_or_instead_of_one(tmp_path: Path) -> None:
    first, second = (
        public_key(comment="operator"),
        public_key("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 256, comment="two"),
    )
    both = oci(tmp_path, OCI.replace("operator.pub", f"operator.pub\n  public_keys: ['{second} ', {first}]"))
    assert both.ssh.authorized_keys == (first, second)
    alone = oci(tmp_path, OCI.replace("public_key_file: operator.pub", f"public_keys: [{second}]"))
    assert (alone.ssh.authorized_keys, alone.ssh.private_key_path) == ((second,), None)


def test_home_directory_and_absolute_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    (home / ".ssh").mkdir(parents=True)
    folder.mkdir()
    (home / ".ssh" / "id.pub").write_text(KEY)
    (tmp_path / "id_private").write_text("x")
    monkeypatch.setenv("HOME", str(home))
    private = f"~/.ssh/id.pub\n  private_key_file: {tmp_path}/id_private"
    spec = oci(folder, OCI.replace("operator.pub", private))
    assert spec.ssh.public_key == KEY
    assert spec.ssh.private_key_path == tmp_path / "id_private"


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


@pytest.mark.parametrize(
    ("shape", "counts", "kind"),
    [
        ("BM.GPU4.8", "count: 2", "cluster_network"),
        ("BM.GPU4.8", "count: 2\n    max_count: 2", "cluster_network"),
        ("BM.GPU4.8", "count: 2\n    max_count: 3", "compute_cluster"),
        ("BM.GPU4.8", "max_count: 3", "compute_cluster"),
        ("BM.HPC2.36", "count: 1", "cluster_network"),
        ("BM.GPU.A10.4", "count: 2", "instances"),
        ("BM.GPU.A10.4", "max_count: 2", "instances"),
    ],
)
def test_what_a_pool_stands_in(shape: str, counts: str, kind: str) -> None:
    text = LOCAL.replace("    shape: BM.GPU4.8\n    count: 2", f"    shape: {shape}\n    {counts}")
    assert loads(text).pools["compute"].kind == kind


@pytest.mark.parametrize(
    ("system", "user"), [("Oracle Linux", "opc"), ("Canonical Ubuntu", "ubuntu"), ("Debian", "debian")]
)
def test_the_login_user_follows_from_the_system(tmp_path: Path, system: str, user: str) -> None:
    assert oci(tmp_path, OCI.replace("Canonical Ubuntu", system)).controller.image.login_user == user


def test_a_login_user_that_was_given_stays(tmp_path: Path) -> None:
    spec = oci(tmp_path, OCI.replace('version: "24.04"', 'version: "24.04", login_user: me'))
    assert spec.controller.image.login_user == "me"
    assert spec.pools["h100"].image.login_user == "ubuntu"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    max_count: 4", "    max_count: 4\n    default: true"),
        ("  accounting: true", "  default_partition: cpu"),
    ],
)
def test_the_default_pool_is_known_on_both_sides(old: str, new: str) -> None:
    spec = loads(LOCAL.replace(old, new))
    assert spec.slurm.default_partition == "cpu"
    assert {name: pool.default for name, pool in spec.pools.items()} == {"compute": False, "cpu": True}


def test_partitions_and_elastic_pools() -> None:
    text = LOCAL.replace("    max_count: 4", "    max_count: 4\n    partition: gpu").replace(
        "    count: 2", "    count: 2\n    max_count: 3\n    partition: gpu\n    availability_domain: AD-2"
    )
    spec = loads(text.replace("provider: local", "provider: local\n  availability_domain: AD-1"))
    assert spec.partitions == {"gpu": ("compute", "cpu")}
    assert spec.slurm.default_partition == "gpu"
    assert {name: pool.default for name, pool in spec.pools.items()} == {"compute": True, "cpu": False}
    assert {name: pool.elastic_count for name, pool in spec.elastic_pools.items()} == {"compute": 1, "cpu": 4}
    assert [pool.availability_domain for pool in spec.pools.values()] == ["AD-2", "AD-1"]
    assert (spec.autoscaler.max_nodes, spec.autoscaler.max_launches_per_hour, spec.autoscaler.prices) == (None, 500, {})


def test_the_limits_of_the_autoscaler(tmp_path: Path) -> None:
    (tmp_path / "prices.yml").write_text("BM.GPU4.8: 24.4\nVM.Standard.E5.Flex: 1\n")
    (tmp_path / "packages").mkdir()
    limits = "{max_nodes: 3, max_cost_per_hour: 50, prices_file: prices.yml, times: {tick: 2, cool_down: 0.5}}"
    text = LOCAL.replace("timezone: UTC", "timezone: UTC\n  wheels: packages") + f"autoscaler: {limits}\n"
    (tmp_path / "cluster.yml").write_text(text)
    spec = load(tmp_path / "cluster.yml")
    assert spec.autoscaler.prices == {"BM.GPU4.8": 24.4, "VM.Standard.E5.Flex": 1.0}
    assert (spec.autoscaler.max_cost_per_hour, spec.autoscaler.times) == (50.0, {"tick": 2.0, "cool_down": 0.5})
    assert spec.software.wheels_directory == tmp_path / "packages"
    _against_schema(text)


def test_names_of_elastic_nodes_fit_into_a_host_name() -> None:
    """The longest name of a pool, and the highest number that its counts allow."""
    most = json_schema()["$defs"]["PoolSpec"]["properties"]["max_count"]["maximum"]
    assert len(f"{'p' * 20}-e{2 * most + 2}") <= 63


def test_words_that_yaml_1_1_would_misread() -> None:
    text = LOCAL.replace("full_name: Alice Example", "full_name: no").replace("  cpu:", "  off:")
    spec = loads(text)
    assert spec.users.people[0].full_name == "no"
    assert list(spec.pools) == ["compute", "off"]


def test_aliases_are_followed() -> None:
    text = LOCAL.replace("  compute:\n", "  compute: &gpu\n").replace("users:\n", "  more: *gpu\nusers:\n")
    spec = loads(text)
    assert spec.pools["more"].model_dump() == {
        **spec.pools["compute"].model_dump(),
        "default": False,
        "partition": "more",
    }


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    raw = b"\xef\xbb\xbf" + LOCAL.replace("\n", "\r\n").encode()
    assert loads(raw) == loads(LOCAL)


def test_null_is_as_if_it_was_not_given() -> None:
    text = LOCAL.replace("  provider: local", "  provider: local\n  availability_domain: null\n  compartment_id: ~")
    assert loads(text + "ssh: {public_key_file: null}\n").ssh.public_key is None


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


def test_the_schema_is_a_schema_and_accepts_what_is_right() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    for text in (LOCAL, OCI, MINIMAL, DEMO.read_text()):
        _against_schema(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: demo", "name: Demo_1"),
        ("count: 2", 'count: "2"'),
        ("shape: BM.GPU4.8", "shape: BM.GPU5.8"),
        ("provider: local", "provider: aws"),
        ("  compute:", "  all:"),
        ("name: demo", "name: demo\nnam: x"),
        ("ssh_allowed_cidrs: [127.0.0.0/8]", "ssh_allowed_cidrs: []"),
    ],
)
def test_the_schema_refuses_what_is_wrong(old: str, new: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        _against_schema(LOCAL.replace(old, new))


def test_every_key_of_the_model_is_in_the_reference() -> None:
    schema = json_schema()
    text = (REPOSITORY / "docs" / "reference" / "cluster-yml.md").read_text()
    for definition in [schema, *schema["$defs"].values()]:
        for key, field in definition["properties"].items():
            assert f"| `{key}` |" in text, key
            assert field.get("description") or "$ref" in field, f"{key} has no description"


@pytest.mark.parametrize(
    ("routes", "overlapping"),
    [
        ([], []),
        (["default", "0.0.0.0/0", "192.168.1.0/24"], []),
        (["10.77.3.0/24"], ["10.77.3.0/24"]),
        (["10.0.0.0/8", "172.17.0.0/16", "10.77.0.5"], ["10.0.0.0/8", "10.77.0.5"]),
        (["10.77.9.9/24"], ["10.77.9.9/24"]),
        (["fe80::/64", "unreachable", "", "10.78.0.0/16"], []),
    ],
)
def test_routes_of_the_host_that_overlap(routes: list[str], overlapping: list[str]) -> None:
    assert overlapping_routes("10.77.0.0/16", routes) == overlapping


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


def test_without_a_scheduler_there_is_no_shared_home_unless_it_is_asked_for() -> None:
    assert loads(MINIMAL).storage.home.enabled
    assert not loads(WITHOUT_SLURM).storage.home.enabled
    assert loads(WITHOUT_SLURM + "storage: {home: {enabled: true}}\n").storage.home.enabled


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


def test_a_vcn_and_the_networks_of_containers_are_apart() -> None:
    inside = MINIMAL.replace("10.77.", "198.18.")
    assert loads(inside).network.vcn_cidr == "198.18.0.0/16"
    with pytest.raises(InputError, match=r"198\.18\.0\.0/15, the range of the container networks"):
        loads(inside + "containers: {runtimes: [docker]}\n")


def test_login_nodes_are_like_the_controller_where_the_file_sets_nothing_else(tmp_path: Path) -> None:
    none = loads(MINIMAL)
    assert (none.login.count, len(none.machines)) == (0, 2)
    image = "image: {operating_system: Oracle Linux, version: '9'}"
    some = loads(f"{MINIMAL}controller: {{{image}}}\nlogin: {{count: 2}}\n")
    assert some.login.image == some.controller.image
    assert (some.login.shape, some.login.ocpus, some.login.memory_gb) == ("VM.Standard.E5.Flex", 4, 32)
    assert some.machines == (some.controller, some.login, some.pools["compute"])
    # Another system takes part in the choice of Slurm's release.
    other = loads(f"{MINIMAL}login: {{count: 1, {image}}}\n")
    assert (loads(MINIMAL).slurm.release, other.slurm.release) == ("distribution", "26.05")
    # In OCI the image of the controller is an error once, and not again for login nodes.
    without = OCI.replace('  image: {operating_system: Canonical Ubuntu, version: "24.04"}', "  boot_volume_gb: 100", 1)
    with pytest.raises(InputError) as refused:
        oci(tmp_path, f"{without}login: {{count: 1}}\n")
    assert [finding.path for finding in refused.value.findings] == ["controller.image"]


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


def test_a_key_of_slurm_conf_that_is_not_known_is_a_warning_with_the_one_that_was_meant() -> None:
    def said(key: str, more: str = "") -> str:
        return "\n".join(warnings(loads(f"{MINIMAL}slurm: {{extra_config: {{{key}: 1}}{more}}}\n")))

    assert said("SchedulerParamters").startswith("slurm.extra_config.SchedulerParamters: gpucluster knows no such key")
    assert "Did you mean SchedulerParameters?" in said("SchedulerParamters")
    assert "Is it one of your release of Slurm?" in said("Xyzzy")
    # A suggestion is one that the rules accept.
    assert "PrologFlags" not in said("PrologFlag")
    # Slurm ignores case. A key of another release is known, too.
    assert [said(key) for key in ("maxarraysize", "MetricsParameters", "DefCPUPerGPU")] == ["", "", ""]
    assert said("Xyzzy", ", enabled: false") == ""
