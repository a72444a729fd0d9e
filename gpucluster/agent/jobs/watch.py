"""Waiting for the end of a job, for somebody who may go away: the job goes on then."""

from __future__ import annotations

import time
from typing import Any

from gpucluster.agent.conversation import Conversation
from gpucluster.agent.errors import Failed, Refused
from gpucluster.agent.jobs import slurm

#: Seconds between two looks: soon after the submission, and later.
_SOON, _LATER = 0.5, 5.0
#: Seconds for Slurm to know a job: its accounting may be late, and slurmctld may have just started.
_PATIENCE_S = 60.0


def until_ended(talk: Conversation, job: str, seconds: float) -> slurm.Seen:
    """Wait until a job has ended, and report what it waits for. A slurmctld that does not answer is waited for.

    Args:
        seconds: after which the job is returned as it is then.

    Raises:
        Gone: nobody waits any more.
        Refused: Slurm does not know the job.
    """
    begun = time.monotonic()
    said: Any = None
    known = begun
    pause = _SOON
    while True:
        now = time.monotonic()
        try:
            seen = slurm.look(job)
        except Failed as error:
            seen, doing = None, {"state": "", "reason": error.message, "nodes": ""}
            known = now
        else:
            doing = {"state": seen.state, "reason": seen.reason, "nodes": seen.nodes} if seen else {}
            if seen is None and now - known > (_PATIENCE_S if said else 0):
                raise unknown(job)
        if doing and doing != said:
            said = doing
            talk.say(progress={"id": job, **doing})
        if seen is not None:
            known = now
            if seen.ended or now - begun >= seconds:
                return seen
        elif now - begun >= max(seconds, _PATIENCE_S):
            raise Failed(f"Slurm does not say what became of job {job}", f"Look again: gpucluster job wait {job}")
        talk.wait(min(pause, max(0.0, begun + seconds - now)) if seconds > 0 else pause)
        pause = min(pause * 1.2, _LATER)


def unknown(job: str) -> Refused:
    """The error for a job that Slurm does not know."""
    return Refused(f"Slurm does not know a job {job}", "See: gpucluster ssh -- sacct --allusers --starttime=now-7days")
