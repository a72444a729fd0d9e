"""The form has what the model has: descriptions, bounds, choices and defaults of the keys that it asks for."""

from __future__ import annotations

import re

import pytest

from gpucluster import shapes
from gpucluster.resource_manager import form
from gpucluster.spec.messages import field_at

FIELDS = {field.name: field for field in form.fields()}
OF_MODEL = [name for name, field in FIELDS.items() if field.key and not re.fullmatch(r"pools\.\{\d\}", field.key)]


def test_names_are_unique_and_fit_terraform() -> None:
    names = [field.name for field in form.fields()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)


def test_no_two_fields_have_the_same_key_at_the_same_time() -> None:
    keys = [field.key for field in form.fields() if field.key]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", OF_MODEL)
def test_a_field_has_the_facts_of_its_key(name: str) -> None:
    field = FIELDS[name]
    info = field_at(tuple(int(part) if part.isdecimal() else part for part in field.key.split(".")))
    assert info is not None
    facts = form.facts_of(info)
    if name != "enroot":  # one of several runtimes is a box here
        assert (field.minimum, field.maximum, field.pattern) == (facts["minimum"], facts["maximum"], facts["pattern"])
        assert field.description == facts["description"] != ""
    if facts["choices"] and name != "enroot":
        assert set(field.choices) <= set(facts["choices"])


def test_conditions_are_about_fields_that_come_before() -> None:
    seen: set[str] = set()
    for field in form.fields():
        assert {each.field for each in field.when} <= seen, field.name
        assert set(field.depends_on.values()) <= set(FIELDS), field.name
        seen.add(field.name)


def test_every_group_has_fields_and_a_title_of_its_own() -> None:
    titles = [group.title for group in form.groups()]
    assert len(titles) == len(set(titles))
    assert all(group.fields for group in form.groups())


def test_pools_may_have_every_shape_that_validate_accepts() -> None:
    offered = set(FIELDS["pool_1_shape"].choices)
    assert offered == {name for name, shape in shapes.catalogue().items() if not shape.memory_fabric}
    assert "BM.GPU.GB200.4" not in offered
    assert set(FIELDS["controller_shape"].choices) == {name for name, shape in shapes.catalogue().items() if shape.flex}


def test_defaults_are_those_of_the_model_where_it_has_one() -> None:
    assert FIELDS["storage_home_mount_path"].default == "/mnt/home"
    assert FIELDS["controller_boot_volume_gb"].default == 256
    assert FIELDS["slurm_login_needs_job"].default is True
    assert FIELDS["network_ssh_allowed_cidrs"].default is None


def test_a_key_that_cluster_yml_does_not_have_is_found_at_once() -> None:
    with pytest.raises(LookupError, match=r"cluster\.yml has no key network\.nonsense"):
        form._field("network.nonsense", "A title")
