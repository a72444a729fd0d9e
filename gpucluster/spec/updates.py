"""The update policy of each key: what `apply` does when its value changes, and which keys differ from those before.

The policies are data: update_policies.toml states them, with the reasons where a policy depends on more than the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from gpucluster.spec import model

_FILE = "update_policies.toml"
# The table of keys that are in no section.
_TOP = "top"


class UpdatePolicy(StrEnum):
    """What `apply` does when the value of a key changes, from the weakest effect to the strongest."""

    LIVE = "live"
    DRAINS = "drains"
    REPLACES = "replaces"
    DESTROYS_DATA = "destroys data"
    REFUSED = "refused"

    @property
    def strength(self) -> int:
        """The place in that order."""
        return list(UpdatePolicy).index(self)


#: What each policy means, as the reference states it.
MEANINGS = {
    UpdatePolicy.LIVE: "Changed in place, or for hosts and jobs that come later. No node leaves service, and no job "
    "ends.",
    UpdatePolicy.DRAINS: "Nodes that it affects leave service when their jobs have ended, and are rebooted or removed. "
    "The disks of those that stay are kept.",
    UpdatePolicy.REPLACES: "Hosts are recreated, or get another boot volume: what is on their disks is lost. `apply` "
    "refuses it without `--replace-nodes`, and waits for the jobs on nodes.",
    UpdatePolicy.DESTROYS_DATA: "Users' files or the controller's state would be lost. `apply` refuses it without "
    "`--delete-data`.",
    UpdatePolicy.REFUSED: "`apply` refuses it, or the cloud does.",
}


@dataclass(frozen=True)
class FieldPolicy:
    """The policy of a key.

    Args:
        policy: the strongest effect that a change may have.
        note: when it is so, or what else to know; empty if there is nothing to add.
    """

    policy: UpdatePolicy
    note: str = ""


@dataclass(frozen=True)
class FieldChange:
    """A key whose value differs from that of the last apply.

    Args:
        path: where in the file, such as `pools.compute.count`.
        key: the same as the reference names it: `pools.<name>.count`.
        before, after: JSON values; None where there is no such part, too.
    """

    path: str
    key: str
    before: Any
    after: Any

    @property
    def rule(self) -> FieldPolicy:
        """The policy of the key."""
        return policies()[self.key]


@cache
def policies() -> Mapping[str, FieldPolicy]:
    """The policy of each key that is not a section, by its path: `pools.<name>.count`, `users.people[].uid`."""
    tables = tomllib.loads((files(__package__) / _FILE).read_text(encoding="utf-8"))
    found: dict[str, FieldPolicy] = {}
    for paths in model.sections().values():
        for key, entry in tables.get(paths[0] or _TOP, {}).items():
            rule = entry if isinstance(entry, Mapping) else {"policy": entry}
            policy = FieldPolicy(UpdatePolicy(rule["policy"]), rule.get("note", ""))
            found |= {_join(path, key): policy for path in paths}
    return found


def keys() -> tuple[str, ...]:
    """The path of every key that is not a section, in the order of the model."""
    return tuple(
        _join(path, name)
        for kind, paths in model.sections().items()
        for path in paths
        for name, info in kind.model_fields.items()
        if not _is_section(info.annotation)
    )


def recorded(spec: model.ClusterSpec) -> dict[str, Any]:
    """The values of all keys, as JSON, for a later `changes`."""
    return spec.model_dump(mode="json")


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """The keys whose values differ, in the order of the model.

    Args:
        before: as `recorded` made it. A key that is not in it, as an earlier release made it, has no earlier value
            and is left out.
        after: the same of now.
    """
    return tuple(_of_section(model.ClusterSpec, ("", ""), before, after))


def _of_section(
    kind: type[BaseModel], at: tuple[str, str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[FieldChange]:
    path, key = at
    for name, info in kind.model_fields.items():
        if name not in before or (name == "max_count" and _follows_count(before) and _follows_count(after)):
            continue
        inner = _join(path, name), _join(key, name)
        yield from _of_value(info.annotation, inner, before[name], after[name])


def _of_value(annotation: Any, at: tuple[str, str], before: Any, after: Any) -> Iterator[FieldChange]:
    if before == after:
        return
    path, key = at
    kind, form = _section_in(annotation)
    if kind and form is None and isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _of_section(kind, at, before, after)
        return
    old, new = _named(form, before), _named(form, after)
    if kind is None or old is None or new is None:
        yield FieldChange(path, key, before, after)
        return
    for name in dict.fromkeys([*old, *new]):
        inner = f"{path}.{name}" if form is dict else f"{path}[{name}]"
        if name in old and name in new:
            yield from _of_section(kind, (inner, f"{key}.<name>" if form is dict else f"{key}[]"), old[name], new[name])
        else:
            yield FieldChange(inner, key, old.get(name), new.get(name))


def _follows_count(pool: Mapping[str, Any]) -> bool:
    """Whether `max_count` is `count`, which is its default."""
    return "count" in pool and pool.get("max_count") == pool["count"]


def _named(form: Any, value: Any) -> Mapping[str, Mapping[str, Any]] | None:
    """Sections by name; None for a list whose parts have none."""
    if form is dict and isinstance(value, Mapping):
        return value
    if form is tuple and isinstance(value, Sequence) and all("name" in each for each in value):
        return {each["name"]: each for each in value}
    return None


def _is_section(annotation: Any) -> bool:
    """Whether a key has nothing but keys of its own."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _section_in(annotation: Any) -> tuple[type[BaseModel] | None, Any]:
    """The section that a value is made of, and `dict` or `tuple` if it has several of them."""
    if type(None) in get_args(annotation):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    if _is_section(annotation):
        return annotation, None
    form, parts = get_origin(annotation), get_args(annotation)
    if form is dict and _is_section(parts[1]):
        return parts[1], dict
    if form is tuple and _is_section(parts[0]):
        return parts[0], tuple
    return None, form


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
