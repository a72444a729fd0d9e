"""Associations and jobs of users. Slurm's commands are doubles here; test_slurm_containers.py has the real ones."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from gpucluster.controller.users import config, slurm
from gpucluster.node_agent import errors, programs


def test_associations_of_many_are_made_together() -> None:
    accounting = config.Accounting("demo", "everybody")
    have = {
        "kept": [slurm.Association("everybody", True)],
        "moved": [slurm.Association("everybody", True)],
        "away": [slurm.Association("ml", True, "20")],
        "back": [slurm.Association("ml", True, "0")],
        "limited": [slurm.Association("ml", True, "0")],
        "stopped": [slurm.Association("ml", True, "0")],
    }
    want = {
        "kept": slurm.DesiredAssociation(None, True),
        "moved": slurm.DesiredAssociation("ml", True),
        "away": slurm.DesiredAssociation(None, False),
        "back": slurm.DesiredAssociation(None, True),
        "limited": slurm.DesiredAssociation(None, True, {"ml": "20", "other": "5"}),
        # An administrator's own limit is nobody else's matter.
        "stopped": slurm.DesiredAssociation(None, None),
        **{f"new{number}": slurm.DesiredAssociation(None, True) for number in range(250)},
    }
    steps = slurm.plan(have, want, accounting)
    assert [step[:2] for step in steps[:3]] == [("add", "user")] * 3, "two for the many, one for who moves"
    assert ("add", "user", "name=moved", "cluster=demo", "account=ml") in steps
    assert ("modify", "user", "where", "name=moved", "cluster=demo", "set", "defaultaccount=ml") in steps
    assert ("modify", "user", "where", "name=away", "cluster=demo", "set", "maxsubmitjobs=0") in steps
    for name, limit in (("back", "-1"), ("limited", "20")):
        words = (
            "modify",
            "user",
            "where",
            f"name={name}",
            "cluster=demo",
            "account=ml",
            "set",
            f"maxsubmitjobs={limit}",
        )
        assert words in steps
    assert steps[-1] == ("delete", "user", "where", "name=moved", "cluster=demo", "account=everybody")
    assert len(steps) == 8
    assert not any(name in word for step in steps for word in step for name in ("kept", "stopped"))


def test_jobs_that_come_while_others_are_ended_end_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, cancelled = [["1", "2"], ["2", "3"], []], []

    def call(argv: list[str], **_: Any) -> Any:
        if argv[0] == "scancel":
            cancelled.append([word for word in argv[1:] if not word.startswith("-")])
            return subprocess.CompletedProcess(argv, 0, "", "")
        lines = "".join(f"10001 {job} RUNNING\n" for job in queue.pop(0))
        return subprocess.CompletedProcess(argv, 0, lines + "10002 9 RUNNING\n", "")

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(slurm, "_JOBS_POLL_SECONDS", 0)
    assert slurm.SlurmAccounting(config.Accounting("demo", "everybody")).end_jobs(10001) == 3
    assert cancelled == [["1", "2"], ["3"]]


def test_what_the_accounting_does_not_know_to_be_over_is_awaited_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whole, as slurmdbd prints it: test_slurm_containers.py.
    refusals = [f"Error with request: jobs are {slurm._ACTIVE} them"] * 2

    def call(argv: list[str], **_: Any) -> Any:
        if "delete" in argv:
            said = refusals.pop() if refusals else ""
            return subprocess.CompletedProcess(argv, 1 if said else 0, "", said)
        return subprocess.CompletedProcess(argv, 0, "alice|ml|0\n" if "associations" in argv else "", "")

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(slurm, "_JOBS_POLL_SECONDS", 0)
    accounting = slurm.SlurmAccounting(config.Accounting("demo", "ml"))
    assert accounting.remove("alice") is True
    assert refusals == []

    monkeypatch.setattr(slurm, "_RECORDED_SECONDS", -1.0)
    for said in (f"jobs are {slurm._ACTIVE} them", "Unable to contact slurm controller"):
        refusals.append(said)
        with pytest.raises(errors.Failed, match="answers with an error"):
            accounting.remove("alice")
        assert refusals == []


def test_a_job_that_is_over_on_a_node_that_does_not_answer_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    states, cancelled = {"1": "RUNNING", "2": "PENDING", "3": "COMPLETING"}, []

    def call(argv: list[str], **_: Any) -> Any:
        if argv[0] == "scancel":
            cancelled.append(argv[2:])
            states.update(dict.fromkeys(argv[2:], "COMPLETING"))
            return subprocess.CompletedProcess(argv, 0, "", "")
        return subprocess.CompletedProcess(
            argv, 0, "".join(f"10001 {job} {state}\n" for job, state in states.items()), ""
        )

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(slurm, "_JOBS_POLL_SECONDS", 0)
    jobs = slurm.SlurmAccounting(config.Accounting("demo", "everybody"))
    # The third may be one that was put back into the queue: it is cancelled, and not counted.
    assert (jobs.end_jobs(10001), cancelled) == (2, [["1", "2", "3"]])
    assert jobs.end_jobs(10001) == 0, "what is over is counted again"

    # One that goes on running is waited for, as long as there is patience.
    monkeypatch.setattr(slurm, "_JOBS_END_SECONDS", 0.01)
    states["4"] = "SUSPENDED"
    monkeypatch.setattr(jobs, "_cancel", lambda _jobs: None)
    with pytest.raises(errors.Failed, match="1 jobs do not end: 4"):
        jobs.end_jobs(10001)
