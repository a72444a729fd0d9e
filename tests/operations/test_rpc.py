"""Calls of programs on the controller: requests, answers, and every answer that is none.

A shell stands for ssh: it runs the command here, so what differs on the way through sshd is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError, LockedError, PartlyDone, ProcessError, ToolError, UnconfirmedError
from gpucluster.operations.rpc import RemoteConversation, RemoteProgram
from gpucluster.process import ProcessConversation


@dataclass
class Answer:
    """What the program under test returns."""

    number: int
    name: str = ""


def program(command: str) -> RemoteProgram:
    return RemoteProgram(
        command, "it is not installed", ("it gave no answer", "Read its log"),
        [(r"\bcluster user (\w+)", r"gpucluster user \1")],
    )  # fmt: skip


def call(command: str, **more: Any) -> Answer:
    def ssh_argv(words: Sequence[str]) -> list[str]:
        return ["sh", "-c", " ".join(words)]

    return program(command).call(ssh_argv, Answer, "user.add", {"name": "ann", "note": "$(id)"}, **more)


def answer(document: Any, status: int = 0) -> str:
    """A command that takes the request and answers with this."""
    return f"cat > /dev/null; printf '%s' '{json.dumps(document)}'; exit {status}"


def test_the_request_is_on_standard_input_and_the_result_has_its_type(tmp_path: Path) -> None:
    result = call(f"cat > {tmp_path}/request; echo '{json.dumps({'result': {'number': 7, 'name': 'x'}})}'")
    assert result == Answer(7, "x")
    request = json.loads((tmp_path / "request").read_text())
    assert request == {"operation": "user.add", "arguments": {"name": "ann", "note": "$(id)"}}


@pytest.mark.parametrize(
    ("status", "kind"), [(2, InputError), (1, ToolError)], ids=["refused: nothing was changed", "failed"]
)
def test_an_error_has_its_words_and_the_commands_of_this_machine(status: int, kind: type[Exception]) -> None:
    failure = {"message": "no such user\x1b[2J", "hint": "Run: cluster user list"}
    with pytest.raises(kind) as caught:
        call(answer({"error": failure}, status))
    assert type(caught.value) is kind
    assert "gpucluster user list" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(("status", "kind"), [(1, PartlyDone), (8, UnconfirmedError)])
def test_what_was_done_before_a_failure_is_returned_with_it(status: int, kind: type[PartlyDone]) -> None:
    with pytest.raises(kind) as caught:
        call(answer({"error": {"message": "a host is silent"}, "done": {"number": 3}}, status))
    assert type(caught.value) is kind
    assert caught.value.done == Answer(3)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (answer({"result": {"name": "x"}}), "`number` is missing or of another type"),
        (answer({"result": {"number": "many"}}), "`number` is missing or of another type"),
        (answer([1]), "it is neither a result nor an error"),
        (answer({"error": {}}), "it is neither a result nor an error"),
        ("cat > /dev/null; echo half; echo why >&2; exit 3", "it gave no answer: why"),
        ("cat > /dev/null; exit 3", "it gave no answer: status 3"),
        ("cat > /dev/null; echo 'sh: x: command not found' >&2; exit 127", "it is not installed"),
        ("cat > /dev/null; echo 'ssh: no route to host' >&2; exit 255", "the controller"),
    ],
)
def test_what_is_not_an_answer_is_an_error_with_the_cause(command: str, words: str) -> None:
    with pytest.raises(ToolError) as caught:
        call(command)
    assert words in str(caught.value)
    assert caught.value.hint


def test_another_place_of_the_controller_is_tried_once(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    command = f"cat > /dev/null; test -e {moved} || exit 255; echo '{json.dumps({'result': {'number': 1}})}'"

    def relocate() -> bool:
        moved.touch()
        return True

    assert call(command, relocate=relocate) == Answer(1)


def test_progress_comes_line_by_line() -> None:
    lines: list[str] = []
    text = json.dumps({"result": {"number": 1}})
    command = f"cat > /dev/null; echo one >&2; echo two >&2; echo '{text}'"
    assert call(command, on_progress=lines.append) == Answer(1)
    assert [line.strip() for line in lines] == ["one", "two"]


#: Answers each request line with the next of these lines.
TALK = "while read request; do {answers} done"


def ask(*answers: Any) -> tuple[Any, list[Any]]:
    """One question to a program that prints these lines for it."""
    progress: list[Any] = []
    lines = " ".join(f"printf '%s\\n' '{each if isinstance(each, str) else json.dumps(each)}';" for each in answers)
    with ProcessConversation(["sh", "-c", TALK.format(answers=lines)], end_s=5) as talk:
        return RemoteConversation(talk).ask("measure", progress.append, nodes=["a"]), progress


def test_a_question_of_a_conversation_has_progress_and_a_result() -> None:
    assert ask({"progress": 1}, {"progress": 2}, {"result": {"a": 1}}) == ({"a": 1}, [1, 2])


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ({"message": "x", "locked": True}, LockedError),
        ({"message": "x", "refused": True}, InputError),
        ({"message": "x"}, ToolError),
    ],
)
def test_an_error_of_a_conversation_has_its_kind(failure: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        ask({"error": failure})
    assert type(caught.value) is kind


def test_a_line_that_is_not_an_answer_is_an_error() -> None:
    with pytest.raises(ToolError, match="can't be read"):
        ask("rubbish")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("exit 3", "the program on the controller has ended: status 3"),
        ("echo 'sh: x: command not found' >&2; exit 127", "the controller is not configured yet"),
        ("echo 'ssh: no route to host' >&2; exit 255", "the controller"),
    ],
)
def test_a_program_that_ends_in_the_middle_is_an_error_with_the_cause(command: str, words: str) -> None:
    argv = ["sh", "-c", f"read request; {command}"]
    with ProcessConversation(argv, end_s=5) as talk, pytest.raises(ToolError) as caught:
        RemoteConversation(talk).ask("measure")
    assert words in str(caught.value)
    assert isinstance(caught.value, ProcessError) or "ssh" in str(caught.value)
