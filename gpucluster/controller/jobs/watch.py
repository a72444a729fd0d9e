"""Waiting for the end of a job, for a caller that may disconnect: the job goes on then."""

from __future__ import annotations

import time
from typing import Any

from gpucluster.controller.conversation import RequestChannel
from gpucluster.controller.jobs.queue import Queue, SubmittedJob
from gpucluster.node_agent.errors import Failed

#: Seconds between two looks: soon after the submission, and later.
_SOON, _LATER = 0.5, 5.0
#: Seconds for a queue that does not answer.
_PATIENCE_S = 60.0


def until_ended(talk: RequestChannel, queue: Queue, job: str, seconds: float) -> SubmittedJob:
    """Wait until a job has ended, and report what it waits for. A queue that does not answer is waited for.

    Args:
        seconds: after which the job is returned as it is then.

    Raises:
        Disconnected: the caller no longer waits.
        Refused: the queue does not know the job.
        Failed: it can't start, and that does not change by itself.
    """
    begun = time.monotonic()
    last_progress: Any = None
    known = going = begun
    pause = _SOON
    while True:
        now = time.monotonic()
        try:
            seen = queue.look(job)
        except Failed as error:
            seen, doing = None, {"state": "", "reason": error.message, "nodes": ""}
            known = now
        else:
            doing = {"state": seen.state, "reason": seen.reason, "nodes": seen.nodes} if seen else {}
            if seen is None and now - known > (queue.late_s if last_progress else 0):
                raise queue.unknown(job)
        if doing and doing != last_progress:
            last_progress = doing
            talk.say(progress={"id": job, **doing})
        if seen is not None:
            known = now
            if seen.ended or now - begun >= seconds:
                return seen
            going = _still_going(seen, going, now)
        elif now - begun >= max(seconds, _PATIENCE_S):
            raise Failed(
                f"{queue.title} does not report the state of job {job}", f"Look again: gpucluster job wait {job}"
            )
        talk.wait(min(pause, max(0.0, begun + seconds - now)) if seconds > 0 else pause)
        pause = min(pause * 1.2, _LATER)


def _still_going(seen: SubmittedJob, since: float, now: float) -> float:
    """When the job was last one that may go on by itself.

    Raises:
        Failed: that was too long ago.
    """
    if not seen.patience:
        return now
    if now - since > seen.patience:
        raise Failed(f"job {seen.id} can't go on: {seen.reason}", f"End it: gpucluster job cancel {seen.id}")
    return since
