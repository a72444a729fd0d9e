"""The people's program, as everybody asks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backup.programs import Failed, call, last_words

_PROGRAM = ("/usr/local/bin/cluster", "request")
# The frame waits for a server that starts; thousands of homes take their time.
_FRAME_SECONDS, _HOMES_SECONDS = 120.0, 3600.0


def frame() -> None:
    """Make what a directory has before anybody is in it, and see that it serves. The caller holds the directory's lock.

    Raises:
        Failed: it does not.
    """
    _ask("frame", {"lock_held": True}, _FRAME_SECONDS)


def settle(names: Sequence[str]) -> list[str]:
    """Bring homes, keys and associations after the directory; says what of it could not be done."""
    try:
        users = _ask("user.import", {"users": [{"name": name} for name in names]}, _HOMES_SECONDS)["users"]
    except Failed as error:
        return [error.message]
    return [f"{user['name']}: {user['message']}" for user in users if user["status"] == "failed"]


def _ask(operation: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
    request = json.dumps({"operation": operation, "arguments": arguments})
    done = call(*_PROGRAM, text=request, seconds=seconds)
    try:
        said = json.loads(done.stdout)
        if "error" not in said:
            return dict(said["result"])
        message, hint = str(said["error"]["message"]), str(said["error"]["hint"])
    except (ValueError, KeyError, TypeError):
        raise Failed(f"the directory's program gives no answer: {last_words(done)}", "Run `gpucluster apply`") from None
    raise Failed(message, hint)
