"""What this cluster reached before, where nothing is published: a file on the controller, for all operators."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

_FILE = "baseline.json"


def load(folder: Path) -> dict[str, Any]:
    """The baseline; empty if there is none, or none that can be read."""
    try:
        content = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def merge(folder: Path, new: dict[str, Any]) -> dict[str, Any]:
    """Add to the baseline, or replace what it has of the same; the file is written whole or not at all."""
    merged = {**load(folder), **new}
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{_FILE}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(merged, indent=1, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, folder / _FILE)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return merged
