"""The configuration record is not complete any more once a host gets another disk. The controller is a double."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.process import Completed
from tests.doubles.controller import Asked, ControllerDouble, said


class File:
    """The record on the controller: a question with a text writes it, each reads it."""

    def __init__(self, content: str) -> None:
        self.content, self.written = content, 0

    def __call__(self, asked: Asked) -> Completed:
        assert asked.timeout > 0
        if asked.text:
            self.content, self.written = asked.text, self.written + 1
        return said(self.content)


def reopened(answer: Callable[[Asked], Completed]) -> None:
    ConfigurationRecord(ControllerDouble(answer)).reopen()  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "{ half", "[]", '{"complete": false, "run": "a"}'])
def test_a_record_that_is_not_complete_stays_as_it_is(content: str) -> None:
    file = File(content)
    reopened(file)
    assert (file.content, file.written) == (content, 0)


def test_a_complete_record_is_so_no_more_and_keeps_the_rest() -> None:
    file = File('{"complete": true, "run": "a"}')
    reopened(file)
    assert json.loads(file.content) == {"complete": False, "run": "a"}


def test_a_controller_that_can_not_read_its_record_has_none() -> None:
    reopened(lambda _asked: said("", 1, "sudo: no"))
