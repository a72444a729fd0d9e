"""Slurm's commands about jobs that hang: scripts here, the real ones in tests/operations/test_reactions_slurm.py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpucluster.controller.reactions.jobs import SlurmJobs
from gpucluster.controller.reactions.policy import WatchedJob
from gpucluster.node_agent.errors import Failed
from tests.doubles.commands import Commands

STARTED = "2026-01-02T03:04:05"
RUNNING = f"42|42|RUNNING|{STARTED}|gpu|4294901757|gpu-[1-2]||gpu-9|hang=requeue"


def squeue(*jobs: str) -> str:
    """A script that prints jobs as squeue does: each begins with the mark that the caller has put into its format."""
    printed = "".join(f"printf '%s%s\\n' \"$mark\" '{job}'\n" for job in jobs)
    reads = "case $word in --format=*) mark=${word#--format=}; mark=${mark%%\\%*};; esac"
    return f'for word in "$@"; do {reads}; done\n{printed}'


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A partition of four nodes; one of them is excluded by the job."""
    made = Commands(tmp_path, monkeypatch)
    made.add("scontrol", 'case "$*" in *gpu-9*) echo gpu-9;; *gpu-*) printf "gpu-1\\ngpu-2\\n";; esac')
    made.prints("sinfo", "gpu-1\ngpu-2\ngpu-3\ngpu-9\n")
    made.prints("scancel", "")
    return made


def one(commands: Commands, *jobs: str) -> WatchedJob:
    commands.add("squeue", squeue(*jobs))
    return SlurmJobs().look(["42"])["42"]


def test_a_job_that_runs_has_its_nodes_and_those_that_could_take_its_place(commands: Commands) -> None:
    job = one(commands, RUNNING)
    assert (job.id, job.name, job.state, job.partition, job.comment) == ("42", "42", "RUNNING", "gpu", "hang=requeue")
    assert job.nodes == {"gpu-1", "gpu-2"}
    assert job.excluded == {"gpu-9"}
    assert job.others == {"gpu-3"}
    assert not job.held


def test_its_age_is_counted_from_the_beginning_of_this_run(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    began = 1767323045.0  # STARTED in UTC
    monkeypatch.setattr(time, "time", lambda: began + 90)
    assert one(commands, RUNNING).age == 90
    assert one(commands, RUNNING.replace(STARTED, "Unknown")).age == began + 90
    monkeypatch.setattr(time, "time", lambda: began - 90)
    assert one(commands, RUNNING).age == 0


def test_a_job_that_waits_is_held_if_it_has_no_priority(commands: Commands) -> None:
    waiting = "42|42|PENDING|N/A|gpu|0||(null)|(null)|(null)"
    job = one(commands, waiting)
    assert (job.held, job.nodes, job.others, job.comment) == (True, frozenset(), frozenset(), "")
    assert not one(commands, waiting.replace("|0|", "|17|")).held
    assert commands.calls("sinfo") == []


def test_a_comment_with_any_character_ends_no_other_field(commands: Commands) -> None:
    assert one(commands, f"{RUNNING}|x\ny|z").comment == "hang=requeue|x\ny|z"


def test_of_an_array_the_task_with_this_number_is_meant(commands: Commands) -> None:
    task = RUNNING.replace("42|42", "42|40_2")
    assert one(commands, RUNNING.replace("42|42", "41|40_1"), task).name == "40_2"


def test_a_job_that_slurm_has_forgotten_is_missing_and_any_other_refusal_is_an_error(commands: Commands) -> None:
    commands.prints("squeue", "", 1, "slurm_load_jobs error: Invalid job id specified")
    assert SlurmJobs().look(["42"]) == {}
    commands.prints("squeue", "", 1, "slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(Failed, match="Unable to contact"):
        SlurmJobs().look(["42"])


def test_each_act_is_one_command(commands: Commands) -> None:
    job = one(commands, RUNNING)
    before = len(commands.calls("scontrol"))
    jobs = SlurmJobs()
    jobs.notify(job, "it hangs; rank 3")
    jobs.requeue(job, hold=True)
    jobs.requeue(job, hold=False)
    jobs.exclude(job, "gpu-1")
    jobs.release(job)
    jobs.cancel(job)
    assert commands.calls("scontrol")[before:] == [
        "notify 42 it hangs; rank 3", "requeuehold 42", "requeue 42", "update jobid=42 excnodelist=gpu-1,gpu-9",
        "release 42",
    ]  # fmt: skip
    assert commands.calls("scancel") == ["42"]


def test_an_act_that_slurm_refuses_is_an_error_with_its_words(commands: Commands) -> None:
    job = one(commands, RUNNING)
    commands.prints("scontrol", "", 1, "Requested operation is presently disabled for job 42")
    with pytest.raises(Failed, match="presently disabled"):
        SlurmJobs().requeue(job, hold=False)
