"""Requests to the program `cluster`, which creates homes, keys and associations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpucluster.controller.users.config import COMMAND
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.programs import call_with_data, last_words

_PROGRAM = (COMMAND, "request")
# The base tree waits for a server that starts; thousands of homes take long.
_BASE_TREE_SECONDS, _HOMES_SECONDS = 120.0, 3600.0


def make_base_tree() -> None:
    """Create the directory's base tree, which also shows that slapd works. The caller holds the directory's lock.

    Raises:
        Failed: slapd does not work.
    """
    _ask("base_tree", {"lock_held": True}, _BASE_TREE_SECONDS)


def complete(names: Sequence[str]) -> list[str]:
    """Create homes, keys and associations for the directory's users; returns what could not be done."""
    try:
        users = _ask("user.import", {"users": [{"name": name} for name in names]}, _HOMES_SECONDS)["users"]
    except AgentError as error:
        return [error.message]
    return [f"{user['name']}: {user['message']}" for user in users if user["status"] == "failed"]


def _ask(operation: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
    request = json.dumps({"operation": operation, "arguments": arguments})
    result = call_with_data(*_PROGRAM, text=request, seconds=seconds)
    try:
        answer = json.loads(result.stdout)
        if "error" not in answer:
            return dict(answer["result"])
        message, hint = str(answer["error"]["message"]), str(answer["error"]["hint"])
    except (ValueError, KeyError, TypeError):
        raise Failed(
            f"the directory's program gives no answer: {last_words(result)}", "Run `gpucluster apply`"
        ) from None
    raise Failed(message, hint)
