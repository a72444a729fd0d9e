"""What a node reports of its jobs to the controller, and how it is read there.

`{"watched_jobs": {"node": ..., "jobs": [...]}}`, a message of the node's root to the health service. The node's watcher
is not root; its words are those of an account of the node, so they are bounded and checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.watch.judge import JobActivity
from gpucluster.node_agent.watch.kept import ObservedJob

#: The member that marks a message to the health service as one about watched jobs.
KIND = "watched_jobs"
_MOST_JOBS, _LONGEST = 256, 500
_LONGEST_S = 1e8
_JOB = re.compile(r"[1-9][0-9]{0,9}")
_WORD = re.compile(r"[A-Za-z0-9_.:-]{0,64}")


class ReportedJob(NamedTuple):
    """What a node reports of one job.

    Attributes:
        age: seconds for which the state has lasted.
        rank, pid, host: of the rank to look at; "" and 0 where it is not known.
        idle: GPUs without a process, and `idle_s` for how long, summed over them.
        stacks: where the stacks of its processes are, or why there are none; "" where they are not taken.
    """

    job_id: str
    state: JobActivity
    age: float
    words: str = ""
    rank: str = ""
    pid: int = 0
    host: str = ""
    idle: int = 0
    idle_s: float = 0.0
    stacks: str = ""


def written(
    node: str, jobs: Sequence[ObservedJob], now: float, stacks: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The message of a node.

    Args:
        now: seconds of the clock that the watcher uses.
        stacks: where those of jobs are, by their numbers.
    """
    return {
        KIND: {
            "node": node,
            "jobs": [
                {
                    "job_id": each.job_id,
                    "state": each.state,
                    "age": max(0.0, now - each.since),
                    "words": each.words[:_LONGEST],
                    "rank": each.rank,
                    "pid": each.pid,
                    "host": each.host,
                    "idle": len(each.idle),
                    "idle_s": sum(each.idle.values()),
                    "stacks": (stacks or {}).get(each.job_id, ""),
                }
                for each in jobs[:_MOST_JOBS]
            ],
        }
    }


def read(raw: Any, owner: str) -> list[ReportedJob]:
    """What a node has said.

    Args:
        owner: the node that has the sender's address.

    Raises:
        Refused: it is of another node, or no such message.
    """
    if not owner or not isinstance(raw, Mapping) or raw.get("node") != owner:
        raise Refused(f"the sender is {owner or 'no node in service'}, and speaks for another one")
    jobs = raw.get("jobs")
    if not isinstance(jobs, list) or len(jobs) > _MOST_JOBS:
        raise Refused(f"a message has a list of at most {_MOST_JOBS} jobs")
    try:
        return [_job_report(each) for each in jobs]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"no message about watched jobs: {str(error)[:200]}") from None


def _job_report(raw: Mapping[str, Any]) -> ReportedJob:
    pid, idle = raw["pid"], raw["idle"]
    if type(pid) is not int or type(idle) is not int or pid < 0 or not 0 <= idle <= _MOST_JOBS:
        raise ValueError("a number is none")
    return ReportedJob(
        _text(raw["job_id"], _JOB), JobActivity(raw["state"]), _seconds(raw["age"]), _printable(raw["words"]),
        _text(raw["rank"], _WORD), pid, _text(raw["host"], _WORD), idle, _seconds(raw["idle_s"]),
        # A node that has not been configured again does not report them.
        _printable(raw.get("stacks", "")),
    )  # fmt: skip


def _text(raw: object, form: re.Pattern[str]) -> str:
    if not isinstance(raw, str) or not form.fullmatch(raw):
        raise ValueError("a word has another form")
    return raw


def _seconds(raw: object) -> float:
    # A NaN is in no range.
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw < _LONGEST_S:
        raise ValueError("a time is none")
    return float(raw)


def _printable(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError("words are no text")
    return "".join(sign if sign.isprintable() else " " for sign in raw[:_LONGEST])
