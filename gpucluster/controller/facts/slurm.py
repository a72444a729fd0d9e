"""What Slurm answers on the controller: its nodes, a job in every pool as a user of the directory, the accounting."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.facts.container_steps import ContainerSteps, StepImage
from gpucluster.controller.rules.slurm_nodes import SINFO_FREE, SINFO_FULL, sinfo_use
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.facts.__main__ import at_once
from gpucluster.node_agent.programs import Completed, ProgramGroup

#: Seconds for a job: it has to start within half of them, and to end within all. A job that can't start is a result.
JOB_SECONDS = 60
#: Seconds in which it has to start where jobs of users have all nodes: one may just be ending.
FULL_SECONDS = 5
#: Seconds for a question to slurmctld or slurmdbd, which may be starting.
_SECONDS = 60.0
_SINFO_TRIES, _SINFO_AGAIN_SECONDS = 3, 3.0
# Records reach the database within seconds, with much to do later.
_RECORD_TRIES, _RECORD_AGAIN_SECONDS = 61, 0.5
_COLUMNS = 3
_TOPOLOGY = Path("/etc/slurm/topology.conf")
_LEAF = re.compile(r"SwitchName=(\S+) Level=0 (?:\S+ )*?Nodes=(\S+)", re.ASCII)


def sinfo_rows(text: str) -> list[dict[str, str]]:
    """The nodes of `sinfo --format="%N %T %R %E"`. The reason has spaces; `none` is Slurm's word for no reason."""
    rows = []
    for line in text.splitlines():
        words = [*line.split(None, 3), ""]
        if len(words) > _COLUMNS:
            reason = "" if words[3].strip() == "none" else words[3].strip()
            rows.append({"node": words[0], "state": words[1], "partition": words[2], "reason": reason})
    return rows


def leaf_switches(text: str) -> list[dict[str, str]]:
    """The leaf switches of `scontrol show topology`, each with its nodes as a host list."""
    return [{"switch": name, "nodes": nodes} for name, nodes in _LEAF.findall(text)]


def free(pool: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The nodes of a pool that can run a step now: neither busy, nor down, nor starting.

    Args:
        pool: its `partition`, its `nodes` that this is about, and with `elastic` how names of its elastic nodes begin.
    """

    def own(node: str) -> bool:
        prefix = str(pool.get("elastic") or "")
        return node in pool["nodes"] or (bool(prefix) and re.fullmatch(f"{re.escape(prefix)}[0-9]+", node) is not None)

    found = [
        row["node"]
        for row in rows
        if own(row["node"]) and row["partition"] == pool["partition"] and sinfo_use(row["state"]) in SINFO_FREE
    ]
    return list(dict.fromkeys(found))


def job_nodes(pool: Mapping[str, Any]) -> int:
    """The number of nodes of the job of a pool."""
    return min(len(pool["nodes"]), 2)


def job_patience(pool: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> int:
    """Seconds in which the job of a pool has to start.

    Args:
        rows: of sinfo; none where it did not answer.
    """
    full = {
        row["node"] for row in rows if row["partition"] == pool["partition"] and sinfo_use(row["state"]) in SINFO_FULL
    }.intersection(pool["nodes"])
    return FULL_SECONDS if len(pool["nodes"]) - len(full) < job_nodes(pool) else JOB_SECONDS // 2


def job_argv(pool: Mapping[str, Any], user: str, job: str, patience: int = JOB_SECONDS // 2) -> list[str]:
    """A job on up to two nodes of a pool. A limit on the wait for nodes, and one on the whole run.

    Args:
        patience: seconds in which it has to start.
    """
    return [
        "timeout", str(JOB_SECONDS), "runuser", f"--user={user}", "--", "srun", f"--immediate={patience}",
        "--time=1", f"--job-name={job}", f"--partition={pool['partition']}", f"--nodes={job_nodes(pool)}",
        "--ntasks-per-node=1", "--chdir=/", *([f"--exclude={','.join(pool['exclude'])}"] if pool["exclude"] else []),
        "hostname",
    ]  # fmt: skip


def job_result(pool: Mapping[str, Any], user: str, done: Completed[str]) -> dict[str, Any]:
    """What became of the job of a pool."""
    lines = done.stdout.splitlines()
    error = "" if done.returncode == 0 else done.stderr.strip() or "no response within the time limit"
    return {
        "partition": pool["name"],
        "user": user,
        "ran": done.returncode == 0 or bool(lines),
        "exit_status": done.returncode,
        "nodes": sorted(lines),
        "error": error,
    }


def accounting(done: Completed[str], jobs: int) -> dict[str, Any]:
    """What the accounting has of these jobs.

    Args:
        jobs: how many have run.
    """
    rows = [line.split("|") for line in done.stdout.splitlines()]
    names = ("job", "user", "account", "partition", "state")
    return {
        "accounting": done.returncode == 0 and len(rows) >= jobs,
        "accounting_error": done.stderr.strip(),
        "accounting_jobs": [
            {**dict(zip(names, row)), "nodes": int(row[5]) if row[5].isdigit() else 0}
            for row in rows
            if len(row) > len(names)
        ],
    }


class SlurmFacts:
    """The questions to Slurm of one verification.

    Args:
        asked: the `pools` {name, partition, nodes, exclude, elastic}, the `user` of jobs (empty: none is run), the
            name of the `job`, whether there is `accounting`, how many pools are tried `at_once`, with
            `switches` which nodes they have, and for container steps the `share`.
        programs: runs every program.
        marker: a text that no other run has.
    """

    def __init__(self, asked: Mapping[str, Any], programs: ProgramGroup, marker: str) -> None:
        self._asked = asked
        self._programs = programs
        self._user, self._job = str(asked["user"]), str(asked["job"])
        self._turns = threading.Semaphore(int(asked["at_once"]))
        self._image = StepImage(Path(asked["share"]), marker, programs) if asked.get("share") else None

    def collect(self) -> dict[str, Any]:
        """Ask, and run the jobs: pools do not wait for each other, but for their own nodes."""
        first = at_once({"sinfo": self._sinfo, "version": self._version, "waiting": self._waiting})
        listed, rows = first["sinfo"], sinfo_rows(first["sinfo"].stdout)
        facts: dict[str, Any] = {
            "sinfo": rows if listed.returncode == 0 else None,
            **({} if listed.returncode == 0 else {"sinfo_error": listed.stderr.strip()}),
            "jobs_waiting": first["waiting"],
            "slurm_version": first["version"],
        }
        if self._asked.get("switches"):
            facts["switches"] = self._switches()
        pools = list(self._asked["pools"])
        steps = self._image is not None and bool(self._user) and listed.returncode == 0
        jobs = _Jobs()
        later: dict[str, Callable[[], Any]] = {
            f"pool {number}": partial(self._pool, pool, rows, jobs, steps=steps) for number, pool in enumerate(pools)
        }
        expected = [pool for pool in pools if pool["nodes"] and self._user]
        if self._asked["accounting"]:
            later["accounting"] = lambda: self._accounting(jobs.ended(len(expected)))
        found = at_once(later)
        of_pools = [found[f"pool {number}"] or {} for number in range(len(pools))]
        facts["srun"] = [each["job"] for each in of_pools if each.get("job")]
        errors = [each["steps_error"] for each in of_pools if each.get("steps_error")]
        if errors:
            facts["container_steps_error"] = "; ".join(dict.fromkeys(errors))
        elif steps:
            facts["container_steps"] = [each["steps"] for each in of_pools if each.get("steps")]
        return {**facts, **(found.get("accounting") or {})}

    def close(self) -> None:
        """Remove what the jobs needed. After a stop also the jobs, which may have begun when nobody waited any more."""
        if self._image is not None:
            self._image.remove()

    def cancel(self, run: Callable[[Sequence[str], float], Completed[str]]) -> None:
        """Cancel the jobs of this run."""
        for name in (self._job, f"{self._job}-containers"):
            run(["scancel", f"--jobname={name}"], _SECONDS)

    def _sinfo(self) -> Completed[str]:
        """All nodes. Without an answer nothing is tried, and slurmctld that has much to do may lose a question."""
        argv = ["sinfo", "--noheader", "--Node", "--format=%N %T %R %E"]
        return self._again(argv, lambda done: done.returncode == 0, _SINFO_TRIES, _SINFO_AGAIN_SECONDS)

    def _version(self) -> str | None:
        done = self._programs.run(["sinfo", "--version"], _SECONDS)
        words = done.stdout.split()
        return words[-1] if done.returncode == 0 and words else None

    def _switches(self) -> list[dict[str, str]] | None:
        """The leaf switches; none without a topology, which Slurm need not be asked for."""
        try:
            if "SwitchName=" not in _TOPOLOGY.read_text(encoding="utf-8"):
                return []
        except OSError:
            return []
        done = self._programs.run(["scontrol", "show", "topology"], _SECONDS)
        return leaf_switches(done.stdout) if done.returncode == 0 else None

    def _waiting(self) -> list[str]:
        """The partitions for which jobs wait. Jobs of users come first, and one that needs many nodes keeps others
        waiting: then nothing is measured."""
        done = self._programs.run(["squeue", "--noheader", "--states=PENDING", "--format=%P"], _SECONDS)
        return [word.strip() for line in done.stdout.splitlines() for word in line.split(",")]

    def _pool(
        self, pool: Mapping[str, Any], rows: Sequence[Mapping[str, str]], jobs: _Jobs, *, steps: bool
    ) -> dict[str, Any]:
        """The job of a pool, and then its container steps: both need its nodes.

        Args:
            rows: of sinfo.
            steps: whether there are container steps.
        """
        result: dict[str, Any] = {}
        with self._turns:
            if pool["nodes"] and self._user:
                status = -1
                try:
                    argv = job_argv(pool, self._user, self._job, job_patience(pool, rows))
                    done = self._programs.run(argv, JOB_SECONDS + 10.0)
                    status = done.returncode
                    result["job"] = job_result(pool, self._user, done)
                finally:
                    jobs.add(succeeded=status == 0)
            nodes = free(pool, rows) if steps else []
            if nodes and self._image is not None:
                containers = ContainerSteps(self._image, self._programs, self._user, f"{self._job}-containers")
                try:
                    result["steps"] = containers.pool({**pool, "nodes": nodes})
                except (AgentError, OSError) as error:
                    result["steps_error"] = getattr(error, "message", "") or str(error)
        return result

    def _accounting(self, jobs: int) -> dict[str, Any]:
        argv = [
            "sacct", "--allusers", "--noheader", "--parsable2", "--allocations", "--starttime=now-5minutes",
            f"--name={self._job}", "--format=JobID,User,Account,Partition,State,NNodes",
        ]  # fmt: skip
        done = self._again(
            argv,
            lambda done: done.returncode != 0 or len(done.stdout.splitlines()) >= jobs,
            _RECORD_TRIES,
            _RECORD_AGAIN_SECONDS,
        )
        return accounting(done, jobs)

    def _again(
        self, argv: Sequence[str], good: Callable[[Completed[str]], bool], tries: int, pause: float
    ) -> Completed[str]:
        """The last answer to a question that is put until the answer is good."""
        for left in reversed(range(tries)):
            done = self._programs.run(argv, _SECONDS)
            if good(done) or not left or self._programs.stopped:
                break
            time.sleep(pause)
        return done


class _Jobs:
    """How many jobs have ended, and how many of them well."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all = self._good = 0

    def add(self, *, succeeded: bool) -> None:
        with self._changed:
            self._all += 1
            self._good += succeeded
            self._changed.notify_all()

    def ended(self, number: int) -> int:
        """Wait until so many have ended; returns how many of them well."""
        with self._changed:
            self._changed.wait_for(lambda: self._all >= number)
            return self._good
