"""The programs that are sent along run from the memory of a host, with what they import and nothing else.

tests/node_agent/test_package.py has those that are installed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.artifacts import agent_archive

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="they run as root")


def _run(sent: tuple[str, str], text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a shell on a host does, with a sudo that root does not need."""
    command, program = sent
    python = shlex.quote(sys.executable)
    (folder / "sudo").write_text(f'#!/bin/sh\n[ "$1" = -n ] && shift 2 && exec {python} "$@"\n')
    (folder / "sudo").chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-c", command], input=program + text, capture_output=True, text=True, check=False, env=environment,
        cwd="/",
    )  # fmt: skip


def test_the_facts_of_a_host_need_no_agent_there(tmp_path: Path) -> None:
    done = _run(agent_archive.facts_program(controller=False), json.dumps({"users": ["root"]}), tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["user_ids"] == {"root": "0:0"}


def test_the_facts_of_a_cluster_need_no_agent_on_the_controller(tmp_path: Path) -> None:
    asked = {"token": "word", "host": {"users": ["root"]}, "share": None, "seconds": 60}
    # The second line of the conversation is there already.
    done = _run(agent_archive.facts_program(controller=True), f"{json.dumps(asked)}\n\n", tmp_path)
    # ... and the end of the input right after it: nobody waits for the result.
    assert (done.returncode, json.loads(done.stdout)) == (1, {"progress": "token"}), done.stderr


def test_the_drift_of_a_host_needs_no_agent_there(tmp_path: Path) -> None:
    """This machine has no record, which is an answer. What is sent has all modules that it imports."""
    done = _run(agent_archive.drift_program(), json.dumps({"cluster": True}), tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer["host"]) <= {"error", "recorded", "findings"}
    assert "gpucluster apply" in answer["cluster_error"]
    assert _run(agent_archive.drift_program(), "[]", tmp_path).returncode == 2
    command, program = agent_archive.drift_program()
    assert len(command) < 1_000
    assert len(program) < 40_000


@pytest.mark.parametrize("controller", [False, True])
def test_a_program_that_is_cut_off_does_nothing(tmp_path: Path, controller: bool) -> None:
    command, program = agent_archive.facts_program(controller=controller)
    done = subprocess.run(
        ["sh", "-c", command.replace("sudo -n ", "")], input=program[:-100], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "the program did not arrive\n")


@pytest.mark.parametrize(("controller", "largest"), [(False, 32_500), (True, 60_000)])
def test_what_is_sent_to_each_host_is_small(controller: bool, largest: int) -> None:
    command, program = agent_archive.facts_program(controller=controller)
    assert len(command) < 1_000
    assert len(program) < largest
