"""`monitor jobs`: what sacct prints, with hostile names, arrays, heterogeneous jobs and thousands of steps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.job_records import JobRecordFolder
from gpucluster.controller.monitor import jobs
from gpucluster.controller.reactions.control import FILE
from gpucluster.controller.reactions.policy import ReactionRecord
from gpucluster.node_agent import accounts, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused

DEFAULTS = {
    "User": "ann", "Account": "a", "Partition": "gpu", "State": "COMPLETED", "ExitCode": "0:0", "Submit": "900",
    "Start": "1000", "End": "1060", "ElapsedRaw": "60", "NNodes": "2", "NTasks": "2", "AllocCPUS": "8",
    "AllocTRES": "billing=8,cpu=8,gres/gpu=16,node=2", "TotalCPU": "00:10", "MaxRSS": "5M",
    "NodeList": "gpu-[1-2]", "JobName": "train", "WorkDir": "/home/ann", "DerivedExitCode": "0:0",
}  # fmt: skip


def row(raw: str, shown: str = "", **more: str) -> dict[str, str]:
    return {**DEFAULTS, "JobIDRaw": raw, "JobID": shown or raw, **more}


class Sacct:
    """A double of sacct: it prints rows as the real one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[dict[str, str]] = []
        self.fault = ""
        monkeypatch.setattr(programs, "ask", self)

    def __call__(self, argv: list[str], _seconds: float, _most: int) -> programs.ProgramAnswer:
        delimiter = next(word for word in argv if word.startswith("--delimiter=")).partition("=")[2]
        text = "".join(delimiter.join(each[name] for name in jobs.FIELDS) + "\n" for each in self.rows)
        return programs.ProgramAnswer(None if self.fault else 0, text.encode(), b"", self.fault)


@pytest.fixture
def sacct(monkeypatch: pytest.MonkeyPatch) -> Sacct:
    return Sacct(monkeypatch)


def record(node: str, job: str = "12", started: float = 1001.0) -> dict[str, Any]:
    return {"job_id": job, "node": node, "started": started, "devices": [], "changes": [], "notes": []}


@pytest.mark.parametrize(
    "name", ["a|b", 'quo"te', "two\nlines", "x\n13|13|root|FAILED", "<script>", "x\n12.0<0123456789abcdef>12.0", ""]
)
def test_a_name_is_only_a_name(name: str, sacct: Sacct, tmp_path: Path) -> None:
    sacct.rows = [row("12", JobName=name), row("12.batch", JobName="batch"), row("12.0", JobName=name, State="FAILED")]
    found = jobs.describe("12", tmp_path)
    assert found["job"]["name"] == name
    assert [(each["step"], each["state"]) for each in found["steps"]] == [("batch", "COMPLETED"), ("0", "FAILED")]
    assert (found["job"]["gpus"], found["job"]["node_list"]) == (16, ["gpu-1", "gpu-2"])
    assert (found["job"]["started"], found["job"]["ended"]) == (1000.0, 1060.0)


def test_what_was_reported_of_a_job_and_done_to_it(sacct: Sacct, tmp_path: Path) -> None:
    sacct.rows = [row("12")]
    line = "2001-09-09 02:03:36 UTC job 12 is hung. It is cancelled (on-hang=cancel)."
    (tmp_path / FILE).write_text(
        json.dumps({"12": asdict(ReactionRecord("1").telling(line)), "13": asdict(ReactionRecord("1"))})
    )
    assert jobs.describe("12", tmp_path, tmp_path)["told"] == [line]
    (tmp_path / FILE).write_text("damaged")
    assert jobs.describe("12", tmp_path, tmp_path)["told"] == []


def test_a_job_that_runs_has_no_end(sacct: Sacct, tmp_path: Path) -> None:
    sacct.rows = [row("12", State="RUNNING", End="Unknown")]
    assert jobs.describe("12", tmp_path)["job"]["ended"] is None
    sacct.rows = [row("12", State="CANCELLED by 1001", Start="None", NodeList="None assigned")]
    found = jobs.describe("12", tmp_path)["job"]
    assert (found["state"], found["started"], found["node_list"]) == ("CANCELLED", None, [])


def test_records_of_another_run_or_of_strangers_are_left_out(sacct: Sacct, tmp_path: Path) -> None:
    kept = JobRecordFolder(tmp_path)
    for each in (record("gpu-1"), record("gpu-2", started=90_000.0), record("login"), record("gpu-2", started=999.0)):
        kept.keep(each)
    sacct.rows = [row("12")]
    found = jobs.describe("12", tmp_path)["records"]
    assert [(each["node"], each["started"]) for each in found] == [("gpu-1", 1001.0), ("gpu-2", 999.0)]


def test_a_task_of_an_array_and_the_whole_of_it(sacct: Sacct, tmp_path: Path) -> None:
    sacct.rows = [row("13", "12_1"), row("13.batch", "12_1.batch"), row("12", "12_2", State="FAILED")]
    one = jobs.describe("12_1", tmp_path)
    assert (one["job"]["id"], one["tasks"], len(one["steps"])) == ("13", [], 1)
    everything = jobs.describe("12", tmp_path)
    assert [each["shown_as"] for each in everything["tasks"]] == ["12_1", "12_2"]


def test_the_components_of_a_heterogeneous_job(sacct: Sacct, tmp_path: Path) -> None:
    sacct.rows = [row("12", "12+0"), row("13", "12+1", NodeList="cpu-1"), row("13.0", "12+1.0")]
    kept = JobRecordFolder(tmp_path)
    kept.keep(record("cpu-1", job="13"))
    found = jobs.describe("12", tmp_path)
    assert [each["id"] for each in found["components"]] == ["12", "13"]
    assert [each["node"] for each in found["records"]] == ["cpu-1"]
    assert len(found["steps"]) == 1


def test_of_thousands_of_steps_those_that_failed_stay(sacct: Sacct, tmp_path: Path) -> None:
    steps = [row(f"12.{at}", State="FAILED" if at == 4999 else "COMPLETED") for at in range(5000)]
    sacct.rows = [row("12"), *steps]
    found = jobs.describe("12", tmp_path)
    assert (len(found["steps"]), found["steps_left_out"]) == (jobs.MOST_STEPS, 3000)
    assert found["steps"][-1]["state"] == "FAILED"


def test_without_accounting_the_records_are_still_there(sacct: Sacct, tmp_path: Path) -> None:
    sacct.fault = "sacct gave no answer within 60 s"
    with pytest.raises(Failed, match="no answer"):
        jobs.describe("12", tmp_path)
    JobRecordFolder(tmp_path).keep(record("gpu-1"))
    found = jobs.describe("12", tmp_path)
    assert (found["job"], len(found["records"]), len(found["problems"])) == (None, 1, 1)


@pytest.mark.parametrize("job", ["", "x", "../12", "12;id", "-1", "12.0"])
def test_nothing_but_a_number(job: str, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        jobs.describe(job, tmp_path)


def test_a_job_that_is_not_known(sacct: Sacct, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no job 12"):
        jobs.describe("12", tmp_path)
    assert sacct.rows == []


def test_a_result_is_read_with_the_rights_of_the_user(
    sacct: Sacct, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gpucluster-jobs" / "nccl-1"
    folder.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text('{"id": "12", "verdict": "of root"}')
    (folder / "result.json").symlink_to(secret)
    sacct.rows = [row("12", WorkDir=str(folder))]
    asked = []

    def work_as(of: str, _work: Any, **_limits: Any) -> bytes:
        asked.append(of)
        return b'{"id": "12", "verdict": "pass"}'

    monkeypatch.setattr(accounts, "account", lambda name: name)
    monkeypatch.setattr(accounts, "work_as", work_as)
    assert jobs.describe("12", tmp_path / "records")["result"]["verdict"] == "pass"
    assert asked == ["ann"]
    monkeypatch.setattr(accounts, "work_as", lambda *_given, **_limits: json.dumps({"id": "11"}).encode())
    assert jobs.describe("12", tmp_path / "records")["result"] == {}

    def gone(*_given: Any, **_limits: Any) -> bytes:
        raise AgentError("no answer in time")

    monkeypatch.setattr(accounts, "work_as", gone)
    found = jobs.describe("12", tmp_path / "records")
    assert (found["result"], found["problems"]) == ({}, ["its result can't be read: no answer in time"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ["a"]), ("a,b", ["a", "b"]), ("g[08-10,12],x", ["g08", "g09", "g10", "g12", "x"]), ("", []),
        ("a[1-2]b", ["a1b", "a2b"]),
    ],
)  # fmt: skip
def test_names_of_nodes(text: str, expected: list[str]) -> None:
    assert jobs._names(text) == expected
