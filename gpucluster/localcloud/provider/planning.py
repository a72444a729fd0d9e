"""What a plan of the stand-in changes: values that the cloud will set, what is kept, and what differs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpucluster.localcloud.provider.schema import UNKNOWN, Attribute, Json, SchemaBlock

Step = str | int
Path_ = tuple[Step, ...]


def with_unknowns(block: SchemaBlock, proposed: Mapping[str, Any]) -> Json:
    """The plan of a create: values that the cloud will set are unknown."""
    planned: Json = {}
    for name, attribute in block.attributes.items():
        value = proposed.get(name)
        planned[name] = UNKNOWN if value is None and attribute.computed else value
    for name, nested in block.blocks.items():
        value = proposed.get(name)
        if isinstance(value, list):
            value = [item if item is UNKNOWN else with_unknowns(nested, item) for item in value]
        planned[name] = value
    return planned


def with_kept_blocks(block: SchemaBlock, before: Mapping[str, Any], proposed: Mapping[str, Any]) -> Json:
    """The plan of an update: a block that the configuration does not have keeps what the cloud has set.

    Terraform does that with attributes that are computed. It does not know that a block is; the real provider does, and
    declares those as computed that are not lists of the user's.
    """
    kept: Json = dict(proposed)
    for name, nested in block.blocks.items():
        old, new = before.get(name), proposed.get(name)
        if nested.nesting != "list" or nested.max_items != 1 or not (isinstance(old, list) and isinstance(new, list)):
            continue
        if old and not new:
            kept[name] = old
        elif old and new and isinstance(new[0], dict):
            kept[name] = [with_kept_blocks(nested, old[0], new[0])]
    return kept


def with_kept_zeros(block: SchemaBlock, before: Mapping[str, Any], proposed: Mapping[str, Any]) -> Json:
    """The plan of an update: what is not set, and is empty in the state, stays as it is there.

    The real provider stores `false`, 0 or an empty text where nothing is set: the SDK that it is built on does not tell
    them apart, and plans no change. A state of its making must not be changed by ours.
    """
    kept: Json = dict(proposed)
    for name, attribute in block.attributes.items():
        if _is_unset(attribute, before.get(name), proposed.get(name)):
            kept[name] = before[name]
    for name, nested in block.blocks.items():
        old, new = before.get(name), proposed.get(name)
        if not (isinstance(old, list) and isinstance(new, list)):
            continue
        if nested.nesting == "set":
            kept[name] = [next((each for each in old if _same(nested, each, item)), item) for item in new]
        elif len(old) == len(new) and UNKNOWN not in new:
            kept[name] = [with_kept_zeros(nested, *pair) for pair in zip(old, new, strict=True)]
    return kept


def _is_unset(attribute: Attribute, old: Any, new: Any) -> bool:
    return new is None and attribute.optional and not attribute.computed and old in (False, 0, "", [], {})


def _same(block: SchemaBlock, old: Any, new: Any) -> bool:
    """Whether an item of a set is one of the state. The API sets what is computed and not set."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return bool(old == new)
    for name, attribute in block.attributes.items():
        mine, theirs = old.get(name), new.get(name)
        unset = _is_unset(attribute, mine, theirs) or (theirs in (None, UNKNOWN) and attribute.computed)
        if not unset and not _equal(attribute, mine, theirs):
            return False
    for name, nested in block.blocks.items():
        olds, news = old.get(name) or [], new.get(name) or []
        if len(olds) != len(news) or not all(_same(nested, *pair) for pair in zip(olds, news, strict=True)):
            return False
    return True


def differences(
    block: SchemaBlock, before: Mapping[str, Any], after: Mapping[str, Any], at: Path_ = ()
) -> Iterator[Path_]:
    """Paths of all attributes, keys of maps and sets of blocks that differ."""
    for name, attribute in block.attributes.items():
        old, new = before.get(name), after.get(name)
        if _equal(attribute, old, new):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from ((*at, name, key) for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        else:
            yield (*at, name)
    for name, nested in block.blocks.items():
        old, new = before.get(name), after.get(name)
        if not (isinstance(old, list) and isinstance(new, list)):
            same = old == new
        elif nested.nesting == "set":
            same = _unordered(old) == _unordered(new)
        elif len(old) == len(new):
            for position, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
                yield from differences(nested, old_item, new_item, (*at, name, position))
            continue
        else:
            same = False
        if not same:
            yield (*at, name)


def _equal(attribute: Attribute, old: Any, new: Any) -> bool:
    is_set = isinstance(attribute.type, list) and attribute.type[0] == "set"
    if is_set and isinstance(old, list) and isinstance(new, list):
        return _unordered(old) == _unordered(new)
    return bool(old == new)


def _unordered(items: list[Any]) -> list[str]:
    return sorted(json.dumps(item, sort_keys=True, default=repr) for item in items)


def dotted(path: Path_) -> str:
    """A path as `block.attribute`, without the positions in lists."""
    return ".".join(step for step in path if isinstance(step, str))
