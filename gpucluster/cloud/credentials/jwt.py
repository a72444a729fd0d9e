"""The claims of a JSON Web Token: for whom it is, and until when. Who accepts it checks the signature."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any


def claims(token: str) -> Mapping[str, Any]:
    """The claims; empty if it is not such a token."""
    parts = token.strip().split(".")
    if len(parts) != 3:  # noqa: PLR2004 - header, claims, signature
        return {}
    try:
        read = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def times(read: Mapping[str, Any]) -> tuple[float, float] | None:
    """From when and until when it holds, in seconds since the epoch; None if it has no end."""
    until, since = read.get("exp"), read.get("iat", 0)
    if not isinstance(until, (int, float)) or not isinstance(since, (int, float)):
        return None
    return float(since), float(until)
