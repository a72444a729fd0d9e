"""The table has every variable of every release, and what it states of each is so."""

from __future__ import annotations

import re

import pytest

from gpucluster.resource_manager import table
from gpucluster.spec import messages
from tests.resource_manager import oci_hpc
from tests.resource_manager.convert_cases import CASES, used_keys

VARIABLES = table.variables()


def test_every_variable_of_every_release_is_in_it_and_no_other() -> None:
    assert sorted(VARIABLES) == sorted(oci_hpc.facts())


def test_the_newest_release_has_all_that_the_stack_declares() -> None:
    """153 in variables.tf of 3.1.0 (one is indented, and easily missed), and four that only its form has."""
    newest = set(oci_hpc.of_release(table.LAST))
    of_form = {
        "compute_image_compartment", "controller_image_compartment", "marketplace_listing_id",
        "marketplace_source_images",
    }  # fmt: skip
    assert of_form < newest
    assert len(newest - of_form) == 153
    assert [oci_hpc.releases()[0], oci_hpc.releases()[-1]] == [table.FIRST, table.LAST]


@pytest.mark.parametrize("name", VARIABLES)
def test_type_default_and_releases_are_those_of_the_stack(name: str) -> None:
    facts = oci_hpc.facts()[name]
    assert (VARIABLES[name].type, VARIABLES[name].default) == (facts["type"], facts.get("default"))
    assert [VARIABLES[name].since, VARIABLES[name].until] == [facts["first"], facts["last"]]


@pytest.mark.parametrize("name", VARIABLES)
def test_each_has_keys_that_exist_or_a_reason(name: str) -> None:
    variable = VARIABLES[name]
    assert bool(variable.keys) != bool(variable.reason)
    assert {variable.needs, variable.same_as} <= {"", *VARIABLES}
    assert not (variable.keys and (variable.needs or variable.same_as or variable.filled_in or variable.off_counts))
    named = re.findall(r"`((?:[a-z_]+\.)+[a-z_]+|pools\.NAME[a-z_.]*)`", variable.reason)
    for key in (*variable.keys, *named):
        assert messages.field_at(tuple(key.split("."))) is not None, key


def test_every_key_is_decided_by_its_variable_in_some_stack() -> None:
    """And no variable decides a key that the table does not name."""
    decided = used_keys(CASES)
    listed = {name: variable.keys for name, variable in VARIABLES.items() if variable.keys}
    assert sorted(set(listed) - set(decided)) == [], "the table promises a key, and no case shows it"
    for name, keys in decided.items():
        # `pools.NAME.image.ocid` is told as `pools.NAME.image`, and a section as its keys.
        told = [key for key in keys if any(_within(key, each) for each in VARIABLES[name].keys)]
        assert keys - set(told) == set(), name
    for name, promised in listed.items():
        shown = [key for key in promised if any(_within(each, key) for each in decided[name])]
        assert shown == list(promised), name


def _within(key: str, outer: str) -> bool:
    return f"{key}.".startswith(f"{outer}.")


def test_secrets_have_no_key() -> None:
    secret = {name for name, variable in VARIABLES.items() if variable.secret}
    assert secret == {"admin_password", "api_user_key", "auth_token", "munge_key", "mysql_admin_password"}
    assert all(VARIABLES[name].reason for name in secret)
