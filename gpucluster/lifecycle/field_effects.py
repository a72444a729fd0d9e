"""What the changes of cluster.yml do to a cluster that stands: the update policy of each key, held against the plan.

A policy is the strongest effect that a change of the key may have. Which one this change has is decided by what
Terraform plans for the hosts of the key's section. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.lifecycle.resize import PoolScaling, Scaling
from gpucluster.spec import updates
from gpucluster.spec.updates import FieldChange, UpdatePolicy


@dataclass(frozen=True)
class FieldEffect:
    """A changed key of cluster.yml, and what its change does.

    Args:
        path: where in the file, such as `pools.compute.count`.
        before, after: JSON values; None where there is no such part, too.
        policy: the strongest effect that a change of this key may have.
        effect: that of this change.
        note: when the policy holds, or what else to know.
    """

    path: str
    before: Any
    after: Any
    policy: UpdatePolicy
    effect: UpdatePolicy
    note: str = ""


def effects(changes: tuple[FieldChange, ...], hosts: Scaling, *, loses_data: bool) -> tuple[FieldEffect, ...]:
    """The effect of each change.

    Args:
        hosts: what the plan does to the hosts.
        loses_data: the plan deletes or replaces the file system of the homes, or the volume of the controller's state.
    """
    return tuple(
        FieldEffect(
            each.path, each.before, each.after, each.rule.policy, _effect(each, hosts, loses_data), each.rule.note
        )
        for each in changes
    )


def changed_fields(recorded: Mapping[str, Any] | None, now: Mapping[str, Any]) -> tuple[FieldChange, ...] | None:
    """The keys that differ from those of the last complete apply; None if these are not known.

    Args:
        recorded: the configuration record of the controller.
        now: what `updates.recorded` has of cluster.yml.
    """
    before = last_fields(recorded)
    return None if before is None else updates.changes(before, now)


def last_fields(recorded: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The values of cluster.yml at the last complete apply; None if they are not known."""
    fields = (recorded or {}).get("fields")
    return fields if isinstance(fields, Mapping) and (recorded or {}).get("complete") else None


def _effect(change: FieldChange, hosts: Scaling, loses_data: bool) -> UpdatePolicy:
    policy = change.rule.policy
    if policy in (UpdatePolicy.LIVE, UpdatePolicy.REFUSED):
        return policy
    if policy is UpdatePolicy.DESTROYS_DATA and loses_data:
        return policy
    return min(policy, _planned(change.path, hosts), key=lambda each: each.strength)


def _planned(path: str, hosts: Scaling) -> UpdatePolicy:
    """The strongest effect that the plan has on the hosts of a section; on all hosts for a section without any."""
    section, _, rest = path.partition(".")
    if section == "pools":
        return _of_hosts([hosts.pools.get(rest.partition(".")[0], PoolScaling())])
    if section == "login":
        return _of_hosts([hosts.login])
    controller = {"replaced": UpdatePolicy.REPLACES, "rebooted": UpdatePolicy.DRAINS}.get(
        hosts.controller, UpdatePolicy.LIVE
    )
    if section == "controller":
        return controller
    if hosts.replacements:
        return UpdatePolicy.REPLACES
    return max(controller, _of_hosts([*hosts.pools.values(), hosts.login]), key=lambda each: each.strength)


def _of_hosts(scalings: list[PoolScaling]) -> UpdatePolicy:
    if any(each.replaced for each in scalings):
        return UpdatePolicy.REPLACES
    leaving = any(each.removed or each.rebooted for each in scalings)
    return UpdatePolicy.DRAINS if leaving else UpdatePolicy.LIVE
