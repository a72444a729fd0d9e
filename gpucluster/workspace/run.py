"""One run at a time: it holds the cluster's lock, ends programs that a killed run left, and times its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gpucluster import cancellation
from gpucluster.cancellation import with_reason
from gpucluster.errors import (
    EXIT_DATA_GUARD,
    EXIT_INPUT,
    EXIT_LOCKED,
    EXIT_MOVED,
    EXIT_REPLACEMENT,
    GpuClusterError,
    Interrupted,
    NewerReleaseError,
)
from gpucluster.events import Event, EventKind, PhaseStatus, Sink
from gpucluster.paths import ClusterPaths
from gpucluster.process import signals
from gpucluster.workspace import leftovers
from gpucluster.workspace.run_log import RunLog, RunStatus, last_phases, last_tasks, lock


def environment(paths: ClusterPaths) -> dict[str, str]:
    """What a run adds to the environment of each program that it starts."""
    return {leftovers.VARIABLE: str(paths.root)}


class Run:
    """The phases of one run: announced, timed, and written into the run log, however the run ends.

    `phases` holds the seconds of each, in order, and `tasks` how many tasks those have run that run some. `work` is
    what the run has to do, for the run log: JSON values, which later runs are compared by.
    """

    def __init__(self, command: str, paths: ClusterPaths, on_event: Sink) -> None:
        self.command = command
        self.phases: dict[str, float] = {}
        self.tasks: dict[str, int] = {}
        self.work: dict[str, Any] = {}
        self._last = last_phases(paths, command)
        self._last_tasks = last_tasks(paths, command)
        self._log = RunLog(paths, command)
        self._on_event = on_event
        self._started = time.monotonic()
        self._closed = False

    @property
    def id(self) -> str:
        """Its name in the run log."""
        return self._log.run_id

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One named part of the run. Its first event has what it took in the last run of this command, in seconds; and
        how many tasks the last run had that had some, with its seconds.
        """
        cancellation.check()
        begin = time.monotonic()
        self._log.enter(name)
        data: dict[str, Any] = {"last": self._last[name]} if name in self._last else {}
        if name in self._last_tasks:
            number, took = self._last_tasks[name]
            data["tasks"] = {"number": number, "seconds": took}
        self._on_event(Event(EventKind.PHASE, name, PhaseStatus.STARTED, data=data))
        status = PhaseStatus.FAILED
        try:
            yield
            status = PhaseStatus.DONE
        except KeyboardInterrupt:
            status = PhaseStatus.INTERRUPTED
            raise
        finally:
            took = time.monotonic() - begin
            self.phases[name] = self.phases.get(name, 0.0) + took
            self._on_event(Event(EventKind.PHASE, name, status, elapsed=took))

    def close(self, status: RunStatus, error: str = "") -> None:
        """Write into the run log how the run ended."""
        phases = {name: round(seconds, 2) for name, seconds in self.phases.items()}
        # A second Ctrl-C must not leave a log of a run that seems to be running.
        kept = {"tasks": self.tasks, "work": self.work}
        details = {"phases": phases, "error": error, **{name: value for name, value in kept.items() if value}}
        signals.surely(lambda: self._log.close(status, elapsed=round(self.elapsed, 2), **details))
        self._closed = True

    def close_if_open(self) -> None:
        """The same for a run that was stopped in the last moment, when it was about to report how it ended."""
        if not self._closed:
            self.close(RunStatus.INTERRUPTED, _stopped())


def _stopped() -> str:
    """Why a run was stopped, for the run log."""
    reason = cancellation.reason_if_cancelled()
    return "stopped by a signal" if reason is None else f"cancelled{with_reason(reason)}"


# Of errors that are raised before a run changes anything: see `errors`.
_NOTHING_CHANGED = (EXIT_INPUT, EXIT_LOCKED, EXIT_DATA_GUARD, EXIT_REPLACEMENT, EXIT_MOVED)
# The phases of a run for which Terraform may have changed something already.
_AFTER_TERRAFORM = {"hosts", "ansible"}


@contextmanager
def run(command: str, paths: ClusterPaths, on_event: Sink) -> Iterator[Run]:
    """Hold the cluster for one run.

    Raises:
        EnvironmentFault: the cluster's folder can't be written.
        LockedError: another run holds it.
        ToolError: programs of an earlier run do not end.
        Interrupted: a signal stopped it, or its call was cancelled. The text of the KeyboardInterrupt, if it has one,
            states what was left.
    """
    paths.create()
    with signals.as_ctrl_c(), lock(paths, command), ExitStack() as closing:
        try:
            with signals.deferred():
                this = Run(command, paths, on_event)
                closing.callback(signals.surely, this.close_if_open)
            leftovers.end(paths, on_event)
            yield this
            this.close(RunStatus.SUCCESS)
        except KeyboardInterrupt as stop:
            this.close(RunStatus.INTERRUPTED, _stopped())
            lost = str(stop) or "Nothing is lost"
            hint = f"{lost}: run the same command again to continue"
            reason = cancellation.reason_if_cancelled()
            if reason is None:
                raise Interrupted(f"{command} was interrupted", hint=hint) from None
            raise Interrupted(f"{command} was cancelled{with_reason(reason)}", hint=hint) from None
        except GpuClusterError as error:
            before = error.exit_code in _NOTHING_CHANGED or isinstance(error, NewerReleaseError)
            refused = before and not _AFTER_TERRAFORM & {*this.phases}
            this.close(RunStatus.REFUSED if refused else RunStatus.FAILED, str(error))
            raise
        except BaseException as error:  # of any kind: the run log has it, and it is raised again
            this.close(RunStatus.FAILED, repr(error))
            raise
