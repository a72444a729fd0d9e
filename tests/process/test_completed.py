"""How a program is started and has ended: errors, the log, and the environment that programs get."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, ProcessError
from gpucluster.process.completed import (
    Completed,
    environment_of,
    log_end,
    raise_unless_ok,
    shown,
    start,
    without_colour,
)


def test_success_raises_nothing_and_a_failure_has_the_words_of_the_program() -> None:
    raise_unless_ok(Completed(("tool",), 0, "", "a warning"))
    with pytest.raises(ProcessError, match="tool ended with status 3: no luck") as caught:
        raise_unless_ok(Completed(("tool", "a", "b", "secret"), 3, "out", " no luck\n"))
    assert (caught.value.returncode, caught.value.stdout, caught.value.stderr) == (3, "out", " no luck\n")
    assert "secret" not in str(caught.value), "only the first words of a command line are shown"


@pytest.mark.parametrize(
    ("stdout", "stderr", "words"), [("only here", "", "only here"), ("", "", "it printed nothing"), ("a", "b", "b")]
)
def test_the_reason_is_what_the_program_printed(stdout: str, stderr: str, words: str) -> None:
    with pytest.raises(ProcessError, match=f"status 1: {words}"):
        raise_unless_ok(Completed(("tool",), 1, stdout, stderr))


def test_of_a_long_output_the_end_is_shown() -> None:
    with pytest.raises(ProcessError) as caught:
        raise_unless_ok(Completed(("tool",), 1, "", "x" * 100_000 + "the reason"))
    assert "the reason" in str(caught.value)
    assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["/nowhere/ssh-keygen"], "apt install openssh-client, or dnf install openssh-clients"),
        (["/nowhere/ip"], "apt install iproute2, or dnf install iproute"),
        (["/nowhere/tool"], "Install it, or put it on PATH"),
    ],
)
def test_a_missing_program_is_reported_with_its_package(argv: list[str], hint: str) -> None:
    with pytest.raises(EnvironmentFault, match=f"the program {argv[0]} was not found") as caught:
        start(argv)
    assert hint in caught.value.hint


def test_a_missing_working_directory_is_not_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="can't be started") as caught:
        start(["/bin/true"], cwd=tmp_path / "gone")
    assert str(tmp_path / "gone") in str(caught.value)


def test_no_password_and_no_colour_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    url = "https://ann:hunter2@mirror.example/x"
    assert shown(f"get \x1b[31m{url}\x1b[0m") == "get https://ann:***@mirror.example/x"
    assert without_colour("\x1b[1;32mok\x1b[0m") == "ok"
    with caplog.at_level(logging.DEBUG, "gpucluster.process"):
        log_end(Completed(("tool",), 1, "data of a backup", f"can't get {url}"))
    assert "hunter2" not in caplog.text
    assert "data of a backup" not in caplog.text
    assert "tool ended with status 1" in caplog.text


def test_a_program_gets_what_was_given_and_else_what_its_kind_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("UNRELATED_SECRET", "x")
    assert environment_of(["ssh"], {"A": "b"}) == {"A": "b"}
    assert environment_of(["/usr/bin/ssh"], None)["SSH_AUTH_SOCK"] == "/run/agent"
    assert "SSH_AUTH_SOCK" not in environment_of(["tar"], None)
    assert "UNRELATED_SECRET" not in environment_of(["ssh"], None)
