"""The runs of this machine that the run log still has, and the files with what Terraform and Ansible printed.

    runs/<run>.json                     the record of a run (see `run_log`)
    runs/<time>-terraform-<command>.*   what Terraform printed
    ansible/artifacts/<run>-<playbook>  what Ansible printed
    runs/<run>/ansible-<playbook>.log   the same, after the cluster was destroyed

A run holds the cluster's lock, so what Terraform printed between the start of one run and that of the next one belongs
to the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.paths import ClusterPaths, read_saved, write_private
from gpucluster.workspace import run_log

# Such as 20260102T030405: how the names of runs and of Terraform's logs begin.
_TIME_LENGTH = len("20260102T030405")


@dataclass(frozen=True)
class PastRun:
    """One run.

    Args:
        id: its name in the run log.
        command: such as "apply".
        status: one of `RunStatus`.
        started, ended: in ISO 8601; `ended` is empty for a run that was killed or still works.
        elapsed: in seconds; None as long as it has not ended.
        phases: the seconds of each phase that has ended, in order.
        phase: the one that began last.
        work: what it had to do, as far as its time depends on it: {kind, hosts}; empty if it has not come so far.
    """

    id: str
    command: str
    status: str
    started: str
    ended: str = ""
    elapsed: float | None = None
    host: str = ""
    pid: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    phase: str = ""
    error: str = ""
    work: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The same values as JSON; the name is `run`, as in the log."""
        values = asdict(self)
        return {"run": values.pop("id"), **values}


def past_runs(paths: ClusterPaths) -> tuple[PastRun, ...]:
    """The runs, the newest first. Records that can't be read are left out."""
    return tuple(_past(record) for record in run_log.records(paths) if record.get("run"))


def find(paths: ClusterPaths, name: str | None) -> PastRun:
    """The run with this name, or the only one whose name begins with it; None: the newest.

    Raises:
        InputError: there is none, or several.
    """
    listed = past_runs(paths)
    if not listed:
        raise InputError("there is no run yet", where=str(paths.runs), hint="Run: gpucluster apply")
    matching = [run for run in listed if run.id.startswith(name or "")]
    if name is None or [run.id for run in matching] == [name]:
        return matching[0]
    if len(matching) != 1:
        what = f"there is no run {name}" if not matching else f"{len(matching)} runs begin with {name}"
        raise InputError(what, where=str(paths.runs), hint="See: gpucluster runs")
    return matching[0]


def logs_of(paths: ClusterPaths, run: PastRun) -> tuple[Path, ...]:
    """The files with what the programs of a run printed, the oldest first. Older runs may have lost theirs."""
    start = run.id[:_TIME_LENGTH]
    later = [other.id[:_TIME_LENGTH] for other in past_runs(paths) if other.id > run.id]
    end = min(later, default="")
    terraform = [
        file
        for file in sorted(paths.runs.glob("*-terraform-*"))
        if start <= file.name[:_TIME_LENGTH] and (not end or file.name[:_TIME_LENGTH] < end)
    ]
    ansible = sorted((paths.ansible / "artifacts").glob(f"{run.id}-*/stdout"), key=lambda file: file.stat().st_mtime)
    saved = sorted((paths.runs / run.id).glob("ansible-*.log"))
    return (paths.runs / f"{run.id}.json", *terraform, *saved, *ansible)


def save_ansible_logs(paths: ClusterPaths) -> None:
    """Move what Ansible printed to the records of its runs: `destroy` deletes Ansible's folder. A log that can't be
    moved is lost, and does not keep a cluster from being removed."""
    for file in (paths.ansible / "artifacts").glob("*/stdout"):
        for record in paths.runs.glob("*.json"):
            if file.parent.name.startswith(f"{record.stem}-"):
                playbook = file.parent.name.removeprefix(f"{record.stem}-")
                with suppress(OSError, EnvironmentFault):
                    write_private(paths.runs / record.stem / f"ansible-{playbook}.log", read_saved(file))


def _past(record: Mapping[str, Any]) -> PastRun:
    elapsed, phases, pid = record.get("elapsed"), record.get("phases"), record.get("pid")
    work = record.get("work")
    return PastRun(
        id=str(record["run"]),
        command=str(record.get("command", "")),
        status=str(record.get("status", "")),
        started=str(record.get("started", "")),
        ended=str(record.get("ended", "")),
        elapsed=float(elapsed) if isinstance(elapsed, int | float) else None,
        host=str(record.get("host", "")),
        pid=pid if isinstance(pid, int) else None,
        phases={str(name): float(took) for name, took in phases.items()} if isinstance(phases, dict) else {},
        phase=str(record.get("phase", "")),
        error=str(record.get("error") or ""),
        work=work if isinstance(work, dict) else {},
    )
