"""The file in which the watcher keeps what it has found: the exporter shows it, and administrators.

Times in it are seconds of time.monotonic(), which is one for all programs of a host until it boots again. The file is
gone then, too, and a clock that is set makes nothing look old or new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucluster.node_agent import bounded
from gpucluster.node_agent.durable_file import replace
from gpucluster.node_agent.watch.judge import JobActivity, JobFinding

FILE = Path("/run/gpucluster-watch/jobs.json")
_LARGEST = 1 << 20


class ObservedJob(NamedTuple):
    """What a job does on this node.

    Attributes:
        since: when that began.
        rank, pid, host, collective: of the rank to look at; "" and 0 where it is not known.
        idle: seconds for which GPUs have had no process, by their numbers.
    """

    job_id: str
    state: str
    since: float
    words: str = ""
    rank: str = ""
    pid: int = 0
    host: str = ""
    collective: str = ""
    idle: Mapping[str, float] = {}


def seen(job_id: str, finding: JobFinding, here: str) -> ObservedJob:
    """A finding with the names of this node's things.

    Args:
        here: the name of this node where the process is its own; else "".
    """
    rank = finding.rank
    return ObservedJob(
        job_id,
        finding.state.value,
        finding.since,
        finding.words,
        "" if rank is None else str(rank.rank),
        0 if rank is None else rank.pid,
        "" if rank is None else here or rank.host,
        finding.collective,
        {str(number): seconds for number, seconds in finding.idle.items()},
    )


def write(jobs: Sequence[ObservedJob], at: float, file: Path = FILE) -> None:
    """Replace the file.

    Raises:
        OSError: it can't be written.
    """
    content = {"version": 1, "at": at, "jobs": [each._asdict() for each in jobs]}
    replace(file, json.dumps(content, separators=(",", ":")), durable=False)


def read(file: Path = FILE) -> tuple[float, list[ObservedJob]]:
    """When the watcher looked last, and what it saw.

    Raises:
        OSError: it can't be read.
        ValueError: it is not a file of the watcher.
    """
    content: Any = bounded.load(file, _LARGEST)
    try:
        jobs = [
            ObservedJob(**{key: value for key, value in each.items() if key in ObservedJob._fields})
            for each in content["jobs"]
        ]
        at = float(content["at"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a file of the watcher: {error}") from None
    states = [state.value for state in JobActivity]
    return at, [each for each in jobs if each.state in states]
