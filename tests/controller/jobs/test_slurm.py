"""Jobs of users by Slurm's commands, which are scripts here; tests/operations/test_jobs_slurm.py has a real Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.controller.jobs import slurm
from gpucluster.controller.jobs.queue import SubmittedJob
from gpucluster.node_agent.accounts import Account
from gpucluster.node_agent.errors import Failed, Refused
from tests.doubles.commands import Commands

#: The scripts lie where only this account can read them.
US = Account("root", 0, 0, (0,), "/root")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts for other users: needs root")
NO_ANSWER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
UNKNOWN = "slurm_load_jobs error: Invalid job id specified\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A Slurm without jobs."""
    made = Commands(tmp_path, monkeypatch)
    for name in ("squeue", "sacct", "scancel", "scontrol", "sinfo"):
        made.prints(name, "")
    return made


@as_root
def test_a_script_is_submitted_in_its_folder(commands: Commands, tmp_path: Path) -> None:
    commands.add("sbatch", "echo 'sbatch: a word of a plugin'; pwd >cwd; echo '42;cluster'")
    assert slurm.submit(US, tmp_path, "job.sh", ["--nodes=2"]) == "42"
    assert commands.calls("sbatch") == [f"--parsable --nodes=2 {tmp_path}/job.sh"]
    assert (tmp_path / "cwd").read_text().strip() == str(tmp_path)


@as_root
@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
         "Batch job submission failed: Invalid account", "gpucluster user show root"),
        ("sbatch: error: Unable to contact slurm controller", "Unable to contact", "systemctl status slurmctld"),
        ("sbatch: error: Requested node configuration is not available", "node configuration", "sinfo -Nel"),
        ("sbatch: error: something new", "something new", "gpucluster ssh -- sinfo"),
        ("", "it printed nothing", "gpucluster ssh -- sinfo"),
    ],
)  # fmt: skip
def test_a_refusal_has_slurms_words_and_what_helps(
    answer: str, message: str, hint: str, commands: Commands, tmp_path: Path
) -> None:
    commands.prints("sbatch", "", 1, answer)
    with pytest.raises(Failed, match=f"Slurm does not take the job: .*{message}") as raised:
        slurm.submit(US, tmp_path, "job.sh", [])
    assert "sbatch: error" not in raised.value.message
    assert hint in raised.value.hint


@as_root
def test_a_job_whose_answer_was_lost_is_found_by_its_folder(commands: Commands, tmp_path: Path) -> None:
    commands.prints("sbatch", "", 1, "sbatch: error: Socket timed out")
    commands.prints("squeue", f"41|0|PENDING||None|/elsewhere\n43|0|PENDING||Priority|{tmp_path}\n")
    assert slurm.submit(US, tmp_path, "job.sh", []) == "43"


@pytest.mark.parametrize(
    ("line", "job"),
    [
        ("42|1001|RUNNING|gpu-[1-2]|None|/home/a|b", SubmittedJob("42", 1001, "RUNNING", "gpu-[1-2]", "", "/home/a|b")),
        ("42|1001|PENDING||Resources|/home/ada", SubmittedJob("42", 1001, "PENDING", "", "Resources", "/home/ada")),
    ],
)  # fmt: skip
def test_a_job_that_slurmctld_knows(line: str, job: SubmittedJob, commands: Commands) -> None:
    commands.prints("squeue", f"7|1001|RUNNING|gpu-1|None|/home/ada\nnonsense\n{line}\n")
    assert slurm.look("42") == job
    assert "--jobs=42" in commands.calls("squeue")[0]


def test_a_job_that_has_just_ended_has_its_exit_status(commands: Commands) -> None:
    commands.prints("squeue", "42|1001|COMPLETED|gpu-1|None|/home/ada\n")
    commands.prints("scontrol", "JobId=42 JobState=COMPLETED ExitCode=3:0 Comment=x ExitCode=9:0 \n")
    seen = slurm.look("42")
    assert seen is not None
    assert (seen.ended, seen.exit_status) == (True, 3)
    commands.prints("scontrol", "", 1, UNKNOWN)
    seen = slurm.look("42")
    assert seen is not None
    assert seen.exit_status is None


def test_a_job_that_slurmctld_has_forgotten_is_in_the_accounting(commands: Commands) -> None:
    commands.prints("squeue", "", 1, UNKNOWN)
    commands.prints("sacct", "41|1001|FAILED|gpu-1|1:0|/x\n42|1001|CANCELLED by 1001|gpu-1|0:15|/home/ada\n")
    assert slurm.look("42") == SubmittedJob("42", 1001, "CANCELLED", "gpu-1", "", "/home/ada", 0)
    assert slurm.look("43") is None


def test_a_slurm_that_does_not_answer_is_not_a_job_that_is_unknown(commands: Commands) -> None:
    for name in ("squeue", "scancel", "sinfo"):
        commands.prints(name, "", 1, NO_ANSWER)
    for work in (lambda: slurm.look("42"), lambda: slurm.cancel("42"), lambda: slurm.usable_nodes("gpu")):
        with pytest.raises(Failed, match=r"Slurm gives no answer: .*connect failure") as raised:
            work()
        assert "systemctl status slurmctld" in raised.value.hint


@pytest.mark.parametrize(
    "errors", [UNKNOWN, "scancel: error: Kill job error on job id 42: Job/step already completing"]
)
def test_cancelling_a_job_that_has_just_ended_is_no_error(errors: str, commands: Commands) -> None:
    commands.prints("scancel", "", 1, errors)
    slurm.cancel("42")
    assert commands.calls("scancel") == ["--quiet 42"]


def test_nodes_that_take_no_jobs_are_not_usable(commands: Commands) -> None:
    states = ("idle", "mixed", "allocated*", "idle~", "drained", "drain*", "down*", "draining", "maint", "fail")
    commands.prints("sinfo", "".join(f"gpu-{number}|{state}\n" for number, state in enumerate(states)))
    assert slurm.usable_nodes("gpu") == (10, 4)
    commands.prints("sinfo", "")
    assert slurm.usable_nodes("none") is None


@pytest.mark.parametrize("job", ["", "0", "-1", "1.5", "12345678901", "1_2", "1; rm", None])
def test_what_is_not_a_job_id_is_refused(job: object) -> None:
    with pytest.raises(Refused, match="not a job id"):
        slurm.checked_id(job)
    assert slurm.checked_id(42) == slurm.checked_id("42") == "42"


@pytest.mark.parametrize(
    ("shown", "file"),
    [
        ("JobId=6 JobName=x\n   StdErr=/h/e\n   StdIn=/dev/null\n   StdOut=/h/a b-x y.txt\n", Path("/h/a b-x y.txt")),
        ("JobId=6 JobName=StdOut=/h/no\n   WorkDir=/\n", None),
        ("", None),
    ],
)
def test_where_a_job_prints(shown: str, file: Path | None, commands: Commands) -> None:
    commands.prints("scontrol", shown)
    assert slurm.printed("6") == file
