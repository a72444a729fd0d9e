"""What the last complete apply has recorded of this host, where a program of the cluster changes a file of a task."""

from __future__ import annotations

import json
import os
import stat

from gpucluster.node_agent import durable_file
from gpucluster.node_agent.drift import recorded


def follow(path: str, was: str, now: str) -> None:
    """Note in the record that a program of the cluster has changed a file of a task, which then counts no more.

    A file that was different from the record before stays a finding. `apply` runs its tasks once all the same.

    Args:
        was, now: its states, from `recorded.file_state`.
    """
    try:
        before = recorded.RECORD.stat()
        record = json.loads(recorded.RECORD.read_text(encoding="utf-8"))
        if record["format"] != recorded.FORMAT or record["noted"]["files"].get(path) != was:
            return
        record["noted"]["files"][path] = now
        # An apply that has begun meanwhile has removed it, or has written its own.
        if os.path.samestat(before, recorded.RECORD.stat()):
            durable_file.replace(recorded.RECORD, json.dumps(record), mode=stat.S_IMODE(before.st_mode))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return  # drift reports it
