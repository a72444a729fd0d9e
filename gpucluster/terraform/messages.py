"""Reads what Terraform prints: the messages of its `-json` output, and errors in plain text. Pure.

Source: Terraform's documentation, "Machine-Readable UI".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucluster.events import Event, EventKind
from gpucluster.node_agent import bounded

# The box that Terraform draws around an error.
_BOX = str.maketrans("", "", "╷│╵")
# By action of a resource: the status of its event during the change, and at its end.
_STATUSES = {
    "create": ("creating", "created"),
    "update": ("updating", "updated"),
    "delete": ("deleting", "deleted"),
    "replace": ("replacing", "replaced"),
    "read": ("reading", "read"),
}


def parse(line: str) -> Mapping[str, Any]:
    """One line of `-json` output; empty for a line that is not JSON (a crash report)."""
    try:
        parsed = bounded.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def plain(line: str) -> str:
    """One line of `-json` output as Terraform prints it as text, with the detail of an error."""
    message = parse(line)
    detail = _diagnostic(message).get("detail")
    return "\n".join(part for part in (str(message.get("@message") or line), detail) if part)


def resource_event(message: Mapping[str, Any]) -> Event | None:
    """The event for a message about the change of one resource; None for any other message."""
    hook = message.get("hook") or {}
    address = _address(hook)
    begin, end = _STATUSES.get(str(hook.get("action")), ("working", "done"))
    elapsed = float(hook.get("elapsed_seconds", 0))
    match message.get("type"):
        case "apply_start":
            return Event(EventKind.RESOURCE, address, begin)
        case "apply_progress":
            return Event(EventKind.RESOURCE, address, begin, elapsed=elapsed)
        case "apply_complete":
            data = {"id": hook["id_value"]} if hook.get("id_value") else {}
            return Event(EventKind.RESOURCE, address, end, elapsed=elapsed, data=data)
        case "apply_errored":
            return Event(EventKind.RESOURCE, address, "failed", elapsed=elapsed)
    return None


# A destroy plans for a part of the resources: the file systems are deleted last.
_EXPECTED = ("Resource targeting is in effect", "Applied changes may be incomplete")


def warning_of(message: Mapping[str, Any]) -> str:
    """The text of a message that is a warning; empty for any other message."""
    diagnostic = _diagnostic(message)
    if not diagnostic or diagnostic.get("severity") == "error" or diagnostic.get("summary") in _EXPECTED:
        return ""
    place = diagnostic.get("address") or ""
    start = diagnostic.get("range", {}).get("start", {})
    if not place and start:
        place = f"{diagnostic['range'].get('filename', '')}:{start.get('line', '')}"
    text = ": ".join(part for part in (diagnostic.get("summary"), diagnostic.get("detail")) if part)
    return f"{text} ({place})" if place else text


@dataclass
class ErrorReader:
    """Collects the errors among the messages of one command, one call for each message.

    Args:
        diagnostics: the errors, as Terraform has them.
        failed: the OCID of each resource whose change failed, by address; empty if it has none yet.
    """

    diagnostics: list[Mapping[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    def __call__(self, message: Mapping[str, Any]) -> None:
        """Take one message."""
        hook = message.get("hook") or {}
        address = _address(hook)
        if message.get("type") == "apply_start":
            self._ids[address] = str(hook.get("id_value") or "")
        elif message.get("type") == "apply_errored":
            self.failed[address] = self._ids.get(address, "")
        diagnostic = _diagnostic(message)
        if diagnostic and diagnostic.get("severity") == "error":
            self.diagnostics.append(diagnostic)


def plain_diagnostics(text: str) -> list[Mapping[str, Any]]:
    """Errors as Terraform prints them as text, in the form of JSON diagnostics.

    Args:
        text: without colours.
    """
    text = text.translate(_BOX)
    return [_plain_diagnostic(part) for part in text.split("Error: ")[1:]] or [{"summary": text.strip()}]


def _plain_diagnostic(text: str) -> Mapping[str, Any]:
    summary, _, detail = text.strip().partition("\n")
    return {"summary": summary.strip(), "detail": "\n".join(line.strip() for line in detail.splitlines()).strip()}


def _diagnostic(message: Mapping[str, Any]) -> Mapping[str, Any]:
    diagnostic: Mapping[str, Any] = (message.get("diagnostic") or {}) if message.get("type") == "diagnostic" else {}
    return diagnostic


def _address(hook: Mapping[str, Any]) -> str:
    return str((hook.get("resource") or {}).get("addr", ""))
