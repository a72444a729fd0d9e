"""The configuration record is not complete any more once a host gets another disk. The controller is a double."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.process import Completed


class ControllerDouble:
    """Stands for `ControllerConnection`: holds the file, and counts how often it was written."""

    def __init__(self, content: str) -> None:
        self.content, self.written = content, 0

    def ask(self, _command: str, *, text: str = "", timeout: float) -> Completed:
        assert timeout > 0
        if text:
            self.content, self.written = text, self.written + 1
        return Completed((), 0, self.content, "")


@pytest.mark.parametrize("content", ["", "{ half", "[]", '{"complete": false, "run": "a"}'])
def test_a_record_that_is_not_complete_stays_as_it_is(content: str) -> None:
    controller: Any = ControllerDouble(content)
    ConfigurationRecord(controller).reopen()
    assert (controller.content, controller.written) == (content, 0)


def test_a_complete_record_is_so_no_more_and_keeps_the_rest() -> None:
    controller: Any = ControllerDouble('{"complete": true, "run": "a"}')
    ConfigurationRecord(controller).reopen()
    assert json.loads(controller.content) == {"complete": False, "run": "a"}


def test_a_controller_that_can_not_read_its_record_has_none() -> None:
    failing: Any = SimpleNamespace(ask=lambda *_, **__: Completed((), 1, "", "sudo: no"))
    ConfigurationRecord(failing).reopen()
