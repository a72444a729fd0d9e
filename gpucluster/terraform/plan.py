"""A plan of Terraform: what it would change, from the output of `terraform plan` and `terraform show`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Change:
    """One planned change of a resource.

    Args:
        address: of the resource.
        action: create, update, delete, replace, or import: adopted as it is.
        reason: why it is deleted or replaced, as Terraform puts it: `tainted`, `cannot_update`,
            `delete_because_each_key`; empty if Terraform gives none.
        forced_by: the attributes that force the replacement, such as `source_details.source_id`.
        adopts: the OCID of the resource that is adopted; empty for a resource that the state has, or that is created.
    """

    address: str
    action: str
    reason: str = ""
    forced_by: tuple[str, ...] = ()
    adopts: str = ""


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
                adopts = (change.get("importing") or {}).get("id", "")
                self._changes.append(
                    Change(change["resource"]["addr"], change["action"], change.get("reason", ""), adopts=adopts)
                )
        elif message.get("type") == "outputs":
            self._outputs.update(output.get("action", "noop") for output in message["outputs"].values())

    @property
    def replaces(self) -> bool:
        """Whether a resource would be replaced: then `plan` needs what forces that."""
        return any(change.action == "replace" for change in self._changes)

    def plan(self, file: Path, *, destroy: bool, forced_by: Mapping[str, tuple[str, ...]]) -> Plan:
        """The whole plan.

        Args:
            forced_by: what `forcing_attributes` read; empty where nothing is replaced.
        """
        changes: Iterable[Change] = self._changes
        if forced_by:
            changes = (replace(change, forced_by=forced_by.get(change.address, ())) for change in changes)
        return Plan(tuple(changes), file, destroy, changes_outputs=bool(self._outputs - {"noop"}))


def forcing_attributes(shown: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The attributes that force a replacement, by address. The messages of `terraform plan` do not name them.

    Args:
        shown: what `terraform show -json` prints of the plan file.
    """
    return {
        change["address"]: tuple(
            ".".join(step for step in path if isinstance(step, str))
            for path in change["change"].get("replace_paths", ())
        )
        for change in shown.get("resource_changes", ())
    }
