"""How to try GitOps on one machine: what docs/how-to/gitops.md types, up to the plan of a runner.

tests/e2e applies plans; tests/terraform has the locks of the backend `http`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.lifecycle.saved_plan import SavedPlan
from tests.addresses import free_port, free_range
from tests.localcloud.api_harness import running
from tests.programs.page import PAGE, section
from tests.waiting import PATIENCE_S, wait_for

TRIAL = section("Try it on one machine", PAGE.with_name("gitops.md"))
PORT = "8765"


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell in which the page's commands work: a local cloud without machines, and a free port."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "gpucluster"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpucluster "$@"\n')
    program.chmod(0o755)
    with running(tmp_path / "cloud") as api, free_range() as addresses:
        yield {
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "GPUCLUSTER_HOME": str(api.home),
            "PYTHONPATH": str(PAGE.parents[2]), "HOME": str(tmp_path), "PORT": str(free_port()), "ADDRESSES": addresses,
            **{f"GIT_{who}_{what}": "ci@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }  # fmt: skip


def test_a_new_clone_plans_with_the_state_that_another_one_uses(tmp_path: Path, trial: dict[str, str]) -> None:
    folder = tmp_path / "trial"
    folder.mkdir()

    def typed(text: str) -> str:
        return text.replace(PORT, trial["PORT"])

    for name, text in TRIAL.files.items():
        (folder / name).write_text(typed(text))
    begins, *setup = TRIAL.commands[0].splitlines(keepends=True)
    # `init` has taken a range that is free at that moment; other tests may take it before the second plan.
    setup.insert(setup.index("gpucluster init\n") + 1, 'sed -Ei "s/10\\.[0-9]+/$ADDRESSES/g" cluster.yml\n')
    assert begins == "python3 states.py &\n"
    plan = TRIAL.commands[1]
    assert "apply cluster.plan" in TRIAL.commands[2]
    with subprocess.Popen([sys.executable, "states.py"], cwd=folder, stderr=subprocess.DEVNULL) as store:
        try:
            wait_for("the store listens", lambda: _listens(int(trial["PORT"])), state=store.poll)
            script = "set -e\n" + typed("".join(setup)) + plan + plan.replace("plan-1", "plan-2")
            done = subprocess.run(
                ["bash", "-c", script], cwd=folder, env=trial, capture_output=True, text=True, timeout=PATIENCE_S,
                check=False,
            )  # fmt: skip
        finally:
            store.terminate()
    assert done.returncode == 0, done.stdout + done.stderr
    for clone in ("plan-1", "plan-2"):
        assert "pool compute: compute-1, compute-2 to add" in (folder / clone / "plan.md").read_text()
        assert (folder / clone / "cluster.plan").stat().st_size > 0
    assert not list(folder.glob("*.lock")), "each run has given the state back"
    # The clone of the job `apply` compares the plan of the review with one of its own: both are of a first apply.
    saved = [SavedPlan.read(folder / clone / "cluster.plan", "operator") for clone in ("plan-1", "plan-2")]
    assert saved[0].plan["changes"] != saved[1].plan["changes"], "each clone has chosen an identity"
    saved[0].require(saved[1])


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0
