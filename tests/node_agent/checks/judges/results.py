"""The statuses of checks by their short names, for tests of judges."""

from __future__ import annotations

from gpucluster.node_agent.checks.model import Status

PASS, WARN, FAIL, UNKNOWN, SKIP = Status.PASS, Status.WARN, Status.FAIL, Status.UNKNOWN, Status.SKIP
