"""Faults of a local cloud's home."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def set_faults(home: Path, faults: Sequence[Mapping[str, Any]]) -> None:
    """Replace the faults of a home at once: the server reads the file at every request, and never a half of it."""
    part = home / "faults.part"
    part.write_text(json.dumps(list(faults)))
    part.replace(home / "faults.json")
