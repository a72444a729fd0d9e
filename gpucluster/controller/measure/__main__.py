"""`gpucluster-agent measure serve`: measures nodes for an operator's machine, by Slurm jobs of a user or by pods."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NoReturn, Protocol

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.measure import baseline, pods, request, slurm
from gpucluster.controller.measure.jobs import MeasurementJobs
from gpucluster.controller.measure.launch import PREFIX
from gpucluster.controller.measure.pods import Pods
from gpucluster.controller.measure.request import Request
from gpucluster.node_agent.accounts import account
from gpucluster.node_agent.errors import AgentError, Refused, of_system
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

FOLDER = "/var/lib/gpucluster/verify"
#: Seconds for the jobs that a killed measurement left.
_LEFTOVERS_S = 120.0
_STOPPED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _stop(*_: Any) -> NoReturn:
    # The clean-up that follows must not be interrupted.
    for number in _STOPPED_BY:
        signal.signal(number, signal.SIG_IGN)
    raise Disconnected


@contextlib.contextmanager
def _alone(folder: Path, who: str) -> Iterator[None]:
    """Hold the lock: two measurements at once would slow each other down.

    Raises:
        Refused: another one holds it; the message names it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(500).strip() or "an unknown operator"
            raise InUse(
                f"the nodes are being measured already, by {holder}",
                "Wait until it ends, then run the same command again",
            ) from None
        file.truncate(0)
        file.write(f"{who} since {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}\n")
        file.flush()
        yield


class InUse(Refused):
    """Another operator holds the lock."""


class Scheduler(Protocol):
    """What runs the measurements of one session."""

    def nodes(self) -> list[str]:
        """The nodes: lines `name|state|reason`; one that may be measured is `idle`. Raises Failed without an answer."""

    def run(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """Run them to their end. Raises Disconnected where the caller no longer waits for the answers; nothing is left
        then.
        """


#: Makes the scheduler of a session from `given`, the arguments of its first request.
Make = Callable[[Mapping[str, Any], RequestChannel], Scheduler]


def _slurm(arguments: Mapping[str, Any], talk: RequestChannel) -> Scheduler:
    return MeasurementJobs(account(arguments.get("user")), secrets.token_hex(4), _start_s(arguments), talk)


def _kubernetes(arguments: Mapping[str, Any], talk: RequestChannel) -> Scheduler:
    return Pods(Kubectl(), secrets.token_hex(4), _start_s(arguments), talk)


def _start_s(arguments: Mapping[str, Any]) -> float:
    """For how many seconds a job may wait for its nodes."""
    return float(arguments.get("start_s", 60))


#: By the name of the scheduler: how a session begins with it, and what removes all that killed sessions have left.
SCHEDULERS: Mapping[str, tuple[Make, Callable[[], list[str]]]] = {
    "slurm": (_slurm, lambda: slurm.cancel_all(PREFIX, _LEFTOVERS_S)),
    "kubernetes": (_kubernetes, lambda: pods.remove(Kubectl())),
}


class MeasureSession:
    """Answers the requests of one conversation."""

    def __init__(self, folder: Path, scheduler: Scheduler) -> None:
        self._folder, self._scheduler = folder, scheduler

    def answer(self, operation: Any, arguments: Mapping[str, Any]) -> Any:
        """The result of one operation.

        Raises:
            AgentError: it failed, or there is no such operation.
            Disconnected: the caller no longer waits for it.
        """
        operations: Mapping[str, Callable[[], Any]] = {
            "nodes": self._scheduler.nodes,
            "run": lambda: self._scheduler.run([request.read(each) for each in arguments.get("jobs", [])]),
            "baseline.read": lambda: baseline.load(self._folder),
            "baseline.write": lambda: baseline.merge(self._folder, dict(arguments.get("baseline", {}))),
        }
        if operation not in operations:
            raise Refused(f"there is no operation {str(operation)[:40]!r}", f"One of: {', '.join(operations)}")
        return operations[operation]()


def serve(folder: Path, talk: RequestChannel, scheduler: str = "slurm") -> int:
    """Answer requests until the other end is gone; returns the exit status. The first request is `begin`."""
    begin, remove_left = SCHEDULERS[scheduler]
    try:
        first = talk.request().get("arguments", {})
        with _alone(folder, str(first.get("who", ""))[:200] or "an unknown operator"):
            session = MeasureSession(folder, begin(first, talk))
            talk.say(result={"cancelled": remove_left()})
            while True:
                message = talk.request()
                try:
                    talk.say(result=session.answer(message.get("operation"), message.get("arguments", {})))
                except AgentError as error:
                    _refuse(talk, error)
    except AgentError as error:
        return _refuse(talk, error)
    except OSError as error:
        return _refuse(talk, of_system(error))
    except Disconnected:
        return 0


def _refuse(talk: RequestChannel, error: AgentError) -> int:
    talk.say_error(error, locked=isinstance(error, InUse))
    return error.status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent measure", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(FOLDER), help="for the lock and the baseline")
    parser.add_argument("--scheduler", choices=list(SCHEDULERS), default="slurm", help="default: %(default)s")
    parser.add_argument("command", choices=["serve"])
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("gpucluster-agent measure: only root can run this\n")
        return 1
    for number in _STOPPED_BY:
        signal.signal(number, _stop)
    return serve(options.folder, RequestChannel(sys.stdin.fileno(), sys.stdout.fileno()), options.scheduler)


if __name__ == "__main__":
    sys.exit(main())
