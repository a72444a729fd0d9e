"""A plan of Terraform: what it would change, from the output of `terraform plan` and `terraform show`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Change:
    """One planned change of a resource.

    Args:
        address: of the resource.
        action: create, update, delete or replace.
        reason: why it is deleted or replaced, as Terraform puts it: `tainted`, `cannot_update`,
            `delete_because_each_key`; empty if Terraform gives none.
        forced_by: the attributes that force the replacement, such as `availability_domain`.
        changed: the attributes that an update changes, such as `source_details.source_id`; empty for other actions.
    """

    address: str
    action: str
    reason: str = ""
    forced_by: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attributes:
    """The attributes of a planned change, as in `Change`."""

    forced_by: tuple[str, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What an apply would do.

    Args:
        file: the plan file. It can be applied once.
        destroy: the plan removes everything.
        changes_outputs: output values would change, as they do for outputs that a later release adds.
    """

    changes: tuple[Change, ...]
    file: Path
    destroy: bool = False
    changes_outputs: bool = False

    def lost(self, resource_type: str) -> tuple[str, ...]:
        """The addresses of this type that the plan deletes or replaces."""
        return tuple(
            change.address
            for change in self.changes
            if change.action in ("delete", "replace") and f"{resource_type}." in change.address
        )


@dataclass
class PlanReader:
    """Collects a plan from the messages of `terraform plan -json`, one call for each."""

    _changes: list[Change] = field(default_factory=list)
    _outputs: set[str] = field(default_factory=set)

    def __call__(self, message: Mapping[str, Any]) -> None:
        """Take one message."""
        if message.get("type") == "planned_change":
            change = message["change"]
            if change["action"] not in ("noop", "read"):
                self._changes.append(Change(change["resource"]["addr"], change["action"], change.get("reason", "")))
        elif message.get("type") == "outputs":
            self._outputs.update(output.get("action", "noop") for output in message["outputs"].values())

    @property
    def needs_attributes(self) -> bool:
        """Whether `plan` needs the attributes: what is lost in a replacement or an update depends on them."""
        return any(change.action in ("replace", "update") for change in self._changes)

    def plan(self, file: Path, *, destroy: bool, attributes: Mapping[str, Attributes]) -> Plan:
        """The whole plan.

        Args:
            attributes: what `attributes_of` read, by address; empty where nothing is replaced or updated.
        """
        changes = tuple(_with(change, attributes.get(change.address)) for change in self._changes)
        return Plan(changes, file, destroy, changes_outputs=bool(self._outputs - {"noop"}))


def _with(change: Change, attributes: Attributes | None) -> Change:
    if attributes is None:
        return change
    return replace(change, forced_by=attributes.forced_by, changed=attributes.changed)


def attributes_of(shown: Mapping[str, Any]) -> dict[str, Attributes]:
    """The attributes of each change, by address. The messages of `terraform plan` do not name them.

    Args:
        shown: what `terraform show -json` prints of the plan file.
    """
    return {each["address"]: _attributes(each["change"]) for each in shown.get("resource_changes", ())}


def _attributes(change: Mapping[str, Any]) -> Attributes:
    forced_by = tuple(
        ".".join(step for step in path if isinstance(step, str)) for path in change.get("replace_paths", ())
    )
    updated = change.get("actions") == ["update"]
    differing = _differing(change.get("before"), change.get("after"), change.get("after_unknown")) if updated else ()
    return Attributes(forced_by, tuple(dict.fromkeys(differing)))


def _differing(before: Any, after: Any, unknown: Any, at: str = "") -> Iterator[str]:
    """The dotted names of the attributes that differ; positions in lists are left out. A value that is only known after
    the apply counts as different: it can't be ruled out."""
    if unknown is True:
        yield at
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        parts = unknown if isinstance(unknown, Mapping) else {}
        for name in sorted({*before, *after, *parts}):
            inside = f"{at}.{name}" if at else name
            yield from _differing(before.get(name), after.get(name), parts.get(name), inside)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        items = unknown if isinstance(unknown, list) and len(unknown) == len(after) else [None] * len(after)
        for old, new, part in zip(before, after, items, strict=True):
            yield from _differing(old, new, part, at)
    elif before != after or _any(unknown):
        yield at


def _any(unknown: Any) -> bool:
    """Whether a part of a value is only known after the apply."""
    if isinstance(unknown, Mapping):
        return any(map(_any, unknown.values()))
    return any(map(_any, unknown)) if isinstance(unknown, list) else bool(unknown)
