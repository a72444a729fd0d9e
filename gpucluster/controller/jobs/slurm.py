"""Jobs of users as Slurm sees them: submit, look at, cancel.

The first fields of each line are those that no user writes: the name of a job may have anything in it.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpucluster.controller.jobs.queue import QueuedJob, SubmittedJob
from gpucluster.node_agent import programs
from gpucluster.node_agent.accounts import Account, environment
from gpucluster.node_agent.errors import Failed, Refused

_SECONDS = 60.0
_FORMAT, _FIELDS = "%A|%U|%T|%N|%r|%Z", 6
_LIST_FORMAT, _LIST_FIELDS = "%i|%u|%T|%N|%r|%M|%j", 7
_SEE_SLURMCTLD = "See: gpucluster ssh -- systemctl status slurmctld"
_UNKNOWN_JOB = "Invalid job id"
_ACCOUNTED = "--format=JobIDRaw,UID,State,NodeList,ExitCode,WorkDir"
#: A state of a node that takes no jobs, as sinfo prints it; without the signs behind it.
_UNUSABLE = re.compile(r"(down|drain|drng|draining|drained|fail|failing|maint|unknown|error)")


def submit(of: Account, folder: Path, script: str, words: list[str]) -> str:
    """Submit the script in a folder, in the name of the user. Returns the number of the job.

    Raises:
        Failed: Slurm refuses it, or does not answer; nothing was submitted.
    """
    # A script finds its folder as the one from which sbatch was run. With the user's rights: `env` changes to it.
    argv = ["env", f"--chdir={folder}", "sbatch", "--parsable", *words, str(folder / script)]
    with programs.start(
        argv, environment=environment(of), uid=of.uid, gid=of.gid, groups=of.groups
    ) as child:  # fmt: skip
        try:
            out, _ = child.communicate(timeout=_SECONDS)
            answer = out.decode(errors="replace").strip()
        except programs.TimeLimit:
            child.kill()
            child.communicate()
            answer = f"sbatch did not answer within {_SECONDS:.0f} s"
    match = re.search(r"^(\d+)(?:;\S+)?$", answer, re.MULTILINE)
    if child.returncode == 0 and match:
        return match[1]
    # Its answer may be lost, and the job not.
    submitted = _in_folder(of, folder)
    if submitted:
        return submitted
    why = (answer.splitlines() or ["it printed nothing"])[-1]
    raise Failed(f"Slurm does not take the job: {why.replace('sbatch: error: ', '')}", _hint(answer, of))


def _hint(answer: str, of: Account) -> str:
    for pattern, hint in (
        (r"[Ii]nvalid account|association", f"The user has no account in Slurm; run: gpucluster user show {of.name}"),
        (r"[Uu]nable to contact|[Cc]onnection refused|did not answer", _SEE_SLURMCTLD),
        (
            r"[Mm]ore processors|[Nn]ode count|[Nn]ode configuration",
            "See what nodes have: gpucluster ssh -- sinfo -Nel",
        ),
    ):
        if re.search(pattern, answer):
            return hint
    return "See: gpucluster ssh -- sinfo"


def _in_folder(of: Account, folder: Path) -> str:
    """The number of the user's job that runs in a folder; "" if there is none."""
    try:
        result = programs.call(["squeue", "--noheader", "--all", f"--user={of.name}", f"--format={_FORMAT}"])
    except Failed:
        return ""
    seen = [row for row in map(_row, result.stdout.splitlines()) if row and row.folder == str(folder)]
    return seen[-1].id if seen else ""


def look(job: str) -> SubmittedJob | None:
    """A job, also one that has ended; None if Slurm does not know it.

    Raises:
        Failed: Slurm does not answer.
    """
    result = programs.call(
        ["squeue", "--noheader", "--all", "--states=all", f"--jobs={job}", f"--format={_FORMAT}"], seconds=_SECONDS
    )
    if result.returncode != 0 and _UNKNOWN_JOB not in result.stderr:
        raise Failed(_no_answer(result.stderr, result.returncode), _SEE_SLURMCTLD)
    rows = [row for row in map(_row, result.stdout.splitlines()) if row and row.id == job]
    if rows:
        return rows[0]._replace(exit_status=_exit_status(job)) if rows[0].ended else rows[0]
    return _accounted(job)


def _row(line: str) -> SubmittedJob | None:
    words = line.split("|", _FIELDS - 1)
    if len(words) != _FIELDS or not words[1].isdigit():
        return None
    job, uid, state, nodes, reason, folder = words
    return SubmittedJob(job, int(uid), state, nodes, "" if reason == "None" else reason, folder)


def _exit_status(job: str) -> int | None:
    """The exit status of a job that slurmctld still knows."""
    match = re.search(r" ExitCode=(\d+):\d+ ", programs.call(["scontrol", "--oneliner", "show", "job", job]).stdout)
    return int(match[1]) if match else None


def printed(job: str) -> Path | None:
    """The file into which a job prints, while slurmctld knows the job; None for one without a script.

    Only its user's rights may open it: the text is the user's.
    """
    shown = programs.call(["scontrol", "show", "job", job]).stdout
    match = re.search(r"^ +StdOut=(/.*)$", shown, re.MULTILINE)
    return Path(match[1]) if match else None


def _accounted(job: str) -> SubmittedJob | None:
    """A job that slurmctld has forgotten, as the accounting has it."""
    result = programs.call(["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", _ACCOUNTED])
    for line in result.stdout.splitlines():
        words = line.split("|", _FIELDS - 1)
        if len(words) == _FIELDS and words[0] == job and words[1].isdigit():
            # "CANCELLED by 1001"
            state = (words[2].split() or ["UNKNOWN"])[0]
            status = words[4].partition(":")[0]
            return SubmittedJob(
                job, int(words[1]), state, words[3], "", words[5], int(status) if status.isdigit() else None
            )
    return None


def jobs() -> list[QueuedJob]:
    """The jobs that have not ended, of all users.

    Raises:
        Failed: Slurm does not answer.
    """
    result = programs.call(["squeue", "--noheader", "--all", "--sort=i", f"--format={_LIST_FORMAT}"], seconds=_SECONDS)
    if result.returncode != 0:
        raise Failed(_no_answer(result.stderr, result.returncode), _SEE_SLURMCTLD)
    rows = (line.split("|", _LIST_FIELDS - 1) for line in result.stdout.splitlines())
    return [
        QueuedJob(job, user, state, nodes, "" if reason == "None" else reason, running, name)
        for job, user, state, nodes, reason, running, name in (row for row in rows if len(row) == _LIST_FIELDS)
    ]


def cancel(job: str) -> None:
    """Cancel a job. It is not an error if it has just ended.

    Raises:
        Failed: Slurm does not answer.
    """
    result = programs.call(["scancel", "--quiet", job], seconds=_SECONDS)
    if result.returncode != 0 and _UNKNOWN_JOB not in result.stderr and "already completing" not in result.stderr:
        raise Failed(_no_answer(result.stderr, result.returncode), _SEE_SLURMCTLD)


def usable_nodes(partition: str) -> tuple[int, int] | None:
    """How many nodes a partition has, and how many of them would take a job; None if there is no such partition.

    Raises:
        Failed: Slurm does not answer.
    """
    result = programs.call(
        ["sinfo", "--noheader", f"--partition={partition}", "--Node", "--format=%N|%T"], seconds=_SECONDS
    )
    if result.returncode != 0:
        raise Failed(_no_answer(result.stderr, result.returncode), _SEE_SLURMCTLD)
    states = dict(line.split("|", 1) for line in result.stdout.splitlines() if "|" in line)
    if not states:
        return None
    return len(states), sum(not _UNUSABLE.match(state) for state in states.values())


def _no_answer(errors: str, status: int) -> str:
    return f"Slurm gives no answer: {(errors.strip().splitlines() or [f'status {status}'])[-1]}"


def checked_id(job_id: object) -> str:
    """The number of a job.

    Raises:
        Refused: it is not a job id.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,9}", str(job_id)):
        raise Refused(f"not a job id: {str(job_id)[:40]!r}", "See: gpucluster ssh -- squeue")
    return str(job_id)
