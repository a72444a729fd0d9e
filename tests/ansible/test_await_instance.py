"""The wait for a host that boots: the script in a real shell, and the tries with a double of the connection."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from tests.ansible.loading import load
from tests.waiting import PATIENCE_S, wait_for


def script(folder: Path, *, cloud_init: bool, polls: int) -> subprocess.Popen[bytes]:
    """The script, with this folder instead of /run/cloud-init, on a host with or without cloud-init."""
    text = plugin().SCRIPT.format(polls=polls, late=plugin().LATE).replace("/run/cloud-init", str(folder))
    programs = folder / "bin"
    programs.mkdir()
    # The pause between two looks leaves a line, and takes no time.
    (programs / "sleep").write_text(f"#!/bin/sh\necho >> {folder}/pauses\n")
    (programs / "sleep").chmod(0o755)
    if cloud_init:
        (programs / "cloud-init").symlink_to("/bin/false")
    # As Ansible's connection by ssh does it.
    return subprocess.Popen(["/bin/sh", "-c", f"{text} && sleep 0"], env={"PATH": str(programs)})


def plugin() -> Any:
    return load("action_plugins/gpucluster_await_instance.py")


def test_it_waits_for_the_result_of_cloud_init(tmp_path: Path) -> None:
    waiting = script(tmp_path, cloud_init=True, polls=1_000_000)
    pauses = tmp_path / "pauses"
    wait_for("it has looked more than once", lambda: pauses.exists() and pauses.read_text().count("\n") > 2)
    assert waiting.poll() is None
    (tmp_path / "result.json").touch()
    assert waiting.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("disabled", [False, True])
def test_without_cloud_init_there_is_nothing_to_wait_for(tmp_path: Path, disabled: bool) -> None:
    if disabled:
        (tmp_path / "disabled").touch()
    assert script(tmp_path, cloud_init=disabled, polls=100).wait(PATIENCE_S) == 0


def test_it_gives_up_a_cloud_init_that_never_ends(tmp_path: Path) -> None:
    assert script(tmp_path, cloud_init=True, polls=1).wait(PATIENCE_S) == plugin().LATE


class Attempts:
    """A double of a connection: what each attempt gives."""

    def __init__(self, *attempts: int | str) -> None:
        self.attempts = list(attempts)
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def execute(self, _command: str, **_options: Any) -> dict[str, Any]:
        attempt = self.attempts.pop(0)
        if isinstance(attempt, str):
            raise AnsibleConnectionFailure(attempt)
        return {"rc": attempt, "stderr": "a reason"}


def run(host: Attempts, monkeypatch: pytest.MonkeyPatch, seconds: float = 30) -> dict[str, Any]:
    module = plugin()
    monkeypatch.setattr(module, "PAUSE", 0.01)
    action = module.ActionModule.__new__(module.ActionModule)
    monkeypatch.setattr(module.ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(action, "_low_level_execute_command", host.execute, raising=False)
    action._connection = host
    action._task = type("Task", (), {"args": {"seconds": seconds}})()
    found: dict[str, Any] = action.run()
    return found


def test_it_tries_again_until_the_host_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Attempts("refused", "timed out", 1, 0)
    assert run(host, monkeypatch) == {"changed": False}
    assert host.resets == 3


def test_a_host_that_never_answers_fails_with_the_last_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(Attempts("no route"), monkeypatch, seconds=0)
    assert found["failed"]
    assert "no route" in found["msg"]


def test_a_cloud_init_that_does_not_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(Attempts(124), monkeypatch)
    assert found == {"failed": True, "msg": "cloud-init has not ended within 30 seconds"}
