"""The commands of the agent for the standby; what they do is a double here, and has tests of its own."""

from __future__ import annotations

import json

import pytest

from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.standby import __main__ as program
from gpucluster.node_agent.standby import keeping, watching


def test_the_agent_has_a_command_for_each(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "witness", lambda addresses: {"reached": False, "by": list(addresses)})
    assert program.main(["witness", "10.0.0.9", "10.0.0.2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"reached": False, "by": ["10.0.0.9", "10.0.0.2"]}
    monkeypatch.setattr(watching, "status", lambda: {"ready": False, "reason": "x"})
    assert program.main(["receive", "watched"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "x"
    done: list[str] = []
    monkeypatch.setattr(watching, "pause", lambda: done.append("pause"))
    monkeypatch.setattr(watching, "watch", done.append)
    monkeypatch.setattr(watching, "unwatch", lambda: done.append("unwatch"))
    for words in (["receive", "pause"], ["watch", "--settings", "{}"], ["unwatch"]):
        assert program.main(words) == 0
    assert done == ["pause", "{}", "unwatch"]


def test_what_fails_is_a_message_and_a_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise Failed("the standby does not answer", "Try again")

    monkeypatch.setattr(keeping, "announce", refuse)
    assert program.main(["announce"]) == 1
    assert capsys.readouterr().err == "the standby does not answer\nTry again\n"
