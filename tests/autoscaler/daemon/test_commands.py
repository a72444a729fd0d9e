"""The commands for administrators and monitors, with a real ledger. `test_services.py` has a daemon beside them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.__main__ import main
from gpucluster.autoscaler.daemon import commands, status
from gpucluster.autoscaler.daemon.ledger import Ledger
from gpucluster.autoscaler.decide.types import (
    Action,
    Annotate,
    Delay,
    Launch,
    Memory,
    Note,
    Observation,
    PowerDown,
    SaveConsole,
    ScalingPlan,
    Terminate,
)
from gpucluster.autoscaler.policy import Policy
from gpucluster.errors import EXIT_FAILED, EXIT_SUCCESS
from tests.autoscaler.builders import IDLE, OFF, World, job
from tests.autoscaler.test_policy import written


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The options that lead to a cluster whose daemon has never run."""
    (tmp_path / "policy.json").write_text(json.dumps(written()))
    (tmp_path / "state").mkdir(mode=0o700)
    return [f"--config={tmp_path / 'policy.json'}", f"--state={tmp_path / 'state'}", f"--poke={tmp_path / 'poke'}"]


@pytest.fixture
def state(words: list[str], tmp_path: Path) -> Path:
    """The folder of a daemon that has run: it has a ledger."""
    with Ledger(tmp_path / "state") as ledger:
        ledger.load()
    return tmp_path / "state"


def looked(state: Path, at: float) -> None:
    """The daemon has made a pass at this time."""
    seen = Observation({}, {}, ())
    report = status.report(seen, Memory("m"), Policy.parse(written()), now=at, problems=(), last_success=at)
    (state / status.FILE).write_text(json.dumps(report))


def observed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands see this; clients of Slurm and the cloud are not asked."""
    monkeypatch.setattr(commands, "_observe", lambda *_: (world.observation(), world.memory))


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_daemon_that_looks_is_healthy(words: list[str], state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looked(state, time.time())
    assert main(["status", "--check", "--output=json", *words]) == EXIT_SUCCESS
    content = printed(capsys)
    assert (content["healthy"], content["paused"], content["cluster"]) == (True, "", "lab")


def test_one_that_has_stopped_is_an_exit_code_only_where_that_is_asked_for(
    words: list[str], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looked(state, time.time() - 3600)
    assert main(["status", *words]) == EXIT_SUCCESS
    assert "last reconcile pass was" in capsys.readouterr().out
    assert main(["status", "--check", *words]) == EXIT_FAILED


@pytest.mark.parametrize("content", ["", "{", None])
def test_without_a_report_the_daemon_has_not_looked_yet(
    content: str | None, words: list[str], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (state / status.FILE).write_text(content)
    assert main(["status", "--check", "--output=json", *words]) == EXIT_FAILED
    assert printed(capsys)["problems"] == ["the daemon has run no reconcile pass yet"]


def test_a_pause_is_in_the_ledger_until_it_is_resumed(
    words: list[str], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looked(state, time.time())
    assert main(["pause", *words, "a", "repair"]) == EXIT_SUCCESS
    assert "Paused (a repair)" in capsys.readouterr().out
    with Ledger(state, exclusive=False) as ledger:
        assert ledger.load().paused == "a repair"
    assert main(["status", "--output=json", *words]) == EXIT_SUCCESS
    assert printed(capsys)["paused"] == "a repair"
    assert main(["resume", "--output=json", *words]) == EXIT_SUCCESS
    assert printed(capsys) == {"version": 1, "paused": ""}
    with Ledger(state, exclusive=False) as ledger:
        assert (ledger.load().paused, ledger.load().resumed_at > 0) == ("", True)


def test_without_words_it_is_paused_by_hand(words: list[str], state: Path) -> None:
    assert main(["pause", *words]) == EXIT_SUCCESS
    with Ledger(state, exclusive=False) as ledger:
        assert ledger.load().paused == "by hand"


@pytest.mark.parametrize("command", [["status"], ["pause"], ["plan", "--dry-run"], ["explain", "7"]])
def test_without_the_daemons_folder_nothing_is_made(
    command: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").rmdir()
    assert main([*command, *words]) not in (EXIT_SUCCESS, EXIT_FAILED)
    errors = capsys.readouterr().err
    assert "can't use the daemon's folder: No such file or directory" in errors
    assert "Run gpucluster apply" in errors
    assert not (tmp_path / "state").exists()


def test_a_plan_is_shown_and_not_carried_out(
    words: list[str], state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(Policy.parse(written()))
    world.starts(7, ["gpu-e1"])
    observed(world, monkeypatch)
    assert main(["plan", "--dry-run", "--output=json", *words]) == EXIT_SUCCESS
    content = printed(capsys)
    assert [(action["kind"], action["node"]) for action in content["actions"]] == [("launch", "gpu-e1")]
    assert main(["plan", "--dry-run", *words]) == EXIT_SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 action now:"
    assert lines[1].startswith("  launch gpu-e1: ")
    with Ledger(state, exclusive=False) as ledger:
        assert ledger.load().claims == {}


def test_a_plan_without_actions_has_its_reasons(
    words: list[str], state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(Policy.parse(written()))
    monkeypatch.setattr(commands, "_observe", lambda *_: (world.observation(nodes=None), world.memory))
    assert main(["plan", "--dry-run", *words]) == EXIT_SUCCESS
    first, second, third = capsys.readouterr().out.splitlines()
    assert (first, second) == ("0 actions now", "Why, and why not:")
    assert third == "  autoscaler: Slurm does not answer: nothing is done until it does"


def test_a_job_is_explained_with_what_happened_before(
    words: list[str], state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(state) as ledger:
        memory = ledger.load()
        ledger.commit(memory, ScalingPlan((Delay("7", 60.0, "no capacity"),), memory, ()), now=1000.0)
    world = World(Policy.parse(written()))
    world.waits(7)
    observed(world, monkeypatch)
    assert main(["explain", "7", "--output=json", *words]) == EXIT_SUCCESS
    content = printed(capsys)
    assert (content["subject"], content["history"][0]["why"]) == ("7", "no capacity")
    assert content["now"]
    assert main(["explain", "7", *words]) == EXIT_SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert "Before:" in lines
    assert lines[-1].endswith("no capacity")


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (Launch("gpu-e1", "gpu", 1, "t", "why"), "launch gpu-e1: why"),
        (Terminate("ocid", "gpu-e1", "gpu", "why", unless_wanted=True), "terminate gpu-e1 (ocid): why"),
        (PowerDown(("gpu-e1", "gpu-e2"), "why"), "power down gpu-e1, gpu-e2: why"),
        (Delay("7", 0.0, "why"), "delay job 7 until 1970-01-01T00:00:00Z: why"),
        (Annotate("7", "why"), "annotate job 7: why"),
        (SaveConsole("ocid", "gpu-e1", "why"), "save console gpu-e1 (ocid): why"),
    ],
)
def test_each_action_is_a_line(action: Action, line: str) -> None:
    plan = ScalingPlan((action,), Memory("m"), (Note("7", "it waits"),))
    assert list(commands._plan_lines(plan)) == ["1 action now:", f"  {line}", "Why, and why not:", "  7: it waits"]


def test_nodes_that_are_off_need_no_action(
    words: list[str], state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(Policy.parse(written()))
    world.serve("gpu-e1", words=IDLE)
    world.node("gpu-e2", OFF)
    world.jobs["9"] = job(9, (), reason="Dependency")
    observed(world, monkeypatch)
    assert main(["plan", "--dry-run", *words]) == EXIT_SUCCESS
    assert capsys.readouterr().out.splitlines()[0] == "0 actions now"
