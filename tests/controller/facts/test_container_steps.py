"""Container steps: the image that proves them, the nodes that fail, and what Slurm prints about them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.facts import container_steps
from gpucluster.controller.facts.container_steps import ContainerSteps, StepImage
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.programs import Completed, ProgramGroup
from tests.controller.jobs.share_harness import share
from tests.doubles.commands import Commands


class Programs(ProgramGroup):
    """A double that answers for Slurm's commands. It does not prove what they print."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer
        self.asked: list[list[str]] = []

    def run(self, argv: Sequence[str], seconds: float, data: bytes = b"") -> Completed[str]:
        self.asked.append(list(argv))
        done: Completed[str] = self._answer(list(argv))
        return done


class Image(StepImage):
    """A double of the image."""

    def __init__(self) -> None:
        self.marker = "word"

    def file(self) -> Path:
        return Path("/image")


@pytest.fixture
def place() -> Iterator[Path]:
    with share("4m") as mounted:
        yield mounted


def test_an_elastic_node_that_goes_meanwhile_is_not_to_blame() -> None:
    said = "a-e1 idle% none\na-e2 idle~ none\na-e3 POWERING_DOWN none\na-1 down* Not responding\na-e4 idle none\n"
    programs = Programs(lambda argv: Completed(argv, 0, said, ""))
    rows = container_steps.states(["a-e1"], programs)
    assert container_steps.gone(rows) == {"a-e1", "a-e2", "a-e3"}
    assert container_steps.closed(rows) == [{"node": "a-1", "state": "down*", "reason": "Not responding"}]
    assert container_steps.states([], programs) == {}


def test_a_node_that_the_step_drained_keeps_the_message_of_that_step() -> None:
    """Seen with the real Pyxis: the plugin is missing on one node, Slurm drains it, and a second step calls it busy."""
    plugin = "srun: error: task 1 launch failed: Plugin initialization failed"

    def answer(argv: list[str]) -> Completed[str]:
        if argv[0] == "sinfo":
            return Completed(argv, 0, "c-2 drained Epilog error\n", "")
        if "--nodelist=c-2" in argv:
            return Completed(argv, 1, "", "srun: error: Unable to allocate resources: Requested nodes are busy")
        return Completed(argv, 1, "word c-1\n", plugin)

    steps = ContainerSteps(Image(), Programs(answer), "alice", "j")
    assert steps.pool({"name": "c", "partition": "c", "nodes": ["c-1", "c-2"]}) == {
        "pool": "c",
        "seen": ["c-1"],
        "missed": {"c-2": plugin},
        "closed": [{"node": "c-2", "state": "drained", "reason": "Epilog error"}],
    }


@pytest.mark.parametrize(
    ("state", "missed"),
    [
        ("mixed none", []),
        ("allocated none", []),
        ("mixed- none", []),
        ("planned none", []),
        # Nothing of others is in the way.
        ("idle none", ["c-1"]),
        ("drained Epilog error", ["c-1"]),
        ("down* Not responding", ["c-1"]),
    ],
)
def test_a_node_that_jobs_of_users_have_is_not_tried_rather_than_bad(state: str, missed: list[str]) -> None:
    """A node with a job on some of its processors may have no memory left; a step does not start beside it."""

    def answer(argv: list[str]) -> Completed[str]:
        if argv[0] == "sinfo":
            return Completed(argv, 0, f"c-1 {state}\n", "")
        if "--nodelist=c-2" in argv:
            return Completed(argv, 0, "word c-2\n", "")
        return Completed(argv, 1, "", "srun: error: Unable to allocate resources: Requested nodes are busy")

    steps = ContainerSteps(Image(), Programs(answer), "alice", "j")
    tried = steps.pool({"name": "c", "partition": "c", "nodes": ["c-1", "c-2"]})
    assert (tried["seen"], list(tried["missed"])) == (["c-2"], missed)


def test_the_check_s_image_has_a_shell_that_runs_and_no_devices(tmp_path: Path) -> None:
    container_steps.build_root(tmp_path / "root", "word", ProgramGroup())
    assert not list((tmp_path / "root/dev").iterdir())
    argv = ["unshare", "--map-root-user", "chroot", str(tmp_path / "root"), "/bin/sh", "-c"]
    done = subprocess.run(
        [*argv, container_steps.STEP_SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURMD_NODENAME": "compute-1"},
    )
    assert done.stdout == "word compute-1\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a share")
def test_the_image_is_made_once_and_removed(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.add("mksquashfs", 'test -f "$1/gpucluster-marker" && echo image >"$2"')
    image = StepImage(place, "word", ProgramGroup())
    file = image.file()
    assert (file, file.read_text()) == (place / ".gpucluster-verify-containers" / "word.sqsh", "image\n")
    assert image.file() == file
    assert len(commands.calls("mksquashfs")) == 1
    image.remove()
    assert list(place.iterdir()) == []
    with pytest.raises(Failed, match="not wanted any more"):
        image.file()
    assert list(place.iterdir()) == []


def test_an_image_that_can_not_be_made_is_an_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Commands(tmp_path, monkeypatch).prints("mksquashfs", "", 1, "no space")
    with pytest.raises(Failed, match="no space"):
        StepImage(tmp_path, "word", ProgramGroup()).file()


def test_only_nodes_that_saw_the_marker_count() -> None:
    output = "word compute-1\nother compute-2\nword\ncompute-3 word\n"
    assert container_steps.answers("word", output) == {"compute-1"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("srun: job 7 queued and waiting for resources\nsrun: error: boom\n", "srun: error: boom"),
        ("srun: job 7 queued and waiting for resources\n", "srun: job 7 queued and waiting for resources"),
        ("", "no response within 60 seconds"),
    ],
)
def test_the_output_of_a_failed_step_is_one_line(said: str, words: str) -> None:
    assert container_steps.reason(said, 60) == words
