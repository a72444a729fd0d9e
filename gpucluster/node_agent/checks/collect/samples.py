"""Samples of earlier checks, kept in a file: replaced as a whole, and never waited for.

Two checks at once both read, and the later one wins: what is lost is one sample.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def load(file: Path) -> Any:
    """What was kept; None if there is nothing that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def keep(file: Path, value: Any) -> None:
    """Keep a value. Where that is not possible, nothing is kept: the next check has no window then."""
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new.write_text(json.dumps(value), encoding="utf-8")
        os.replace(new, file)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
