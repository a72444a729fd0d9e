"""Which code a server of the local cloud runs: it lives on when gpucluster is upgraded, and lacks what is new then."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent.parent


@cache
def digest() -> str:
    """The checksum of the local cloud's source, as it was when this process first asked."""
    code = hashlib.sha256()
    for file in sorted(_FOLDER.rglob("*.py")):
        code.update(file.relative_to(_FOLDER).as_posix().encode() + b"\0" + file.read_bytes())
    return code.hexdigest()
