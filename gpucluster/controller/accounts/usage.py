"""What a cluster was made of and what ran on it: permanent hosts, elastic instances, and the runs of jobs.

    gpucluster-agent accounts hosts < HOSTS                    record the permanent hosts; `gpucluster apply` runs it
    gpucluster-agent accounts usage --since S --until S        print the records of that time, as one JSON object

Permanent hosts are in a file of the controller's state: an instance is there from the first apply that has configured
it, until the first one that no longer lists it. Elastic instances are in the autoscaler's record. What ended more than
400 days ago is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.passwords import write_file

#: On the controller's volume, where it has one.
HOSTS = Path("/var/lib/gpucluster-directory/billed-hosts.json")
#: `autoscaler.daemon.instance_record` writes it.
INSTANCES = Path("/var/lib/gpucluster-autoscaler/instances.sqlite")
#: What of the accounting is read: each run of each job, without its steps.
SACCT = (
    "sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2",
    "--format=JobIDRaw,User,Account,Start,End,AllocTRES,NodeList",
)  # fmt: skip
#: Seconds that records are kept after the end of an instance.
KEPT_S = 400 * 86400.0
_SACCT_SECONDS = 300.0


def record_hosts(listed: Sequence[Mapping[str, Any]], file: Path = HOSTS, now: float | None = None) -> bool:
    """Record the permanent hosts; returns whether one has come or gone.

    Args:
        listed: of each host `id`, `name`, `pool` and `machine`.

    Raises:
        Failed: the file can't be read or written.
    """
    at = time.time() if now is None else now
    rows = updated(_recorded(file), listed, at)
    if rows == _recorded(file):
        return False
    write_file(file, json.dumps(rows, indent=1) + "\n")
    return True


def updated(rows: Sequence[Mapping[str, Any]], listed: Sequence[Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
    """The rows after an apply has listed these hosts. A host that has another pool or size has a new row."""
    there = {(one["id"], json.dumps([one["pool"], one["machine"]], sort_keys=True)): one for one in listed}
    after = []
    for row in rows:
        key = (row["id"], json.dumps([row["pool"], row["machine"]], sort_keys=True))
        open_row = row["ended"] is None
        after.append(dict(row, ended=now if open_row and key not in there else row["ended"]))
        if open_row:
            there.pop(key, None)
    after += [{**_plain(one), "began": now, "ended": None, "unsure": 0.0} for one in there.values()]
    return [row for row in after if row["ended"] is None or row["ended"] > now - KEPT_S]


def usage(since: float, until: float) -> dict[str, Any]:
    """Everything that was there between two times.

    Raises:
        Failed: the accounting does not answer, or a record can't be read.
    """
    kinds = (_recorded(HOSTS), instances(INSTANCES))
    there = [
        row for rows in kinds for row in rows if row["began"] < until and (row["ended"] is None or row["ended"] > since)
    ]
    recorded = max((min(row["began"] for row in rows) for rows in kinds if rows), default=until)
    return {"hosts": there, "recorded_since": recorded, "jobs": sacct(since, until)}


def instances(file: Path) -> list[dict[str, Any]]:
    """The autoscaler's record; empty where it has none.

    Raises:
        Failed: it can't be read.
    """
    if not file.exists():
        return []
    query = "SELECT id, name, pool, machine, began, ended, unsure FROM instances ORDER BY began"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10.0)) as database:
            rows = database.execute(query).fetchall()
        names = ("id", "name", "pool", "machine", "began", "ended", "unsure")
        return [dict(zip(names, row), machine=json.loads(row[3])) for row in rows]
    except (sqlite3.Error, ValueError) as error:
        raise Failed(f"{file} can't be read: {error}", "See: systemctl status gpucluster-autoscaler") from error


def sacct(since: float, until: float) -> str:
    """The lines of sacct, with times in seconds of the epoch.

    Raises:
        Failed: it does not answer.
    """
    times = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) for at in (since, until)]
    words = ["env", "TZ=UTC", "SLURM_TIME_FORMAT=%s", *SACCT, f"--starttime={times[0]}", f"--endtime={times[1]}"]
    result = programs.call(words, seconds=_SACCT_SECONDS)
    if result.returncode != 0:
        raise Failed(f"sacct fails: {' '.join(result.stderr.split())}", "Run: systemctl status slurmdbd")
    return result.stdout


def _recorded(file: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        return [dict(row, began=float(row["began"]), ended=row["ended"], machine=dict(row["machine"])) for row in rows]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError, ValueError) as error:
        # Not written over: it is the only record of hosts that are gone.
        raise Failed(
            f"{file} can't be read: {error!r}", f"Move it away, and run gpucluster apply: {os.fspath(file)}"
        ) from error


def _plain(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": str(one["id"]), "name": str(one["name"]), "pool": str(one["pool"]), "machine": dict(one["machine"])}
