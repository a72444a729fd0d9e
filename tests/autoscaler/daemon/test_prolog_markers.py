"""The prolog waits for the marker files of its job's elastic nodes, and for nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon import prolog_markers
from gpucluster.autoscaler.decide.types import Job, Node
from gpucluster.slurm.hostlists import expand
from tests.waiting import PATIENCE_S, wait_for

PROLOG = Path(prolog_markers.__file__).with_name("prolog.sh")


def node(name: str, *flags: str) -> Node:
    return Node(name, "a", frozenset(flags))


def start(nodes: str, up: Path) -> subprocess.Popen[bytes]:
    # Without a PATH: it may start no other program.
    environment = {"SLURM_JOB_NODELIST": nodes, "SLURM_JOB_ID": "7", "PATH": "/nonexistent"}
    return subprocess.Popen([PROLOG, str(up)], env=environment, stdin=subprocess.DEVNULL)


def waits(prolog: subprocess.Popen[bytes]) -> None:
    """Wait until it has looked at the files, and sleeps before it looks again: it reads from its descriptor 9."""
    there = Path(f"/proc/{prolog.pid}")

    def sleeps() -> bool:
        assert prolog.poll() is None, "it ended"
        return (there / "fd" / "9").is_symlink() and (there / "stat").read_text().rpartition(")")[2].split()[0] == "S"

    wait_for("the prolog sleeps", sleeps)


def test_the_files_follow_slurm(tmp_path: Path) -> None:
    up = tmp_path / "up"
    prolog_markers.publish(
        up, {"a-e1": node("a-e1", "IDLE", "CLOUD"), "a-e2": node("a-e2", "ALLOCATED", "POWERING_UP")}, {}
    )
    assert sorted(os.listdir(up)) == ["a-e1"]
    prolog_markers.publish(
        up, {"a-e1": node("a-e1", "IDLE", "POWERING_DOWN"), "a-e2": node("a-e2", "MIXED", "CLOUD")}, {}
    )
    assert sorted(os.listdir(up)) == ["a-e2"]


@pytest.mark.parametrize("nodes", ["a-1,b-2", "a-e1", "a-1,a-e1", "", "pool-extra-1"])
def test_what_is_there_is_not_waited_for(tmp_path: Path, nodes: str) -> None:
    up = tmp_path / "up"
    prolog_markers.publish(up, {"a-e1": node("a-e1", "IDLE")}, {})
    assert start(nodes, up).wait(timeout=PATIENCE_S) == 0


def test_it_waits_for_the_last_node(tmp_path: Path) -> None:
    up = tmp_path / "up"
    prolog_markers.publish(up, {"a-e1": node("a-e1", "IDLE")}, {})
    waiting = start("a-e1,a-e12", up)
    try:
        waits(waiting)
        prolog_markers.publish(up, {"a-e1": node("a-e1", "IDLE"), "a-e12": node("a-e12", "IDLE")}, {})
        assert waiting.wait(timeout=PATIENCE_S) == 0
    finally:
        waiting.kill()


@pytest.mark.parametrize(
    ("nodes", "last"),
    [("a-e[1-3]", "a-e3"), ("b-1,a-e[1,7-8,10]", "a-e10"), ("a-1-e[2-3],c-e1", "c-e1"), ("a-e[9-11],b-[1-2]", "a-e11")],
)
def test_it_waits_for_every_node_of_a_list(tmp_path: Path, nodes: str, last: str) -> None:
    up = tmp_path / "up"
    elastic = [name for name in expand(nodes) if "-e" in name]
    prolog_markers.publish(up, {name: node(name, "IDLE") for name in elastic if name != last}, {})
    waiting = start(nodes, up)
    try:
        waits(waiting)
        prolog_markers.publish(up, {name: node(name, "IDLE") for name in elastic}, {})
        assert waiting.wait(timeout=PATIENCE_S) == 0
    finally:
        waiting.kill()


@pytest.mark.parametrize(("state", "reason"), [("PENDING", "Cleaning"), ("COMPLETING", "None")])
def test_it_does_not_hold_up_a_job_that_lost_its_nodes(tmp_path: Path, state: str, reason: str) -> None:
    up = tmp_path / "up"
    others = {number: Job(number, number, "CONFIGURING", "None", ("a",), ("a-e1",), 1) for number in ("7", "17")}
    prolog_markers.publish(up, {}, others)
    waiting = start("a-e1", up)
    try:
        waits(waiting)
        prolog_markers.publish(up, {}, {**others, "7": Job("7", "7", state, reason, ("a",), (), 1)})
        assert waiting.wait(timeout=PATIENCE_S) == 0
        prolog_markers.publish(up, {}, others)
        assert os.listdir(up) == []
    finally:
        waiting.kill()


@pytest.mark.parametrize("late", [False, True])
def test_without_the_autoscaler_it_does_not_wait(tmp_path: Path, late: bool) -> None:
    up = tmp_path / "up"
    if late:
        up.mkdir()
    waiting = start("a-e1", up)
    try:
        if late:
            waits(waiting)
            up.rmdir()
        assert waiting.wait(timeout=PATIENCE_S) == 0
    finally:
        waiting.kill()
