"""A host answers what it is asked, all at once: what one question can't be answered is missing, with the reason."""

from __future__ import annotations

import io
import json
import os
import threading
from typing import Any

import pytest

from gpucluster.node_agent.facts import __main__ as program
from gpucluster.node_agent.facts import questions, system
from tests.waiting import PATIENCE_S

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def test_questions_are_asked_at_the_same_time_and_one_that_fails_hides_no_other() -> None:
    together = threading.Barrier(3)

    def meets() -> str:
        together.wait(PATIENCE_S)
        return "met"

    def fails() -> None:
        together.wait(PATIENCE_S)
        raise ValueError("damaged")

    found = program.at_once({"one": meets, "two": fails, "three": meets})
    assert found == {"one": "met", "two": None, "two_error": "ValueError: damaged", "three": "met"}


@needs_root
def test_what_is_not_asked_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hop", "ssh_groups", "slurm_error", "agent_check", "monitoring"):
        monkeypatch.setattr(questions, name, lambda *_: pytest.fail("it was not asked"))
    monkeypatch.setattr(system, "share", lambda *_: pytest.fail("it was not asked"))
    facts = program.HostFacts({}).collect()
    assert facts["hostname"] == os.uname().nodename
    assert set(facts) >= {"versions", "cloud_services", "physical_host", "certificates", "secrets", "firewall"}
    assert facts["user_ids"] == {}
    assert not [name for name in facts if name.endswith("_error")]


@needs_root
def test_what_is_asked_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "hop", lambda mesh: {"next": mesh["next"]})
    monkeypatch.setattr(questions, "ssh_groups", lambda: ["admins"])
    monkeypatch.setattr(questions, "slurm_error", lambda: "")
    monkeypatch.setattr(questions, "agent_check", lambda checks: checks["profile"])
    monkeypatch.setattr(questions, "monitoring", lambda asked: {"wait": asked["wait"]})
    asked: dict[str, Any] = {
        "users": ["root"], "groups": ["root", "nobodys"],
        "share": {"path": "/"}, "mesh": {"user": "root", "next": "n2"}, "access": True,
        "slurm": True, "checks": {"profile": "quick"}, "monitoring": {"wait": 75},
    }  # fmt: skip
    facts = program.HostFacts(asked).collect()
    assert (facts["mesh"], facts["ssh_groups"], facts["slurm_error"]) == ({"next": "n2"}, ["admins"], "")
    assert facts["group_ids"] == {"root": "0", "nobodys": ""}
    assert (facts["agent_check"], facts["monitoring"]) == ("quick", {"wait": 75})
    assert (facts["user_ids"], facts["user_groups"]) == ({"root": "0:0"}, {"root": ["root"]})
    assert "home_token_seen" not in facts


@pytest.mark.parametrize("text", ["", "[]", "{", "7"])
def test_a_request_that_can_not_be_read_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert program.main([]) == 2
    assert "the request can't be read" in capsys.readouterr().err


@needs_root
def test_the_answer_is_one_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"users": ["root"]}'))
    monkeypatch.setattr(program, "prepare", lambda: None)
    assert program.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["user_ids"] == {"root": "0:0"}
