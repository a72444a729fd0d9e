"""Terraform's messages, in the form of its `-json` output (docs: machine-readable UI): events, warnings and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucluster.events import EventKind
from gpucluster.terraform.messages import ErrorReader, parse, plain, plain_diagnostics, resource_event, warning_of

SUBNET = "module.network.oci_core_subnet.private"


def hook(kind: str, action: str = "create", **more: Any) -> dict[str, Any]:
    return {"type": kind, "hook": {"resource": {"addr": SUBNET}, "action": action, **more}}


def diagnostic(severity: str = "error", **more: Any) -> dict[str, Any]:
    return {"type": "diagnostic", "@message": "Error: x", "diagnostic": {"severity": severity, "summary": "x", **more}}


@pytest.mark.parametrize(
    ("message", "status", "elapsed", "data"),
    [
        (hook("apply_start"), "creating", 0.0, {}),
        (hook("apply_progress", elapsed_seconds=10), "creating", 10.0, {}),
        (hook("apply_complete", elapsed_seconds=12, id_value="ocid1.x"), "created", 12.0, {"id": "ocid1.x"}),
        (hook("apply_complete", "delete"), "deleted", 0.0, {}),
        (hook("apply_start", "replace"), "replacing", 0.0, {}),
        (hook("apply_errored", elapsed_seconds=3), "failed", 3.0, {}),
        (hook("apply_start", "something new"), "working", 0.0, {}),
    ],
)
def test_each_step_of_a_resource_is_an_event(
    message: dict[str, Any], status: str, elapsed: float, data: dict[str, str]
) -> None:
    event = resource_event(message)
    assert event is not None
    assert (event.kind, event.name, event.status) == (EventKind.RESOURCE, SUBNET, status)
    assert ((event.elapsed or 0.0), dict(event.data)) == (elapsed, data)


@pytest.mark.parametrize("message", [{}, {"type": "version"}, hook("refresh_start"), diagnostic()])
def test_other_messages_are_no_events(message: dict[str, Any]) -> None:
    assert resource_event(message) is None


@pytest.mark.parametrize("line", ["panic: runtime error", "[1]", '"x"', "[" * 100_000, ""])
def test_a_line_that_is_not_a_message_is_empty_and_shown_as_it_is(line: str) -> None:
    assert parse(line) == {}
    assert plain(line) == line


def test_an_error_is_shown_with_its_detail() -> None:
    assert plain(json.dumps(diagnostic(detail="because"))) == "Error: x\nbecause"
    assert plain(json.dumps({"@message": "Plan: 1 to add"})) == "Plan: 1 to add"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (diagnostic("warning", detail="soon"), "x: soon"),
        (diagnostic("warning", address=SUBNET), f"x ({SUBNET})"),
        (diagnostic("warning", range={"filename": "main.tf", "start": {"line": 7}}), "x (main.tf:7)"),
        (diagnostic("warning", summary="Resource targeting is in effect"), ""),
        (diagnostic("error"), ""),
        ({"type": "log"}, ""),
    ],
)
def test_a_warning_has_its_place_and_those_of_our_own_doing_are_left_out(message: dict[str, Any], text: str) -> None:
    assert warning_of(message) == text


def test_errors_are_collected_with_the_resources_that_failed() -> None:
    reader = ErrorReader()
    messages = [
        hook("apply_start", "delete", id_value="ocid1.subnet.x"),
        hook("apply_errored", "delete"),
        diagnostic("warning"),
        diagnostic(address=SUBNET),
    ]
    for message in messages:
        reader(message)
    assert reader.failed == {SUBNET: "ocid1.subnet.x"}
    assert [each["address"] for each in reader.diagnostics] == [SUBNET]
    created = ErrorReader()
    created(hook("apply_start"))
    created(hook("apply_errored"))
    assert created.failed == {SUBNET: ""}


def test_errors_as_text_are_read_like_those_in_json() -> None:
    text = "╷\n│ Error: Invalid value\n│ \n│   on main.tf line 3\n│ It is wrong.\n╵\n╷\n│ Error: Second\n╵\n"
    first, second = plain_diagnostics(text)
    assert first == {"summary": "Invalid value", "detail": "on main.tf line 3\nIt is wrong."}
    assert second == {"summary": "Second", "detail": ""}
    assert plain_diagnostics("Killed\n") == [{"summary": "Killed"}]
