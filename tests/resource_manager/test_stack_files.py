"""The stack, run by the real Terraform: it needs no provider. What is in the outputs goes through our own validation.

What this does not prove: Resource Manager and its console, which were not at hand.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucluster.resource_manager import form, stack_files
from gpucluster.resource_manager.form import Field
from gpucluster.spec import ClusterSpec, loads
from tests.spec.spec_texts import KEY, public_key
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

OTHER_KEY = public_key("ssh-ed25519", bytes(range(32)), comment="bob@laptop")
REQUIRED: Mapping[str, Any] = {
    "region": "us-ashburn-1",
    "compartment": "ocid1.compartment.oc1..examplecompartment",
    "cloud_availability_domain": "Uocm:US-ASHBURN-AD-2",
    "ssh_public_keys": f"{KEY},{OTHER_KEY}",
    "network_ssh_allowed_cidrs": "198.51.100.0/24, 192.0.2.0/24",
}
#: No value is the default of its field, so that each shows up in the file by itself.
FIRST: Mapping[str, Any] = {
    **REQUIRED, "name": "vision", "access": "public", "network_vcn_cidr": "10.1.0.0/16",
    "network_public_subnet_cidr": "10.1.0.0/24", "network_private_subnet_cidr": "10.1.8.0/21", "use_existing_vcn": True,
    "vcn_id": "ocid1.vcn.oc1.iad.examplevcn", "network_public_subnet_id": "ocid1.subnet.oc1.iad.examplepublic",
    "network_private_subnet_id": "ocid1.subnet.oc1.iad.exampleprivate", "controller_shape": "VM.Standard.E4.Flex",
    "controller_ocpus": 6, "controller_memory_gb": 48, "controller_boot_volume_gb": 300,
    "controller_operating_system": "Oracle Linux", "controller_system_version": "9", "login_nodes": True,
    "login_count": 2, "login_shape": "VM.Standard.E4.Flex", "login_ocpus": 7, "login_memory_gb": 49,
    "login_boot_volume_gb": 301, "storage_home_mount_path": "/shared", "storage_local_disk_enabled": False,
    "enroot": True, "monitoring": True, "monitoring_grafana": True, "slurm_max_job_hours": 100,
    "slurm_login_needs_job": False, "add_user": True, "user_name": "alice", "user_full_name": "Alice Example",
    "user_keys": KEY,
    **{f"pool_{number}_{name}": value for number in (1, 2, 3) for name, value in {
        "wanted": True, "name": f"gpu-{number}", "shape": "BM.GPU.H100.8", "boot_volume_gb": 400 + number,
        "count": 3, "max_count": 5, "listing": f"Listing {number}", "listing_version": f"*-{number}-*",
        "login_user": "ubuntu",
    }.items() if (number, name) != (1, "wanted")},
}  # fmt: skip
SECOND: Mapping[str, Any] = {
    **FIRST,
    **{f"pool_{number}_{name}": value for number in (1, 2, 3) for name, value in {
        "shape": "VM.Standard.E4.Flex", "ocpus": 10 + number, "memory_gb": 100 + number, "image": "custom",
        "image_id": f"ocid1.image.oc1.iad.example{number}",
    }.items()},
}  # fmt: skip


Made = Callable[[Mapping[str, Any]], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked zip, as Resource Manager has it."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    place = tmp_path_factory.mktemp("stack")
    with zipfile.ZipFile(io.BytesIO(stack_files.archive())) as packed:
        packed.extractall(place)
    _terraform(place, "init", "-input=false")
    return place


def _terraform(folder: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["terraform", *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture
def made(folder: Path) -> Made:
    def make(values: Mapping[str, Any]) -> str:
        # As text, which is how Resource Manager passes each value on.
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
        (folder / "terraform.tfvars.json").write_text(json.dumps(texts))
        _terraform(folder, "apply", "-auto-approve", "-input=false", "-no-color")
        return _terraform(folder, "output", "-raw", "cluster_yml").stdout

    return make


def _at(document: Any, field: Field, values: Mapping[str, Any]) -> Any:
    """What a file has at the key of a field; None if nothing."""
    for part in field.key.split("."):
        key: Any = (
            values[f"pool_{part[1:-1]}_name"] if part.startswith("{") else int(part) if part.isdecimal() else part
        )
        try:
            document = document[key]
        except (KeyError, IndexError):
            return None
    return document


def _active(field: Field, values: Mapping[str, Any]) -> bool:
    defaults = {each.name: each.default for each in form.fields()}
    now = {**defaults, **values}
    return all(now[each.field] in each.values if each.values else now[each.field] is True for each in field.when)


def _expected(field: Field, values: Mapping[str, Any]) -> Any:
    value = values.get(field.name, field.default)
    if field.name == "enroot":
        return ["enroot"]
    if field.kind == "list":
        return [part.strip() for part in value.split(",")]
    return value


def _is_name(field: Field) -> bool:
    return field.key.endswith("}")


def test_the_terraform_is_valid(folder: Path) -> None:
    assert json.loads(_terraform(folder, "validate", "-json").stdout)["valid"] is True


def test_it_creates_nothing_and_needs_no_provider(folder: Path) -> None:
    (folder / "terraform.tfvars.json").write_text(json.dumps(REQUIRED))
    planned = _terraform(folder, "plan", "-input=false", "-no-color").stdout
    assert "without changing any real infrastructure" in planned
    assert "provider[" not in _terraform(folder, "providers").stdout


def test_a_form_that_nobody_changed_makes_a_valid_file(made: Made) -> None:
    spec = loads(made(REQUIRED))
    assert (spec.name, spec.cloud.region, list(spec.pools)) == ("gpu", "us-ashburn-1", ["compute"])
    assert spec.ssh.authorized_keys == (KEY, OTHER_KEY)
    assert spec.network.ssh_allowed_cidrs == ("198.51.100.0/24", "192.0.2.0/24")


@pytest.mark.parametrize("values", [FIRST, SECOND], ids=["first", "second"])
def test_each_field_that_is_shown_decides_its_key_and_no_other_does(made: Made, values: Mapping[str, Any]) -> None:
    text = made(values)
    document = yaml.safe_load(text)
    for field in form.fields():
        if not field.key or _is_name(field):
            continue
        wanted = _expected(field, values) if _active(field, values) else None
        assert _at(document, field, values) == wanted, field.name
    assert list(document["pools"]) == [values[f"pool_{number}_name"] for number in (1, 2, 3)]
    assert isinstance(loads(text), ClusterSpec)


def test_the_two_sets_of_values_show_every_field() -> None:
    shown = {
        field.name
        for values in (FIRST, SECOND)
        for field in form.fields()
        if field.key and field.name in values and _active(field, values) and values[field.name] != field.default
    }
    # The first choice of each of these is its default, and the other one leaves out keys: below.
    assert {field.name for field in form.fields() if field.key} - shown == {"access", "scheduler"}


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"access": "bastion"}, "network.access", "bastion"),
        ({"access": "bastion"}, "network.public_subnet_cidr", None),
        ({"scheduler": "none"}, "scheduler", "none"),
        ({"scheduler": "none"}, "slurm", None),
        ({"scheduler": "none", "enroot": True}, "containers", None),
        ({"pool_1_count": 4, "pool_1_max_count": 2}, "pools.compute.max_count", 4),
        ({"pool_1_listing_version": ""}, "pools.compute.image.listing_version", None),
        ({"add_user": False, "user_name": "alice"}, "users", None),
        ({"pool_2_wanted": False, "pool_2_name": "other"}, "pools.other", None),
    ],
)
def test_what_is_hidden_or_empty_is_left_out(made: Made, changes: dict[str, Any], key: str, value: Any) -> None:
    text = made({**REQUIRED, **changes})
    document = yaml.safe_load(text)
    for part in key.split("."):
        document = document.get(part) if document else None
    assert document == value
    loads(text)


@pytest.mark.parametrize(
    "name", ['A "quoted" name', "${path.module}", "%{ for x in y }", "O'Neill: #1", "Größe", "- a"]
)
def test_no_value_is_more_than_a_text(made: Made, name: str) -> None:
    text = made({**REQUIRED, "add_user": True, "user_name": "alice", "user_keys": KEY, "user_full_name": name})
    assert yaml.safe_load(text)["users"]["people"][0]["full_name"] == name


def test_two_pools_of_one_name_are_refused(folder: Path) -> None:
    values = {**REQUIRED, "pool_2_wanted": "true", "pool_2_name": "compute"}
    (folder / "terraform.tfvars.json").write_text(json.dumps(values))
    done = _terraform(folder, "plan", "-input=false", "-no-color", check=False)
    assert done.returncode == 1
    assert "Two pools have the same name" in done.stdout + done.stderr


def test_the_same_form_makes_the_same_bytes() -> None:
    assert stack_files.archive() == stack_files.archive()
    with zipfile.ZipFile(io.BytesIO(stack_files.archive())) as packed:
        assert packed.namelist() == sorted(packed.namelist())
        assert {"schema.yaml", "variables.tf"} < set(packed.namelist())  # in the root, where the console looks
        assert all(entry.external_attr >> 16 == 0o644 for entry in packed.infolist())
