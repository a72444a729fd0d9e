"""Commands of the agent on many hosts: what each answers, what fails there, and which hosts are out of service.

ssh and sinfo are doubles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import host_commands
from gpucluster.controller.users.hosts import HostLogin
from gpucluster.node_agent.errors import Failed
from tests.waiting import PATIENCE_S

LOGINS = {name: HostLogin("opc", name) for name in ("compute-1", "compute-2", "gone")}
# It prints what it has read and how it was called, but for a host that does not answer.
SSH = """#!/bin/sh
case "$*" in
  *" -- gone "*) echo "a banner" >&2; echo "ssh: no route to host" >&2; exit 255;;
  *) cat; echo "$*";;
esac
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_each_host_reads_its_own_secret_from_standard_input(commands: Path) -> None:
    program(commands, "ssh", SSH)
    texts = {"compute-1": "secret-1\n", "compute-2": "secret-2\n"}
    answers = host_commands.answers_of(LOGINS, None, ["munge-key", "stage"], text_by_host=texts)
    assert answers["gone"] == host_commands.Answer("", "ssh: no route to host")
    for number in ("1", "2"):
        read, how = answers[f"compute-{number}"].text.splitlines()
        assert read == f"secret-{number}"
        assert how.endswith(f"-- compute-{number} sudo -n {host_commands.AGENT} munge-key stage")
        assert "secret" not in how
    assert host_commands.on_all(LOGINS, None, ["x"]) == {"gone": "ssh: no route to host"}


def test_why_a_program_fails() -> None:
    def reason(code: str, seconds: float = PATIENCE_S) -> str:
        return host_commands.answer([sys.executable, "-c", code], seconds=seconds).reason

    assert reason("pass") == ""
    assert reason("raise SystemExit(3)") == "status 3"
    assert reason("raise SystemExit('x' * 400)") == "x" * 300
    assert "did not answer within" in reason("import signal; signal.pause()", 0.1)
    assert "is not installed" in host_commands.answer(["/nowhere/program"]).reason


def test_hosts_that_slurm_has_given_up_are_away_and_others_without_a_state(commands: Path) -> None:
    program(commands, "sinfo", "#!/bin/sh\nprintf 'compute-1 mixed\\ncompute-2 down*\\n'\n")
    silent = dict.fromkeys(("compute-1", "compute-2", "login-1"), "timed out")
    assert host_commands.away(silent) == ("compute-2", "login-1")
    assert host_commands.away({}) == ()
    program(commands, "sinfo", "#!/bin/sh\nexit 1\n")
    with pytest.raises(Failed, match="does not tell which hosts are down"):
        host_commands.away(silent)


def test_a_message_names_five_hosts() -> None:
    problems = {f"n{number}": "x" for number in range(7)}
    assert host_commands.named(problems) == "n0: x; n1: x; n2: x; n3: x; n4: x; 2 more hosts"
    assert host_commands.listed(sorted(problems)) == "n0, n1, n2, n3, n4 and 2 more"
    assert host_commands.listed(["n0"]) == "n0"


def test_a_host_whose_sshd_does_not_listen_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answers_of(logins: Mapping[str, HostLogin], *_: Any) -> dict[str, host_commands.Answer]:
        asked.append(sorted(logins))
        reasons = {"compute-1": "refused" if sum(slept) < 15 else "", "gone": "no route to host"}
        return {name: host_commands.Answer("", reasons.get(name, "")) for name in logins}

    monkeypatch.setattr(host_commands, "answers_of", answers_of)
    monkeypatch.setattr(host_commands, "on_this_one", lambda *_: host_commands.Answer("here", ""))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    hosts = host_commands.ReachableHosts("ctl", LOGINS, ["ctl", *LOGINS], None)
    answers = hosts.ask([*hosts.names, "unknown"], ["x"], {}, 1.0)
    assert asked == [["compute-1", "compute-2", "gone"], *[["compute-1"]] * 4]
    asked.clear()
    assert {name: each.reason for name, each in answers.items() if each.reason} == {
        "gone": "no route to host",
        "unknown": "it is not a host of the cluster now",
    }
    assert answers["ctl"].text == "here"
    assert hosts.ask(["compute-2", "gone"], ["x"], {}, 1.0)["gone"].reason == "no route to host"
    assert asked == [["compute-2"]], "each attempt takes seconds"
