"""`gpucluster-agent jobs serve`: submits jobs for users, and reports their states to an operator's machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NoReturn

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.health.store import FOLDER
from gpucluster.controller.jobs import datasets, folder, watch
from gpucluster.controller.jobs.kubernetes_queue import KubernetesQueue
from gpucluster.controller.jobs.queue import Queue, SubmittedJob, now
from gpucluster.controller.jobs.slurm_queue import SlurmQueue
from gpucluster.controller.maintenance.control import messages_of_job as maintenance_of_job
from gpucluster.controller.reactions.control import messages_of_job
from gpucluster.node_agent.accounts import Account, account, account_of, work_as
from gpucluster.node_agent.errors import AgentError, Failed, Refused, of_system
from gpucluster.node_agent.rules import scrubbing

LOCKS = "/run/gpucluster-jobs"
_STOPPED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Seconds for files in a home, and for a large output.
_SECONDS, _OUTPUT_SECONDS = 30.0, 60.0
_SMALL = 2 << 20
_QUEUES: Mapping[str, Callable[[], Queue]] = {"slurm": SlurmQueue, "kubernetes": KubernetesQueue}


def _stop(*_: Any) -> NoReturn:
    raise Disconnected


class JobSession:
    """Answers the requests of one conversation.

    Args:
        locks: a folder of this machine.
        queue: the scheduler of the cluster.
    """

    def __init__(self, talk: RequestChannel, locks: Path, queue: Queue) -> None:
        self._talk = talk
        self._queue = queue
        self._locks = locks
        self._until_end = contextlib.ExitStack()
        self._data: tuple[datasets.DataSetStore, datasets.Upload] | None = None

    def close(self) -> None:
        """Release what is locked."""
        self._until_end.close()

    def answer(self, operation: Any, arguments: Any) -> Any:
        """The result of one operation.

        Raises:
            AgentError: it failed, or there is no such operation.
            Disconnected: the caller no longer waits for it.
        """
        operations: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "check": self._check,
            "submit": self._submit,
            "wait": self._wait,
            "output": self._output,
            "read": self._read,
            "list": self._list,
            "result": self._keep_result,
            "cancel": self._cancel,
            "dataset.begin": self._begin_data,
            "dataset.add": self._add_data,
            "dataset.publish": self._publish_data,
        }
        if operation not in operations:
            raise Refused(f"there is no operation {str(operation)[:40]!r}", f"One of: {', '.join(operations)}")
        if not isinstance(arguments, dict):
            raise Refused("the arguments are not an object")
        return operations[operation](arguments)

    def _check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        owner = account(arguments.get("user"))
        refused, delayed, requirement_states = self._queue.check(owner, _share(arguments), arguments)
        return {"nodes": refused, "delayed": delayed, "requirements": requirement_states, "home": owner.home}

    def _submit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        owner = account(arguments.get("user"))
        share = _share(arguments)
        if share not in Path(owner.home).parents:
            raise Refused(
                f"the home of {owner.name} is not on the share: {owner.home}", "Name another user with --user"
            )
        if not share.is_mount():
            raise Failed(f"{share} is not mounted here", "Run: gpucluster apply")
        template, record = folder.checked_template(arguments.get("template")), arguments.get("record", {})
        if not isinstance(record, dict):
            raise Refused("the record is not an object")
        job, place = self._queue.submit(owner, template, {**record, "submitted_at": now()}, arguments)
        return {"id": job, "folder": str(place), "user": owner.name}

    def _wait(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        job = self._queue.checked_id(arguments.get("id"))
        seen = watch.until_ended(self._talk, self._queue, job, float(arguments.get("seconds", 1e9)))
        return {**seen._asdict(), "ended": seen.ended}

    def _output(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        seen, owner, place, record = self._ours(arguments.get("id"))
        name = str(record.get("output", "")).replace("{job}", seen.id)
        output = b""
        if name and "/" not in name:
            most = folder.HEAD + folder.TAIL + _SMALL
            output = work_as(owner, lambda: folder.output(place, name), seconds=_OUTPUT_SECONDS, most=most)
        kept = json.loads(_as(owner, lambda: json.dumps(folder.result(place)).encode()))
        return {
            "job": {**seen._asdict(), "ended": seen.ended}, "user": owner.name, "record": record, "result": kept,
            "output": scrubbing.scrubbed_text(output.decode(errors="replace")),
            "told": [*messages_of_job(FOLDER, seen.id), *maintenance_of_job(FOLDER, seen.id)],
        }  # fmt: skip

    def _read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        seen, owner, place, record = self._any(arguments.get("id"))
        name, offset = str(record.get("output", "")).replace("{job}", seen.id), arguments.get("offset", 0)
        if not record:
            place, name = self._printed(seen, owner)
        if type(offset) is not int or offset < 0:
            raise Refused(f"not a place in a file: {str(offset)[:40]!r}")
        part = b""
        if name and "/" not in name:
            most = folder.PART + _SMALL
            part = work_as(
                owner, lambda: folder.output_from(place, name, offset, whole=seen.ended),
                seconds=_OUTPUT_SECONDS, most=most,
            )  # fmt: skip
        text = scrubbing.scrubbed_text(part.decode(errors="replace"))
        return {"text": text, "offset": offset + len(part), "state": seen.state, "ended": seen.ended}

    def _printed(self, seen: SubmittedJob, owner: Account) -> tuple[Path, str]:
        """The folder and the name of the file into which a job prints that was not submitted from here."""
        file = self._queue.printed(seen)
        if file is None:
            raise self._queue.foreign(seen, owner)
        there = work_as(owner, lambda: b"there" if file.exists() else b"", seconds=_SECONDS, most=_SMALL)
        if seen.ended and not there:
            raise Refused(
                f"the output of job {seen.id} is not on the controller: {file}",
                f"Look on its nodes: {seen.nodes}. A path on the home share is seen by all hosts",
            )
        return file.parent, file.name

    def _list(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"jobs": [each.to_dict() for each in self._queue.jobs()]}

    def _keep_result(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        _seen, owner, place, _record = self._ours(arguments.get("id"))
        value = arguments.get("result")
        if not isinstance(value, dict):
            raise Refused("the result is not an object")
        folder.as_owner(owner, lambda: folder.write_result(place, value))
        return {"file": str(place / folder.RESULT)}

    def _cancel(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        seen, owner, _place, _record = self._ours(arguments.get("id"))
        self._queue.cancel(seen)
        return {"id": seen.id, "user": owner.name, "ended": seen.ended, "state": seen.state}

    def _ours(self, job_id: Any) -> tuple[SubmittedJob, Account, Path, dict[str, Any]]:
        """A job that was submitted from here, with its user, its folder and what was submitted.

        Raises:
            Refused: the queue does not know it, or it is another one.
        """
        seen, owner, place, record = self._any(job_id)
        if not record:
            raise self._queue.foreign(seen, owner)
        return seen, owner, place, record

    def _any(self, job_id: Any) -> tuple[SubmittedJob, Account, Path, dict[str, Any]]:
        """The same for a job of any origin; what was submitted is empty for one that comes from elsewhere.

        Raises:
            Refused: the queue does not know it.
        """
        job = self._queue.checked_id(job_id)
        seen = self._queue.look(job)
        if seen is None:
            raise self._queue.unknown(job)
        owner, place = account_of(seen.uid), Path(seen.folder)
        record: dict[str, Any] = {}
        with contextlib.suppress(Failed):
            record = json.loads(_as(owner, lambda: json.dumps(folder.record(place)).encode()))
        return seen, owner, place, record

    def _begin_data(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        upload = datasets.upload(arguments.get("dataset"))
        store = datasets.DataSetStore(_share(arguments), self._locks)
        self.close()
        self._until_end.enter_context(store.locked(upload.name))
        self._data = store, upload
        return store.begin(upload)

    def _add_data(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        store, upload = self._begun()
        return store.add(upload, arguments.get("offset"), arguments.get("data"))

    def _publish_data(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        store, upload = self._begun()
        return store.publish(upload)

    def _begun(self) -> tuple[datasets.DataSetStore, datasets.Upload]:
        if self._data is None:
            raise Refused("no data set was begun")
        return self._data


def _share(arguments: Mapping[str, Any]) -> Path:
    share = Path(str(arguments.get("share", "")))
    if not share.is_absolute() or ".." in share.parts:
        raise Refused(f"not a home share: {str(share)[:80]!r}")
    return share


def _as(owner: Account, work: Callable[[], bytes]) -> bytes:
    return work_as(owner, work, seconds=_SECONDS, most=_SMALL)


def serve(talk: RequestChannel, locks: Path, queue: Queue) -> int:
    """Answer requests until the other end is gone; returns the exit status. Jobs go on."""
    session = JobSession(talk, locks, queue)
    try:
        while True:
            request = talk.request()
            try:
                talk.say(result=session.answer(request.get("operation"), request.get("arguments", {})))
            except AgentError as error:
                talk.say_error(error)
            except OSError as error:
                talk.say_error(of_system(error))
    except Disconnected:
        return 0
    finally:
        session.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent jobs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--locks", type=Path, default=Path(LOCKS), help="for data sets: one run at a time")
    parser.add_argument("--scheduler", choices=sorted(_QUEUES), default="slurm", help="default: %(default)s")
    parser.add_argument("command", choices=["serve"])
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("gpucluster-agent jobs: only root can run this\n")
        return 1
    for number in _STOPPED_BY:
        signal.signal(number, _stop)
    queue = _QUEUES[options.scheduler]()
    return serve(RequestChannel(sys.stdin.fileno(), sys.stdout.fileno()), options.locks, queue)


if __name__ == "__main__":
    sys.exit(main())
