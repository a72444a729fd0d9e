"""Where two languages meet: every name that one side writes is read by the other, and the other way round."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucluster import handover
from gpucluster.autoscaler import policy
from gpucluster.autoscaler.daemon import join_inventory
from gpucluster.autoscaler.daemon.schedulers import templates
from gpucluster.autoscaler.policy import Policy, Times
from gpucluster.paths import ansible_dir, terraform_dir
from gpucluster.spec import TIME_NAMES, load

GOLDEN = sorted(
    folder for folder in (Path(__file__).parents[1] / "golden").iterdir() if (folder / "tfvars.json").exists()
)
ROLES = sorted(folder.name for folder in (ansible_dir() / "roles").iterdir() if (folder / "meta").is_dir())
PLAYBOOKS = sorted(file.name for file in ansible_dir().glob("*.yml"))


def _hcl(name: str) -> str:
    return (terraform_dir() / "cluster" / name).read_text()


def _fields(text: str) -> set[str]:
    """The attribute names of an HCL object type or value, nested ones included."""
    return set(re.findall(r"^\s*([a-z_]+)\s*=", text, re.MULTILINE))


def _keys(value: Any) -> set[str]:
    """The keys of a JSON value, nested ones included."""
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in _keys(inner)}
    if isinstance(value, list):
        return {key for inner in value for key in _keys(inner)}
    return set()


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_the_spec_fills_exactly_the_variables_of_the_root(case: Path) -> None:
    declared = set(re.findall(r'^variable "([a-z_]+)"', _hcl("variables.tf"), re.MULTILINE))
    assert set(json.loads((case / "tfvars.json").read_text())) == declared


@pytest.mark.parametrize("name", ["network", "controller", "home", "pools"])
def test_the_fields_of_each_object_variable_are_those_that_we_write(name: str) -> None:
    block = _hcl("variables.tf").split(f'variable "{name}"')[1].split("\nvariable ")[0]
    typed = block.split("type ", 1)[1].split("\n  validation", 1)[0].split("\n  nullable", 1)[0]
    # `type` is a field, too: that of a pool's platform.
    declared = _fields(typed) - {"description", "nullable", "default"}
    written: set[str] = set()
    for case in GOLDEN:
        value = json.loads((case / "tfvars.json").read_text())[name]
        for one in value.values() if name == "pools" else [value]:
            written |= _keys(one)
    assert declared == written


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_the_outputs_that_we_parse_are_those_of_the_root(case: Path) -> None:
    parsed = json.loads((case / "outputs.json").read_text())["cluster"]
    named = {part: parsed.pop(part, {}) for part in ("pools", "shares")}
    wanted = (
        _keys(parsed) | set(named) | {key for part in named.values() for each in part.values() for key in _keys(each)}
    )
    given = set()
    for file in [*terraform_dir().glob("cluster/*.tf"), *terraform_dir().glob("modules/*/outputs.tf")]:
        given |= _fields(file.read_text())
    assert wanted - given == set()


def _policies() -> list[dict[str, Any]]:
    inventories = [json.loads((case / "inventory.json").read_text())["all"]["vars"] for case in GOLDEN]
    return [given["autoscaler_policy"] for given in inventories if given["autoscaler_policy"]]


def test_the_autoscaler_reads_what_it_is_told() -> None:
    (written,) = [one for one in _policies() if one["scheduler"] == "slurm"]
    read = Policy.parse(written)
    (pool,) = read.pools.values()
    assert (pool.name, pool.partition, pool.max_nodes, pool.names, pool.baked) == ("h100-elastic", "h100", 15, 32, True)
    assert (pool.availability_domain, pool.compute_cluster_id) == (
        "Uocm:US-ASHBURN-AD-2",
        "ocid1.computecluster.test..c",
    )
    assert read.limits.max_launches_per_hour == 500
    for entry in dataclasses.fields(policy.PoolPolicy):
        # `node` is for Kubernetes: tests/handover/test_kubernetes.py.
        assert entry.name in ("name", "node") or entry.name in written["pools"]["h100-elastic"], entry.name
    assert set(written["limits"]) == {entry.name for entry in dataclasses.fields(policy.PolicyLimits)}


def test_the_autoscaler_reads_what_new_nodes_of_kubernetes_will_be() -> None:
    (written,) = [one for one in _policies() if one["scheduler"] == "kubernetes"]
    read = Policy.parse(written)
    assert read.kubernetes == policy.ApiAccess(**written["kubernetes"])
    (made,) = templates(read)
    node = written["pools"]["more"]["node"]
    assert (made.pool, made.names[0], made.max_nodes, made.idle_seconds) == ("more", "more-e1", 3, 120.0)
    assert made.capacity == node["capacity"]
    assert node["labels"].items() <= made.labels.items()


def test_the_names_that_slurm_knows_are_those_that_the_autoscaler_owns() -> None:
    case = next(case for case in GOLDEN if "three" in case.name)
    given = json.loads((case / "inventory.json").read_text())["all"]["vars"]
    read = Policy.parse(given["autoscaler_policy"])
    (listed,) = [pool["elastic_nodes"] for pool in given["slurm_pools"] if pool["elastic_nodes"]]
    prefix, first, last = re.fullmatch(r"([a-z0-9-]+)\[(\d+)-(\d+)\]", listed).groups()  # type: ignore[union-attr]
    names = [f"{prefix}{number}" for number in range(int(first), int(last) + 1)]
    assert {read.pool_of(name) for name in names} == {"h100-elastic"}
    assert read.pool_of(f"{prefix}{int(last) + 1}") == read.pool_of("h100-elastic-1") == ""
    assert read.pool_of(handover.builder_name("h100-elastic")) == ""


def test_the_times_that_may_be_set_are_those_that_the_autoscaler_has() -> None:
    assert {entry.name for entry in dataclasses.fields(Times)} == TIME_NAMES


def test_versions_of_the_policy_agree() -> None:
    assert handover.POLICY_VERSION == policy.VERSION


def test_another_controller_or_another_home_is_another_node() -> None:
    """What is in a baked image and differs where it would boot must show in the fingerprint."""
    case = next(case for case in GOLDEN if "three" in case.name)
    spec, raw = load(case / "cluster.yml"), json.loads((case / "outputs.json").read_text())

    def fingerprint(**changes: Any) -> str:
        changed = {"cluster": {**raw["cluster"], **changes}}
        return handover.node_fingerprint(spec, handover.Outputs.parse(changed), "h100-elastic")

    same = fingerprint()
    assert re.fullmatch(r"[0-9a-f]{16}", same)
    assert fingerprint(vcn_id="ocid1.vcn.test..other") == same
    controller = raw["cluster"]["controller"]
    others = {
        fingerprint(controller={**controller, "id": "ocid1.instance.test..other"}),
        fingerprint(controller={**controller, "private_ip": "10.0.0.99"}),
        fingerprint(home={**raw["cluster"]["home"], "mount_target_ip": "10.0.16.99"}),
        fingerprint(home={**raw["cluster"]["home"], "export_path": "/elsewhere"}),
        handover.node_fingerprint(spec, handover.Outputs.parse(raw), "a10"),
    }
    for section, change in {
        "containers": {"runtimes": ("enroot",)},
        "nvidia": {"driver": "install"},
        "users": {"privilege_gid": 9877},
        "software": {"proxy": "http://proxy.example:3128"},
        "checks": {"off": ("gpu_clocks",)},
        "monitoring": {"enabled": True},
    }.items():
        other = spec.model_copy(update={section: getattr(spec, section).model_copy(update=change)})
        others.add(handover.node_fingerprint(other, handover.Outputs.parse(raw), "h100-elastic"))
    assert len(others) == 11
    assert same not in others


def test_every_play_runs_on_groups_that_the_inventory_has() -> None:
    # These playbooks get another inventory, with the instances that they are about.
    groups = {"all", "localhost", "joining", handover.BUILDER_GROUP, handover.UPGRADING_GROUP}
    for case in GOLDEN:
        inventory = json.loads((case / "inventory.json").read_text())["all"]
        groups |= set(inventory["children"])
    for playbook in PLAYBOOKS:
        plays = [play for play in yaml.safe_load((ansible_dir() / playbook).read_text()) if "hosts" in play]
        assert plays, playbook
        tasks = [task for play in plays for task in play.get("tasks", [])]
        keys = [task["ansible.builtin.group_by"]["key"] for task in tasks if "ansible.builtin.group_by" in task]
        made = {name for key in keys for name in re.findall(r"'(\w+)'", key)}
        for play in plays:
            unknown = {name.lstrip("&!") for name in play["hosts"].split(":")} - groups - made
            assert not unknown, f"{playbook}: the inventory has no group {', '.join(unknown)}"


def _specs(role: str) -> dict[str, Any]:
    text = (ansible_dir() / "roles" / role / "meta" / "argument_specs.yml").read_text()
    loaded: dict[str, Any] = yaml.safe_load(text)["argument_specs"]["main"]["options"]
    return loaded


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_requires_is_in_every_inventory(role: str) -> None:
    required = {name for name, option in _specs(role).items() if option.get("required")}
    for case in GOLDEN:
        given = set(json.loads((case / "inventory.json").read_text())["all"]["vars"])
        assert required <= given, f"{role} in {case.name}"


def test_every_variable_of_the_inventory_is_read_by_a_role() -> None:
    text = "\n".join(
        file.read_text()
        for file in ansible_dir().rglob("*")
        if file.is_file()
        and file.suffix in {".yml", ".j2", ".py", ""}
        and not any(part.startswith(".") for part in file.relative_to(ansible_dir()).parts)
    )
    text += Path(join_inventory.__file__).read_text()
    given = set(json.loads((GOLDEN[0] / "inventory.json").read_text())["all"]["vars"])
    assert {name for name in given if name not in text} == set()


def test_there_are_roles_and_playbooks() -> None:
    assert set(ROLES) >= {"base", "nfs", "ldap", "slurm"}
    assert set(PLAYBOOKS) >= {"site.yml", "validate.yml", "join.yml"}
