"""The schema of events is a promise to programs: within a version nothing is removed, and nothing gets another type.

`golden/event_schemas/` has each version as it was first published. What has changed since may only be more. A change
that breaks it needs another `VERSION` in gpucluster/events/schema.py; UPDATE_GOLDEN=1 writes the file of a new version,
and never an old one again. The reference has the current one (tests/golden/test_generated.py).
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpucluster.events import STATUSES, EventKind
from gpucluster.events.schema import VERSION, event_schema, event_schema_text
from gpucluster.node_agent.checks.model import Status
from tests.event_lines import require_valid

PUBLISHED = Path(__file__).parents[1] / "golden" / "event_schemas"
#: They say something and require nothing.
_NOTES = {"$schema", "$id", "title", "description"}
#: Lists of which the new one must have all that the old one has.
_KEPT_LISTS = {"enum", "required", "oneOf"}
_SCHEMAS_BY_NAME = {"properties", "$defs", "dependentRequired"}


def breaking(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """What a program that relies on the old schema does not find in the new one."""
    if isinstance(old, list):
        yield from (f"{place}: {each!r} is gone" for each in old if each not in (new or []))
        return
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old != new:
            yield f"{place}: {old!r} is {new!r}"
        return
    for key, value in old.items():
        if key in _NOTES and not place.endswith(tuple(f"/{name}" for name in _SCHEMAS_BY_NAME)):
            continue
        at = f"{place}/{key}"
        if key not in new:
            yield f"{at} is gone"
        else:
            yield from breaking(value, new[key], at)
    if not old.keys() & {"enum", "const"} and "enum" in new and "type" not in new and "type" in old:
        yield f"{place}: any {old['type']} was possible"


def _schema() -> dict[str, Any]:
    return json.loads(json.dumps(event_schema()))  # type: ignore[no-any-return]


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(_schema())


def test_it_has_all_that_was_published_in_this_version() -> None:
    file = PUBLISHED / f"{VERSION}.json"
    if os.environ.get("UPDATE_GOLDEN") and not file.exists():
        file.write_text(event_schema_text())
    lost = [*breaking(json.loads(file.read_text()), _schema())]
    assert not lost, f"programs rely on it; either it stays, or VERSION becomes {VERSION + 1}: {lost}"


def test_each_version_stays_known() -> None:
    assert sorted(file.name for file in PUBLISHED.iterdir()) == [f"{number}.json" for number in range(1, VERSION + 1)]
    for number in range(1, VERSION + 1):
        assert json.loads((PUBLISHED / f"{number}.json").read_text())["$id"] == f"urn:gpucluster:events:{number}"


BREAKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a kind is gone": lambda schema: schema["oneOf"].pop(),
    "a definition is gone": lambda schema: schema["$defs"].pop("log"),
    "a property is gone": lambda schema: schema["$defs"]["phase"]["properties"].pop("elapsed"),
    "a type is another one": lambda schema: schema["$defs"]["phase"]["properties"]["time"].update(type="string"),
    "a status is gone": lambda schema: schema["$defs"]["task"]["properties"]["status"]["enum"].remove("changed"),
    "any status is possible": lambda schema: schema["$defs"]["task"]["properties"].update(status={"type": "string"}),
    "a kind has another name": lambda schema: schema["$defs"]["task"]["properties"]["kind"].update(const="tasks"),
    "a name may be missing": lambda schema: schema["$defs"]["task"]["required"].remove("name"),
    "a part of the data is gone": lambda schema: schema["$defs"]["check"]["properties"]["data"]["properties"].pop(
        "scope"
    ),
    "an error may be without a hint": lambda schema: schema["$defs"]["result"]["properties"]["data"][
        "dependentRequired"
    ]["error"].remove("hint"),
    "a phase that has ended may be without its time": lambda schema: schema["$defs"]["phase"].pop("then"),
}
ADDITIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a kind": lambda schema: (
        schema["oneOf"].append({"$ref": "#/$defs/more"}),
        schema["$defs"].update(more={"type": "object"}),
    ),
    "a property": lambda schema: schema["$defs"]["phase"]["properties"].update(more={"type": "number"}),
    "a status": lambda schema: schema["$defs"]["task"]["properties"]["status"]["enum"].append("rescued"),
    "a property that is always there": lambda schema: schema["$defs"]["log"]["required"].append("message"),
    "another description": lambda schema: schema["$defs"]["log"].update(description="Other words."),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_program_is_found(name: str) -> None:
    changed = copy.deepcopy(_schema())
    BREAKS[name](changed)
    assert [*breaking(_schema(), changed)]


@pytest.mark.parametrize("name", ADDITIONS)
def test_more_is_allowed(name: str) -> None:
    changed = copy.deepcopy(_schema())
    ADDITIONS[name](changed)
    assert changed != _schema()
    assert [*breaking(_schema(), changed)] == []


def test_every_kind_has_its_statuses() -> None:
    assert {*STATUSES} == {*EventKind}
    assert STATUSES[EventKind.CHECK] == tuple(status.value for status in Status)


GOOD = {"time": 1.5, "kind": "phase", "name": "terraform", "status": "done", "elapsed": 0.0}
ERROR = {"error": "InputError", "what": "", "where": "", "hint": "", "exit_code": 2}


@pytest.mark.parametrize(
    "event",
    [
        {key: value for key, value in GOOD.items() if key != "elapsed"},
        {**GOOD, "kind": "phases"},
        {**GOOD, "status": "ended"},
        {**GOOD, "time": "now"},
        {"time": 1, "kind": "task", "name": "a task", "status": "ok"},
        {"time": 1, "kind": "result", "status": "failed", "data": {"command": "plan", "error": "InputError"}},
        {"time": 1, "kind": "result", "status": "success", "data": {}},
    ],
)
def test_what_is_not_an_event_is_refused(event: Mapping[str, Any]) -> None:
    with pytest.raises(AssertionError, match="not an event"):
        require_valid([event])


def test_what_is_an_event_is_not() -> None:
    require_valid(
        [
            GOOD,
            {**GOOD, "more": "is allowed"},
            {"time": 1, "kind": "result", "status": "failed", "data": {"command": "", **ERROR}},
            {"time": 1, "kind": "resource", "name": "node n1", "status": "any word"},
        ]
    )
