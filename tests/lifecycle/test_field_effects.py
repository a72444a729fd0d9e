"""The effect of a change: the policy of its key, held against what the plan does to the hosts of the key's section."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.lifecycle.field_effects import changed_fields, effects
from gpucluster.lifecycle.resize import PoolScaling, Replacement, Scaling
from gpucluster.spec import loads, updates
from gpucluster.spec.updates import FieldChange
from tests.spec.spec_texts import LOCAL

QUIET = Scaling({})
REMOVED = Scaling({"compute": PoolScaling(removed=("compute-2",))})
REPLACED = Scaling({"compute": PoolScaling(replaced=("compute-1",))}, replacements=(Replacement("x", ("y",), "z"),))


@pytest.mark.parametrize(
    ("path", "key", "hosts", "loses_data", "effect"),
    [
        ("pools.compute.count", "pools.<name>.count", QUIET, False, "live"),
        ("pools.compute.count", "pools.<name>.count", REMOVED, False, "drains"),
        ("pools.compute.count", "pools.<name>.count", REPLACED, False, "drains"),
        ("pools.cpu.count", "pools.<name>.count", REMOVED, False, "live"),
        ("pools.compute", "pools", REMOVED, False, "drains"),
        ("pools.compute.max_count", "pools.<name>.max_count", REPLACED, False, "replaces"),
        ("pools.compute.partition", "pools.<name>.partition", REPLACED, False, "live"),
        ("network.access", "network.access", REPLACED, False, "replaces"),
        ("network.access", "network.access", QUIET, False, "live"),
        ("controller.ocpus", "controller.ocpus", Scaling({}, "rebooted"), False, "drains"),
        ("controller.ocpus", "controller.ocpus", REMOVED, False, "live"),
        ("controller.image.ocid", "controller.image.ocid", Scaling({}, "replaced"), False, "replaces"),
        ("login.ocpus", "login.ocpus", Scaling({}, login=PoolScaling(rebooted=("login-1",))), False, "drains"),
        ("controller.state_volume_gb", "controller.state_volume_gb", QUIET, True, "destroys data"),
        ("controller.state_volume_gb", "controller.state_volume_gb", QUIET, False, "live"),
        ("cloud.availability_domain", "cloud.availability_domain", REPLACED, False, "replaces"),
        ("scheduler", "scheduler", QUIET, False, "refused"),
    ],
)
def test_an_effect_is_what_the_plan_does_and_never_more_than_the_policy(
    path: str, key: str, hosts: Scaling, loses_data: bool, effect: str
) -> None:
    (found,) = effects((FieldChange(path, key, 1, 2),), hosts, loses_data=loses_data)
    assert (found.path, found.before, found.after, found.effect) == (path, 1, 2, effect)
    assert found.policy == updates.policies()[key].policy
    assert found.note == updates.policies()[key].note


@pytest.mark.parametrize(
    "recorded",
    [None, {}, {"complete": True}, {"complete": True, "fields": "x"}, {"complete": False, "fields": {}}],
)
def test_without_a_complete_record_it_is_not_known_what_has_changed(recorded: dict[str, Any] | None) -> None:
    assert changed_fields(recorded, updates.recorded(loads(LOCAL))) is None


def test_the_record_of_the_last_apply_is_what_a_file_is_compared_with() -> None:
    now = updates.recorded(loads(LOCAL))
    before = updates.recorded(loads(LOCAL.replace("count: 2", "count: 3")))
    assert changed_fields({"complete": True, "fields": now}, now) == ()
    (change,) = changed_fields({"complete": True, "fields": before}, now) or ()
    assert (change.path, change.before, change.after) == ("pools.compute.count", 3, 2)
