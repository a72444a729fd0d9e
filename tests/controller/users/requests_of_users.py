"""Requests for the tests of the users program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpucluster.controller.users import state


def alice(home: Path, *keys: str, enabled: bool = True) -> Any:
    return state.DirectoryUser("alice", os.geteuid(), os.getegid(), "Alice", str(home), "/bin/bash", keys, enabled)
