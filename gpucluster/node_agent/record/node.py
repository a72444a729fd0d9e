"""What the prolog and the epilog do on a node: a file for each job that runs, and a record of each that has ended."""

from __future__ import annotations

import grp
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import gpu_numbers
from gpucluster.node_agent.record import difference, snapshot
from gpucluster.node_agent.rules import mig

FOLDER = Path("/run/gpucluster/jobs")
#: Only the group of the exporter reads which jobs run: users see only their own (`slurm.private`).
READERS = "gpucluster-exporter"
# A small file for the exporter, and the counters, which are for the epilog alone.
_JOB, _COUNTERS, _NEW = ".json", ".counters", ".new"
_VERSION = 1
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_GPU = re.compile(r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_RANGE = re.compile(r"([0-9]{1,3})-([0-9]{1,3})")
_MOST_GPUS, _MOST_FILE = 64, 1 << 20
#: Counters of one record. A job on a healthy node changes some hundred.
MOST_CHANGES = 1000
# What stays of a job whose epilog never ran: a job that runs for longer than this is none that Slurm knows.
_OLDEST_S = 60 * 86400.0
# Seconds for which a file may be without the other one.
_ALONE_S = 60.0


def begin(environment: Mapping[str, str], folder: Path = FOLDER, root: str = "") -> None:
    """Write the files of a job that begins here, and remove what jobs have left that can't run any more.

    Args:
        environment: of Slurm's prolog.

    Raises:
        ValueError: this is not the environment of a job.
        OSError: the file can't be written.
    """
    job, gpu_names = job_id(environment), gpus(environment)
    taken = snapshot.take(root)
    readers = _readers()
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _close(folder, readers)
    sweep(folder, taken["boot"], taken["at"])
    content = {
        "version": _VERSION,
        "job_id": job,
        "user": environment.get("SLURM_JOB_USER", "")[:100],
        "gpus": gpu_names,
        "divided": divided(gpu_names, root),
        "started": taken["at"],
        "boot": taken["boot"],
        "array_job": _optional(environment.get("SLURM_ARRAY_JOB_ID", "")),
        "array_task": _optional(environment.get("SLURM_ARRAY_TASK_ID", "")),
        "het_job": _optional(environment.get("SLURM_HET_JOB_ID", "")),
    }
    _write(folder / f"{job}{_COUNTERS}", taken, 0o600)
    _write(folder / f"{job}{_JOB}", content, 0o600 if readers is None else 0o640, readers)


def _readers() -> int | None:
    """The number of the group of the exporter; None without monitoring."""
    try:
        return grp.getgrnam(READERS).gr_gid
    except KeyError:
        return None


def _close(folder: Path, readers: int | None) -> None:
    """Names of files are numbers of jobs. The group may be there since the last job: monitoring was switched on."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if readers is not None:
            os.fchown(descriptor, -1, readers)
        os.fchmod(descriptor, 0o700 if readers is None else 0o750)
    finally:
        os.close(descriptor)


def _write(file: Path, content: Mapping[str, Any], mode: int, group: int | None = None) -> None:
    """Replace a file. What lies there is not followed: only root writes in this folder."""
    new = file.with_name(f".{file.name}.{os.getpid()}{_NEW}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "w") as stream:
            if group is not None:
                os.fchown(stream.fileno(), -1, group)
            os.fchmod(stream.fileno(), mode)
            stream.write(json.dumps(content, separators=(",", ":")))
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def end(environment: Mapping[str, str], node: str, folder: Path = FOLDER, root: str = "") -> dict[str, Any] | None:
    """The record of a job that has ended here; None if it has no files. They are removed in any case.

    Args:
        environment: of Slurm's epilog.
        node: the name of this one.

    Raises:
        ValueError: this is not the environment of a job.
    """
    job = job_id(environment)
    files = [folder / f"{job}{suffix}" for suffix in (_JOB, _COUNTERS)]
    try:
        before, counters = (load(file) for file in files)
    except (OSError, ValueError, RecursionError):
        before, counters = {}, {}
    # Before the snapshot: whatever hangs there, no job runs here now.
    for file in files:
        file.unlink(missing_ok=True)
    if before.get("job_id") != job:
        return None
    return record(before, counters, snapshot.take(root), node)


def record(job: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], node: str) -> dict[str, Any]:
    """A record from the file of a job and the snapshots at its beginning and its end."""
    comparison = difference.compare(before, after)
    notes = list(comparison.notes)
    # What matters first: those with a class or a remark.
    changes = sorted(comparison.changes, key=lambda each: not (each.group or each.remark))
    if len(changes) > MOST_CHANGES:
        notes.append(f"{len(changes) - MOST_CHANGES} counters are left out")
    kept = {key: job.get(key) for key in ("user", "gpus", "divided", "started", "array_job", "array_task", "het_job")}
    return {
        "version": _VERSION,
        "job_id": str(job["job_id"]),
        "node": node,
        **kept,
        "ended": after["at"],
        "devices": [each._asdict() for each in comparison.devices],
        "changes": [each._asdict() for each in changes[:MOST_CHANGES]],
        "notes": notes,
    }


def sweep(folder: Path, boot: str, now: float) -> None:
    """Remove the files of jobs of an earlier boot: their node lost its power, and no epilog ran."""
    for file in folder.iterdir():
        try:
            if file.name.endswith(_JOB):
                content = load(file)
                stale = content["boot"] != boot or now - float(content["started"]) > _OLDEST_S
            elif file.name.endswith((_NEW, _COUNTERS)):
                # Its writer was killed.
                alone = not file.with_suffix(_JOB).exists()
                stale = alone and now - file.lstat().st_mtime > _ALONE_S
            else:
                continue
        except OSError:
            continue
        except (ValueError, KeyError, TypeError, RecursionError):
            stale = True
        if stale:
            file.unlink(missing_ok=True)
            file.with_suffix(_COUNTERS).unlink(missing_ok=True)


def load(file: Path) -> dict[str, Any]:
    """The content of a job's file.

    Raises:
        OSError: it can't be read.
        ValueError: it is something else.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        data = stream.read(_MOST_FILE + 1)
    if len(data) > _MOST_FILE:
        raise ValueError("too long")
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def job_id(environment: Mapping[str, str]) -> str:
    """The number of the job: of a task of an array its own one, of a component of a heterogeneous job too.

    Raises:
        ValueError: there is none.
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not _NUMBER.fullmatch(job):
        raise ValueError(f"SLURM_JOB_ID is {job[:40]!r}: this is neither a prolog nor an epilog")
    return job


def gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs of the job on this node, as Slurm numbers them: "0,1" or "0-3"; or their names."""
    text = environment.get("SLURM_JOB_GPUS") or environment.get("CUDA_VISIBLE_DEVICES") or ""
    names: list[str] = []
    for word in dict.fromkeys(text.split(",")):
        ends = _RANGE.fullmatch(word.strip())
        if ends:
            names += map(str, range(int(ends[1]), int(ends[2]) + 1))
        elif _GPU.fullmatch(word.strip()):
            names.append(word.strip())
        if len(names) >= _MOST_GPUS:
            break
    return list(dict.fromkeys(names))[:_MOST_GPUS]


def divided(names: Sequence[str], root: str = "") -> dict[str, dict[str, str]]:
    """What each of the job's GPUs is, where those of this node are divided (MIG); elsewhere nothing.

    The instances are others when the record is read.
    """
    numbers = gpu_numbers.Numbers(f"{root}/proc", f"{root}{mig.FOLDER}")
    return {name: numbers.meaning(name)._asdict() for name in names} if numbers.divided else {}


def _optional(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9]{1,10}", text) else None
