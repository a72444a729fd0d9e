"""What the watcher of jobs (`gpucluster-agent watch`) has found on this node, from its file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.exposition import sample
from gpucluster.node_agent.watch import kept

#: Seconds after which what it found is no longer shown: a daemon that hangs must not hold an alert.
OLDEST_S = 180.0


class Watch:
    """The states of jobs."""

    def __init__(self, place: Place) -> None:
        self._file = place.watch

    def subjects(self) -> list[str]:
        """The file."""
        return [self._file]

    def samples(self, subject: str) -> Iterator[str]:
        """The lines of all jobs.

        Raises:
            OSError: it can't be read.
            ValueError: it is not a file of the watcher.
        """
        now = time.monotonic()
        at, jobs = kept.read(Path(subject))
        yield sample("gpucluster_job_watch_age_seconds", round(max(0.0, now - at), 3))
        for each in jobs if now - at <= OLDEST_S else ():
            yield sample("gpucluster_job_state", 1, job_id=each.job_id, state=each.state)
            yield sample(
                "gpucluster_job_state_seconds",
                round(max(0.0, at - each.since), 3),
                job_id=each.job_id,
                state=each.state,
            )
            if each.rank:
                yield sample(
                    "gpucluster_job_rank_info", 1, job_id=each.job_id, state=each.state, rank=each.rank,
                    process=str(each.pid), host=each.host, collective=each.collective,
                )  # fmt: skip
            for number, seconds in each.idle.items():
                yield sample(
                    "gpucluster_job_gpu_idle_seconds", round(float(seconds), 3), job_id=each.job_id, gpu=number
                )

    def close(self) -> None:
        """Nothing was started."""
