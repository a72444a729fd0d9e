"""The jobs that Slurm's controller had accepted, and not saved when its host vanished. Reads only.

slurmctld writes the script of a job at once, as `hash.N/job.ID`, and its queue (`job_state`) up to five seconds after a
change (SAVE_MAX_WAIT in Slurm's src/slurmctld/state_save.c). When it starts, it removes scripts of jobs that it does
not know. One that was stopped has written its queue last.
"""

from __future__ import annotations

from pathlib import Path

_QUEUE = "job_state"


def unsaved(state: Path) -> dict[str, Path]:
    """The folder with the script of each such job, by its number; empty where there is no queue.

    Args:
        state: Slurm's StateSaveLocation, before slurmctld has started on it.
    """
    try:
        saved = (state / _QUEUE).stat().st_mtime_ns
    except OSError:
        return {}
    folders = {folder.name.partition(".")[2]: folder for folder in state.glob("hash.*/job.*") if folder.is_dir()}
    later = [job for job, folder in folders.items() if job.isdigit() and folder.stat().st_mtime_ns > saved]
    return {job: folders[job] for job in sorted(later, key=int)}
