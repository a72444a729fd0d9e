"""The JSON schema of events: of what `--output json` prints, and of `Event.to_dict()`.

It has a version. Within one, properties, kinds and statuses may be added; none is removed, and none gets another type
(tests/events/test_schema.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucluster.events import STATUSES, EventKind, PhaseStatus

VERSION = 1

_TEXT, _NUMBER, _OBJECT = {"type": "string"}, {"type": "number"}, {"type": "object"}
_ABOUT = {
    EventKind.PHASE: "A part of a run begins or ends.",
    EventKind.RESOURCE: "A resource of the cloud, a node or another thing changes. Any word may be its status.",
    EventKind.TASK: "A task has ended on one host.",
    EventKind.CHECK: "A check of `verify` has ended, on all hosts or on those of one pool.",
    EventKind.LOG: "Something to know; `scaling`: nodes are added or removed; `waiting`: for what.",
    EventKind.RESULT: "The last line of a command: how it ended. `on_event` has none.",
}
_MESSAGE = {**_TEXT, "description": "A sentence for users; left out if it is empty."}
_ELAPSED = {**_NUMBER, "description": "Seconds that it took."}
_ERROR = {
    "error": {**_TEXT, "description": "Only of a command that failed: the name of the class in `gpucluster.errors`."},
    "what": {**_TEXT, "description": "What went wrong."},
    "where": {**_TEXT, "description": "The file, resource or request; may be empty."},
    "hint": {**_TEXT, "description": "What to do next; may be empty."},
    "exit_code": {"type": "integer", "description": "Of the command."},
}
_DATA: Mapping[EventKind, Mapping[str, Any]] = {
    EventKind.PHASE: {
        **_OBJECT,
        "properties": {
            "last": {**_NUMBER, "description": "Seconds that the phase took in the last run of this command."},
            "tasks": {
                **_OBJECT,
                "description": "The last run of this command whose phase had tasks: how many, and its seconds.",
                "properties": {"number": {"type": "integer"}, "seconds": _NUMBER},
                "required": ["number", "seconds"],
            },
        },
    },
    EventKind.RESOURCE: {
        **_OBJECT,
        "properties": {"id": {**_TEXT, "description": "The OCID, where it is known."}},
    },
    EventKind.TASK: {
        **_OBJECT,
        "properties": {
            "host": _TEXT,
            "number": {"type": "integer", "description": "Which task of its playbook, from 1; not of tasks outside."},
        },
        "required": ["host"],
    },
    EventKind.CHECK: {
        **_OBJECT,
        "properties": {
            "check": {**_TEXT, "description": "The name of the check."},
            "scope": {**_TEXT, "description": "What it is about: a host, a node, a pool or the cluster."},
        },
        "required": ["check", "scope"],
    },
    EventKind.LOG: {**_OBJECT, "description": "What the message is about, in values for programs."},
    EventKind.RESULT: {
        **_OBJECT,
        "description": "The result of the command, as `gpucluster.as_json` has it.",
        "properties": {"command": {**_TEXT, "description": "The words of the command."}, **_ERROR},
        "required": ["command"],
        "dependentRequired": {"error": ["what", "where", "hint", "exit_code"]},
    },
}
#: What `logs HOST --follow` prints is not an event: it has no end, and no time of its own.
_LINE = {
    **_OBJECT,
    "description": "A line of a journal, of `logs HOST --follow` alone. `on_event` has none.",
    "properties": {
        "kind": {"const": "line"},
        "host": {**_TEXT, "description": "The host whose journal it is."},
        "line": {**_TEXT, "description": "The line as journalctl prints it."},
    },
    "required": ["kind", "host", "line"],
}
#: The name of a result is that of the command, which is empty where a command line has none.
_REQUIRED = {
    kind: ["time", "kind", "name", "status", *(["data"] if "required" in _DATA[kind] else [])] for kind in EventKind
} | {EventKind.RESULT: ["time", "kind", "status", "data"]}


def event_schema() -> Mapping[str, object]:
    """The JSON schema (draft 2020-12) of an event, as `gpucluster schema events` prints it.

    Its `$id` ends with the version. Within a version, properties, kinds and statuses may be added; none is removed, and
    none gets another type. A program ignores what it does not know.
    """
    definitions = {**{str(kind.value): _of_kind(kind) for kind in EventKind}, "line": _LINE}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gpucluster:events:{VERSION}",
        "title": f"Events of gpucluster, version {VERSION}",
        "description": "One line of `--output json`, and what `Event.to_dict()` returns. Empty fields are left out.",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in definitions],
        "$defs": definitions,
    }


def _of_kind(kind: EventKind) -> dict[str, Any]:
    statuses = STATUSES[kind]
    schema: dict[str, Any] = {
        **_OBJECT,
        "description": _ABOUT[kind],
        "properties": {
            "time": {**_NUMBER, "description": "Seconds since the epoch."},
            "kind": {"const": str(kind.value)},
            "name": {**_TEXT, "description": "What it is about."},
            "status": {"enum": [*map(str, statuses)]} if statuses else _TEXT,
            "message": _MESSAGE,
            "elapsed": _ELAPSED,
            "data": dict(_DATA[kind]),
        },
        "required": _REQUIRED[kind],
    }
    if kind is EventKind.PHASE:
        ended = [str(status) for status in PhaseStatus if status is not PhaseStatus.STARTED]
        schema["if"] = {"properties": {"status": {"enum": ended}}}
        schema["then"] = {"required": ["elapsed"]}
    return schema


def event_schema_text() -> str:
    """The content of docs/reference/events.schema.json."""
    return json.dumps(event_schema(), indent=2, ensure_ascii=False) + "\n"
