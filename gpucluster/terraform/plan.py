"""A plan of Terraform: what it would change, from the output of `terraform plan` and `terraform show`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpucluster.terraform.addresses import is_internal

#: What stands for a value that is not shown.
SENSITIVE, UNKNOWN, CHANGED = "(sensitive value)", "(known after apply)", "(changed)"
_TOO_LONG = frozenset({"user_data"})


@dataclass(frozen=True)
class ResourceChange:
    """One planned change of a resource.

    Args:
        address: of the resource.
        action: create, update, delete, replace, or import: adopted as it is.
        reason: why it is deleted or replaced, as Terraform puts it: `tainted`, `cannot_update`,
            `delete_because_each_key`; empty if Terraform gives none.
        forced_by: the attributes that force the replacement, such as `availability_domain`.
        changed: the attributes that an update changes, such as `source_details.source_id`; empty for other actions.
        values: the values before and after, by attribute, as far as they were asked for. A secret is never among them.
        adopts: the OCID of the resource that is adopted; empty for a resource that the state has, or that is created.
    """

    address: str
    action: str
    reason: str = ""
    forced_by: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, hash=False)
    adopts: str = ""

    @property
    def internal(self) -> bool:
        """Whether it is a note in Terraform's state, such as which image was selected, and nothing in the cloud."""
        return is_internal(self.address)


@dataclass(frozen=True)
class ResourceDrift:
    """A resource that is not as the state has it: something else than Terraform has changed or removed it.

    Args:
        values: the values in the state and in the cloud, by attribute; empty for a resource that is gone. A secret is
            never among them.
    """

    address: str
    gone: bool
    values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Attributes:
    """The attributes of a planned change, as in `ResourceChange`."""

    forced_by: tuple[str, ...]
    changed: tuple[str, ...]
    values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class TerraformPlan:
    """What an apply would do.

    Args:
        file: the plan file. It can be applied once.
        destroy: the plan removes everything.
        changes_outputs: output values would change, as they do for outputs that a later release adds.
    """

    changes: tuple[ResourceChange, ...]
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

    _changes: list[ResourceChange] = field(default_factory=list)
    _outputs: set[str] = field(default_factory=set)

    def __call__(self, message: Mapping[str, Any]) -> None:
        """Take one message."""
        if message.get("type") == "planned_change":
            change = message["change"]
            if change["action"] not in ("noop", "read"):
                adopts = (change.get("importing") or {}).get("id", "")
                self._changes.append(
                    ResourceChange(
                        change["resource"]["addr"], change["action"], change.get("reason", ""), adopts=adopts
                    )
                )
        elif message.get("type") == "outputs":
            self._outputs.update(output.get("action", "noop") for output in message["outputs"].values())

    @property
    def needs_attributes(self) -> bool:
        """Whether `plan` needs the attributes: what is lost in a replacement or an update depends on them."""
        return any(change.action in ("replace", "update") for change in self._changes)

    @property
    def has_changes(self) -> bool:
        """Whether any resource would change."""
        return bool(self._changes)

    def plan(self, file: Path, *, destroy: bool, attributes: Mapping[str, Attributes]) -> TerraformPlan:
        """The whole plan.

        Args:
            attributes: what `attributes_of` read, by address; empty where nothing is replaced or updated.
        """
        changes = tuple(_with(change, attributes.get(change.address)) for change in self._changes)
        return TerraformPlan(changes, file, destroy, changes_outputs=bool(self._outputs - {"noop"}))


def _with(change: ResourceChange, attributes: Attributes | None) -> ResourceChange:
    if attributes is None:
        return change
    return replace(change, forced_by=attributes.forced_by, changed=attributes.changed, values=attributes.values)


def attributes_of(shown: Mapping[str, Any]) -> dict[str, Attributes]:
    """The attributes of each change, by address. The messages of `terraform plan` do not name them.

    Args:
        shown: what `terraform show -json` prints of the plan file.
    """
    return {each["address"]: _attributes(each["change"]) for each in shown.get("resource_changes", ())}


def drift_of(shown: Mapping[str, Any]) -> tuple[ResourceDrift, ...]:
    """What has changed outside of Terraform.

    Args:
        shown: what `terraform show -json` prints of the file of a plan that only refreshes.
    """
    return tuple(
        ResourceDrift(each["address"], each["change"]["actions"] == ["delete"], dict(_values(each["change"])))
        for each in shown.get("resource_drift", ())
        if each.get("mode") != "data" and each["change"]["actions"] != ["no-op"]
    )


def _attributes(change: Mapping[str, Any]) -> Attributes:
    forced_by = tuple(
        ".".join(step for step in path if isinstance(step, str)) for path in change.get("replace_paths", ())
    )
    updated = change.get("actions") == ["update"]
    differing = _differing(change.get("before"), change.get("after"), change.get("after_unknown")) if updated else ()
    return Attributes(forced_by, tuple(dict.fromkeys(differing)), dict(_values(change)))


def _values(change: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The dotted name of each attribute that differs, with both values. What is deleted has no values of interest."""
    if change.get("after") is None and not change.get("after_unknown"):
        return
    yield from _differing_values(
        _Side(change.get("before"), None, change.get("before_sensitive")),
        _Side(change.get("after"), change.get("after_unknown"), change.get("after_sensitive")),
    )


@dataclass(frozen=True)
class _Side:
    """A value before or after a change, with what `terraform show -json` reports of its parts."""

    value: Any
    unknown: Any
    sensitive: Any

    @property
    def shown(self) -> Any:
        if _any(self.sensitive):
            return SENSITIVE
        return UNKNOWN if _any(self.unknown) else self.value

    @property
    def names(self) -> set[str]:
        return {name for part in (self.value, self.unknown) if isinstance(part, Mapping) for name in part}

    @property
    def only(self) -> _Side | None:
        """The only block of a nested block; None if this is not a list of one block."""
        lists = [part for part in (self.value, self.unknown) if isinstance(part, list) and part]
        if not lists or any(len(part) != 1 or not isinstance(part[0], Mapping) for part in lists):
            return None
        return _Side(*(part[0] if isinstance(part, list) and part else None for part in self._parts))

    def of(self, name: str) -> _Side:
        return _Side(*(part.get(name) if isinstance(part, Mapping) else None for part in self._parts))

    @property
    def _parts(self) -> tuple[Any, Any, Any]:
        return self.value, self.unknown, self.sensitive


def _differing_values(before: _Side, after: _Side, at: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    if after.unknown is True or True in (before.sensitive, after.sensitive):
        if after.unknown or before.value != after.value:
            yield at, (before.shown, after.shown)
    elif names := (before.names | after.names):
        for name in sorted(names):
            yield from _differing_values(before.of(name), after.of(name), f"{at}.{name}" if at else name)
    elif after.only and (before.only or not before.value):
        yield from _differing_values(before.only or _Side(None, None, None), after.only, at)
    elif (before.value != after.value and (before.value or after.value)) or _any(after.unknown):
        long = at.rpartition(".")[2] in _TOO_LONG
        yield at, (CHANGED, CHANGED) if long else (before.shown, after.shown)


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
