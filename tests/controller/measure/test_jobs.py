"""Jobs of measurements: how each ends, and that none is left. srun is a script; test_measuring_slurm.py has Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.measure import jobs as measure_jobs
from gpucluster.controller.measure import request as requests
from gpucluster.controller.measure import slurm
from gpucluster.controller.measure.jobs import MeasurementJobs
from gpucluster.controller.measure.result import ENDED, LOST, NOT_STARTED, TOO_LONG, TOO_MUCH
from gpucluster.node_agent.accounts import Account
from tests.controller.measure.requests import NCCL, talk
from tests.doubles.commands import Commands

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts for other users: needs root")
#: The scripts lie where only this account can read them.
US = Account("root", 0, 0, (0,), "/root")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A Slurm that knows no job any more."""
    made = Commands(tmp_path, monkeypatch)
    for name in ("squeue", "scancel", "sinfo"):
        made.prints(name, "")
    return made


@pytest.fixture
def channel() -> tuple[RequestChannel, int]:
    """A conversation whose other end waits; and the descriptor with the answers."""
    here, _there = os.pipe()
    answers, target = os.pipe()
    return RequestChannel(here, target), answers


def run(channel: RequestChannel, *changes: dict[str, Any], start_s: float = 60.0) -> list[dict[str, Any]]:
    asked = [requests.read({**NCCL, "id": str(number), **each}) for number, each in enumerate(changes)]
    return MeasurementJobs(US, "session", start_s, channel).run(asked)


def test_a_job_that_ends_by_itself_has_its_output(commands: Commands, channel: tuple[RequestChannel, int]) -> None:
    commands.add("srun", "echo '# Avg bus bandwidth : 180'; echo password=hunter22 >&2; exit 0")
    (result,) = run(channel[0], {})
    assert (result["id"], result["outcome"], result["status"], result["why"]) == ("0", ENDED, 0, "")
    assert result["output"].startswith("# Avg bus bandwidth : 180\n")
    assert "hunter22" not in result["output"]
    assert "--job-name=gpucluster-measure-session-1 " in commands.calls("srun")[0]
    assert json.loads(os.read(channel[1], 4096))["progress"]["outcome"] == ENDED


@pytest.mark.parametrize(
    ("words", "outcome", "why"),
    [
        ("srun: error: *** STEP 1.0 ON gpu-1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", TOO_LONG,
         "it did not end within 10 minutes"),
        ("srun: error: Node failure on gpu-1", LOST, "(srun: error: Node failure on gpu-1)"),
        ("the program has failed", ENDED, ""),
    ],
)  # fmt: skip
def test_what_srun_prints_tells_why_a_job_ended(
    words: str, outcome: str, why: str, commands: Commands, channel: tuple[RequestChannel, int]
) -> None:
    commands.prints("srun", "", 1, words)
    (result,) = run(channel[0], {})
    assert (result["outcome"], result["status"]) == (outcome, 1)
    assert result["why"].endswith(why)


def test_jobs_that_share_a_node_come_one_after_the_other(
    commands: Commands, channel: tuple[RequestChannel, int], tmp_path: Path
) -> None:
    busy = tmp_path / "busy"
    commands.add("srun", f"mkdir {busy} || exit 9; rmdir {busy}")
    results = run(channel[0], {}, {"nodes": ["gpu-2", "gpu-3"]}, {"nodes": ["gpu-2"]})
    assert [result["status"] for result in results] == [0, 0, 0]


def test_a_program_that_prints_without_end_is_ended(
    commands: Commands, channel: tuple[RequestChannel, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_jobs, "MOST_OUTPUT", 1000)
    monkeypatch.setattr(measure_jobs, "_TICK", 0.01)
    commands.add("srun", "exec yes")
    (result,) = run(channel[0], {})
    assert (result["outcome"], len(result["output"])) == (TOO_MUCH, 1000)


def test_a_job_that_does_not_start_is_given_up_with_slurms_reason(
    commands: Commands, channel: tuple[RequestChannel, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_jobs, "_TICK", 0.01)
    commands.add("srun", "echo $$ >pid; exec sleep 600".replace("pid", str(commands.folder / "pid")))
    row = "gpucluster-measure-session-1|17|PENDING|Resources"
    commands.prints("squeue", f"{row}\n")
    # Slurm ends the srun of a job that is cancelled.
    commands.add("scancel", f"kill $(cat {commands.folder / 'pid'})")
    (result,) = run(channel[0], {}, start_s=0.0)
    assert (result["outcome"], result["why"]) == (NOT_STARTED, "it did not start within 0 s: Resources")
    assert set(commands.calls("scancel")) == {"--quiet 17"}


def test_nothing_is_left_when_no_client_waits_any_more(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = commands.folder / "pid"
    commands.add("srun", f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 600")
    commands.add(
        "squeue", f"[ -s {commands.folder}/scancel.calls ] || echo 'gpucluster-measure-session-1|17|RUNNING|None'"
    )
    monkeypatch.setattr(slurm, "_POLL", 0.01)
    channel, _answers = talk()
    with pytest.raises(Disconnected):
        run(channel, {})
    assert commands.calls("scancel") == ["--quiet 17"]
