"""The command `gpucluster-agent check` for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpucluster.node_agent.checks.expected import NodeExpectation
from tests.node_agent.checks.collect.measured_tree import write


def check(folder: Path, expected: NodeExpectation | None, *words: str) -> subprocess.CompletedProcess[str]:
    if expected:
        write(folder / "checks.json", json.dumps(expected.to_dict()))
    places = [f"--{name}={folder / file}" for name, file in
              (("expected", "checks.json"), ("root", "root"), ("state", "state"))]  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "gpucluster.node_agent", "check", *places, *words],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
