"""What Slurm answers on the controller becomes facts; pools are tried at the same time, and none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.facts import slurm
from gpucluster.controller.facts.slurm import SlurmFacts
from gpucluster.node_agent.programs import MISSING, OUT_OF_TIME, Completed, ProgramGroup
from tests.waiting import PATIENCE_S

SINFO = "compute-1 idle compute none\ncompute-2 drained compute Epilog error\ncompute-3 down* compute\n"


def _pool(name: str, *nodes: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "partition": name, "nodes": list(nodes), "exclude": [], "elastic": "", **more}


def _asked(*pools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"pools": pools, "user": "alice", "job": "job-1", "accounting": True, "at_once": 16, "share": None, **more}


class Slurm(ProgramGroup):
    """A double of Slurm's commands. It does not prove what they print."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = {"sinfo": (0, SINFO, ""), "squeue": (0, "", ""), "sacct": (0, "", ""), **answers}
        self.asked: list[list[str]] = []

    def run(self, argv: Sequence[str], seconds: float, data: bytes = b"") -> Completed[str]:
        words = list(argv)
        self.asked.append(words)
        if words == ["sinfo", "--version"]:
            return Completed(words, 0, "slurm 25.11.7\n", "")
        answer = self.answers["srun" if "srun" in words else words[0]]
        status, output, errors = answer(words) if callable(answer) else answer
        return Completed(words, status, output, errors)


def test_the_facts_of_nodes_have_the_reason_that_slurm_gives() -> None:
    found = slurm.sinfo_rows(SINFO)
    assert [(row["node"], row["state"], row["partition"], row["reason"]) for row in found] == [
        ("compute-1", "idle", "compute", ""),
        ("compute-2", "drained", "compute", "Epilog error"),
        ("compute-3", "down*", "compute", ""),
    ]


@pytest.mark.parametrize(
    ("pool", "nodes"),
    [
        (_pool("compute", "compute-1", "compute-2", "compute-3", elastic="compute-e"),
         ["compute-1", "compute-e1", "compute-e3"]),
        (_pool("compute", "compute-1"), ["compute-1"]),
        (_pool("compute", "compute-2"), []),
        (_pool("second", partition="compute", elastic="second-e"), ["second-e1"]),
        (_pool("elastic", elastic="elastic-e"), []),
        # Planned for a job that waits, and one that cleans up after a job beside another one.
        (_pool("large", *(f"large-{number}" for number in range(1, 5))), ["large-1", "large-2", "large-3"]),
    ],
)  # fmt: skip
def test_container_steps_try_what_is_free_elastic_nodes_too(pool: dict[str, Any], nodes: list[str]) -> None:
    lines = [
        "compute-1 idle compute none",
        "compute-2 allocated compute none",
        "compute-3 drained compute Epilog error",
        *(f"compute-e{number} {state} compute" for number, state in enumerate(("idle", "idle~", "mixed"), 1)),
        "second-e1 idle compute",
        "elastic-e1 idle% elastic",
        *(f"large-{number} {state} large" for number, state in enumerate(("planned", "mixed-", "mixed+", "idle*"), 1)),
    ]
    assert slurm.free(pool, slurm.sinfo_rows("\n".join(lines))) == nodes


def test_a_job_runs_as_a_user_on_two_nodes_of_its_pool_at_most() -> None:
    pool = _pool("a", "a-1", "a-2", "a-3", exclude=["b-1", "a-e[1-4]"])
    argv = slurm.job_argv(pool, "alice", "job-1")
    assert argv[:6] == ["timeout", "60", "runuser", "--user=alice", "--", "srun"]
    assert {"--nodes=2", "--partition=a", "--job-name=job-1", "--exclude=b-1,a-e[1-4]"} <= set(argv)
    one = slurm.job_argv(_pool("a", "a-1"), "alice", "job-1")
    assert "--nodes=1" in one
    assert not [word for word in one if word.startswith("--exclude")]


@pytest.mark.parametrize(
    ("states", "patience"),
    [
        (("idle", "allocated"), 5),
        (("allocated", "allocated"), 5),
        (("idle", "mixed"), 30),
        # It may come into service at any moment.
        (("idle", "unknown"), 30),
        (("allocated", "idle", "idle"), 30),
    ],
)
def test_a_job_waits_only_as_long_as_its_nodes_may_become_free(states: tuple[str, ...], patience: int) -> None:
    nodes = [f"a-{number}" for number in range(len(states))]
    rows = slurm.sinfo_rows("\n".join(f"{node} {state} a none" for node, state in zip(nodes, states)))
    pool = _pool("a", *nodes)
    assert slurm.job_patience(pool, rows) == patience
    assert f"--immediate={patience}" in slurm.job_argv(pool, "alice", "job-1", slurm.job_patience(pool, rows))
    assert slurm.job_patience(pool, []) == 30


def test_a_good_cluster_has_all_facts() -> None:
    record = "7|alice|default|compute|COMPLETED|2\n"
    programs = Slurm(srun=(0, "compute-2\ncompute-1\n", ""), sacct=(0, record, ""), squeue=(0, "a,b\n", ""))
    facts = SlurmFacts(_asked(_pool("compute", "compute-1", "compute-2")), programs, "word").collect()
    job = {"partition": "compute", "user": "alice", "ran": True, "exit_status": 0, "error": ""}
    assert facts == {
        "sinfo": slurm.sinfo_rows(SINFO),
        "jobs_waiting": ["a", "b"],
        "slurm_version": "25.11.7",
        "srun": [{**job, "nodes": ["compute-1", "compute-2"]}],
        "accounting": True,
        "accounting_error": "",
        "accounting_jobs": [
            {"job": "7", "user": "alice", "account": "default", "partition": "compute", "state": "COMPLETED",
             "nodes": 2},
        ],
    }  # fmt: skip
    squeue, srun = (
        next(place for place, words in enumerate(programs.asked) if name in words) for name in ("squeue", "srun")
    )
    assert squeue < srun, "our own jobs are none that wait"


def test_switches_are_asked_for_where_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "topology.conf"
    monkeypatch.setattr(slurm, "_TOPOLOGY", file)
    # As 24.11.5 and 26.05.3 print it.
    text = (
        "SwitchName=rdma-a Level=1 LinkSpeed=1 Nodes=a-[1-3] Switches=rdma-a_lb-x,rdma-a_unplaced\n"
        "SwitchName=rdma-a_lb-x Level=0 LinkSpeed=1 Nodes=a-[1,3]\nSwitchName=rdma-a_unplaced Level=0 LinkSpeed=1 \n"
        "SwitchName=plain-b Level=0 LinkSpeed=1 Nodes=b-1\n"
    )
    leaves = [{"switch": "rdma-a_lb-x", "nodes": "a-[1,3]"}, {"switch": "plain-b", "nodes": "b-1"}]
    asked = _asked(accounting=False, switches=True)
    programs = Slurm(scontrol=(0, text, ""))
    assert SlurmFacts(asked, programs, "word").collect()["switches"] == []
    file.write_text("# Managed by gpucluster.\n")
    assert SlurmFacts(asked, programs, "word").collect()["switches"] == []
    assert not any("scontrol" in words for words in programs.asked)
    file.write_text("SwitchName=plain-b Nodes=b-1\n")
    assert SlurmFacts(asked, programs, "word").collect()["switches"] == leaves
    assert SlurmFacts(asked, Slurm(scontrol=(1, "", "refused")), "word").collect()["switches"] is None


def test_pools_are_tried_at_the_same_time_unless_users_have_limits() -> None:
    together = threading.Barrier(2)
    waited: list[bool] = []

    def srun(words: list[str]) -> tuple[int, str, str]:
        try:
            together.wait(PATIENCE_S if limit > 1 else 0.05)
            waited.append(True)
        except threading.BrokenBarrierError:
            together.reset()
            waited.append(False)
        return 0, "n\n", ""

    record = "7|alice|default|compute|COMPLETED|1\n"
    pools = (_pool("a", "a-1"), _pool("b", "b-1"))
    for limit, expected in ((16, [True, True]), (1, [False, False])):
        waited.clear()
        programs = Slurm(srun=srun, sacct=(0, record * 2, ""))
        facts = SlurmFacts(_asked(*pools, at_once=limit), programs, "word").collect()
        assert [run["partition"] for run in facts["srun"]] == ["a", "b"]
        assert waited == expected


@pytest.mark.parametrize(
    ("srun", "sinfo", "error"),
    [
        ((124, "", ""), (0, SINFO, ""), "no response within the time limit"),
        ((1, "", " srun: error: no \n"), (1, "", "down\n"), "srun: error: no"),
        ((MISSING, "", "timeout is not installed"), (OUT_OF_TIME, "", "late"), "timeout is not installed"),
    ],
)
def test_what_does_not_answer_is_a_fact(srun: Any, sinfo: Any, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_RECORD_AGAIN_SECONDS", 0)
    monkeypatch.setattr(slurm, "_SINFO_AGAIN_SECONDS", 0)
    programs = Slurm(srun=srun, sinfo=sinfo, sacct=(1, "", "no database\n"))
    facts = SlurmFacts(_asked(_pool("compute", "compute-1")), programs, "word").collect()
    assert (facts["srun"][0]["ran"], facts["srun"][0]["error"]) == (False, error)
    assert (facts["accounting"], facts["accounting_error"]) == (False, "no database")
    assert (facts["sinfo"] is None) == (sinfo[0] != 0)
    if sinfo[0]:
        assert facts["sinfo_error"] == sinfo[2].strip()


def test_a_question_that_slurmctld_has_lost_is_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_SINFO_AGAIN_SECONDS", 0)
    answers = iter([(1, "", "Socket timed out on send/recv operation"), (0, SINFO, "")])
    programs = Slurm(srun=(0, "n\n", ""), sinfo=lambda _words: next(answers))
    facts = SlurmFacts(_asked(_pool("a", "a-1"), accounting=False), programs, "word").collect()
    assert facts["sinfo"] == slurm.sinfo_rows(SINFO)
    assert "sinfo_error" not in facts


def test_records_of_jobs_are_awaited_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_RECORD_AGAIN_SECONDS", 0)
    answers = iter(["", "7|alice|default|a|RUNNING|1\n"])
    programs = Slurm(srun=(0, "n\n", ""), sacct=lambda _words: (0, next(answers), ""))
    assert SlurmFacts(_asked(_pool("a", "a-1")), programs, "word").collect()["accounting"] is True
    never = Slurm(srun=(0, "n\n", ""))
    assert SlurmFacts(_asked(_pool("a", "a-1")), never, "word").collect()["accounting"] is False
    assert sum(words[0] == "sacct" for words in never.asked) == slurm._RECORD_TRIES


def test_without_a_user_or_a_node_no_job_is_run() -> None:
    for asked in (_asked(_pool("a", "a-1"), user=""), _asked(_pool("a")), _asked()):
        programs = Slurm()
        assert SlurmFacts(asked, programs, "word").collect()["srun"] == []
        assert not [words for words in programs.asked if "srun" in words]


def test_container_steps_that_can_not_be_tried_are_missing_with_the_reason(tmp_path: Any) -> None:
    programs = Slurm(srun=(0, "compute-1\n", ""), ldd=(0, "", ""), mksquashfs=(1, "", "no room"))
    programs.answers["sacct"] = (0, "7|alice|default|compute|COMPLETED|1\n", "")
    facts = SlurmFacts(_asked(_pool("compute", "compute-1"), share=str(tmp_path)), programs, "word").collect()
    assert "container_steps" not in facts
    assert facts["container_steps_error"].endswith("no room")
    assert facts["srun"][0]["ran"] is True
    assert not [words for words in programs.asked if "--container-image" in words]
