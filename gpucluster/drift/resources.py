"""The cloud against Terraform's state, and against the cluster's tags, as findings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.drift.model import APPLY, Area, DriftFinding
from gpucluster.handover.adoption import Findings
from gpucluster.oci import tags
from gpucluster.terraform.addresses import is_internal
from gpucluster.terraform.plan import ResourceDrift

_RUNNING = "RUNNING"
# States of an instance on its way: the next look sees where it has arrived.
_MOVING = frozenset({"PROVISIONING", "STARTING", "CREATING_IMAGE", "MOVING"})
# Attributes that change by themselves, or with what others own; members of a cluster network are seen by their names.
_BY_ITSELF = (
    "time_",
    "instance_pools.current_size",
    "is_cross_numa_node",
    "system_tags",
    "defined_tags.Oracle-Tags",
    "lifecycle_details",
)
# Who holds the cluster for a run, and what is known of users' files.
_OWN_TAGS = frozenset({tags.LOCK, tags.FILES})
_LONGEST = 120


def changed(drift: Iterable[ResourceDrift]) -> Iterator[DriftFinding]:
    """Resources that something else than Terraform has changed or removed."""
    for each in drift:
        if is_internal(each.address):
            continue
        if each.gone:
            yield DriftFinding(Area.CLOUD, "resource", each.address, "", "exists", "removed")
            continue
        for name, (before, after) in each.values.items():
            # Whether an instance runs is seen of each instance, also of those that Terraform does not know.
            power = name == "state" and ".oci_core_instance." in f".{each.address}"
            if power or name.startswith(_BY_ITSELF) or _same(name, before, after):
                continue
            yield DriftFinding(Area.CLOUD, "resource", each.address, name, *_shown(before, after))


def _same(name: str, before: Any, after: Any) -> bool:
    """Whether only tags differ that gpucluster changes at run time."""
    if name == "freeform_tags" and isinstance(before, Mapping) and isinstance(after, Mapping):
        return _without_own(before) == _without_own(after)
    return name.startswith("freeform_tags.") and name.partition(".")[2] in _OWN_TAGS


def _without_own(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in _OWN_TAGS}


def _shown(before: Any, after: Any) -> tuple[str, str]:
    """Both values for a message: of lists, what only one of them has."""
    if isinstance(before, list) and isinstance(after, list):
        gone = [each for each in before if each not in after]
        new = [each for each in after if each not in before]
        return (
            "; ".join(map(_short, gone)) or "nothing of this kind",
            "; ".join(map(_short, new)) or "it is missing",
        )
    return _short(before), _short(after)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        value = {key: each for key, each in value.items() if each not in (None, "", [], False)}
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def instances(resources: Iterable[TaggedResource], down: Collection[str] = ()) -> Iterator[DriftFinding]:
    """Instances that do not run.

    Args:
        down: the names of hosts that a run of gpucluster has stopped.
    """
    for each in resources:
        if each.kind != "instance" or each.ending or each.state in _MOVING or each.name in down:
            continue
        if each.state and each.state != _RUNNING:
            yield DriftFinding(
                Area.CLOUD,
                "instance",
                each.tags.get(tags.NODE, each.name),
                "state",
                _RUNNING,
                each.state,
                f"oci compute instance action --action START --instance-id {each.id}, then: {APPLY}",
            )


def unknown(findings: Findings) -> Iterator[DriftFinding]:
    """What has the cluster's tags, and no state knows."""
    for address, resource in findings.adopt.items():
        yield _unknown(resource, f"{APPLY} takes it into the state as {address}")
    for resource in findings.removable:
        yield _unknown(resource, f"{APPLY} removes it")
    for resource in findings.left:
        yield _unknown(resource, "remove it, or its tags: no command of gpucluster does")


def _unknown(resource: TaggedResource, fix: str) -> DriftFinding:
    kind = resource.kind.replace("_", " ")
    return DriftFinding(Area.CLOUD, kind, resource.name, resource.id, "no such resource", "no state has it", fix)


def elastic(
    resources: Iterable[TaggedResource], pools: Collection[str], nodes: Collection[str]
) -> Iterator[DriftFinding]:
    """Instances of elastic pools that nothing will end: of a pool that is none, or a second one of a name.

    Args:
        pools: the elastic pools of cluster.yml. `nodes`: the names that their nodes can have; empty if they are not
            known.
    """
    names: dict[str, str] = {}
    for each in sorted(resources, key=lambda one: one.created):
        if each.kind != "instance" or each.ending or tags.NODE not in each.tags:
            continue
        node = each.tags[tags.NODE]
        if each.pool not in pools:
            yield _stray(each, node, f"no node of the pool {each.pool or '(none)'}")
        elif nodes and node not in nodes:
            yield _stray(each, node, "no node of this name")
        elif node in names:
            yield _stray(each, node, f"one instance, which is {names[node]}")
        names.setdefault(node, each.id)


def _stray(resource: TaggedResource, node: str, expected: str) -> DriftFinding:
    fix = f"oci compute instance terminate --instance-id {resource.id}"
    return DriftFinding(Area.CLOUD, "elastic instance", node, resource.id, expected, "nothing will end it", fix)
