"""The file and the account of every variable: nothing is dropped, and no secret is in either."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.errors import InputError
from gpucluster.resource_manager import variable_files
from gpucluster.resource_manager.migration import Migration, migrate
from gpucluster.resource_manager.report import report
from gpucluster.resource_manager.table import variables
from gpucluster.spec import loads
from tests.resource_manager.convert_cases import CASES
from tests.resource_manager.stacks import FORK, PIPELINE, REQUIRED, stack

SECRET = "Correct-horse.battery9"


def made(values: dict[str, Any], **settings: str) -> Migration:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return migrate(values, file="variables.json", target="cluster.yml", folder="lab", settings=dotted)


def accounted(migration: Migration) -> list[str]:
    not_taken = [each.name for each in migration.not_taken]
    return [*migration.taken, *not_taken, *migration.idle, *migration.secrets, *migration.unknown]


@pytest.mark.parametrize("name", CASES)
def test_every_variable_is_accounted_for_once(name: str) -> None:
    migration = made(dict(CASES[name]))
    assert sorted(accounted(migration)) == sorted(CASES[name])


def test_a_file_of_a_fork_is_taken_over_with_its_own_variables_named() -> None:
    migration = made(variable_files.read(FORK, "terraform.tfvars"))
    assert set(migration.unknown) == {
        "ood_username", "ood_user_email", "influxdb", "use_existing_idcs", "existing_domain_ocid",
    }  # fmt: skip
    assert set(migration.secrets) == {"ood_user_password"}
    pool = migration.spec.pools["compute"]
    assert (pool.shape, pool.count, pool.max_count) == ("BM.Optimized3.36", 2, 50)
    assert {each.name for each in migration.not_taken} == {"autoscaling_monitoring", "controller_object_storage_par"}
    assert "Not9" not in migration.text + report(migration)


def test_a_file_of_a_pipeline_lacks_what_is_in_its_environment() -> None:
    values = variable_files.read(PIPELINE, "terraform.tfvars")
    with pytest.raises(InputError) as caught:
        made(values)
    said = str(caught.value)
    assert "targetCompartment: has no value, and cloud.compartment_id needs one" in said
    assert "ssh_key: has no value, and ssh.public_keys needs one" in said
    given = {
        "cloud__compartment_id": REQUIRED["targetCompartment"],
        "ssh__public_keys": f"['{REQUIRED['ssh_key']}']",
    }
    with pytest.raises(InputError) as caught:
        made(values, **given)
    assert "(from instance_pool_shape, rdma_enabled)" in str(caught.value)
    assert "VM.Standard.A1.Flex" in str(caught.value)
    migration = made(values, **given, pools__compute__shape="VM.Standard.E5.Flex")
    assert migration.spec.pools["compute"].count == 2
    assert migration.spec.controller.state_volume_gb == 256


def test_a_setting_beats_the_variables_and_settles_what_is_to_decide() -> None:
    values = stack("3.1.0", slurm=True)
    assert "network.ssh_allowed_cidrs" in {each.key for each in made(values).decisions}
    migration = made(
        values,
        network__ssh_allowed_cidrs="[198.51.100.0/24]",
        name="vision",
        controller__image="{ocid: ocid1.image.oc1.iad.a, login_user: opc}",
    )
    assert not {"name", "network.ssh_allowed_cidrs"} & {each.key for each in migration.decisions}
    assert migration.spec.network.ssh_allowed_cidrs == ("198.51.100.0/24",)
    assert migration.spec.controller.image.listing is None
    assert migration.spec.name == "vision"


def test_a_setting_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(InputError, match="the value is not YAML"):
        made(stack("3.1.0"), name="[")


def test_values_of_another_type_are_told_all_at_once() -> None:
    with pytest.raises(InputError) as caught:
        made(stack("3.1.0", node_count="many", slurm="maybe"))
    said = str(caught.value)
    assert "2 values of another type than the stack's" in said
    assert "node_count: is not a whole number" in said
    assert "slurm: is neither true nor false" in said


@pytest.mark.parametrize("shape", ["BM.GPU.GB200.4", "BM.GPU.GB300.4"])
def test_a_rack_needs_its_memory_fabric(shape: str) -> None:
    fabric = "ocid1.computegpumemoryfabric.oc1.iad.exampleuniqueid"
    with pytest.raises(InputError) as caught:
        made(stack("3.1.0", cluster_network_shape=shape, slurm=True))
    said = str(caught.value)
    assert "nothing was written" in said
    assert "pools.compute.memory_fabric_id: is missing" in said
    text = made(stack("3.1.0", cluster_network_shape=shape, slurm=True, memory_fabric_id=fabric)).text
    assert f"memory_fabric_id: {fabric}" in text


@pytest.mark.parametrize("name", [name for name, variable in variables().items() if variable.secret])
def test_a_secret_is_in_neither_the_file_nor_the_report(name: str) -> None:
    for release in ("2.9.2", "3.1.0"):
        values = {**stack(release, slurm=True, slurm_ha=True, slurm_federation=True), name: SECRET}
        migration = made(values)
        said = migration.text + report(migration) + json.dumps(migration.to_dict())
        assert SECRET not in said
        assert migration.secrets[name]


def test_a_private_key_is_not_taken_for_the_public_one() -> None:
    key = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----"
    with pytest.raises(InputError) as caught:
        made(stack("3.1.0", ssh_key=key))
    assert "ssh_key: has a private key, which is not taken" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_values_of_unknown_variables_are_not_shown() -> None:
    migration = made({**stack("3.1.0"), "harmless_name": SECRET})
    assert migration.unknown == ("harmless_name",)
    assert SECRET not in migration.text + report(migration) + json.dumps(migration.to_dict())


def test_the_file_names_the_variables_and_what_is_to_decide() -> None:
    text = made(stack("3.1.0", slurm=True, node_count=7)).text
    assert re.search(r"^    count: 7  # node_count$", text, re.MULTILINE)
    assert re.search(r"^  # DECIDE: .*\n  ssh_allowed_cidrs: \[203\.0\.113\.0/24\]  # ssh_cidr$", text, re.MULTILINE)
    assert loads(text).pools["compute"].count == 7


def test_what_has_no_value_in_the_file_is_a_comment_with_its_key() -> None:
    text = made(stack("3.1.0", slurm=True, cluster_monitoring=True, alerting=True)).text
    assert "# DECIDE monitoring.alertmanager_file: " in text


def test_a_default_of_the_stack_is_told_from_a_value() -> None:
    values = {name: value for name, value in stack("3.1.0", slurm=True).items() if name != "node_count"}
    assert "count: 2  # the stack's default of node_count" in made(values).text


TEXT = st.text(max_size=30)


@given(st.dictionaries(st.sampled_from(sorted(variables())), TEXT | st.booleans() | st.integers(), max_size=12))
def test_no_value_breaks_the_file_or_gets_a_line_of_its_own(changes: dict[str, Any]) -> None:
    """Either an error of the input, or a file that every YAML reader reads alike."""
    try:
        migration = made({**stack("3.1.0", slurm=True), **changes})
    except InputError:
        return
    assert yaml.safe_load(migration.text)["version"] == 1
    assert sorted(accounted(migration)) == sorted({**stack("3.1.0", slurm=True), **changes})
