"""A conversation with a program: questions, answers, and every way in which it ends. The programs are real."""

from __future__ import annotations

import sys

import pytest

from gpucluster import process
from gpucluster.errors import EnvironmentFault, ProcessError
from gpucluster.process.conversing import ProcessConversation
from tests.waiting import PATIENCE_S

ECHO = "import sys\nfor line in sys.stdin:\n    print('heard', line.strip(), flush=True)\n    print('done', flush=True)"


def program(text: str, end_s: float = PATIENCE_S) -> ProcessConversation:
    return ProcessConversation([sys.executable, "-c", text], end_s=end_s)


def test_each_question_has_the_lines_up_to_its_end() -> None:
    lines: list[str] = []

    def take(line: str) -> bool:
        lines.append(line)
        return line == "done\n"

    with program(ECHO) as conversation:
        conversation.ask("one", take)
        conversation.ask("two", take)
    assert lines == ["heard one\n", "done\n", "heard two\n", "done\n"]


def test_the_program_ends_when_its_input_does() -> None:
    with program(ECHO) as conversation:
        pid = conversation._child.pid
        assert process.identity(pid)
    assert conversation._child.returncode == 0


def test_a_program_that_ends_in_the_middle_is_an_error_with_its_words() -> None:
    text = "import sys\nsys.stdin.readline()\nprint('half', end='')\nsys.exit('no luck')"
    with pytest.raises(ProcessError, match="ended with status 1: no luck") as caught, program(text) as conversation:
        conversation.ask("question", lambda _: True)
    assert caught.value.returncode == 1


def test_a_program_that_has_ended_before_the_question_is_an_error_too() -> None:
    with program("import sys; sys.exit(3)") as conversation:
        conversation._child.wait()
        with pytest.raises(ProcessError, match="ended with status 3: it printed nothing"):
            conversation.ask("question", lambda _: True)


def test_a_program_that_does_not_end_is_killed() -> None:
    text = "import signal, sys\nprint('here', flush=True)\nsignal.pause()"
    with program(text, end_s=0.01) as conversation:
        conversation.ask("question", lambda _: True)
    assert conversation._child.returncode == -9


def test_what_a_program_still_writes_does_not_keep_it_from_its_end() -> None:
    text = "import sys\nprint('here', flush=True)\nsys.stdin.read()\nprint('x' * 1_000_000)"
    with program(text) as conversation:
        conversation.ask("question", lambda _: True)
    assert conversation._child.returncode == 0


def test_a_missing_program_is_an_environment_fault() -> None:
    with pytest.raises(EnvironmentFault, match="no-such-program"):
        ProcessConversation(["no-such-program"], end_s=1).__enter__()
