"""`gpucluster-agent measure serve`: measures nodes for an operator's machine, by Slurm jobs of a user."""

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
from typing import Any, Callable, NoReturn

from gpucluster.agent.accounts import account
from gpucluster.agent.conversation import Conversation, Gone
from gpucluster.agent.errors import AgentError, Refused, of_system
from gpucluster.agent.measure import baseline, request, slurm
from gpucluster.agent.measure.jobs import Jobs
from gpucluster.agent.measure.launch import PREFIX

FOLDER = "/var/lib/gpucluster/verify"
#: Seconds for the jobs that a killed measurement left.
_LEFTOVERS_S = 120.0
_STOPPED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _stop(*_: Any) -> NoReturn:
    # The clean-up that follows must not be interrupted.
    for number in _STOPPED_BY:
        signal.signal(number, signal.SIG_IGN)
    raise Gone


@contextlib.contextmanager
def _alone(folder: Path, who: str) -> Iterator[None]:
    """Hold the lock: two measurements at once would slow each other down.

    Raises:
        Refused: another one holds it; the message says who.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(500).strip() or "somebody"
            raise InUse(
                f"the nodes are being measured already, by {holder}",
                "Wait until it ends, then run the same command again",
            ) from None
        file.truncate(0)
        file.write(f"{who} since {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}\n")
        file.flush()
        yield


class InUse(Refused):
    """Somebody else holds the lock."""


class Session:
    """Answers the requests of one conversation.

    Args:
        given: the arguments of the first request: `user`, whose jobs they are, and `start_s`, for how many seconds a
            job may wait for its nodes.
    """

    def __init__(self, folder: Path, talk: Conversation, given: Mapping[str, Any]) -> None:
        self._folder = folder
        self._talk = talk
        owner = account(given.get("user"))
        self._jobs = Jobs(owner, secrets.token_hex(4), float(given.get("start_s", 60)), talk)

    def answer(self, operation: Any, arguments: Mapping[str, Any]) -> Any:
        """The result of one operation.

        Raises:
            AgentError: it failed, or there is no such operation.
            Gone: nobody waits for it.
        """
        operations: Mapping[str, Callable[[], Any]] = {
            "nodes": slurm.nodes,
            "run": lambda: self._jobs.run([request.read(each) for each in arguments.get("jobs", [])]),
            "baseline.read": lambda: baseline.load(self._folder),
            "baseline.write": lambda: baseline.merge(self._folder, dict(arguments.get("baseline", {}))),
        }
        if operation not in operations:
            raise Refused(f"there is no operation {str(operation)[:40]!r}", f"One of: {', '.join(operations)}")
        return operations[operation]()


def serve(folder: Path, talk: Conversation) -> int:
    """Answer requests until the other end is gone; returns the exit status. The first request is `begin`."""
    try:
        first = talk.request().get("arguments", {})
        with _alone(folder, str(first.get("who", ""))[:200] or "somebody"):
            session = Session(folder, talk, first)
            talk.say(result={"cancelled": slurm.cancel_all(PREFIX, _LEFTOVERS_S)})
            while True:
                given = talk.request()
                try:
                    talk.say(result=session.answer(given.get("operation"), given.get("arguments", {})))
                except AgentError as error:
                    _refuse(talk, error)
    except AgentError as error:
        return _refuse(talk, error)
    except OSError as error:
        return _refuse(talk, of_system(error))
    except Gone:
        return 0


def _refuse(talk: Conversation, error: AgentError) -> int:
    talk.say_error(error, locked=isinstance(error, InUse))
    return error.status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent measure", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(FOLDER), help="for the lock and the baseline")
    parser.add_argument("command", choices=["serve"])
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("gpucluster-agent measure: only root can run this\n")
        return 1
    for number in _STOPPED_BY:
        signal.signal(number, _stop)
    return serve(options.folder, Conversation(sys.stdin.fileno(), sys.stdout.fileno()))


if __name__ == "__main__":
    sys.exit(main())
