"""What is known of one job on the controller: Slurm's accounting, the records of its nodes, and its result.

Fields of sacct are told apart by a text that can't be guessed: the name of a job may have anything in it, also lines
that look like sacct's.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.controller import job_records
from gpucluster.controller.health.store import FOLDER
from gpucluster.controller.jobs import folder as job_folder
from gpucluster.controller.maintenance.control import messages_of_job as maintenance_of_job
from gpucluster.controller.reactions.control import messages_of_job
from gpucluster.node_agent import accounts, bounded, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused

#: First and last are fields that Slurm writes, so that the end of a row is known.
FIELDS = (
    "JobIDRaw", "JobID", "User", "Account", "Partition", "State", "ExitCode", "Submit", "Start", "End", "ElapsedRaw",
    "NNodes", "NTasks", "AllocCPUS", "AllocTRES", "TotalCPU", "MaxRSS", "NodeList", "JobName", "WorkDir",
    "DerivedExitCode",
)  # fmt: skip
#: Steps in one answer: the others are counted. Tasks of an array as well.
MOST_STEPS, MOST_TASKS = 2000, 2000
_JOB = re.compile(r"([1-9][0-9]{0,9})([_+][0-9]{1,9})?")
_SECONDS, _MOST_BYTES = 60.0, 64 << 20
# Seconds by which the clocks of a node and of the controller may differ.
_CLOCKS = 300.0
_FOLDER_SECONDS, _MOST_RESULT = 5.0, 2 << 20
_NO_END = frozenset({"", "Unknown", "None"})


def describe(job: str, records: Path = job_records.FOLDER, health: Path = FOLDER) -> dict[str, Any]:
    """All of it as one JSON object: `job`, `components`, `tasks`, `steps`, `steps_left_out`, `records`, `told`,
    `result`, `problems`, `now`.

    Args:
        health: the folder of the health service, which has the messages and the actions about a job (`told`).

    Raises:
        Refused: this is not a job id, or Slurm knows none of it.
    """
    match = _JOB.fullmatch(job)
    if not match:
        raise Refused(f"not a job id: {job[:40]!r}", "See: gpucluster ssh -- sacct")
    problems: list[str] = []
    rows: list[dict[str, str]] = []
    try:
        rows = _accounted(job)
    except AgentError as error:
        problems.append(error.message)
    allocations = [row for row in rows if "." not in row["JobIDRaw"]]
    if not allocations and (problems == [] or not job_records.of_job(match[1], records)):
        if problems:
            raise Failed(problems[0], "See: gpucluster ssh -- systemctl status slurmdbd")
        raise Refused(f"Slurm's accounting has no job {job}", "See: gpucluster ssh -- sacct")
    own = _own(allocations, job)
    components = [row for row in allocations if "+" in row["JobID"]] or own[:1]
    ids = [row["JobIDRaw"] for row in components] or [match[1]]
    steps = [row for row in rows if row["JobIDRaw"].partition(".")[0] in ids and "." in row["JobIDRaw"]]
    shown = _worth_showing(steps)
    jobs = [_row(row) for row in components]
    runs = [run for each in ids for run in job_records.of_job(each, records)]
    if jobs:
        runs = [run for run in runs if _belongs(run, jobs)]
    return {
        "version": 1,
        "now": time.time(),
        "id": job,
        "job": jobs[0] if jobs else None,
        "components": jobs,
        "tasks": [_row(row) for row in own[:MOST_TASKS]] if len(own) > 1 else [],
        "tasks_left_out": max(0, len(own) - MOST_TASKS),
        "steps": [_row(row) for row in shown],
        "steps_left_out": len(steps) - len(shown),
        "records": runs,
        "told": [line for each in ids for line in (*messages_of_job(health, each), *maintenance_of_job(health, each))],
        "result": _result(components[0], problems) if components else {},
        "problems": problems,
    }


def _accounted(job: str) -> list[dict[str, str]]:
    delimiter = f"<{secrets.token_hex(8)}>"
    result = programs.ask(
        [
            "env", "SLURM_TIME_FORMAT=%s", "sacct", "--noheader", "--parsable2", f"--delimiter={delimiter}",
            f"--jobs={job}", f"--format={','.join(FIELDS)}",
        ],
        _SECONDS,
        _MOST_BYTES,
    )  # fmt: skip
    if result.fault or result.status != 0:
        message = (result.errors.decode(errors="replace").strip().splitlines() or [f"status {result.status}"])[-1]
        raise Failed(f"Slurm's accounting gives no answer: {result.fault or message[:300]}")
    return parse(result.output.decode(errors="replace"), delimiter)


def parse(text: str, delimiter: str) -> list[dict[str, str]]:
    """The rows of sacct. Only the delimiter ends a field: a name may have any other character, also a new line."""
    words = text.split(delimiter)
    rows, width = [], len(FIELDS) - 1
    first = words[0]
    for at in range(width, len(words), width):
        last, _, following = words[at].partition("\n")
        rows.append(dict(zip(FIELDS, [first, *words[at - width + 1 : at], last])))
        first = following
    return rows


def _own(allocations: Sequence[Mapping[str, str]], job: str) -> list[Mapping[str, str]]:
    """The allocations of the requested job: of an array all of its tasks."""
    exact = [row for row in allocations if row["JobID"] == job]
    return exact or list(allocations)


def _worth_showing(steps: list[dict[str, str]]) -> list[dict[str, str]]:
    """At most so many, in their order: those that failed before those that did not."""
    if len(steps) <= MOST_STEPS:
        return steps
    failed = [row for row in steps if not row["State"].startswith(("COMPLETED", "RUNNING"))][:MOST_STEPS]
    rest = iter(row for row in steps if row["State"].startswith(("COMPLETED", "RUNNING")))
    chosen = {id(row) for row in [*failed, *(row for row, _ in zip(rest, range(MOST_STEPS - len(failed))))]}
    return [row for row in steps if id(row) in chosen]


def _row(row: Mapping[str, str]) -> dict[str, Any]:
    raw = row["JobIDRaw"]
    return {
        "id": raw,
        "name": row["JobName"],
        "shown_as": row["JobID"],
        "step": raw.partition(".")[2],
        "user": row["User"],
        "account": row["Account"],
        "partition": row["Partition"],
        "state": (row["State"].split() or ["UNKNOWN"])[0],
        "exit_code": row["ExitCode"],
        "submitted": _time(row["Submit"]),
        "started": _time(row["Start"]),
        "ended": _time(row["End"]),
        "elapsed": _whole(row["ElapsedRaw"]),
        "nodes": _whole(row["NNodes"]) or 0,
        "tasks": _whole(row["NTasks"]),
        "cpus": _whole(row["AllocCPUS"]) or 0,
        "gpus": _gpus(row["AllocTRES"]),
        "cpu_time": row["TotalCPU"],
        "memory": row["MaxRSS"],
        "node_list": _names(row["NodeList"]),
    }


def _time(text: str) -> float | None:
    return float(text) if text not in _NO_END and re.fullmatch(r"[1-9][0-9]{0,11}", text) else None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None


def _gpus(resources: str) -> int:
    match = re.search(r"(?:^|,)gres/gpu=(\d+)", resources)
    return int(match[1]) if match else 0


def _names(text: str) -> list[str]:
    """The nodes of `gpu-[1-3,7],login`."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not match:
            names.append(part)
            continue
        for piece in match[2].split(","):
            low, dash, high = piece.partition("-")
            if dash and low.isdigit() and high.isdigit() and int(high) - int(low) <= 100_000:  # noqa: PLR2004
                names += [f"{match[1]}{number:0{len(low)}}{match[3]}" for number in range(int(low), int(high) + 1)]
            else:
                names.append(f"{match[1]}{piece}{match[3]}")
    return [name for name in names if name not in ("None assigned", "")]


def _belongs(run: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a record is of this run: on one of its nodes and in its time. A number may be used again."""
    for job in jobs:
        if run["job_id"] == job["id"] and run["node"] in job["node_list"]:
            began, ended = job["started"], job["ended"]
            return began is not None and began - _CLOCKS <= run["started"] <= (ended or run["started"]) + _CLOCKS
    return False


def _result(row: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """The result of a job from a template, if it was judged. It is read with the rights of the job's user."""
    place = Path(row["WorkDir"])
    if not row["User"] or place.parent.name != job_folder.BASE:
        return {}
    try:
        of = accounts.account(row["User"])
        text = accounts.work_as(
            of, lambda: json.dumps(job_folder.result(place)).encode(), seconds=_FOLDER_SECONDS, most=_MOST_RESULT
        )
        result = bounded.loads(text)
    except (AgentError, ValueError) as error:
        problems.append(f"its result can't be read: {error.message if isinstance(error, AgentError) else error}")
        return {}
    # A folder of the user's own, so the result may be of another job, or made up.
    return result if isinstance(result, dict) and str(result.get("id", "")) == row["JobIDRaw"] else {}
