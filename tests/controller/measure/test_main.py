"""The program `measure`: who may run it, and how a conversation ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpucluster.controller.measure.__main__ import main, serve
from gpucluster.node_agent.errors import Refused
from tests.controller.measure.requests import talk


def test_a_user_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    conversation, answers = talk({"operation": "begin", "arguments": {"user": "nobody-of-that-name", "who": "me"}})
    assert serve(tmp_path / "folder", conversation) == Refused.status
    assert "there is no user" in json.loads(os.read(answers, 9999))["error"]["message"]


def test_an_end_is_not_an_error(tmp_path: Path) -> None:
    conversation, _answers = talk()
    assert serve(tmp_path, conversation) == 0


def test_only_root_measures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["serve"]) == 1
    assert "only root" in capsys.readouterr().err
