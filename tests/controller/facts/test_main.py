"""The conversation with the operator's machine: the token waits for other hosts, and nothing is left at its end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.facts import __main__ as program
from tests.controller.jobs.share_harness import share
from tests.doubles.commands import Commands
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it is root's")
POOL = {"name": "a", "partition": "a", "nodes": ["a-1"], "exclude": [], "elastic": ""}
SLURM = {"pools": [POOL], "user": "alice", "job": "gpucluster-verify-word", "accounting": False, "at_once": 16}


@pytest.fixture
def place() -> Iterator[Path]:
    with share("1m") as mounted:
        yield mounted


class Operator:
    """The other end of the conversation.

    Args:
        asked: the request.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        theirs, self.out = os.pipe()
        self.answers, ours = os.pipe()
        self.status: Any = None
        self._thread = threading.Thread(target=self._serve, args=(theirs, ours), daemon=True)
        self._lines = os.fdopen(self.answers)
        self.say(json.dumps(asked))
        self._thread.start()

    def _serve(self, source: int, target: int) -> None:
        try:
            self.status = program.serve(RequestChannel(source, target))
        except Disconnected as error:
            self.status = error
        finally:
            os.close(target)
            os.close(source)

    def say(self, line: str) -> None:
        os.write(self.out, f"{line}\n".encode())

    def hears(self) -> dict[str, Any]:
        line = self._lines.readline()
        document: dict[str, Any] = json.loads(line) if line else {}
        return document

    def leaves(self) -> Any:
        os.close(self.out)
        assert not self._lines.readline()
        self._thread.join()
        return self.status


def _asked(place: Path, **more: Any) -> dict[str, Any]:
    token = {"path": str(place), "file": str(place / program.FOLDER / "word"), "token": "word"}
    host = {"users": ["root"], "share": token}
    return {"token": "word", "host": host, "share": str(place), "seconds": 600, **more}


def test_the_token_is_there_until_the_hosts_have_looked_and_this_one_too(place: Path) -> None:
    operator = Operator(_asked(place))
    assert operator.hears() == {"progress": "token"}
    assert (place / program.FOLDER / "word").read_text() == "word"
    operator.say("")
    facts = operator.hears()["result"]
    assert (facts["home_fs"]["mounted"], facts["home_token_seen"]) == (True, True)
    assert facts["user_ids"] == {"root": "0:0"}
    assert list(place.iterdir()) == []


def test_the_facts_of_slurm_and_of_this_host_come_together(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.prints("sinfo", "a-1 idle a none\n")
    commands.prints("squeue", "")
    commands.prints("runuser", "a-1\n")
    commands.prints("gpucluster-autoscaler", '{"healthy": true}')
    operator = Operator(_asked(place, slurm=SLURM, autoscaler=True))
    operator.hears()
    operator.say("")
    facts = operator.hears()["result"]
    assert facts["hostname"] == os.uname().nodename
    assert facts["sinfo"] == [{"node": "a-1", "state": "idle", "partition": "a", "reason": ""}]
    assert [run["nodes"] for run in facts["srun"]] == [["a-1"]]
    assert facts["autoscaler"] == {"healthy": True}
    assert commands.calls("scancel") == []


def test_checks_that_need_the_nodes_come_before_jobs(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.prints("sinfo", "a-1 idle a none\n")
    commands.prints("squeue", "")
    commands.prints("runuser", "a-1\n")
    commands.prints("gpucluster-autoscaler", '{"healthy": true}')
    operator = Operator(_asked(place, slurm=SLURM, autoscaler=True, apart=True))
    operator.hears()
    wait_for("what needs no node is asked", lambda: commands.calls("gpucluster-autoscaler"))
    assert commands.calls("sinfo") == commands.calls("runuser") == []
    operator.say("")
    assert [run["nodes"] for run in operator.hears()["result"]["srun"]] == [["a-1"]]


@pytest.mark.parametrize("have_looked", [False, True])
def test_a_lost_connection_ends_jobs_and_leaves_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have_looked: bool
) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.prints("sinfo", "a-1 idle a none\n")
    commands.prints("squeue", "")
    commands.add("scancel")
    ended, runs = tmp_path / "ended", tmp_path / "runs"
    commands.add("runuser", f"trap 'touch {ended}; exit 1' TERM; touch {runs}; sleep 600 & wait")
    operator = Operator(_asked(place, slurm=SLURM))
    operator.hears()
    if have_looked:
        operator.say("")
    wait_for("the job runs", runs.exists)
    assert isinstance(operator.leaves(), Disconnected)
    assert ended.exists()
    assert list(place.iterdir()) == []
    names = ["gpucluster-verify-word", "gpucluster-verify-word-containers"]
    assert commands.calls("scancel") == [f"--jobname={name}" for name in names]


def test_a_machine_that_was_cut_off_is_not_waited_for_for_ever(place: Path) -> None:
    operator = Operator({**_asked(place), "seconds": 0.01})
    operator.hears()
    assert not operator.hears()
    assert isinstance(operator.leaves(), Disconnected)
    assert list(place.iterdir()) == []


def test_a_token_that_can_not_be_written_is_one_that_hosts_do_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucluster.node_agent.facts.system.TOKEN_SECONDS", 0)
    operator = Operator(_asked(tmp_path))
    assert operator.hears() == {"progress": "token"}
    operator.say("")
    assert operator.hears()["result"]["home_token_seen"] is False
