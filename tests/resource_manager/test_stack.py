"""Values that Resource Manager has as text, and which of them have an effect."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.resource_manager.stack import Stack, secret_names


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), ("true", True), ("True", True), (" TRUE ", True), ("1", True), (1, True), ("false", False),
     (False, False), ("0", False), (0, False), ("", False), (None, False)],
)  # fmt: skip
def test_a_flag_has_any_of_these_forms(value: Any, expected: bool) -> None:
    stack = Stack({"autoscaling": value})
    assert stack.flag("autoscaling") is expected
    assert stack.faults == {}


@pytest.mark.parametrize(
    ("value", "expected"), [(10, 10), ("10", 10), (" 10 ", 10), ("10.0", 10), (10.0, 10), ("", 2), (None, 2)]
)
def test_a_number_has_any_of_these_forms(value: Any, expected: int) -> None:
    stack = Stack({"node_count": value})
    assert stack.number("node_count") == expected
    assert stack.faults == {}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("autoscaling", "yes please", "is neither true nor false"),
        ("autoscaling", [True], "is neither true nor false"),
        ("node_count", "ten", "is not a whole number"),
        ("node_count", "1.5", "is not a whole number"),
        ("node_count", True, "is not a whole number"),
        ("node_count", "1e9", "is not a whole number"),
        ("node_count", {"a": 1}, "is not a whole number"),
        ("queue", ["a"], "is not a text"),
    ],
)
def test_a_value_of_another_type_is_a_fault_that_quotes_nothing(name: str, value: Any, message: str) -> None:
    stack = Stack({name: value})
    {"autoscaling": stack.flag, "node_count": stack.number, "queue": stack.text}[name](name)
    assert stack.faults == {name: message}


def test_without_a_value_the_default_of_the_stack_counts() -> None:
    assert Stack({}).text("queue") == "compute"
    assert Stack({}).number("controller_boot_volume_size") is None


def test_a_mapping_may_be_json() -> None:
    assert Stack({"marketplace_version_id": '{"HPC": "a"}'}).mapping("marketplace_version_id") == {"HPC": "a"}
    assert Stack({"marketplace_version_id": {"HPC": "a"}}).mapping("marketplace_version_id") == {"HPC": "a"}
    assert Stack({"marketplace_version_id": "HPC"}).mapping("marketplace_version_id") == {}


@pytest.mark.parametrize(
    ("values", "name", "active"),
    [
        ({"add_lfs": True}, "add_lfs", True),
        ({"add_lfs": "false"}, "add_lfs", False),
        ({"lfs_target_path": "/lustre"}, "lfs_target_path", False),
        ({"add_lfs": True, "lfs_target_path": "/lustre"}, "lfs_target_path", True),
        ({"add_lfs": True, "lfs_target_path": "/mnt/lfs"}, "lfs_target_path", False),  # the default
        ({"add_lfs": True, "lfs_source_IP": "0.0.0.0"}, "lfs_source_IP", False),
        ({"preemptible": True}, "preemptible", True),
        ({"ldap": "false"}, "ldap", True),
        ({"ldap": "true"}, "ldap", False),
        ({"tenancy_ocid": "ocid1.tenancy.oc1..a"}, "tenancy_ocid", False),
        ({"add_nfs": True, "targetCompartment": "a", "fss_compartment": "a"}, "fss_compartment", False),
        ({"add_nfs": True, "targetCompartment": "a", "fss_compartment": "b"}, "fss_compartment", True),
        ({"ad": "AD-1", "login_ad": "AD-2"}, "login_ad", True),
        ({"hostname_convention": "None"}, "hostname_convention", False),
    ],
)
def test_a_variable_has_an_effect_where_the_stack_gives_it_one(values: dict[str, Any], name: str, active: bool) -> None:
    assert Stack(values).active(name) is active


def test_releases_are_told_by_variables_that_only_they_have() -> None:
    assert Stack({"cluster_network": "true"}).release() == 2
    assert Stack({"rdma_enabled": "true"}).release() == 3
    assert Stack({"node_count": 2}).release() == 3


def test_secrets_are_found_by_the_table_by_name_and_by_what_is_in_them() -> None:
    values = {
        "munge_key": "x", "ood_user_password": "x", "my_api_key": "x", "private_key_path": "x", "vault_secret": "x",
        "ssh_key": "-----BEGIN OPENSSH PRIVATE KEY-----", "queue": "compute", "use_existing_auth_token": "false",
        "compute_node_ssh_key": "ssh-ed25519 AAAA",
    }  # fmt: skip
    assert set(secret_names(values)) == {
        "munge_key", "ood_user_password", "my_api_key", "private_key_path", "vault_secret", "ssh_key",
    }  # fmt: skip
