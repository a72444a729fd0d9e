"""The conversation of `gpucluster-agent jobs`: what it answers and refuses. The queue is a double, homes are real."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.jobs import __main__ as program
from gpucluster.controller.jobs import folder
from gpucluster.controller.jobs.__main__ import JobSession
from gpucluster.controller.jobs.queue import Checked, QueuedJob, SubmittedJob
from gpucluster.node_agent.accounts import Account, work_as
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from tests.controller.jobs.share_harness import home, share
from tests.controller.measure.requests import talk
from tests.waiting import PATIENCE_S

FILES = folder.checked_files({"job.sh": {"text": "true\n", "executable": True}})


class QueueDouble:
    """Has one job at most. It does not prove what a scheduler answers: test_slurm.py, test_kubernetes_queue.py."""

    title, late_s = "The queue", 0.0

    def __init__(self) -> None:
        self.seen: SubmittedJob | None = None
        self.file: Path | None = None
        self.submitted: list[Any] = []
        self.cancelled: list[str] = []

    def checked_id(self, job_id: object) -> str:
        if not isinstance(job_id, str):
            raise Refused("not a job id")
        return job_id

    def check(self, owner: Account, share: Path, request: Mapping[str, Any]) -> Checked:
        return Checked("", "all nodes are busy", [{"need": "data"}])

    def submit(
        self, owner: Account, template: str, record: Mapping[str, Any], request: Mapping[str, Any]
    ) -> tuple[str, Path]:
        self.submitted.append((owner.name, template, dict(record)))
        return "42", Path(owner.home) / "job"

    def look(self, job: str) -> SubmittedJob | None:
        return self.seen

    def jobs(self) -> list[QueuedJob]:
        return [QueuedJob("42", "alice", "RUNNING", "a-1", "", "0:01", "x")]

    def printed(self, seen: SubmittedJob) -> Path | None:
        return self.file

    def cancel(self, seen: SubmittedJob) -> None:
        self.cancelled.append(seen.id)

    def unknown(self, job: str) -> Refused:
        return Refused(f"no job {job}")

    def foreign(self, seen: SubmittedJob, owner: Account) -> Refused:
        return Refused(f"job {seen.id} of {owner.name} is another one")


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    with share("4m") as place:
        user = home(place)
        monkeypatch.setattr(program, "account", lambda name: user if name == user.name else _refuse(name))
        monkeypatch.setattr(program, "account_of", lambda _uid: user)
        yield user


def _refuse(name: object) -> Account:
    raise Refused(f"there is no user {name!r}")


@pytest.fixture
def queue() -> QueueDouble:
    return QueueDouble()


@pytest.fixture
def session(queue: QueueDouble, tmp_path: Path) -> JobSession:
    return JobSession(talk()[0], tmp_path, queue)


@pytest.fixture
def job(owner: Account, queue: QueueDouble) -> Path:
    """The folder of a job that was submitted from here, and that is over."""
    record = {"pool": "gpu", "output": "slurm-{job}.out"}
    made = work_as(
        owner, lambda: str(folder.make(Path(owner.home), "mpi", FILES, record)).encode(),
        seconds=PATIENCE_S, most=1000,
    )  # fmt: skip
    queue.seen = SubmittedJob("42", owner.uid, "COMPLETED", "gpu-1", "", made.decode(), 0)
    return Path(made.decode())


def test_what_is_not_an_operation_is_refused(session: JobSession) -> None:
    with pytest.raises(Refused, match="there is no operation 'explode'") as raised:
        session.answer("explode", {})
    assert "dataset.begin" in raised.value.hint
    with pytest.raises(Refused, match="the arguments are not an object"):
        session.answer("wait", [])


@pytest.mark.parametrize("share", [None, "", "home", "/mnt/../etc"])
def test_a_share_is_an_absolute_path(share: object, session: JobSession, owner: Account) -> None:
    with pytest.raises(Refused, match="not a home share"):
        session.answer("check", {"user": owner.name, "share": share})


def test_a_check_has_the_words_of_the_queue(session: JobSession, owner: Account) -> None:
    place = str(Path(owner.home).parent)
    assert session.answer("check", {"user": owner.name, "share": place}) == {
        "nodes": "", "delayed": "all nodes are busy", "requirements": [{"need": "data"}], "home": owner.home,
    }  # fmt: skip
    with pytest.raises(Refused, match="there is no user 'eve'"):
        session.answer("check", {"user": "eve", "share": place})


def test_a_job_is_submitted_with_its_record(session: JobSession, queue: QueueDouble, owner: Account) -> None:
    arguments = {
        "user": owner.name,
        "share": str(Path(owner.home).parent),
        "template": "mpi",
        "record": {"pool": "gpu"},
    }
    assert session.answer("submit", arguments) == {"id": "42", "folder": f"{owner.home}/job", "user": owner.name}
    ((name, template, record),) = queue.submitted
    assert (name, template, record["pool"]) == (owner.name, "mpi", "gpu")
    assert record["submitted_at"].endswith("Z")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": "/mnt/elsewhere"}, "is not on the share"),
        ({"template": "../x"}, "template"),
        ({"record": []}, "the record is not an object"),
    ],
)
def test_a_job_that_can_not_be_one_is_not_submitted(
    changes: dict[str, Any], message: str, session: JobSession, queue: QueueDouble, owner: Account
) -> None:
    arguments = {"user": owner.name, "share": str(Path(owner.home).parent), "template": "mpi", "record": {}, **changes}
    with pytest.raises(Refused, match=message):
        session.answer("submit", arguments)
    assert queue.submitted == []


def test_nothing_is_submitted_while_the_share_is_not_mounted(
    session: JobSession, queue: QueueDouble, owner: Account
) -> None:
    with pytest.raises(Failed, match="is not mounted here"):
        session.answer("submit", {"user": owner.name, "share": owner.home.rpartition("/")[0].rpartition("/")[0]})
    assert queue.submitted == []


def test_the_end_of_a_job_is_answered_at_once(session: JobSession, queue: QueueDouble, job: Path) -> None:
    answer = session.answer("wait", {"id": "42"})
    assert (answer["id"], answer["state"], answer["ended"]) == ("42", "COMPLETED", True)


def test_an_output_has_the_record_and_the_result(session: JobSession, owner: Account, job: Path) -> None:
    work_as(owner, lambda: str((job / "slurm-42.out").write_text("busbw 1\ntoken=abcdef\n")).encode(),
            seconds=PATIENCE_S, most=100)  # fmt: skip
    assert session.answer("result", {"id": "42", "result": {"passed": True}}) == {"file": str(job / folder.RESULT)}
    answer = session.answer("output", {"id": "42"})
    assert answer["output"].startswith("busbw 1\n")
    assert "abcdef" not in answer["output"]
    assert (answer["record"]["pool"], answer["result"], answer["user"]) == ("gpu", {"passed": True}, owner.name)
    with pytest.raises(Refused, match="the result is not an object"):
        session.answer("result", {"id": "42", "result": 7})


def test_a_job_of_another_origin_is_left_alone(
    session: JobSession, queue: QueueDouble, owner: Account, job: Path
) -> None:
    assert session.answer("cancel", {"id": "42"})["state"] == "COMPLETED"
    assert queue.seen is not None
    queue.seen = queue.seen._replace(folder=owner.home)
    for operation in ("cancel", "output"):
        with pytest.raises(Refused, match="is another one"):
            session.answer(operation, {"id": "42"})
    queue.seen = None
    with pytest.raises(Refused, match="no job 42"):
        session.answer("cancel", {"id": "42"})
    assert queue.cancelled == ["42"]


def test_the_list_has_the_jobs_of_the_queue(session: JobSession) -> None:
    (listed,) = session.answer("list", {})["jobs"]
    assert (listed["id"], listed["user"], listed["running"]) == ("42", "alice", "0:01")


@pytest.mark.parametrize("operation", ["dataset.add", "dataset.publish"])
def test_a_data_set_is_begun_first(operation: str, session: JobSession) -> None:
    with pytest.raises(Refused, match="no data set was begun"):
        session.answer(operation, {})


def test_the_conversation_goes_on_after_an_error_until_the_other_end_is_gone(
    queue: QueueDouble, tmp_path: Path
) -> None:
    channel, answers = talk({"operation": "explode"}, {"operation": "cancel", "arguments": {"id": 7}}, "nonsense")
    assert program.serve(channel, tmp_path, queue) == 0
    lines = [json.loads(line) for line in os.read(answers, 1 << 16).splitlines()]
    assert [line["error"]["message"] for line in lines] == [
        "there is no operation 'explode'", "not a job id", "there is no operation 'None'",
    ]  # fmt: skip
    assert all(line["error"]["refused"] for line in lines)


def test_only_root_can_run_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert program.main(["serve"]) == 1
    assert capsys.readouterr().err == "gpucluster-agent jobs: only root can run this\n"


def test_the_output_of_a_job_from_elsewhere_is_read_with_its_user_s_rights(
    session: JobSession, queue: QueueDouble, owner: Account, tmp_path: Path
) -> None:
    queue.seen = SubmittedJob("42", owner.uid, "RUNNING", "gpu-1", "", owner.home)
    with pytest.raises(Refused, match="is another one"):
        session.answer("read", {"id": "42"})
    queue.file = Path(owner.home) / "out-42.txt"
    assert session.answer("read", {"id": "42"})["text"] == "", "it has not printed anything yet"
    queue.file.write_text("one\ntwo")
    read = session.answer("read", {"id": "42"})
    assert (read["text"], read["offset"], read["ended"]) == ("one\n", 4, False)
    queue.seen = queue.seen._replace(state="COMPLETED")
    assert session.answer("read", {"id": "42", "offset": 4})["text"] == "two"
    # Its user may name any file: the rights are those of the user, not of root.
    secret = tmp_path / "secret"
    secret.write_text("of root\n")
    secret.chmod(0o600)
    queue.file = secret
    with pytest.raises((AgentError, OSError)):
        session.answer("read", {"id": "42"})


def test_the_output_of_a_job_from_elsewhere_may_be_on_its_nodes(
    session: JobSession, queue: QueueDouble, owner: Account
) -> None:
    queue.seen = SubmittedJob("42", owner.uid, "COMPLETED", "gpu-1", "", owner.home)
    queue.file = Path(owner.home) / "none.txt"
    with pytest.raises(Refused, match="the output of job 42 is not on the controller") as raised:
        session.answer("read", {"id": "42"})
    assert "gpu-1" in raised.value.hint
