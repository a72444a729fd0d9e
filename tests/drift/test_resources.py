"""The cloud against the state and the tags."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.drift import resources
from gpucluster.drift.model import Area, DriftFinding
from gpucluster.handover.adoption import Findings
from gpucluster.terraform.plan import ResourceDrift, drift_of

LIST = "module.network.oci_core_security_list.private"
RULE = {"protocol": "6", "source": "0.0.0.0/0", "description": "", "tcp_options": []}
HOST = "module.controller.oci_core_instance.this"


def texts(found: Any) -> list[str]:
    return [f"{each.where} {each.name}: {each.expected} -> {each.seen}" for each in found]


def changed(address: str, **values: tuple[Any, Any]) -> list[str]:
    return texts(resources.changed([ResourceDrift(address, gone=False, values=values)]))


def test_a_rule_of_the_network_is_named_and_the_others_are_not() -> None:
    old = {"protocol": "all", "source": "10.0.0.0/16"}
    assert changed(LIST, ingress_security_rules=([old], [old, RULE])) == [
        f'{LIST} ingress_security_rules: nothing of this kind -> {{"protocol": "6", "source": "0.0.0.0/0"}}'
    ]
    assert changed(LIST, ingress_security_rules=([old, RULE], [old])) == [
        f'{LIST} ingress_security_rules: {{"protocol": "6", "source": "0.0.0.0/0"}} -> it is missing'
    ]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("state", "RUNNING", "STOPPED"),  # seen of each instance, by its own state
        ("time_maintenance_reboot_due", "", "2026-12-01"),
        ("freeform_tags", {"gpucluster": "demo"}, {"gpucluster": "demo", "gpucluster-lock": "apply"}),
        ("freeform_tags.gpucluster-lock", None, "apply"),
        ("freeform_tags.gpucluster-files", "none", "some"),
    ],
)
def test_what_changes_by_itself_is_no_drift(name: str, before: Any, after: Any) -> None:
    assert changed(HOST, **{name: (before, after)}) == []


def test_other_attributes_are() -> None:
    assert changed(HOST, shape=("VM.Standard.E5.Flex", "VM.Standard.E4.Flex")) == [
        f"{HOST} shape: VM.Standard.E5.Flex -> VM.Standard.E4.Flex"
    ]
    assert changed(HOST, freeform_tags=({"gpucluster": "demo"}, {"gpucluster": "x"})) != []
    (line,) = changed(HOST, metadata=("a" * 500, "b"))
    assert len(line) < 250


def test_a_resource_that_is_gone() -> None:
    (found,) = resources.changed([ResourceDrift("module.state_volume[0].oci_core_volume_attachment.this", gone=True)])
    assert (found.seen, found.area) == ("removed", Area.CLOUD)


def test_drift_is_read_from_the_plan_without_secrets() -> None:
    shown = {
        "resource_drift": [
            {
                "address": LIST,
                "mode": "managed",
                "change": {
                    "actions": ["update"],
                    "before": {"a": 1, "key": "s3cret", "same": 1},
                    "after": {"a": 2, "key": "s4cret", "same": 1},
                    "before_sensitive": {"key": True},
                    "after_sensitive": {"key": True},
                },
            },
            {"address": "data.x", "mode": "data", "change": {"actions": ["update"], "before": {}, "after": {}}},
            {"address": HOST, "mode": "managed", "change": {"actions": ["delete"], "before": {"a": 1}, "after": None}},
        ]
    }
    first, second = drift_of(shown)
    assert dict(first.values)["a"] == (1, 2)
    assert "s3cret" not in str(first)
    assert (second.address, second.gone, dict(second.values)) == (HOST, True, {})
    assert drift_of({}) == ()


def instance(name: str, state: str = "RUNNING", **tags: str) -> TaggedResource:
    return TaggedResource(
        "instance", f"ocid1.instance.test..{name}{state}", name, state, tags, created=tags.pop("created", "")
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [("RUNNING", 0), ("STOPPED", 1), ("STOPPING", 1), ("STARTING", 0), ("PROVISIONING", 0), ("TERMINATING", 0)],
)
def test_an_instance_that_does_not_run(state: str, expected: int) -> None:
    found = list(resources.instances([instance("demo-controller", state)]))
    assert len(found) == expected
    assert all("--instance-id ocid1" in each.fix for each in found)


def test_what_no_state_knows() -> None:
    volume = TaggedResource("volume", "ocid1.volume.test..1", "demo-state")
    found = list(
        resources.unknown(
            Findings({HOST: instance("demo-controller")}, unwanted=(instance("compute-9"),), left=(volume,))
        )
    )
    assert [each.where for each in found] == ["demo-controller", "compute-9", "demo-state"]
    assert [each.fix.startswith("gpucluster apply") for each in found] == [True, True, False]


def test_elastic_instances_that_nothing_ends() -> None:
    first, second = instance("burst-e1", node="burst-e1", pool="burst", created="1"), None
    second = instance("burst-e1", "STARTING", node="burst-e1", pool="burst", created="2")
    other = instance("old-e1", node="old-e1", pool="old")
    strange = instance("burst-e9", node="burst-e9", pool="burst")
    permanent = instance("compute-1", pool="compute")
    found = list(resources.elastic([second, first, other, strange, permanent], ["burst"], {"burst-e1"}))
    assert [(each.where, each.name) for each in found] == [
        ("old-e1", other.id),
        ("burst-e9", strange.id),
        ("burst-e1", second.id),
    ]
    assert list(resources.elastic([first], ["burst"], {"burst-e1"})) == []


def test_a_finding_is_plain_data() -> None:
    (found,) = resources.instances([instance("demo-controller", "STOPPED")])
    assert isinstance(found, DriftFinding)
