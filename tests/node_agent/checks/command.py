"""The command `gpucluster-agent check` for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpucluster.node_agent.checks.expected import NodeExpectation
from tests.node_agent.checks.collect.measured_tree import write
from tests.waiting import PATIENCE_S

# The program, whose measurements have the time that a busy machine needs: what their own limits end is another matter.
_PROGRAM = f"""
import sys
from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.__main__ import main
limits = registry.limits
registry.limits = lambda *given: dict.fromkeys(limits(*given), {PATIENCE_S})
sys.exit(main(sys.argv[1:]))
"""


def check(folder: Path, expected: NodeExpectation | None, *words: str) -> subprocess.CompletedProcess[str]:
    if expected:
        write(folder / "checks.json", json.dumps(expected.to_dict()))
    places = [f"--{name}={folder / file}" for name, file in
              (("expected", "checks.json"), ("root", "root"), ("state", "state"))]  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *places, *words],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
