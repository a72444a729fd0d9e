"""Slurm's metrics: which series there are, and how many at most. Pure.

What grows with the number of users or of jobs has a limit, and what is above it is counted: a hundred thousand tasks
of an array are one row while they wait, and no more than MOST_JOBS series while they run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Callable

from gpucluster.controller.monitor.slurm_text import NodeRow, QueueRow
from gpucluster.controller.rules.slurm_nodes import BUSY
from gpucluster.node_agent.exporter.exposition import Metric, sample

#: Series at most: jobs that run, rows of users, pairs of a partition and a state.
MOST_JOBS, MOST_USERS, MOST_PARTITIONS = 5000, 1000, 500
#: Letters of a label's value. The scrape configuration refuses longer ones.
MOST_LETTERS = 200
OTHER = "(other)"

_S = "gpucluster_slurm_"
METRICS: Mapping[str, Metric] = {
    f"{_S}up": Metric("gauge", "1 if the last query of each kind was answered, and none is old."),
    f"{_S}nodes": Metric("gauge", "Nodes of a pool by state; elastic ones that are powered down as well."),
    f"{_S}node_state": Metric("gauge", "1 for the state of a node that is not powered down."),
    f"{_S}node_drained": Metric("gauge", "1 for a node that is down or drained, with the reason that Slurm has."),
    f"{_S}cpus": Metric("gauge", "CPUs of the nodes that are up: allocated by jobs, and in total."),
    f"{_S}gpus": Metric("gauge", "GPUs of the nodes that are up: allocated by jobs, and in total."),
    f"{_S}jobs": Metric("gauge", "Jobs and tasks of arrays that are not finished, by partition and state."),
    f"{_S}user_jobs": Metric("gauge", "Jobs and tasks of arrays that are not finished, by user."),
    f"{_S}users_left_out": Metric("gauge", "Rows of users above the limit of series."),
    f"{_S}job_info": Metric("gauge", "1 for a job that runs."),
    f"{_S}jobs_left_out": Metric("gauge", "Jobs that run and have no job_info, because of the limit of series."),
    f"{_S}scheduler_server_threads": Metric("gauge", "Threads of slurmctld that work for requests."),
    f"{_S}scheduler_agent_queue_size": Metric("gauge", "Messages to nodes that slurmctld has not sent yet."),
    f"{_S}scheduler_database_queue_size": Metric("gauge", "Records that slurmdbd has not received yet."),
    f"{_S}scheduler_jobs_submitted_total": Metric("counter", "Jobs submitted; Slurm starts from 0 each day."),
    f"{_S}scheduler_jobs_started_total": Metric("counter", "Jobs started; Slurm starts from 0 each day."),
    f"{_S}scheduler_jobs_completed_total": Metric("counter", "Jobs completed; Slurm starts from 0 each day."),
    f"{_S}scheduler_jobs_canceled_total": Metric("counter", "Jobs canceled; Slurm starts from 0 each day."),
    f"{_S}scheduler_jobs_failed_total": Metric("counter", "Jobs failed; Slurm starts from 0 each day."),
    f"{_S}scheduler_last_cycle_seconds": Metric("gauge", "Duration of the last scheduling cycle."),
    f"{_S}scheduler_mean_cycle_seconds": Metric("gauge", "Mean duration of the scheduling cycles of this day."),
    f"{_S}scheduler_queue_length": Metric("gauge", "Jobs that waited in the last scheduling cycle."),
    f"{_S}scheduler_backfilled_jobs_total": Metric("counter", "Jobs that the backfill scheduler started."),
    f"{_S}scheduler_backfill_last_cycle_seconds": Metric("gauge", "Duration of the last backfill cycle."),
    f"{_S}scheduler_backfill_mean_cycle_seconds": Metric("gauge", "Mean duration of the backfill cycles of this day."),
    f"{_S}scheduler_backfill_last_depth": Metric("gauge", "Jobs that the last backfill cycle looked at."),
    f"{_S}scrape_seconds": Metric("gauge", "How long the last answered query of Slurm took, with reading the answer."),
    f"{_S}age_seconds": Metric("gauge", "Seconds since the last answered query of Slurm."),
}

# The first that applies is the state of a node.
_STATES: tuple[tuple[str, str], ...] = (
    ("POWERING_DOWN", "powering_down"),
    ("POWERED_DOWN", "powered_down"),
    ("POWERING_UP", "powering_up"),
    ("POWER_DOWN", "powering_down"),
    ("DOWN", "down"),
    ("ERROR", "down"),
    ("FAIL", "down"),
    ("NOT_RESPONDING", "not_responding"),
    ("DRAIN", "drained"),
    ("MAINTENANCE", "maintenance"),
    ("REBOOT_ISSUED", "rebooting"),
    ("COMPLETING", "completing"),
    ("ALLOCATED", "allocated"),
    ("MIXED", "mixed"),
    ("RESERVED", "reserved"),
    ("PLANNED", "planned"),
    ("IDLE", "idle"),
)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
_AWAY = frozenset({"powered_down", "powering_down", "powering_up"})


def state_of(flags: frozenset[str]) -> str:
    """One word for the state of a node, by its flags."""
    state = next((word for flag, word in _STATES if flag in flags), "unknown")
    # POWERED_DOWN stays until the node has registered.
    if state == "powered_down" and "POWERING_UP" in flags:
        return "powering_up"
    return "draining" if state == "drained" and flags & BUSY else state


def of_nodes(rows: Iterable[NodeRow], pool_of: Callable[[str], str]) -> Iterator[str]:
    """The samples of nodes."""
    nodes: Counter[tuple[str, str]] = Counter()
    cpus: Counter[tuple[str, str]] = Counter()
    gpus: Counter[tuple[str, str]] = Counter()
    for row in rows:
        name, pool, state = row.node.name, pool_of(row.node.name), state_of(row.node.flags)
        nodes[pool, state] += 1
        if state in _AWAY:
            continue
        yield sample(f"{_S}node_state", 1, node=name, pool=pool, state=state)
        if row.node.reason and ("DRAIN" in row.node.flags or state == "down"):
            yield sample(f"{_S}node_drained", 1, node=name, pool=pool, reason=text(row.node.reason))
        if state not in ("down", "not_responding"):
            for counter, (used, total) in ((cpus, row.cpus), (gpus, row.gpus)):
                counter[pool, "allocated"] += used
                counter[pool, "total"] += total
    for what, counts in (("nodes", nodes), ("cpus", cpus), ("gpus", gpus)):
        yield from (sample(f"{_S}{what}", number, pool=pool, state=state) for (pool, state), number in counts.items())


def of_jobs(rows: Iterable[QueueRow]) -> Iterator[str]:
    """The samples of jobs. A job that waits for several partitions counts once, with all of them as its partition."""
    partitions: Counter[tuple[str, str]] = Counter()
    users: Counter[tuple[str, str, str]] = Counter()
    running = []
    for row in rows:
        state = row.state.lower()
        partitions[text(row.partitions), state] += row.tasks
        users[text(row.user), text(row.account), state] += row.tasks
        if row.state == "RUNNING":
            running.append(row)
    kept = dict(partitions.most_common(MOST_PARTITIONS))
    others: Counter[str] = Counter()
    for (partition, state), number in partitions.items():
        if (partition, state) not in kept:
            others[state] += number
    for (partition, state), number in [*kept.items(), *(((OTHER, state), number) for state, number in others.items())]:
        yield sample(f"{_S}jobs", number, partition=partition, state=state)
    for (user, account, state), number in users.most_common(MOST_USERS):
        yield sample(f"{_S}user_jobs", number, user=user, account=account, state=state)
    yield sample(f"{_S}users_left_out", max(0, len(users) - MOST_USERS))
    # Jobs before tasks of arrays, old ones before new ones: what has a series keeps it.
    running.sort(key=lambda row: (row.array, int(row.job_id) if row.job_id.isdecimal() else 0))
    for row in running[:MOST_JOBS]:
        yield sample(
            f"{_S}job_info", 1, job_id=text(row.job_id), user=text(row.user), account=text(row.account),
            partition=text(row.partitions), name=text(row.name),
        )  # fmt: skip
    yield sample(f"{_S}jobs_left_out", max(0, len(running) - MOST_JOBS))


def of_scheduler(values: Mapping[str, float]) -> Iterator[str]:
    """The samples of the scheduler."""
    return (sample(f"{_S}scheduler_{name}", value) for name, value in values.items())


def text(value: str) -> str:
    """A label's value that Prometheus accepts: bytes that were no UTF-8 have become U+FFFD, and so do control
    characters but the line break."""
    return _CONTROL.sub("\ufffd", value[:MOST_LETTERS])
