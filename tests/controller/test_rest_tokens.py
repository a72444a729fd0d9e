"""Tokens of the REST API on the controller: who gets one, for how long, and what is never written.

scontrol is a double; tests/ansible/test_rest_host.py has the real one.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import rest_key, rest_tokens
from gpucluster.node_agent.errors import Refused
from tests.doubles.commands import Commands

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJhbGljZSJ9.c2lnbmF0dXJl"
SLURM = 64030
IDS = {"alice": 10001, "root": 0, "slurm": SLURM, "debian": 1000, "nobody": 65534, "slurmrestd": 994}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    (tmp_path / "jwt.key").write_bytes(b"k" * 64)
    monkeypatch.setattr(rest_key, "KEY", tmp_path / "jwt.key")
    monkeypatch.setattr(rest_tokens, "check", lambda *_: None)
    return Commands(tmp_path, monkeypatch)


def ask(request: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(request if isinstance(request, str) else json.dumps(request)))
    status = rest_tokens.main([])
    said = capsys.readouterr()
    return status, json.loads(said.out), said.err


def of_alice(seconds: int = 600) -> dict[str, Any]:
    return {"operation": "token", "arguments": {"user": "alice", "seconds": seconds}}


@pytest.mark.parametrize(
    ("user", "seconds", "why"),
    [
        ("alice", 60, ""),
        ("alice", 604800, ""),
        ("debian", 600, ""),
        ("alice", 59, "60 s at least"),
        ("alice", 604801, "7 days at most"),
        ("alice", -1, "60 s at least"),
        ("root", 600, "account of the system"),
        ("slurm", 600, "account of the system"),
        ("nobody", 600, "account of the system"),
        ("slurmrestd", 600, "account of the system"),
        ("carol", 600, "has no user 'carol'"),
        ("-x", 600, "has no user"),
        ("alice lifespan=infinite", 600, "has no user"),
    ],
)
def test_who_gets_a_token_and_for_how_long(user: str, seconds: int, why: str) -> None:
    if not why:
        rest_tokens.check(user, seconds, SLURM, IDS.__getitem__)
        return
    with pytest.raises(Refused, match=why):
        rest_tokens.check(user, seconds, SLURM, IDS.__getitem__)


def test_the_answer_has_the_token_and_the_journal_has_not(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.add("scontrol", f"echo SLURM_JWT={TOKEN}")
    status, answer, journal = ask(of_alice(), monkeypatch, capsys)
    assert (status, answer["result"]["token"], answer["result"]["user"]) == (0, TOKEN, "alice")
    assert commands.calls("scontrol") == ["token username=alice lifespan=600"]
    assert "a token for alice, valid for 600 s" in journal
    assert TOKEN not in journal


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'slurm_load: Unable to contact' >&2; exit 1", "makes no token: slurm_load: Unable to contact"),
        ("echo nothing", "scontrol has ended with status 0"),
        (f"echo SLURM_JWT={TOKEN}; exit 1", "scontrol has ended with status 1"),
    ],
)
def test_what_scontrol_can_t_do_is_a_failure_that_quotes_no_token(
    script: str, words: str, commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.add("scontrol", script)
    status, answer, journal = ask(of_alice(), monkeypatch, capsys)
    assert status == 1
    assert words in answer["error"]["message"]
    assert TOKEN not in json.dumps(answer) + journal


OTHER = {"operation": "x", "arguments": {"user": "a", "seconds": 60}}


@pytest.mark.parametrize("request_", ["", "{", "[]", {"operation": "token"}, OTHER])
def test_a_request_that_can_t_be_read_is_refused(
    request_: Any, commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(request_, monkeypatch, capsys)[0] == 2


def test_without_a_key_there_is_no_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rest_key, "KEY", tmp_path / "nowhere")
    status, answer, _ = ask(of_alice(), monkeypatch, capsys)
    assert (status, answer["error"]["message"]) == (2, "this cluster has no REST API")
